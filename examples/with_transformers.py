"""The simplex head as the last layer of a transformers model: places for classes that come later. Needs transformers.

The model is a small BERT with random weights, so that nothing is downloaded; `from_pretrained` works the same way.

    python examples/with_transformers.py
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

from holdfast import heads

WORDS = 18  # in the vocabulary: four of its own for each of three classes, and six that all use


def sentences(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw sentences of six words: two of the class, four that all use; return word numbers and classes."""
    classes = torch.randint(3, (count,), generator=generator)
    own = 4 * classes[:, None] + torch.randint(4, (count, 2), generator=generator)
    rest = torch.randint(12, WORDS, (count, 4), generator=generator)
    return torch.cat([own, rest], 1) + 1, classes  # 0 is padding


def main() -> float:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    config = BertConfig(vocab_size=WORDS + 1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=64, num_labels=100)
    model = BertForSequenceClassification(config)
    model.classifier = heads.build("simplex", in_features=32, slots=100)  # in place of nn.Linear(32, 100)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(60):
        words, classes = sentences(64, generator)
        optimizer.zero_grad()
        model(input_ids=words, labels=classes).loss.backward()  # transformers' own loss, on the head's logits
        optimizer.step()
    words, classes = sentences(300, generator)
    with torch.no_grad():
        accuracy = (model.eval()(input_ids=words).logits.argmax(1) == classes).float().mean().item()
    print(f"{100 * accuracy:.1f} % right on sentences it has not seen")
    return accuracy


if __name__ == "__main__":
    main()

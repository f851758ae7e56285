"""The simplex head inside Avalanche: backbone and head in a Sequential are a model that gives logits, as any other.

Needs avalanche-lib. Digits, two classes at a time; Avalanche's own replay, loss and loop.

    python examples/with_avalanche.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from holdfast import heads


class Digits(torch.utils.data.Dataset):
    """Rows of scikit-learn's digits, with the `targets` that Avalanche asks for."""

    def __init__(self, rows: slice) -> None:
        digits = load_digits()
        self.vectors = torch.tensor(digits.data[rows], dtype=torch.float32) / 16
        self.targets = digits.target[rows].tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.vectors[row], self.targets[row]


def main() -> float:
    from avalanche.benchmarks import class_incremental_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import Replay

    torch.manual_seed(0)
    train = as_classification_dataset(Digits(slice(1400)))
    stream = class_incremental_benchmark({"train": train}, class_order=range(10), num_experiences=5).train_stream
    backbone = nn.Sequential(nn.Linear(64, 100), nn.ReLU())
    head = heads.build("simplex", in_features=100, slots=10)  # all ten are there from the first step on
    model = nn.Sequential(backbone, head)
    replay = Replay(
        model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.003), criterion=nn.CrossEntropyLoss(),
        mem_size=200, train_mb_size=64, train_epochs=10, evaluator=EvaluationPlugin(),
    )
    for experience in stream:
        replay.train(experience)
    test = Digits(slice(1400, None))
    right = model.eval()(test.vectors).argmax(1) == torch.tensor(test.targets)
    accuracy = right.float().mean().item()
    print(f"{100 * accuracy:.1f} % right on digits it has not seen")
    return accuracy


if __name__ == "__main__":
    main()

"""The simplex head with Hugging Face Accelerate, which moves model, data and gradients to any device. Needs accelerate.

    python examples/with_accelerate.py
    accelerate launch examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from holdfast import heads


def main() -> float:
    set_seed(0)
    accelerator = Accelerator()
    digits = load_digits()
    X, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    backbone = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU())
    model = torch.nn.Sequential(backbone, heads.build("simplex", in_features=100, slots=50))  # logits of 50 places
    model, optimizer, batches = accelerator.prepare(
        model, torch.optim.Adam(model.parameters(), lr=0.003),
        DataLoader(TensorDataset(X[:1400], y[:1400]), batch_size=64, shuffle=True),
    )
    for _ in range(20):
        for vectors, classes in batches:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(model(vectors), classes))
            optimizer.step()
    with torch.no_grad():
        right = model(X[1400:].to(accelerator.device)).argmax(1).cpu() == y[1400:]
    accuracy = right.float().mean().item()
    accelerator.print(f"{100 * accuracy:.1f} % right on digits it has not seen")
    return accuracy


if __name__ == "__main__":
    main()

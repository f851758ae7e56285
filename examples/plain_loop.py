"""The simplex head in a plain PyTorch loop: heads are ordinary modules. The loop itself is ten lines.

    python examples/plain_loop.py
"""

import torch
from sklearn.datasets import load_digits

from holdfast import heads


def learn(X: torch.Tensor, y: torch.Tensor, epochs: int = 30) -> torch.nn.Module:
    backbone = torch.nn.Sequential(torch.nn.Linear(X.shape[1], 100), torch.nn.ReLU())
    head = heads.build("simplex", in_features=100, slots=50)  # room for 50 classes; ten come now
    model = torch.nn.Sequential(backbone, head)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            head.loss(backbone(X[rows]), y[rows]).backward()
            optimizer.step()
    return model


def main() -> float:
    torch.manual_seed(0)
    digits = load_digits()
    X, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    backbone, head = learn(X[:1400], y[:1400])
    accuracy = (head.predict(backbone(X[1400:])) == y[1400:]).float().mean().item()
    print(f"{100 * accuracy:.1f} % right on digits it has not seen")
    return accuracy


if __name__ == "__main__":
    main()

"""The simplex head in Lightning: the module's loss is the head's. Needs lightning.

    python examples/with_lightning.py
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from holdfast import heads


class Fixed(lightning.LightningModule):
    """A small network with room for 50 classes; ten come now."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU())
        self.head = heads.build("simplex", in_features=100, slots=50)

    def training_step(self, batch, number):
        vectors, classes = batch
        return self.head.loss(self.backbone(vectors), classes)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main() -> float:
    lightning.seed_everything(0)
    digits = load_digits()
    X, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = Fixed()
    trainer = lightning.Trainer(max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(TensorDataset(X[:1400], y[:1400]), batch_size=64, shuffle=True))
    accuracy = (model.head.predict(model.backbone(X[1400:])) == y[1400:]).float().mean().item()
    print(f"{100 * accuracy:.1f} % right on digits it has not seen")
    return accuracy


if __name__ == "__main__":
    main()

"""The paper's optimizers: Adam with its settings, or plain SGD."""

from __future__ import annotations

import torch


def make_optimizer(name: str, lr: float, learner: torch.nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a learner's trainable parameters; it keeps its state from task to task."""
    parameters = [p for p in learner.parameters() if p.requires_grad]
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, fused=True)
    return torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.999), fused=True)

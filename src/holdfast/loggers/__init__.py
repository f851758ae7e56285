"""Loggers send a run's numbers to TensorBoard, Weights & Biases or MLflow: `holdfast run ... --log tensorboard`.

A logger overrides the hooks that it needs. No hook is called between two steps: the losses of an epoch arrive together
at its end, so that logging costs nothing in the step and a GPU never waits for it. To add one, register a class:

    from holdfast.loggers import LOGGERS, Logger

    @LOGGERS.register("printed", "print the accuracy after each task")
    class Printed(Logger):
        def task(self, record, step):
            print(step, record["accuracies"])
"""

from __future__ import annotations

from ..registry import Registry
from .base import Logger, Run
from .watching import logging

__all__ = ["LOGGERS", "Logger", "Run", "logging"]
_HERE = "holdfast.loggers"

LOGGERS: Registry[type[Logger]] = Registry(
    "logger", _HERE,
    {
        "tensorboard": (f"{_HERE}.to_tensorboard:TensorBoard", "event files in the run's folder (extra tensorboard)"),
        "wandb": (f"{_HERE}.to_wandb:WandB", "Weights & Biases, offline unless WANDB_MODE is set (extra wandb)"),
        "mlflow": (f"{_HERE}.to_mlflow:MLflow", "MLflow, local unless MLFLOW_TRACKING_URI is set (extra mlflow)"),
    },
)

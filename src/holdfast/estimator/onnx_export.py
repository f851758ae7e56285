"""Export a model to ONNX: raw inputs in, vectors and probabilities out. Needs the extra `onnx`."""

from __future__ import annotations

import io
import json
import logging
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import files
from ..errors import BadConfig
from ..learning.learner import FARTHEST
from ..solving.random_features import projection
from .model import Model
from .solved import SolvedModel


class Exported(nn.Module):
    """Maps uint8 images (n, channels, height, width) or float32 vectors (n, features) to vectors and probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.learner = model.learner
        self.register_buffer("slots", torch.tensor(model.labels.slots_of_classes()))
        self.slots: Tensor

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        x = (inputs.float() - self.learner.shift) * self.learner.scale
        if inputs.dim() == 2:
            x = x.clamp(-FARTHEST, FARTHEST)
        embedded = self.learner.head.embed(self.learner.backbone(x))  # (n, dim)
        return embedded, self.learner.head.outputs(embedded, self.slots).softmax(1)  # (n, classes), sorted labels


class ExportedSolved(nn.Module):
    """The same for a solved model: frozen features, random features, one weight vector per class."""

    weights: Tensor
    intercepts: Tensor
    projection: Tensor

    def __init__(self, model: SolvedModel) -> None:
        super().__init__()
        solver, slots = model.solver, torch.tensor(model.labels.slots_of_classes())
        weights, intercepts = solver.coefficients()
        order = torch.searchsorted(solver.slots, slots)
        temperature, width = solver.calibration().temperature, weights.shape[1] - solver.map.dim
        self.frozen, self.width = model.frozen, width
        self.register_buffer("weights", (weights[order].T / temperature).float())
        self.register_buffer("intercepts", (intercepts[order] / temperature).float())
        drawn = projection(solver.map.dim, solver.map.width, solver.map.seed)[:, :width]
        self.register_buffer("projection", drawn.float())

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.frozen(inputs)  # (n, dim)
        x = torch.cat([embedded, (embedded @ self.projection).relu()], 1) if self.width else embedded
        return embedded, (x @ self.weights + self.intercepts).softmax(1)  # (n, classes), sorted labels


def export(model: Model | SolvedModel, path: Path) -> Path:
    """Write `path` atomically, with outputs `embedding` and `probabilities` and the metadata `classes` (JSON)."""
    try:
        import onnx
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError as error:
        raise BadConfig(f"Export needs {error.name}, which is missing: pip install 'holdfast[onnx]'") from error
    classes = model.labels.classes().tolist()
    if not classes:
        raise BadConfig("Every class has been forgotten: there is nothing to export.")
    network: nn.Module = ExportedSolved(model) if isinstance(model, SolvedModel) else Exported(model.copy())
    network.cpu().eval()
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    example = torch.zeros(2, *model.shape, dtype=torch.uint8 if len(model.shape) == 3 else torch.float32)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own internals
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # and about optional packages
        written = Path(folder) / "model.onnx"
        torch.onnx.export(
            network, (example,), str(written), input_names=["inputs"], output_names=["embedding", "probabilities"],
            dynamic_shapes={"inputs": {0: torch.export.Dim("n")}}, dynamo=True, external_data=False, verbose=False,
        )
        graph = onnx.load(str(written))
    onnx.helper.set_model_props(graph, {"classes": json.dumps(classes), "producer": "holdfast"})
    content = io.BytesIO()
    onnx.save(graph, content)
    files.write_whole(path, content.getvalue())
    return path

"""A model as ONNX: inputs as they are stored in, vectors and probabilities out. Extra `onnx`."""

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
from ..learner import FARTHEST
from .model import Model


class Exported(nn.Module):
    """uint8 images (n, channels, height, width) or float32 vectors (n, numbers) to vectors and probabilities."""

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


def export(model: Model, path: Path) -> Path:
    """Write `path`, whole or not at all; outputs `embedding` and `probabilities`, metadata `classes` (JSON)."""
    try:
        import onnx
        import onnxscript  # noqa: F401  what torch writes ONNX with
    except ImportError as error:
        raise BadConfig(f"Export needs {error.name}, which is missing: pip install 'steadfast[onnx]'") from error
    classes = model.labels.classes().tolist()
    if not classes:
        raise BadConfig("Every class has been forgotten: there is nothing to export.")
    network = Exported(model.copy()).cpu().eval()
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    kept_as = model.memory.images.dtype
    example = torch.zeros(2, *model.learner.shape, dtype=kept_as)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own internals
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # likewise, about packages it could use
        written = Path(folder) / "model.onnx"
        torch.onnx.export(
            network, (example,), str(written), input_names=["inputs"], output_names=["embedding", "probabilities"],
            dynamic_shapes={"inputs": {0: torch.export.Dim("n")}}, dynamo=True, external_data=False, verbose=False,
        )
        graph = onnx.load(str(written))
    onnx.helper.set_model_props(graph, {"classes": json.dumps(classes), "producer": "steadfast"})
    content = io.BytesIO()
    onnx.save(graph, content)
    files.write_whole(path, content.getvalue())
    return path

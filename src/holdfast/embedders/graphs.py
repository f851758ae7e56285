"""Any ONNX file whose first output is one vector per sample, run by onnxruntime. Extra `onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ..data import inputs
from ..errors import BadConfig, BadInput
from .base import Embedder, digest_of, file_digest


class Graph(Embedder):
    """`FILE`, or `FILE?size=224&mean=0.485,0.456,0.406&std=0.229,0.224,0.225` for images.

    Images become float32 (n, 3, size, size): pixels of 0..1, minus mean, over std. Without a size, samples are arrays
    and are passed on as they are."""

    kind = "onnx"

    def __init__(self, text: str) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise BadConfig("onnxruntime is not installed: pip install 'holdfast[onnx]'") from error
        file, _, query = text.partition("?")
        path = Path(file).expanduser()
        if not path.is_file():
            raise BadConfig(f"There is no ONNX file {path}; write the embedder like onnx:model.onnx?size=224.")
        self.name = path.name
        options = dict(parse_qsl(query))
        if unknown := sorted(options.keys() - {"size", "mean", "std"}):
            raise BadConfig(f"The embedder onnx has no option {unknown[0]!r}; it has size, mean and std.")
        try:
            self.size = int(options["size"]) if "size" in options else None
            self.mean, self.std = (
                np.array([float(word) for word in options.get(key, usual).split(",")], np.float32).reshape(-1, 1, 1)
                for key, usual in (("mean", "0"), ("std", "1"))
            )
        except ValueError as error:
            raise BadConfig(f"{query!r} cannot be read as size=224&mean=0.5,0.5,0.5&std=0.5,0.5,0.5.") from error
        self.takes = "samples" if self.size is None else "images"
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises its own kinds
            raise BadConfig(f"{path} cannot be opened as an ONNX model: {str(error)[:200]}") from error
        self.digest = digest_of({"file": file_digest(path), "options": sorted(options.items())})

    def embed(self, samples: Sequence[Any]) -> Any:
        if self.size is None:
            data: Any = np.asarray(samples, dtype=np.float32)
        else:
            shape = (3, self.size, self.size)
            pixels = np.stack([inputs.fit(inputs.as_picture(item, row), shape) for row, item in enumerate(samples)])
            data = (pixels.astype(np.float32) / 255 - self.mean) / self.std
        try:
            found = self.session.run(None, {self.session.get_inputs()[0].name: data})[0]
        except Exception as error:
            raise BadInput(f"The ONNX model {self.name} refuses samples of shape {data.shape[1:]}: {error}") from error
        return np.asarray(found).reshape(len(data), -1)

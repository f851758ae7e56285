"""Photographs by a network of timm, with the preprocessing that its weights were trained with. Extra `timm`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .. import hardware
from ..data import inputs
from ..errors import BadConfig
from .base import Embedder, digest_of
from .downloads import announce


class Photographs(Embedder):
    """`NAME` with its published weights, or `NAME@FILE.safetensors` with weights of a local file."""

    kind, takes = "timm", "images"
    batch = 32

    def __init__(self, name: str, *, offline: bool = False, device: str = "auto") -> None:
        try:
            import timm
        except ImportError as error:
            raise BadConfig("timm is not installed: pip install 'holdfast[timm]'") from error
        self.name, _, weights = name.partition("@")
        if offline and not weights:
            raise BadConfig(
                f"--offline forbids the download of timm:{self.name}; name a local file: "
                f"timm:{self.name}@FILE.safetensors."
            )
        if not weights:
            announce(f"timm:{self.name}", _repository(self.name))
        try:
            self.network = timm.create_model(self.name, pretrained=not weights, num_classes=0)
        except Exception as error:  # timm raises many kinds
            raise BadConfig(f"timm makes no {self.name!r}: {error}. `timm.list_models()` gives its names.") from error
        if weights:
            load_weights(self.network, Path(weights).expanduser(), self.name)
        settings = timm.data.resolve_data_config({}, model=self.network)
        self.size = tuple(settings["input_size"])[1:]
        self.transform = timm.data.create_transform(**settings, is_training=False)  # resize, crop, normalise
        self.mean, self.std = (torch.tensor(settings[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
        self.device = hardware.choose_device(device)
        self.network = self.network.to(self.device).eval()
        self.digest = digest_of({**self.network.state_dict(), "preprocessing": sorted(settings.items())})

    def embed(self, samples: Sequence[Any]) -> Any:
        pictures = [inputs.as_picture(item, row).convert("RGB") for row, item in enumerate(samples)]
        x = torch.stack([self.transform(picture) for picture in pictures])  # (n, 3, h, w)
        with torch.no_grad():
            return self.network(x.to(self.device)).flatten(1)


def _repository(name: str) -> str | None:
    """Return where timm has the published weights of a network; None if it does not say."""
    import timm

    try:
        return timm.get_pretrained_cfg(name).hf_hub_id
    except Exception:  # of an unknown name, which is refused where the network is made
        return None


def load_weights(network: torch.nn.Module, path: Path, name: str) -> None:
    """Load a safetensors file into a network of timm; weights of its classifier are left out."""
    from safetensors.torch import load_file

    if path.suffix != ".safetensors" or not path.is_file():
        raise BadConfig(
            f"{path} is no safetensors file; convert a pickle of tensors once with "
            f"safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'weights.safetensors')."
        )
    missing, _ = network.load_state_dict(load_file(path), strict=False)
    if missing:
        raise BadConfig(f"{path} lacks {len(missing)} tensors of {name}, such as {missing[0]}.")

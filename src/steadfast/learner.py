"""Backbone and head put together: bytes (or vectors) to features, embedding, loss and prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .distributed import Ranks, synchronise
from .errors import BadConfig
from .heads import Head
from .performance import Compiled

FARTHEST = 10.0  # standard deviations at which a vector's values are cut off
PRECISIONS = ("float32", "bf16")  # of the backbone's passes


class Learner(nn.Module):
    """The model f = head o backbone of the paper, with the normalisation of its inputs."""

    def __init__(
        self, backbone: nn.Module, head: Head, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.shape = backbone, head, tuple(shape)
        # In bytes, so that normalising is one subtraction and one product: (x - 255 mean) / (255 std).
        unit, view = (255, (-1, 1, 1)) if len(self.shape) == 3 else (1, (-1,))
        self.register_buffer("shift", unit * torch.tensor(mean).view(view), persistent=False)
        self.register_buffer("scale", 1 / (unit * torch.tensor(std).view(view)), persistent=False)
        self.shift: Tensor
        self.scale: Tensor
        self.memory_format = torch.contiguous_format
        self.precision = "float32"
        self.compiled: Compiled | None = None  # how training batches pass through the backbone, if not as they are
        self.ranks: Ranks | None = None  # whom the samples are shared out to, if it is more than this process

    def use(self, device: torch.device, memory_format: torch.memory_format, precision: str = "float32") -> Learner:
        """Move to a device and a memory format (channels last is the faster one for convolutions).

        With the precision bf16 the backbone's passes are in bfloat16 by autocast; its weights stay as they are."""
        if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise BadConfig(f"precision is 'bf16', which {device} does not compute in; leave --precision out.")
        self.memory_format, self.precision = memory_format, precision
        return self.to(device=device, memory_format=memory_format)  # type: ignore[call-overload]

    def spread(self, ranks: Ranks) -> Learner:
        """From now on every rank passes its share of each batch through the backbone; alone it changes nothing."""
        if ranks.world > 1:
            self.ranks = ranks
            synchronise(self.backbone)
        return self

    def compile_for(self, batch: int) -> Learner:
        """From now on training batches of this size pass through a compiled backbone; all others do as before."""
        if self.ranks is not None:
            raise BadConfig("--compile is for a run of one process; leave it out, or start the run without torchrun.")
        self.compiled = Compiled(batch, self.shift.device)
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) uint8, or (batch, n) float32, to float32, normalised."""
        if images.is_floating_point():  # vectors; not in place, they are the caller's
            return ((images - self.shift) * self.scale).clamp(-FARTHEST, FARTHEST)
        x = images.to(self.shift.dtype, memory_format=self.memory_format)
        return x.sub_(self.shift).mul_(self.scale)

    def features(self, images: Tensor) -> Tensor:
        """uint8 images to (batch, features)."""
        x = self.normalise(images if self.ranks is None else self.ranks.mine(images))
        if self.precision == "bf16":
            with torch.autocast(x.device.type, torch.bfloat16):
                features = self._pass(x)
            features = features.float()  # head and losses are small, and stay exact
        else:
            features = self._pass(x)
        return features if self.ranks is None else self.ranks.whole(features, len(images))

    def _pass(self, x: Tensor) -> Tensor:
        """Normalised inputs through the backbone."""
        if self.compiled is not None and self.training and len(x) == self.compiled.batch:
            return self.compiled(self.backbone, x)
        return self.backbone(x)

    def loss(self, images: Tensor, slots: Tensor, *, reduction: str = "mean") -> Tensor:
        """Cross-entropy of uint8 images against their slots."""
        return self.head.loss(self.features(images), slots, reduction=reduction)

    def logits(self, images: Tensor) -> Tensor:
        """uint8 images to the head's logits."""
        return self.head.logits(self.features(images))

    def embed(self, images: Tensor) -> Tensor:
        """uint8 images to the space of the class directions, (batch, head.dim)."""
        return self.head.embed(self.features(images))

    @torch.no_grad()
    def embed_frozen(self, images: Tensor) -> Tensor:
        """As `embed`, in evaluation mode and without gradients; training mode is put back."""
        training = self.training
        self.eval()
        embedded = self.embed(images)
        self.train(training)
        return embedded

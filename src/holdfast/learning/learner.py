"""Backbone and head combined: images or vectors to features, embedding, loss and prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..backbones.compiled import Compiled
from ..errors import BadConfig
from ..heads.base import Head
from .distributed import Ranks, synchronise

FARTHEST = 10.0  # standard deviations at which a vector's values are clipped
PRECISIONS = ("float32", "bf16")  # of the backbone's passes


class Normalised(nn.Module):
    """A module with the normalisation of its inputs: uint8 images or float32 vectors."""

    def __init__(self, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        # In units of bytes, so that normalising is one subtraction and one product: (x - 255 mean) / (255 std).
        unit, view = (255, (-1, 1, 1)) if len(self.shape) == 3 else (1, (-1,))
        self.register_buffer("shift", unit * torch.tensor(mean).view(view), persistent=False)
        self.register_buffer("scale", 1 / (unit * torch.tensor(std).view(view)), persistent=False)
        self.shift: Tensor
        self.scale: Tensor
        self.memory_format = torch.contiguous_format

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise uint8 images (batch, channels, height, width) or float32 vectors (batch, n) to float32."""
        if images.is_floating_point():  # vectors; not in place, because the caller owns them
            return ((images - self.shift) * self.scale).clamp(-FARTHEST, FARTHEST)
        x = images.to(self.shift.dtype, memory_format=self.memory_format)
        return x.sub_(self.shift).mul_(self.scale)


class Learner(Normalised):
    """The paper's model f = head o backbone, with the normalisation of its inputs."""

    def __init__(
        self, backbone: nn.Module, head: Head, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__(shape, mean, std)
        self.backbone, self.head = backbone, head
        self.precision = "float32"
        self.compiled: Compiled | None = None  # the compiled backbone for training batches
        self.ranks: Ranks | None = None  # set if each batch is split over several processes

    def use(self, device: torch.device, memory_format: torch.memory_format, precision: str = "float32") -> Learner:
        """Move to a device and a memory format (channels last is faster for convolutions).

        With the precision bf16 the backbone computes in bfloat16 by autocast; its weights stay float32."""
        if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise BadConfig(f"precision is 'bf16', which {device} does not support; leave --precision out.")
        self.memory_format, self.precision = memory_format, precision
        return self.to(device=device, memory_format=memory_format)  # type: ignore[call-overload]

    def spread(self, ranks: Ranks) -> Learner:
        """Split every batch over the ranks from now on; with one rank do nothing."""
        if ranks.world > 1:
            self.ranks = ranks
            synchronise(self.backbone)
        return self

    def compile_for(self, batch: int) -> Learner:
        """Use a compiled backbone for training batches of this size; other batches use the plain one."""
        if self.ranks is not None:
            raise BadConfig("--compile works with one process only; leave it out, or start the run without torchrun.")
        self.compiled = Compiled(batch, self.shift.device)
        return self

    def features(self, images: Tensor) -> Tensor:
        """Return the backbone's features (batch, features)."""
        x = self.normalise(images if self.ranks is None else self.ranks.mine(images))
        if self.precision == "bf16":
            with torch.autocast(x.device.type, torch.bfloat16):
                features = self._pass(x)
            features = features.float()  # head and losses are cheap and stay in float32
        else:
            features = self._pass(x)
        return features if self.ranks is None else self.ranks.whole(features, len(images))

    def _pass(self, x: Tensor) -> Tensor:
        """Pass normalised inputs through the backbone."""
        if self.compiled is not None and self.training and len(x) == self.compiled.batch:
            return self.compiled(self.backbone, x)
        return self.backbone(x)

    def loss(self, images: Tensor, slots: Tensor, *, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy of uint8 images against their slots."""
        return self.head.loss(self.features(images), slots, reduction=reduction)

    def logits(self, images: Tensor) -> Tensor:
        """Return the head's logits of uint8 images."""
        return self.head.logits(self.features(images))

    def embed(self, images: Tensor) -> Tensor:
        """Return the embedding (batch, head.dim) of uint8 images, in the space of the class directions."""
        return self.head.embed(self.features(images))

    @torch.no_grad()
    def embed_frozen(self, images: Tensor) -> Tensor:
        """Embed in evaluation mode and without gradients, then restore the mode."""
        training = self.training
        self.eval()
        embedded = self.embed(images)
        self.train(training)
        return embedded

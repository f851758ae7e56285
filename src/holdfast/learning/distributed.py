"""One run over many devices, started by torchrun, which sets the environment variables read here.

All ranks make the same decisions: order, memory, draws and augmentation come from equal generators. Each rank passes
its slice of every batch through the backbone. The features are then gathered, so that loss, head and method see the
whole batch on every rank. A method therefore only has to call `backward`.

We do not use `DistributedDataParallel`. It needs a loss per rank's own samples, which a balanced softmax,
distillation and GEM's constraints do not have, and one backward pass per step, but GEM does several. One all-reduce
of all gradients is enough.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones.norms import BatchNorm1d, BatchNorm2d
from ..errors import BadConfig, HoldfastError

Made = TypeVar("Made")
TIMEOUT = datetime.timedelta(minutes=10)  # for ranks that wait for one another
PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm1d, BatchNorm2d)  # these can be replaced
STEPS = 10  # steps between two agreements on whether to stop


class Elsewhere(HoldfastError):
    """Another rank has failed; that rank reports the reason."""


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of ranks."""

    rank: int
    world: int

    def mine(self, batch: Tensor) -> Tensor:
        """Return this rank's rows of a batch, split as evenly as possible; empty if there are too few rows."""
        return batch[slice(*self._bounds(len(batch)))]

    def whole(self, mine: Tensor, size: int) -> Tensor:
        """Gather the batch of `size` rows from all ranks; in the backward pass each rank gets its rows' gradient."""
        return _Whole.apply(mine, size, *self._bounds(size), self.world)

    def every(self, mine: Tensor) -> Tensor:
        """Gather rows like `whole`, without gradients and without knowing the total number of rows."""
        size = torch.tensor(len(mine), device=mine.device)
        dist.all_reduce(size)
        return self.whole(mine.detach(), int(size))

    def average(self, gradients: Iterable[Tensor | None]) -> None:
        """Average gradients over the ranks, in place, with one message.

        Backbone gradients are those of a rank's slice times the number of ranks (`whole`), so their mean is the sum
        over slices. Head gradients are those of the whole batch on every rank, so the mean does not change them."""
        found = [g for g in gradients if g is not None]
        flat = torch.cat([g.reshape(-1) for g in found])
        dist.all_reduce(flat)
        flat /= self.world
        for g, part in zip(found, flat.split([g.numel() for g in found])):
            g.copy_(part.view(g.shape))

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Sum tensors over the ranks, in place."""
        for tensor in tensors:
            dist.all_reduce(tensor)

    def check_equal(self, module: nn.Module) -> None:
        """Raise BadConfig if the ranks' weights differ: on unequal hardware they would drift apart silently."""
        sums = torch.stack([p.detach().double().sum() for p in module.parameters()])
        extremes = torch.stack([sums, -sums])
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        if not torch.equal(extremes[0], -extremes[1]):
            raise BadConfig("The ranks' weights differ: their hardware computes differently. Use equal machines.")

    def _bounds(self, size: int) -> tuple[int, int]:
        return size * self.rank // self.world, size * (self.rank + 1) // self.world


class _Whole(torch.autograd.Function):
    """Gathers rows by summing zero-padded batches over the ranks, which also works for uneven and empty slices."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, size: int, low: int, high: int, world: int) -> Tensor:
        ctx.place = (low, high, world)
        whole = mine.new_zeros(size, *mine.shape[1:])
        whole[low:high] = mine
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        low, high, world = ctx.place
        return gradients[0][low:high] * world, None, None, None, None


class _Sum(torch.autograd.Function):
    """Sums over the ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm with the statistics of the whole batch over all ranks; PyTorch's SyncBatchNorm needs CUDA.

    Deviations are taken from the running mean, which all ranks share, so that one message suffices for mean and
    variance. A whole batch of one sample is normalised by the running statistics, as in `norms`.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        assert self.running_mean is not None and self.running_var is not None
        if input.dtype == torch.bfloat16:  # too few bits for the counts and sums
            input = input.float()
        places = [0, *range(2, input.dim())]
        shape = (1, -1, *[1] * (input.dim() - 2))
        before = self.running_mean.clone()
        off = input - before.view(shape)
        counts = [input.new_full((1,), n) for n in (input.numel() // input.shape[1], input.shape[0])]
        sums = _Sum.apply(torch.cat([off.sum(places), off.square().sum(places), *counts]))
        first, second, count, samples = sums.split([self.num_features, self.num_features, 1, 1])
        drift = first / count
        mean, variance = before + drift, (second / count - drift.square()).clamp(min=0)
        alone = samples == 1
        self._remember(mean.detach(), (variance * count / (count - 1)).detach(), alone)
        mean = torch.where(alone, before, mean)
        variance = torch.where(alone, self.running_var.clone(), variance)
        scale = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul((self.bias - mean * scale).view(shape), input, scale.view(shape))

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, alone: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += (~alone).sum()
        share = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked.clamp(min=1)
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.copy_(torch.where(alone, running, running + share * (new - running)))


def synchronise(network: nn.Module) -> None:
    """Replace every batch norm in `network` by a synchronised one that shares its parameters and buffers."""
    for name, child in network.named_children():
        if not isinstance(child, nn.modules.batchnorm._BatchNorm):
            synchronise(child)
        elif type(child) in PLAIN and child.affine and child.track_running_stats:
            synced = SyncedBatchNorm(child.num_features, child.eps, child.momentum)
            synced._parameters, synced._buffers, synced.training = child._parameters, child._buffers, child.training
            setattr(network, name, synced)
        else:
            raise BadConfig(f"{type(child).__name__} cannot be synchronised between ranks; choose another backbone.")


# The processes.


@contextmanager
def session() -> Iterator[None]:
    """Join the ranks that torchrun started, for the duration of the block; without torchrun do nothing."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise BadConfig(f"WORLD_SIZE is {world} but {missing[0]} is not set: start with torchrun, or unset WORLD_SIZE.")
    # Its functions have the process group as a default argument. The optimiser imports it at the first step: then the
    # group would outlive `destroy_process_group`, and its threads could abort the process at its end.
    import torch.distributed.nn.functional

    if torch.cuda.is_available():
        torch.cuda.set_device(_local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield
    except RuntimeError as error:
        if ranks().rank and "peer" in str(error).lower():  # another rank closed its connection
            raise Elsewhere("Another rank has ended.") from error
        raise
    finally:
        dist.destroy_process_group()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def ranks() -> Ranks:
    """Return this process's rank and the number of ranks, (0, 1) outside of `session`."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks(0, 1)


def device_of(device: torch.device) -> torch.device:
    """Return the device of this rank: each rank of a machine has its own GPU."""
    return torch.device("cuda", _local_rank()) if ranks().world > 1 and device.type == "cuda" else device


def tell(answer: Callable[[], Any]) -> Any:
    """Return rank 0's answer on all ranks, sent as JSON; if rank 0 fails, the others raise Elsewhere."""
    here = ranks()
    if here.world == 1:
        return answer()
    box: list[str | None] = [None]
    if here.rank == 0:
        try:
            found = answer()
            box = [json.dumps(found)]
            return found
        finally:
            dist.broadcast_object_list(box, src=0)
    dist.broadcast_object_list(box, src=0)
    if box[0] is None:
        raise Elsewhere("Rank 0 has failed.")
    return json.loads(box[0])


def first(make: Callable[[], Made]) -> Made:
    """Call `make` on rank 0 first, then on the others, so that only rank 0 downloads or repairs files."""
    if ranks().world == 1:
        return make()
    made: list[Made] = []
    tell(lambda: made.append(make()))
    return made[0] if made else make()


def alone(what: str) -> None:
    """Raise BadConfig under torchrun, for commands that start processes of their own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadConfig(f"{what} starts its own processes: give the command without torchrun.")


def together(stop: Callable[[], bool]) -> Callable[[], bool]:
    """Return a version of `stop` that gives all ranks the same answer at the same step: True if any rank's is."""
    if ranks().world == 1:
        return stop
    calls = 0

    def agreed() -> bool:
        nonlocal calls
        calls += 1
        if calls % STEPS:
            return False
        wish = torch.tensor([float(stop())])
        dist.all_reduce(wish, dist.ReduceOp.MAX)
        return bool(wish)

    return agreed

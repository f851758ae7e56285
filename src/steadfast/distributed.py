"""One run over many devices, started by torchrun and found in the environment.

Every rank decides the same: order, memory, draws and augmentation come from the same generator in the same state.
Each passes its slice of every batch through the backbone; the features are put together again, and loss, head and
method see the whole batch on every rank, as if there were one. So a method needs nothing for it but `backward`.

`DistributedDataParallel` would want a loss of each rank's own samples, which a balanced softmax, distillation and
GEM's constraints do not have, and one backward pass a step, which GEM has not. One sum of all gradients does it.
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

from .errors import BadConfig, SteadfastError
from .norms import BatchNorm1d, BatchNorm2d

Made = TypeVar("Made")
TIMEOUT = datetime.timedelta(minutes=10)  # that ranks wait for one another before they give up
PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm1d, BatchNorm2d)  # norms that do nothing else
STEPS = 10  # between two agreements whether to stop


class Elsewhere(SteadfastError):
    """Another rank has failed, and says why."""


@dataclass(frozen=True)
class Ranks:
    """This process among the others."""

    rank: int
    world: int

    def mine(self, batch: Tensor) -> Tensor:
        """This rank's rows of a batch: as even as it goes, empty if there are fewer rows than ranks."""
        return batch[slice(*self._bounds(len(batch)))]

    def whole(self, mine: Tensor, size: int) -> Tensor:
        """The batch of `size` rows put together from every rank's; each rank's gradient goes back to its own."""
        return _Whole.apply(mine, size, *self._bounds(size), self.world)

    def every(self, mine: Tensor) -> Tensor:
        """As `whole`, when a rank does not know how many rows there are; without gradients."""
        size = torch.tensor(len(mine), device=mine.device)
        dist.all_reduce(size)
        return self.whole(mine.detach(), int(size))

    def average(self, gradients: Iterable[Tensor | None]) -> None:
        """The mean over the ranks, in place: one message for all.

        A rank's gradients of the backbone are of its slice, times the number of ranks (`whole`), and their mean is
        the sum over slices. Those of the head are of the whole batch on every rank, and their mean is what they are."""
        found = [g for g in gradients if g is not None]
        flat = torch.cat([g.reshape(-1) for g in found])
        dist.all_reduce(flat)
        flat /= self.world
        for g, part in zip(found, flat.split([g.numel() for g in found])):
            g.copy_(part.view(g.shape))

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """The sum over the ranks, in place."""
        for tensor in tensors:
            dist.all_reduce(tensor)

    def check_equal(self, module: nn.Module) -> None:
        """Ranks that decide alike have equal weights; unlike hardware may not, and would drift apart silently."""
        sums = torch.stack([p.detach().double().sum() for p in module.parameters()])
        extremes = torch.stack([sums, -sums])
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        if not torch.equal(extremes[0], -extremes[1]):
            raise BadConfig("The ranks' weights differ: they compute differently. Use machines of one kind for a run.")

    def _bounds(self, size: int) -> tuple[int, int]:
        return size * self.rank // self.world, size * (self.rank + 1) // self.world


class _Whole(torch.autograd.Function):
    """Rows of zeros but for one's own, summed over the ranks: uneven and empty slices need no care."""

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
    """The sum over the ranks, of the gradients as well."""

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
    """Batch norm by the statistics of the whole batch; PyTorch's own of this kind needs CUDA.

    Deviations are summed from the running mean, which all ranks share, so that one message does for mean and variance.
    A whole batch of one sample is normalised by the running statistics, as in `norms`.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        assert self.running_mean is not None and self.running_var is not None
        if input.dtype == torch.bfloat16:  # whose eight bits cannot even count a batch
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
    """Every batch norm in `network` by the whole batch's statistics; parameters and buffers stay the same objects."""
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
    """Within it the ranks that torchrun has started are joined; started any other way, nothing happens."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise BadConfig(f"WORLD_SIZE is {world} but {missing[0]} is not set: start it by torchrun, or unset it.")
    if torch.cuda.is_available():
        torch.cuda.set_device(_local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        yield
    except RuntimeError as error:
        if ranks().rank and "peer" in str(error).lower():  # its connection was closed
            raise Elsewhere("Another rank has ended.") from error
        raise
    finally:
        dist.destroy_process_group()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def ranks() -> Ranks:
    """Where this process stands; alone if nothing has joined it to others."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks(0, 1)


def device_of(device: torch.device) -> torch.device:
    """A GPU of its own for each rank of a machine."""
    return torch.device("cuda", _local_rank()) if ranks().world > 1 and device.type == "cuda" else device


def tell(answer: Callable[[], Any]) -> Any:
    """What rank 0 answers, as JSON, to all; if it fails there, the others fail quietly."""
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
        raise Elsewhere("Rank 0 could not go on.")
    return json.loads(box[0])


def first(make: Callable[[], Made]) -> Made:
    """Rank 0 before the others: it downloads, mends or puts aside what they then find in order."""
    if ranks().world == 1:
        return make()
    made: list[Made] = []
    tell(lambda: made.append(make()))
    return made[0] if made else make()


def alone(what: str) -> None:
    """Refuse to do under torchrun what starts processes of its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadConfig(f"{what} starts many runs, each on its own: give the command without torchrun.")


def together(stop: Callable[[], bool]) -> Callable[[], bool]:
    """As `stop`, but all ranks get the same answer at the same step: yes as soon as one of them says so."""
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

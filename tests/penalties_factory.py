"""Small networks, tasks and the methods with a penalty, without a run around them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast import heads
from holdfast.learning.learner import Learner
from holdfast.learning.streams import Samples, Stream, Task
from holdfast.learning.training import Trainer, Watcher
from holdfast.methods import METHODS
from holdfast.methods.penalty import Penalty

PENALTIES = ("ewc", "online-ewc", "si", "mas")
HEADS = ("simplex", "orthoplex", "cube", "polygon", "expanding", "preallocated")
SHAPE = (1, 3, 3)


class Flat(nn.Module):
    """Pixels as features: with a head it is a linear softmax model."""

    out_features = 9

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Small(nn.Module):
    """A convolution, batch norm, a linear layer, and a parameter that is used as no layer uses one."""

    out_features = 5

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 2, stride=(1, 2), padding=(0, 1), dilation=(2, 1))
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 6, (1, 2), groups=2, bias=False)
        self.linear = nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.conv(x)))
        return torch.tanh(self.linear(torch.relu_(self.grouped(x)).flatten(1)) * self.scale)


def make_learner(backbone: nn.Module, head: str = "expanding", dtype: torch.dtype = torch.float32) -> Learner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = heads.build(head, backbone.out_features, 6)
    return Learner(backbone, made, SHAPE, [0.5], [0.25]).to(dtype).use(torch.device("cpu"), torch.channels_last)


def make_task(index: int = 0, count: int = 24, slots: tuple[int, ...] = (0, 1)) -> Task:
    g = torch.Generator().manual_seed(index)
    images = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=g)
    labels = torch.tensor(slots)[torch.randint(len(slots), (count,), generator=g)]
    samples = Samples(images, torch.arange(count), labels)
    return Task(index, slots, samples, samples.only(torch.arange(5)))


def make_stream(tasks: int = 3, count: int = 24) -> Stream:
    made = tuple(make_task(i, count, (2 * i, 2 * i + 1)) for i in range(tasks))
    return Stream("tiny", made, tuple(str(i) for i in range(2 * tasks)), (0.5,), (0.25,))


def make_method(name: str, learner: Learner, lr: float = 0.01, sgd: bool = False, **options: object) -> Penalty:
    options = {"strength": 1.0, **options} if name in PENALTIES else options
    batch = int(options.pop("batch", 128))  # type: ignore[call-overload]
    optimizer = (torch.optim.SGD if sgd else torch.optim.Adam)(learner.parameters(), lr=lr)
    declared = METHODS.options(name)(**options)
    return METHODS[name](  # type: ignore[return-value]
        learner, optimizer, declared, torch.Generator().manual_seed(1), batch=batch
    )


def make_trainer(name: str, head: str = "expanding", watcher: Watcher | None = None, **options: object) -> Trainer:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        learner = make_learner(Small(), head)
    method = make_method(name, learner, batch=8, **options)
    return Trainer(learner, method, make_stream(), epochs=2, generator=method.generator, watcher=watcher)


def moved(learner: Learner, by: float = 0.1) -> None:
    with torch.no_grad():
        g = torch.Generator().manual_seed(3)
        for p in learner.parameters():
            p += by * torch.randn(p.shape, generator=g)


def weights(learner: Learner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.parameters()]

"""EWC, Online EWC, SI, MAS: their importances by hand, their penalty by autograd, their state to the bit."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from steadfast import backbones, heads
from steadfast.config import Config
from steadfast.errors import BadConfig
from steadfast.learner import Learner
from steadfast.methods import METHODS
from steadfast.methods import importance as importances
from steadfast.methods.importance import mean_gradients
from steadfast.methods.penalty import Penalty
from steadfast.streams import Samples, Stream, Task
from steadfast.training import Stopped, Trainer, Watcher

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
    config = Config("split-digits", method=name, **options)  # type: ignore[arg-type]
    optimizer = (torch.optim.SGD if sgd else torch.optim.Adam)(learner.parameters(), lr=lr)
    return METHODS[name](learner, optimizer, config, torch.Generator().manual_seed(1))  # type: ignore[return-value]


def make_trainer(name: str, head: str = "expanding", watcher: Watcher | None = None, **options: object) -> Trainer:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        learner = make_learner(Small(), head)
    method = make_method(name, learner, **options)
    return Trainer(learner, method, make_stream(), epochs=2, batch=8, generator=method.generator, watcher=watcher)


def moved(learner: Learner, by: float = 0.1) -> None:
    with torch.no_grad():
        g = torch.Generator().manual_seed(3)
        for p in learner.parameters():
            p += by * torch.randn(p.shape, generator=g)


def weights(learner: Learner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.parameters()]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def linear_model(learner: Learner, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and logits (of all slots) of a linear model, in float64 and numpy."""
    x = (task.train.images.numpy().reshape(-1, 9) / 255.0 - 0.5) / 0.25
    rows = learner.head.rows
    return x, x @ rows.weight.detach().numpy().astype(float).T + rows.bias.detach().numpy().astype(float)


@pytest.mark.parametrize("importance", ["prediction", "label"])
def test_ewc_importance_of_a_linear_softmax_model_is_the_closed_form(importance: str) -> None:
    # d log p(y) / d W_kj = ([y = k] - p_k) x_j
    learner, task = make_learner(Flat(), "preallocated"), make_task()
    x, z = linear_model(learner, task)
    y = z.argmax(1) if importance == "prediction" else task.train.slots.numpy()
    residual = np.eye(6)[y] - softmax(z)
    method = make_method("ewc", learner, importance=importance)
    method.begin_task(task)
    weight, bias = method.measure(task)
    np.testing.assert_allclose(weight, np.mean([np.outer(r, a) ** 2 for r, a in zip(residual, x)], 0), rtol=1e-4)
    np.testing.assert_allclose(bias, (residual**2).mean(0), rtol=1e-4)


def test_a_sampled_outcome_gives_the_fisher_information_in_the_mean() -> None:
    # E_y ([y = k] - p_k)^2 = p_k (1 - p_k)
    learner, task = make_learner(Flat(), "preallocated"), make_task(count=4000)
    x, z = linear_model(learner, task)
    p = softmax(z)
    method = make_method("online-ewc", learner, importance="sample")
    weight, bias = method.measure(task)
    np.testing.assert_allclose(bias, (p * (1 - p)).mean(0), rtol=0.15)
    np.testing.assert_allclose(weight, np.einsum("nk,nj->kj", p * (1 - p), x**2) / len(x), rtol=0.2)


def test_mas_importance_of_a_linear_model_is_the_closed_form() -> None:
    # d mean_k(z_k^2) / d W_kj = 2 z_k x_j / K
    learner, task = make_learner(Flat(), "preallocated"), make_task()
    x, z = linear_model(learner, task)
    weight, bias = make_method("mas", learner).measure(task)
    np.testing.assert_allclose(weight, np.einsum("nk,nj->kj", np.abs(2 * z / 6), np.abs(x)) / len(x), rtol=1e-4)
    np.testing.assert_allclose(bias, np.abs(2 * z / 6).mean(0), rtol=1e-4)


def test_the_label_is_looked_up_among_the_classes_that_have_come() -> None:
    learner, task = make_learner(Flat(), "expanding"), make_task(slots=(1, 4))
    method = make_method("ewc", learner, importance="label")
    method.begin_task(task)
    _, z = linear_model(learner, task)
    z[:, [0, 2, 3, 5]] = -np.inf  # classes that have not come
    residual = np.eye(6)[task.train.slots] - softmax(z)
    np.testing.assert_allclose(method.measure(task)[1], (residual**2).mean(0), rtol=1e-4)


@pytest.fixture(params=["whole", "in strips"])
def strips(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, where these tiny batches fit the budget whole; and with a budget that no two samples fit."""
    if request.param == "in strips":
        monkeypatch.setattr(importances, "BUDGET", {True: 1, False: 1})


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["ewc", "mas"])
def test_importances_agree_with_finite_differences(name: str, head: str) -> None:
    # In float64, of a network with a convolution, a grouped one, batch norm, a linear layer and an odd parameter.
    torch.manual_seed(0)
    learner, task = make_learner(Small(), head, dtype=torch.float64), make_task(count=5, slots=(0, 2))
    learner.head.open((0, 2, 3))
    learner.logits(task.train.images)  # in training mode: batch norm has statistics of its own
    found = make_method(name, learner).measure(task)
    assert learner.training
    learner.eval()
    y = learner.logits(task.train.images).argmax(1, keepdim=True)

    def scores() -> Tensor:  # (batch,)
        logits = learner.logits(task.train.images)
        return logits.log_softmax(1).gather(1, y)[:, 0] if name == "ewc" else logits.square().mean(1)

    with torch.no_grad():
        for p, importance in zip(learner.parameters(), found):
            for at in {0, p.numel() // 2, p.numel() - 1}:
                place = np.unravel_index(at, p.shape)
                value, step = p[place].clone(), 1e-5
                p[place] = value + step
                above = scores()
                p[place] = value - step
                slope = (above - scores()) / (2 * step)
                p[place] = value
                wanted = slope.square().mean() if name == "ewc" else slope.abs().mean()
                torch.testing.assert_close(importance[place], wanted, rtol=1e-4, atol=1e-9)


def one_by_one(learner: Learner, images: Tensor) -> list[Tensor]:
    """EWC's importance as the definition has it: a backward pass a sample."""
    learner.eval()
    wanted = [torch.zeros_like(p) for p in learner.parameters()]
    for image in images.split(1):
        learner.zero_grad()
        learner.logits(image).log_softmax(1).max().backward()
        for total, p in zip(wanted, learner.parameters()):
            total += p.grad.square() / len(images)
    return wanted


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("name", ["lenet", "resnet20", "mlp"])
def test_the_factored_importance_is_the_one_by_one_loop(name: str) -> None:
    torch.manual_seed(0)
    backbone = backbones.build(name, (1, 8, 8))
    learner = Learner(backbone, heads.build("expanding", backbone.out_features, 4), (1, 8, 8), [0.5], [0.25])
    learner.use(torch.device("cpu"), torch.channels_last).head.open((0, 1, 3))
    images, slots = torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8), torch.zeros(9, dtype=torch.long)
    learner.logits(images)
    batches = zip(images.split(4), slots.split(4))
    found = mean_gradients(learner, batches, make_method("ewc", learner).slope, torch.square)
    for a, b in zip(found, one_by_one(learner, images)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6 * float(b.max()))


class Places(nn.Module):
    """A linear layer over the rows of each image, (batch, 3, 3) to (batch, 3, 4)."""

    out_features = 12

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x[:, 0])).flatten(1)


class Mingled(Places):
    """The same, with rows and samples in one dimension: not the samples' own any more."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.reshape(-1, 3))).reshape(len(x), -1)


class Same(nn.Module):
    """A convolution whose padding is a word, and batch norm of channels that hardly vary."""

    out_features = 18

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding="same")
        self.norm = nn.BatchNorm2d(2)
        self.norm.running_var.fill_(1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(1e-3 * self.conv(x))).flatten(1)


@pytest.mark.usefixtures("strips")
@pytest.mark.parametrize("network", [Places, Mingled, Same])
def test_layers_used_in_unusual_ways_are_measured_rightly(network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    learner, task = make_learner(network(), "preallocated", dtype=torch.float64), make_task(count=7)
    found = make_method("ewc", learner).measure(task)
    for a, b in zip(found, one_by_one(learner, task.train.images)):
        torch.testing.assert_close(a, b)


def test_a_parameter_used_twice_is_measured_rightly() -> None:
    class Tied(nn.Module):
        out_features = 9

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(9, 9)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(torch.tanh(self.linear(x.flatten(1))))

    torch.manual_seed(0)
    learner, task = make_learner(Tied(), "simplex"), make_task(count=5)
    found = make_method("mas", learner).measure(task)
    wanted = [torch.zeros_like(p) for p in learner.parameters()]
    for image in task.train.images.split(1):
        gradients = torch.autograd.grad(learner.logits(image).square().mean(), list(learner.parameters()))
        wanted = [w + g.abs() / 5 for w, g in zip(wanted, gradients)]
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b)


def test_rows_of_classes_that_have_not_come_have_no_importance() -> None:
    learner, task = make_learner(Flat(), "expanding"), make_task(slots=(0, 1))
    method = make_method("ewc", learner)
    method.begin_task(task)
    weight, bias = method.measure(task)
    assert (weight[:2] > 0).any() and (bias[:2] > 0).all()
    assert (weight[2:] == 0).all() and (bias[2:] == 0).all()


def test_mas_does_not_look_at_labels() -> None:
    learner, task = make_learner(Flat(), "preallocated"), make_task()
    other = dataclasses.replace(task, train=dataclasses.replace(task.train, slots=1 - task.train.slots))
    method = make_method("mas", learner)
    assert all(map(torch.equal, method.measure(task), method.measure(other)))


def test_importance_can_be_measured_on_some_of_the_samples() -> None:
    learner, task = make_learner(Flat(), "preallocated"), make_task()
    few = make_method("ewc", learner, importance_samples=3)
    state = few.generator.get_state()
    found = few.measure(task)
    chosen = torch.randperm(24, generator=torch.Generator().set_state(state))[:3]
    wanted = make_method("ewc", learner).measure(dataclasses.replace(task, train=task.train.only(chosen)))
    assert all(map(torch.equal, found, wanted))


def test_sis_path_integral_is_the_sum_of_gradient_times_step_by_hand() -> None:
    learner, task = make_learner(Flat(), "preallocated", dtype=torch.float64), make_task()
    method = make_method("si", learner, sgd=True, lr=0.1, strength=2.0)
    method.begin_task(task)
    method.consolidate([torch.rand_like(p) for p in method.parameters])  # so that there is a penalty to leave out
    anchor, importance = [a.clone() for a in method.anchors], method.importances
    moved(learner)
    at, paths = weights(learner), [0.0, 0.0]
    for rows in torch.arange(24).split(8):
        x, y = (task.train.images[rows].double().flatten(1) / 255 - 0.5) / 0.25, task.train.slots[rows]
        p = (x @ at[0].T + at[1]).softmax(1)
        residual = (p - torch.eye(6, dtype=p.dtype)[y]) / len(x)  # d loss / d logits
        gradients = [residual.T @ x, residual.sum(0)]
        steps = [-0.1 * (g + 2 * 2.0 * i * (w - a)) for g, i, w, a in zip(gradients, importance, at, anchor)]
        paths = [path - g * s for path, g, s in zip(paths, gradients, steps)]
        at = [w + s for w, s in zip(at, steps)]
        method.observe(*task.train.batch(rows))
    for found, wanted in zip(weights(learner), at):
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(method.paths, paths):
        torch.testing.assert_close(found, wanted)
    for found, path, w, a in zip(method.measure(task), paths, at, anchor):
        torch.testing.assert_close(found, path / ((w - a) ** 2 + 0.1))


def test_each_task_of_si_has_a_path_of_its_own_and_their_importances_add_up() -> None:
    learner = make_learner(Flat(), "preallocated", dtype=torch.float64)
    method = make_method("si", learner, sgd=True, lr=0.1, strength=0.0)
    total = [torch.zeros_like(p) for p in method.parameters]
    for task in (make_task(0), make_task(1, slots=(2, 3))):
        start, paths = weights(learner), [torch.zeros_like(p) for p in method.parameters]
        method.begin_task(task)
        for rows in torch.arange(24).split(8):
            before = weights(learner)
            gradients = torch.autograd.grad(method.loss(*task.train.batch(rows)), method.parameters)
            method.observe(*task.train.batch(rows))
            for path, g, p, b in zip(paths, gradients, weights(learner), before):
                path -= g * (p - b)
        method.end_task(task)
        for sum_, path, p, a in zip(total, paths, weights(learner), start):
            sum_ += path / ((p - a) ** 2 + 0.1)
    for found, wanted in zip(method.importances, total):
        torch.testing.assert_close(found, wanted)
    assert all(map(torch.equal, method.anchors, weights(learner)))


def test_sis_path_integrals_add_up_to_what_the_loss_lost() -> None:
    # In the limit of small steps the sum over parameters is the decrease of the loss; at 1e-3 nearly so.
    learner, task = make_learner(Flat(), "preallocated", dtype=torch.float64), make_task()
    method = make_method("si", learner, sgd=True, lr=1e-3)
    method.begin_task(task)
    everything = task.train.batch(torch.arange(24))
    before = method.loss(*everything).item()
    for _ in range(200):
        method.observe(*everything)
    lost = before - method.loss(*everything).item()
    assert lost > 0.05
    assert sum(path.sum().item() for path in method.paths) == pytest.approx(lost, rel=5e-3)


@pytest.mark.parametrize("name", PENALTIES)
def test_the_penaltys_gradient_is_autograds(name: str) -> None:
    learner = make_learner(Small(), dtype=torch.float64)
    method = make_method(name, learner, strength=3.0)
    method.consolidate([torch.rand_like(p) for p in method.parameters])
    moved(learner)
    task = make_task()
    method.begin_task(task)
    images, slots = task.train.batch(torch.arange(8))
    wanted = torch.autograd.grad(method.loss(images, slots) + method.penalty(), method.parameters)
    method.observe(images, slots)
    for p, g in zip(method.parameters, wanted):
        torch.testing.assert_close(p.grad, g)


def test_ewcs_one_pair_is_the_sum_over_its_tasks() -> None:
    learner = make_learner(Small(), dtype=torch.float64)
    method = make_method("ewc", learner, strength=0.7)
    pairs, g = [], torch.Generator().manual_seed(0)
    for _ in range(4):
        # a third of the importances are zero, some of them in every task
        new = [torch.rand(p.shape, generator=g, dtype=p.dtype).sub_(0.33).clamp_min_(0) for p in method.parameters]
        new[0].view(-1)[:5] = 0
        pairs.append((new, weights(learner)))
        method.consolidate([f.clone() for f in new])
        moved(learner, 0.3)

    def explicit() -> Tensor:
        terms = [
            (f * (p - a).square()).sum() for fs, anchors in pairs for f, p, a in zip(fs, method.parameters, anchors)
        ]
        return 0.7 * sum(terms, torch.zeros(()))

    wanted = torch.autograd.grad(explicit(), method.parameters)
    gradients = [torch.zeros_like(p) for p in method.parameters]
    method.pull(gradients)
    for found, gradient in zip(gradients, wanted):
        torch.testing.assert_close(found, gradient)
    here = explicit() - method.penalty()  # the values differ by a constant
    moved(learner)
    torch.testing.assert_close(explicit() - method.penalty(), here)


@pytest.mark.parametrize("name", ["online-ewc", "si", "mas"])
def test_the_others_sum_importances_and_keep_the_latest_anchor(name: str) -> None:
    learner = make_learner(Flat())
    method = make_method(name, learner)
    for _ in range(2):
        moved(learner)
        method.consolidate([torch.ones_like(p) for p in method.parameters])
    assert all((i == 2).all() for i in method.importances)
    assert all(map(torch.equal, method.anchors, weights(learner)))


@pytest.mark.parametrize("name", PENALTIES)
def test_without_strength_it_is_finetuning_to_the_bit(name: str) -> None:
    plain, held = make_trainer("finetune"), make_trainer(name, strength=0.0)
    plain.run()
    held.run()
    assert held.method.importances and all(map(torch.equal, weights(plain.learner), weights(held.learner)))


@pytest.mark.parametrize("name", PENALTIES)
def test_a_huge_strength_freezes_what_matters_and_nothing_else(name: str) -> None:
    learner = make_learner(Flat(), "preallocated")
    method = make_method(name, learner, strength=1e3, sgd=True, lr=4e-4)
    method.consolidate([torch.ones_like(p) for p in method.parameters])
    method.importances[0][:, 4:] = 0
    anchors, task = weights(learner), make_task()
    method.begin_task(task)
    for _ in range(300):
        method.observe(*task.train.batch(torch.arange(24)))
    step = (weights(learner)[0] - anchors[0]).abs()
    assert step[:, :4].max() < 0.1 * step[:, 4:].max()
    assert step[:, :4].max() < 1e-3 < step[:, 4:].max()


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", PENALTIES)
def test_any_head_goes_with_any_method(name: str, head: str) -> None:
    trainer = make_trainer(name, head)
    trainer.run()
    method = trainer.method
    assert all(i.isfinite().all() for i in method.importances)
    assert any((i != 0).any() for i in method.importances)
    assert len(trainer.at.accuracies) == 3


@pytest.mark.parametrize("steps", [0, 2, 6, 7, 10, 14])  # of 18, six a task
@pytest.mark.parametrize("name", PENALTIES)
def test_a_stopped_run_resumes_to_the_same_bits(name: str, steps: int) -> None:
    options = {"importance": "sample", "importance_samples": 10} if "ewc" in name else {}
    whole = make_trainer(name, **options)
    whole.run()
    taken = []
    stopped = make_trainer(name, watcher=Watcher(step=taken.append, stop=lambda: len(taken) == steps), **options)
    with pytest.raises(Stopped):
        stopped.run()
    tensors, plain = stopped.state()
    tensors = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    resumed = make_trainer(name, **options)
    resumed.load(tensors, copy.deepcopy(plain))
    resumed.run()
    want, got = whole.state(), resumed.state()
    assert want[0].keys() == got[0].keys()
    assert all(torch.equal(want[0][key], got[0][key]) for key in want[0])
    assert want[1]["accuracies"] == got[1]["accuracies"]


def test_the_checkpoint_does_not_grow_with_the_tasks() -> None:
    sizes = []
    trainer = make_trainer("ewc")
    trainer.save = lambda t: sizes.append(sum(v.numel() for v in t.method.state().values()))
    trainer.run()
    assert sizes[-1] == sizes[2] == 2 * sum(p.numel() for p in trainer.learner.parameters())


@pytest.mark.parametrize(
    "wrong", [{"importance": "lable"}, {"importance_samples": 0}, {"strength": -1.0}, {"strength": float("nan")}]
)
def test_wrong_options_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=next(iter(wrong))):
        Config("split-mnist", method="ewc", **wrong)  # type: ignore[arg-type]


def test_options_belong_to_the_methods_that_listen() -> None:
    assert Config("split-mnist", method="ewc", importance="label", importance_samples=100).resolved().strength == 600
    with pytest.raises(BadConfig, match="importance"):
        Config("split-mnist", method="si", importance="label").resolved()
    with pytest.raises(BadConfig, match="importance_samples"):
        Config("split-mnist", method="replay", importance_samples=5).resolved()

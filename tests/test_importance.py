"""How important EWC and MAS find a parameter: against closed forms, finite differences and a loop over samples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast import backbones, heads
from holdfast.learning.learner import Learner
from holdfast.learning.streams import Task
from holdfast.methods import importance as importances
from holdfast.methods.importance import mean_gradients
from penalties_factory import HEADS, Flat, Small, make_learner, make_method, make_task


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


@pytest.mark.parametrize("method, power", [("mas", 1), ("ewc", 2)])
def test_the_references_reading_sums_the_gradients_of_a_batch_first(method: str, power: int) -> None:
    """Its code: |gradient of the batch's mean| for MAS, squared and times the batch size for EWC, mean over batches."""
    learner, task = make_learner(Small(), "preallocated"), make_task(count=300)  # batches of 128, 128 and 44
    made = make_method(method, learner, gradients="batch")
    made.begin_task(task)
    wanted = [torch.zeros_like(p) for p in learner.parameters()]
    learner.eval()
    for rows in torch.arange(300).split(128):
        images, _ = task.train.batch(rows)
        logits = learner.head.logits(learner.features(images))
        loss = logits.square().mean() if method == "mas" else nn.functional.cross_entropy(logits, logits.argmax(1))
        gradients = torch.autograd.grad(loss, list(learner.parameters()), allow_unused=True)
        for total, g in zip(wanted, gradients):
            total += 0 if g is None else g.abs() ** power * len(rows) ** (power - 1) / 3
    found = made.measure(task)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)
    per_sample = make_method(method, learner).measure(task)
    assert not all(torch.allclose(a, b, rtol=0.1) for a, b in zip(found, per_sample))
    if method == "mas":  # each batch weighs the same in the reference, so compare on whole batches
        whole = make_task(count=256)
        batch, single = made.measure(whole), make_method(method, learner).measure(whole)
        assert all((b <= s + 1e-6).all() for b, s in zip(batch, single))


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

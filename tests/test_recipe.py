"""The options of replay: each changes exactly what it says, and nothing while it is off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from conftest import assert_same_bits, bits, make_tiny_config, make_tiny_stream, make_tiny_trainer
from holdfast import heads, randomness
from holdfast.errors import BadConfig
from holdfast.heads import HEADS
from holdfast.heads.base import Head
from holdfast.learning import augment
from holdfast.learning.learner import Learner
from holdfast.learning.training import Trainer, Watcher
from holdfast.methods import distillation, recipes
from holdfast.methods.replay import Replay, ReplayOptions
from holdfast.options import declared
from holdfast.runs.build import make_learner
from holdfast.runs.config import Config

CPU = torch.device("cpu")
STRONG = recipes.expand("strong", {})


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def replay_of(trainer: Trainer) -> Replay:
    assert isinstance(trainer.method, Replay)
    return trainer.method


def finished(**changes: Any) -> Trainer:
    trainer = make_tiny_trainer(**changes)
    trainer.run()
    return trainer


# The paper's recipe is untouched.


def plain_replay(config: Config) -> dict[str, Tensor]:
    """Replay as the paper states it and nothing else, written anew: no options, no trainer, no memory class."""
    stream, generator = make_tiny_stream(), randomness.generator(config.seed, "training")
    learner = make_learner(config, stream, CPU).train()
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.001, fused=True)
    kept: list[tuple[Tensor, Tensor]] = []  # a task's images and slots each
    for t, task in enumerate(stream.tasks):
        learner.head.open(task.slots)
        half = config.batch // 2
        for _ in range(config.epochs or 0):
            order = torch.randperm(len(task.train), generator=generator)
            for chosen in order.split(half if kept else config.batch):
                images, slots = task.train.batch(chosen)
                if kept:
                    old_images, old_slots = (torch.cat(column) for column in zip(*kept))
                    rows = torch.randperm(len(old_images), generator=generator)[:half]
                    images, slots = torch.cat([images, old_images[rows]]), torch.cat([slots, old_slots[rows]])
                loss = learner.head.loss(learner.backbone(learner.normalise(images)), slots)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        quota = config.get("memory") // (t + 1)
        drawn = torch.randperm(len(task.train), generator=generator)[:quota]
        kept = [(images[:quota], slots[:quota]) for images, slots in kept] + [task.train.batch(drawn)]
    return learner.state_dict()


@pytest.mark.parametrize("head", ["simplex", "expanding"])
def test_the_paper_recipe_is_plain_replay_to_the_last_bit(head: str) -> None:
    expected = plain_replay(make_tiny_config(head=head))
    assert_same_bits(dict(finished(head=head).learner.state_dict()), dict(expected))


def test_every_option_is_off_unless_asked_for() -> None:
    config = Config("split-mnist").resolved()
    own = {each.name for each in declared(ReplayOptions)} - {"memory"}
    assert own == {"policy", "memory_batch", "balance", "absent_count", "augment_memory", "distill", "distill_weight",
                   "store"}
    assert not own & set(config.to_json())


@pytest.mark.parametrize("options", [{"balance": True}, {"augment_memory": "shift"}, {"distill": "logits"},
                                     {"distill": "features"}, {"distill": "contrast"}, {"store": "during"},
                                     {"memory_batch": 3}], ids=str)
def test_each_option_changes_the_run(options: dict[str, Any]) -> None:
    one, other = finished().learner.state_dict(), finished(**options).learner.state_dict()
    assert any(not torch.equal(one[name], other[name]) for name in one)


# Balanced softmax.


@pytest.mark.parametrize("name", HEADS)
def test_balanced_softmax_is_cross_entropy_when_all_classes_are_as_frequent(name: str) -> None:
    head = heads.build(name, 7, 8).double()
    head.open(range(8))
    features, slots = torch.randn(16, 7, dtype=torch.float64, generator=seeded()), torch.arange(8).repeat(2)
    prior = distillation.log_frequency(slots, 8, 0.01)
    torch.testing.assert_close(head.loss(features, slots, prior=prior), head.loss(features, slots))


def test_frequencies_are_counted_in_the_batch() -> None:
    slots = torch.tensor([4, 1, 1, 4, 1, 0])
    expected = np.log([1, 3, 0.25, 0.25, 2, 0.25])
    assert distillation.log_frequency(slots, 6, 0.25).numpy() == pytest.approx(expected)


def test_the_update_uses_the_batch_s_own_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    original = Head.loss

    def spy(self: Any, features: Tensor, slots: Tensor, *, prior: Tensor, reduction: str = "mean") -> Tensor:
        seen.append((slots, prior))
        return original(self, features, slots, prior=prior, reduction=reduction)

    monkeypatch.setattr(Head, "loss", spy)
    finished(balance=True, absent_count=0.5)
    assert len(seen) > 10
    for slots, prior in seen:
        counts = [max(slots.tolist().count(slot), 0.5) for slot in range(10)]
        assert prior.numpy() == pytest.approx(np.log(counts))


@pytest.mark.parametrize("name", HEADS)
def test_balanced_softmax_s_gradient_agrees_with_finite_differences(name: str) -> None:
    head = heads.build(name, 5, 8).double()
    head.open(range(6))
    slots = torch.tensor([0, 0, 0, 1, 2, 5])
    prior = distillation.log_frequency(slots, 8, 0.01).double()
    features = torch.randn(6, 5, dtype=torch.float64, generator=seeded(), requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: head.loss(f, slots, prior=prior), features)


def test_balanced_softmax_by_its_definition() -> None:
    """-log( n_y exp(z_y) / sum_k n_k exp(z_k) ), worked out with numpy."""
    head = heads.build("simplex", 5, 6)
    features, slots = torch.randn(4, 5, generator=seeded()), torch.tensor([0, 0, 0, 3])
    counts = np.array([3, 0.01, 0.01, 1, 0.01, 0.01])
    weight = counts * np.exp(head.logits(features).detach().double().numpy())
    expected = -np.log(weight[range(4), slots.tolist()] / weight.sum(1)).mean()
    found = head.loss(features, slots, prior=distillation.log_frequency(slots, 6, 0.01))
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


# Augmentation of the remembered half.


def test_augmenting_the_memory_leaves_the_stored_bytes_and_the_new_half_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make_tiny_trainer(augment_memory="shift")
    method, stream, batches = replay_of(trainer), make_tiny_stream(), []

    def spy(images: Tensor, slots: Tensor) -> Tensor:
        batches.append(images)
        return Replay.loss(method, images, slots)

    monkeypatch.setattr(method, "loss", spy)
    trainer.run()
    known = {image.numpy().tobytes() for image in stream.tasks[0].train.images}
    assert {image.numpy().tobytes() for image in method.memory.images[: len(method.memory)]} <= known
    for images in batches[-4:]:  # the last task's: 4 new, 4 remembered
        varied = [image.numpy().tobytes() not in known for image in images]
        assert not any(varied[:4]) and any(varied[4:])


def test_augmenting_the_memory_is_drawn_from_the_seed() -> None:
    assert_same_bits(bits(finished(augment_memory="shift")), bits(finished(augment_memory="shift")))


def test_half_of_each_batch_is_augmented_as_remembered() -> None:
    trainer, given = make_tiny_trainer(), []

    def dark(images: Tensor, generator: torch.Generator) -> Tensor:
        given.append(len(images))
        return images // 2

    replay_of(trainer).augment_memory = dark
    trainer.run()
    assert given == [4] * 12  # half of a batch, in two of three tasks, of 2 epochs and 3 steps


def test_an_augmentation_of_ones_own_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("_things", "_lines"):
        monkeypatch.setattr(augment.AUGMENTATIONS, part, dict(getattr(augment.AUGMENTATIONS, part)))

    @augment.register("darker")
    def darker(images: Tensor, generator: torch.Generator) -> Tensor:
        return images // 2

    trainer = finished(augment_memory="darker")
    seen = replay_of(trainer).augment_memory(torch.full((2, 1, 8, 8), 100, dtype=torch.uint8), trainer.generator)
    assert seen.eq(50).all() and augment.AUGMENTATIONS["darker"].__name__ == "darker"
    assert make_tiny_config(augment_memory="darker").to_json()["augment_memory"] == "darker"
    with pytest.raises(BadConfig, match="register it under a name"):
        Config("split-mnist", augment_memory=darker)
    augment.register("float")(lambda images, generator: images / 255)
    with pytest.raises(BadConfig, match="must keep shape and type"):
        make_tiny_trainer(augment_memory="float").run()


# Distillation.


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "kept", [{"policy": "task"}, {"policy": "class"}, {"policy": "herding"}, {"policy": "reservoir"},
             {"store": "during"}], ids=str,
)
def test_logits_follow_their_samples_through_every_eviction(
    head: str, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stored image keeps the logits it had when it came in, though others around it come and go."""
    trainer = make_tiny_trainer(head=head, distill="logits", **kept)
    memory, learner, first = replay_of(trainer).memory, trainer.learner, {}

    def noting(original: Any) -> Any:
        def arriving(images: Tensor, *rest: Any) -> Any:
            for image, logits in zip(images, distillation.dark_logits(learner.head, learner.embed_frozen(images))):
                first.setdefault(image.numpy().tobytes(), logits)
            return original(images, *rest)

        return arriving

    for way_in in ("add", "insert"):
        monkeypatch.setattr(memory, way_in, noting(getattr(memory, way_in)))
    trainer.run()
    assert memory.tasks[: len(memory)].unique().tolist() == [0, 1, 2]
    for row in range(len(memory)):
        expected = first[memory.images[row].numpy().tobytes()]
        torch.testing.assert_close(memory.notes["logits"][row], expected, equal_nan=True)


def test_stored_logits_are_the_model_s_when_the_task_ended() -> None:
    trainer = make_tiny_trainer(distill="logits")
    method = replay_of(trainer)
    trainer.method.end_task(trainer.tasks[0])
    images = method.memory.images[: len(method.memory)]
    with torch.no_grad():
        expected = trainer.learner.eval().logits(images)
    torch.testing.assert_close(method.memory.notes["logits"][: len(images)], expected)


def test_distance_of_logits_ignores_slots_that_were_not_in_use() -> None:
    head = heads.build("expanding", 4, 5)
    head.open([0, 2])
    with torch.no_grad():
        stored = distillation.dark_logits(head, torch.randn(3, 4, generator=seeded()))
    assert stored.isnan().any(0).tolist() == [False, True, False, True, True]
    now = torch.randn(3, 4, generator=seeded(1), requires_grad=True)
    distance = distillation.logit_distance(head, now, stored)
    difference = (head.outputs(now) - stored)[:, [0, 2]].detach().numpy()
    assert float(distance.detach()) == pytest.approx((difference**2).sum() / 6, rel=1e-5)
    distance.backward()
    assert now.grad is not None and now.grad.isfinite().all()
    assert distillation.logit_distance(head, now, torch.full((3, 5), torch.nan)) == 0  # of no slot at all


def test_features_are_distilled_from_the_learner_before_the_task() -> None:
    trainer = make_tiny_trainer(distill="features")
    method, tasks = replay_of(trainer), []
    original = method.end_task

    def end(task: Any) -> None:
        if task.index:
            assert method.before is not None and not any(p.requires_grad for p in method.before.parameters())
            assert all(torch.equal(v, then[k]) for k, v in method.before.state_dict().items() if k in then)
        original(task)
        tasks.append(task.index)
        then.update({k: v.clone() for k, v in trainer.learner.state_dict().items() if v.is_floating_point()})

    then: dict[str, Tensor] = {}
    method.end_task = end  # type: ignore[method-assign]
    trainer.run()
    assert tasks == [0, 1, 2]


def test_the_distance_of_features_is_one_minus_their_cosine() -> None:
    now, before = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 5.0]])
    yes, no = torch.tensor([True]), torch.tensor([False])
    for taught, expected in [((yes, yes), (1 - 0.5**0.5) / 2), ((yes, no), 1 - 0.5**0.5), ((no, no), 0.0)]:
        assert float(distillation.feature_distance(now, before, torch.cat(taught))) == pytest.approx(expected)


def test_what_came_in_during_the_task_is_not_held_where_an_untaught_network_put_it() -> None:
    trainer = make_tiny_trainer(distill="features", store="during", distill_weight=0.3, epochs=1)
    first, second, *_ = trainer.tasks
    method, learner = replay_of(trainer), trainer.learner
    trainer.tasks = (first,)
    trainer.run()
    method.begin_task(second)
    method.offer(*second.train.batch(torch.arange(12)))
    for parameter in learner.parameters():
        parameter.data += 0.01
    old, new = method.memory.of_task(0), method.memory.of_task(1)
    assert method.before is not None and len(old) and len(new) > 1

    def added(rows: Tensor) -> Tensor:
        images, slots = method.memory.images[rows], method.memory.slots[rows]
        method.recalled = rows
        return method.loss(images, slots) - learner.loss(images, slots)

    learner.eval()  # so that an image is seen alike in whatever batch it is
    image = method.memory.images[old[:1]]
    turned = 1 - torch.cosine_similarity(learner.embed(image), method.before.embed(image))[0]
    torch.testing.assert_close(added(torch.cat([old[:1], new[:2]])), 0.3 * turned, rtol=1e-4, atol=1e-6)
    assert turned > 1e-4 and added(new[:2]) == 0


def test_the_learner_before_sees_the_images_as_varied_as_the_learner_does(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_tiny_trainer(distill="features", augment_memory="shift")
    method, seen, original = replay_of(trainer), {"before": [], "now": []}, Learner.features

    def spy(self: Learner, images: Tensor) -> Tensor:
        if torch.is_grad_enabled() and method.recalled is not None:
            seen["before" if self is method.before else "now"].append(images)
        return original(self, images)

    monkeypatch.setattr(Learner, "features", spy)
    trainer.run()
    assert len(seen["before"]) == len(seen["now"]) == 12
    for held, whole in zip(seen["before"], seen["now"]):
        assert torch.equal(held, whole[4:])


def test_the_learner_before_is_gone_between_tasks() -> None:
    trainer = make_tiny_trainer(distill="features", epochs=1)
    first, second, third = trainer.tasks
    trainer.tasks = (first, second)
    trainer.run()
    method = replay_of(trainer)
    assert method.before is None and not any(name.startswith("before.") for name in method.state())
    method.begin_task(third)
    assert any(name.startswith("before.") for name in method.state())


def test_the_contrast_is_infonce_between_old_and_new_vectors_of_other_classes() -> None:
    """Compared with a loop over pairs, in which samples of the same class are left out."""
    generator, slots = seeded(), torch.tensor([0, 0, 1, 2, 1])
    now, before = torch.randn(2, 5, 4, generator=generator, dtype=torch.float64)
    now.requires_grad_(True)
    taught = torch.tensor([True, True, True, True, False])
    lost = []
    for i in range(4):
        def near(j: int, i: int = i) -> float:
            a, b = before[i].numpy(), now[j].detach().numpy()
            return float(np.exp(10 * (a @ b) / np.sqrt((a @ a) * (b @ b))))

        others = [near(j) for j in range(5) if slots[j] != slots[i]]
        lost.append(-np.log(near(i) / (near(i) + sum(others))))
    found = distillation.contrast(now, before, slots, taught)
    assert found.item() == pytest.approx(np.mean(lost))
    assert float(distillation.contrast(now, before, slots, torch.zeros_like(taught))) == 0
    assert torch.autograd.gradcheck(lambda z: distillation.contrast(z, before, slots, taught), (now,))
    nearer = (now + 0.01 * before).detach()  # towards the old vectors
    assert distillation.contrast(nearer, before, slots, taught) < found


@pytest.mark.parametrize("kind", ["logits", "features", "contrast"])
def test_the_loss_is_the_cross_entropy_plus_the_weighted_distance_of_the_remembered_half(kind: str) -> None:
    """Worked out here row by row, with a weight that is not 1, after a task has been learned."""
    trainer = make_tiny_trainer(distill=kind, distill_weight=0.3, epochs=1)
    first, second, *_ = trainer.tasks
    method, learner = trainer.method, trainer.learner
    trainer.tasks = (first,)
    trainer.run()
    method.begin_task(second)
    learner.train()
    for parameter in learner.parameters():  # away from where the memory was made
        parameter.data += 0.01
    one, other = ((method.memory.slots == slot).nonzero().squeeze(1) for slot in method.memory.slots.unique())
    rows = method.recalled = torch.stack([other[1], one[0], one[2]])
    new, slots = second.train.batch(torch.tensor([1, 2]))
    images = torch.cat([new, method.memory.images[rows]])
    slots = torch.cat([slots, method.memory.slots[rows]])
    features = learner.features(images)
    plain = learner.head.loss(features, slots)
    embedded = learner.head.embed(features)[2:]
    distances = []
    for row, mine in zip(rows, embedded):
        if kind == "logits":
            stored = method.memory.notes["logits"][row]
            distances.append((distillation.dark_logits(learner.head, mine[None])[0] - stored).square().mean())
            continue
        place = rows.tolist().index(int(row))
        held = method.before.embed(images[2:])[place]  # in a batch, as its norms see it
        if kind == "features":
            distances.append(1 - (mine @ held) / (mine.norm() * held.norm()))
        else:
            near = 10 * (embedded @ held) / (embedded.norm(dim=1) * held.norm())
            other = slots[2:] != slots[2 + place]
            distances.append(torch.cat([near[place][None], near[other]]).logsumexp(0) - near[place])
    wanted = plain + 0.3 * torch.stack(distances).mean()
    torch.testing.assert_close(method.loss(images, slots), wanted)
    assert not torch.isclose(wanted, plain)


# Storing samples during the task.


def test_every_sample_of_the_stream_is_as_likely_to_be_in_the_reservoir() -> None:
    """Though each is shown once an epoch; 36 samples, 12 places, many seeds."""
    stream, counts, runs = make_tiny_stream(), np.zeros(36), 200
    names = {image.numpy().tobytes(): index for index, image in enumerate(stream.tasks[0].train.images)}
    method = replay_of(make_tiny_trainer(store="during"))
    for seed in range(runs):
        method.memory.count = method.memory.offered = 0
        method.generator = seeded(seed)
        for task in stream.tasks:
            method.task, method.unseen = task.index, len(task.train)
            for _ in range(2):  # epochs
                for chosen in torch.randperm(len(task.train), generator=seeded(seed)).split(5):
                    if method.unseen:
                        method.offer(*task.train.batch(chosen))
            method.end_task(task)
        inside = [names[image.numpy().tobytes()] for image in method.memory.images]
        assert len(set(inside)) == len(inside) == 12
        counts[inside] += 1
    # Without replacement the counts vary less than a multinomial's, by the factor 1 - 12/36.
    chi_square = ((counts - runs / 3) ** 2 / (runs / 3)).sum() / (1 - 12 / 36) * 35 / 36
    assert 0.001 < stats.chi2.sf(chi_square, 35) < 0.999


def test_the_first_task_has_no_remembered_half_though_the_memory_fills_during_it() -> None:
    sizes: list[int] = []
    trainer = make_tiny_trainer(store="during", watcher=Watcher(step=sizes.append))
    trainer.run()
    assert sizes == [8, 4] * 2 + [4, 4, 4] * 4


# Everything together.


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns_with_the_strong_recipe(head: str) -> None:
    trainer = finished(head=head, epochs=8, **STRONG)
    assert all(value.isfinite().all() for value in trainer.learner.parameters())
    assert sum(trainer.at.accuracies[-1]) / 3 >= 40  # chance is 17, and these images are all but noise when shifted

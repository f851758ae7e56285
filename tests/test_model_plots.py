"""The picture of a model shows what it says it does."""

from matplotlib.figure import Figure

from holdfast.estimator import model_plots
from holdfast.estimator.stability import ClassStability, Stability


def report(count, unmeasured=()):
    rows = [ClassStability(f"c{i}", 5, None, float(i), 1.0, 1.0) for i in range(count)]
    rows += [ClassStability(name, 0, None, None, None, None) for name in unmeasured]
    return Stability(tuple(rows), None, 1.0, 1.0)


def drawn(history, now, path):
    """The picture's two panels."""
    kept, real = [], Figure.savefig
    try:
        Figure.savefig = lambda self, *given, **more: (kept.append(self), real(self, *given, **more))[1]
        model_plots.draw(history, now, path)
    finally:
        Figure.savefig = real
    assert path.stat().st_size > 1000
    return kept[0].axes


def test_of_many_classes_those_that_moved_most_are_drawn(tmp_path):
    left, _ = drawn([], report(60), tmp_path / "m.png")
    assert [label.get_text() for label in left.get_xticklabels()] == [f"c{i}" for i in range(20, 60)]
    assert "40 of 60" in left.get_xlabel()


def test_classes_without_held_back_samples_are_named(tmp_path):
    left, _ = drawn([], report(2, ["dog", "emu"]), tmp_path / "m.png")
    assert "dog, emu" in left.get_xlabel() and len(left.patches) == 2


def test_hardly_any_movement_looks_like_it_and_batches_are_whole_numbers(tmp_path):
    history = [{"stability": report(2).to_json()} for _ in range(3)]
    left, right = drawn(history, report(2), tmp_path / "m.png")
    assert left.get_ylim() == (0, 10)
    assert all(tick == int(tick) for tick in right.get_xticks())

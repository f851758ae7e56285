"""A run's result as a notebook shows it: a table of accuracies, and its pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BadConfig
from ..markup import table

if TYPE_CHECKING:
    from .plots import Picture


class Result(dict[str, Any]):
    """The content of `result.json`: a dict that a notebook shows as a table, and that can be plotted."""

    def plot(self, what: str = "accuracy") -> Picture:
        """Return a figure: the `accuracy` on each task over time, or the `drift` of each class's features."""
        import matplotlib

        from . import plots  # imported here because matplotlib is slow to import

        draw = {"accuracy": plots.accuracy_figure, "drift": plots.drift_figure}.get(what)
        if draw is None:
            raise BadConfig(f"what is {what!r}; a result is plotted as 'accuracy' or 'drift'.")
        with matplotlib.rc_context(plots.STYLE):
            return draw(self)

    def _repr_html_(self) -> str:
        matrix = self["accuracy_matrix"]
        tasks = len(matrix[-1])
        rows = [
            (at, *(f"{value:.1f}" for value in row), *[""] * (tasks - len(row)), f"{average:.2f}")
            for at, (row, average) in enumerate(zip(matrix, self["average_accuracy"]), 1)
        ]
        drift = self.get("mean_drift")
        turned = "" if drift is None else f" The mean features of old classes turned {drift:.1f}°."
        return table(
            ("after task", *map(str, range(1, tasks + 1)), "average"), rows, self["command"],
            f"Accuracy in percent on each task. Final average {self['final_average_accuracy']:.2f} %, forgetting "
            f"{self['forgetting']:.2f}, {self['seconds']:.0f} s.{turned}",
        )

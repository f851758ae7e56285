"""Write what `results/` says into the documentation: README.md, docs/beyond.md, docs/rivals.md,
docs/rivals-today.md, docs/rivals/, docs/staying-put.md, results/README.md.

    python tools/show_results.py            # tables between their markers, and docs/images/evolution.png
    python tools/show_results.py --check    # only say what is out of date (the tests do this)

So no number in those tables is typed by hand: each comes from the records, and each row has its command.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import mean, pstdev

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import pages
from holdfast.paper import cells as paper
from holdfast.paper.ablation import strong
from holdfast.paper.editions import Edition, editions
from holdfast.quantities import number, signed
from holdfast.report import compatibility, exports, figures, page, turning
from holdfast.report import rivals as rival_table
from holdfast.report.tables import NAMES, Entry
from holdfast.runs import plots, records
from holdfast.runs.config import Config
from holdfast.runs.records import Record
from pages import ROOT

TOOL = "show_results.py"
BENCHMARK = "split-mnist"
COLOUR = "split-cifar10"
STRONG = "Replay, simplex, strong recipe"
GEM_REPLAY = "GEM, learning from its memory too"


def row(name: str, runs: tuple[Record, ...], published: str, command: str) -> str:
    """Accuracy over the seeds, and how far features and head turned, in degrees."""
    memory = runs[0].config.get("memory")
    accuracies = [run.accuracy for run in runs]
    ours = number(mean(accuracies), pstdev(accuracies) if len(runs) > 1 else None)
    turned, apart, head = (
        mean([float(value) for value in values])
        for values in zip(*((run.drift, run.result["separation"][-1], run.head_drift) for run in runs))
    )
    drift = [f"{turned:.0f}° of {apart:.0f}°", f"{head:.0f}°"]
    return "| " + " | ".join([name, str(memory or "–"), published, ours, str(len(runs)), *drift, command]) + " |"


def command(config: Config) -> str:
    """What to add to `holdfast run BENCHMARK`, without the seed."""
    words = config.command().removeprefix(f"holdfast run {config.benchmark}").strip()
    return f"`{words}`" if words else "(nothing more)"


def main_table(edition: Edition, benchmark: str, *, with_missing: bool = True) -> str:
    """The paper's cells in its order, then the strong recipe; those without a run only if asked for."""
    lines = [
        f"| | memory | paper (10 seeds) | ours | seeds | features turned | head turned | `holdfast run {benchmark}` |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for entry in entries(edition, benchmark):
        if not entry.runs and not with_missing:
            continue
        if entry.runs:
            lines.append(row(entry.name, entry.runs, entry.paper_text(), command(entry.runs[0].config)))
        else:
            words = [entry.name, str(entry.cell.memory or "–"), entry.paper_text(), "not run", "0", "", ""]
            lines.append("| " + " | ".join([*words, command(entry.cell.config())]) + " |")
        if runs := other_reading(entry, edition):
            lines.append(row(GEM_REPLAY, runs, entry.paper_text(), command(runs[0].config)))
    for memory in (100, 1100):
        if runs := edition.of(strong(benchmark, memory=memory)):
            lines.append(row(f"**{STRONG}**", runs, "–", f"`--memory {memory} --recipe strong`"))
    return "\n".join(lines)


def verdicts(report: page.Report) -> str:
    """The paper's claims as this benchmark's runs judge them: a line per verdict; the report has the statistics."""
    lines = []
    for claim in report.chapters[0].claims:
        told: dict[str, list[str]] = {}
        for each in claim.tested:
            if BENCHMARK in each.where and each.interval is not None:
                where = each.where.replace(f"{BENCHMARK}, ", "").replace(f" on {BENCHMARK} (replay: M=100)", "")
                told.setdefault(each.verdict, []).append(f"{where} ({signed(each.interval.estimate)})")
        lines.append(f"- {claim.title}" + ("" if told else ": not run"))
        lines += [f"    - {verdict}: {'; '.join(places)}" for verdict, places in told.items()]
    return "\n".join(lines)


def entries(edition: Edition, benchmark: str = BENCHMARK) -> list[Entry]:
    """The paper's cells of this benchmark, in its order."""
    return [Entry(c, edition.of_cell(c)) for c in paper.cells("table1") if c.benchmark == benchmark]


def other_reading(entry: Entry, edition: Edition) -> tuple[Record, ...]:
    """The runs of a GEM cell in the other way to read it, that of the reference code."""
    return edition.of(replace(entry.cell.config(), gem_replay=True)) if entry.cell.row == "gem" else ()


def rivals_table(edition: Edition) -> str:
    """Every method seed by seed, with the whole command."""
    lines = ["| method | memory | seed | final average accuracy | by task | command |", "|---|--:|--:|--:|---|---|"]
    for entry in entries(edition):
        for run in (*entry.runs, *other_reading(entry, edition)):
            tasks = " ".join(f"{value:.0f}" for value in run.result["accuracy_matrix"][-1])
            name = GEM_REPLAY if run.config.get("gem_replay") else NAMES[entry.cell.row]
            words = [name, str(entry.cell.memory or "–"), str(run.seed), f"{run.accuracy:.2f}", tasks]
            words.append(f"`{run.config.command()}`")
            lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines)


def family_table(report: page.Report, family: str) -> str:
    """Every number of a family's methods, and replay's to compare with."""
    shown = [row for row in report.chapters[0].rivals if row.family == family or row.method == "replay"]
    return "\n".join(rival_table.markdown(shown))


def ablation_table(report: page.Report) -> str:
    return "\n".join(exports.ablation_table(report.chapters[0]))


def evolution(edition: Edition) -> Figure:
    """Both memory sizes side by side."""
    with rc_context(plots.STYLE):
        figure = Figure(figsize=(9, 4.6))
        for axes, memory in zip(figure.subplots(1, 2, sharey=True), (100, 1100)):
            shown = [e for e in entries(edition) if e.runs and e.cell.memory in (None, memory)]
            figures.draw_evolution(axes, f"{BENCHMARK}, memory {memory}", map(figures.of_entry, shown))
            if runs := edition.of(strong(BENCHMARK, memory=memory)):
                columns = list(zip(*(run.averages for run in runs)))
                steps, averages = range(1, len(columns) + 1), [mean(list(column)) for column in columns]
                colour = plots.COLOURS["replay+simplex"]
                axes.plot(steps, averages, "--", lw=1.8, color=colour, label=f"{STRONG} ({len(runs)})")
                low, high = zip(*((m - pstdev(c), m + pstdev(c)) for m, c in zip(averages, columns)))
                axes.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
            axes.legend(loc="lower left", fontsize=8, frameon=False)
        return figure


def turned(edition: Edition) -> Figure:
    """The turning of features, one plot per benchmark and memory that has the sphere."""
    found = {place: groups for place, groups in turning.groups(edition).items()
             if any(group.config.get("vertex_probability") for group in groups)}
    rows = max(len(groups) for groups in found.values())
    with rc_context(plots.STYLE):
        figure = Figure(figsize=(4.6 * len(found), 3.4 + 0.2 * rows))
        every = np.atleast_1d(figure.subplots(1, len(found), sharey=True))
        for axes, (place, groups) in zip(every, found.items()):
            turning.draw(axes, place, groups)
            axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16))
        for axes in every[1:]:
            axes.set_ylabel("")
        every[0].autoscale(axis="y")  # the plots share it
        every[0].set_ylim(bottom=0)
        return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    report = page.build(records.read(ROOT / "results"))
    edition = editions(report.found.runs)[0]
    wanted = {ROOT / "results" / "README.md": exports.markdown(report)}
    for place, name, content in (
        ("README.md", "results", main_table(edition, BENCHMARK)),
        ("README.md", "colour", main_table(edition, COLOUR, with_missing=False)),
        ("README.md", "claims", verdicts(report)),
        ("docs/rivals.md", "runs", rivals_table(edition)),
        ("docs/beyond.md", "ablation", ablation_table(report)),
        ("docs/staying-put.md", "compatibility", "\n".join(compatibility.markdown(report.chapters[0].compatibility))),
        ("docs/rivals-today.md", "rivals", "\n".join(rival_table.side_by_side(report.chapters[0].rivals))),
        *((f"docs/rivals/{family}.md", "numbers", family_table(report, family))
          for family in ("memory", "distillation", "bias", "penalties", "streaming")),
    ):
        before = wanted.get(ROOT / place) or (ROOT / place).read_text()
        wanted[ROOT / place] = pages.filled(before, TOOL, name, content)
    stale = pages.out_of_date(wanted)
    if check:
        pages.complain(stale, TOOL)
    for path in stale:
        path.write_text(wanted[path])
    evolution(edition).savefig(ROOT / "docs" / "images" / "evolution.png", dpi=110)
    turned(edition).savefig(ROOT / "docs" / "images" / "turning.png", dpi=110)
    names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
    print(f"{len(report.found.runs)} runs; written: {names or 'nothing new'}")


if __name__ == "__main__":
    main()

"""Export the report as Markdown, CSV and LaTeX (booktabs)."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from ..paper.ablation import HEADS, PUBLISHED, title
from ..quantities import signed
from . import compatibility, rivals
from .tables import Entry, Part

if TYPE_CHECKING:
    from .page import Chapter, Report

SIGN = "†"  # the paper's number lies outside our interval
EXPLAINED = (
    "Ours: mean ± standard deviation (ddof 0) over seeds. "
    f"{SIGN}: the paper's mean lies outside our 95 % t-interval over seeds; one seed has no interval."
)


def markdown(report: Report) -> str:
    """Return the report without figures, as Markdown."""
    lines = ["# holdfast: the paper, and ours", ""]
    if report.empty:
        lines += ["No runs yet. Try `holdfast run split-mnist --memory 100`, then `holdfast report` again.", ""]
    for chapter in report.chapters:
        mark = f" ({chapter.edition.mark})" if chapter.edition.mark else ""
        count = chapter.tally
        lines += [
            f"{len(chapter.edition.runs)} runs{mark}; {count.run} of {count.cells} cells run; "
            + (f"of {count.judged} with two seeds or more, the paper's number lies inside our interval in "
               f"{count.inside}." if count.judged else "none with two seeds, so nothing can be judged yet."),
            "", EXPLAINED, "",
        ]
        for table in chapter.tables:
            lines += [f"## {table.title}{mark}", ""]
            for part in table.parts:
                lines += [f"### {part.caption}{mark}", "", *_markdown_part(part), ""]
        lines += [*_markdown_claims(chapter, mark), *_markdown_questions(chapter, mark), *_markdown_ablation(chapter)]
        if chapter.compatibility:
            lines += [f"## Compatibility of each model with the galleries of earlier ones{mark}", "",
                      compatibility.EXPLAINED, "", *compatibility.markdown(chapter.compatibility), ""]
        lines += [*_markdown_rivals(chapter, mark), *_markdown_others(chapter, mark), *_markdown_runs(chapter, mark)]
    if report.found.left_out:
        lines += ["## Records that did not count", ""]
        lines += [f"- {_cell(each.name)}: {_cell(each.reason)}" for each in report.found.left_out] + [""]
    return "\n".join(lines)


def _markdown_part(part: Part) -> list[str]:
    lines = [f"| method | {part.column} | paper | ours | difference | seeds |", "|---|--:|--:|--:|--:|--:|"]
    for entry in part.entries:
        sign = f" {SIGN}" if entry.outside else ""
        words = [
            entry.name, _key(entry, part) or "–", entry.paper_text(), entry.ours_text(),
            entry.difference_text() + sign, str(len(entry.runs)),
        ]
        lines.append("| " + " | ".join(map(_cell, words)) + " |")
    return lines


def _markdown_others(chapter: Chapter, mark: str) -> list[str]:
    if not chapter.others:
        return []
    lines = [f"## Everything else that was run{mark}", "", "| benchmark | run | memory | slots | accuracy | seeds |",
             "|---|---|--:|--:|--:|--:|"]
    for benchmark, groups in chapter.others.items():
        for group in groups:
            words = [benchmark, group.name, str(group.memory or "–"), str(group.config.slots), group.text(),
                     str(len(group.runs))]
            lines.append("| " + " | ".join(map(_cell, words)) + " |")
    return [*lines, ""]


def _markdown_runs(chapter: Chapter, mark: str) -> list[str]:
    lines = [f"## The runs{mark}", "", "| accuracy | command | minutes | made with |", "|--:|---|--:|---|"]
    for run in (run for runs in chapter.edition.alike for run in runs):
        words = [f"{run.accuracy:.2f}", f"`{run.config.command()}`", f"{run.seconds / 60:.0f}", run.made_with()]
        lines.append("| " + " | ".join(map(_cell, words)) + " |")
    return [*lines, ""]


def _markdown_claims(chapter: Chapter, mark: str) -> list[str]:
    lines = [f"## The claims{mark}", ""]
    for index, claim in enumerate(chapter.claims, 1):
        lines += [f"{index}. **{claim.title}: {claim.verdict}.** {claim.scope} {claim.test}"]
        unit = "" if claim.unit == "difference" else f" {claim.unit}"
        for each in claim.tested:
            interval = each.interval
            assert interval is not None
            bounds = "no interval"
            if interval.low is not None and interval.high is not None:
                bounds = f"95 %: {signed(interval.low)} to {signed(interval.high)}"
            lines.append(
                f"   - {each.where}: {signed(interval.estimate)}{unit} ({bounds}; n={interval.n}, "
                f"{interval.how}): {each.verdict}" + (f"; {each.note}" if each.note else "")
            )
    return [*lines, ""]


def _markdown_questions(chapter: Chapter, mark: str) -> list[str]:
    lines = [f"## Open questions{mark}", ""]
    for question in chapter.questions:
        lines += [f"### {question.title}{mark}", "", question.ask, "", "| reading | ours | seeds | paper |",
                  "|---|--:|--:|--:|"]
        for each in question.readings:
            shown = "–" if each.paper is None else f"{each.paper:.2f}"
            lines.append(f"| {each.name} | {each.text} | {len(each.runs)} | {shown} |")
        lines += ["", question.answer, ""]
    return lines


def _markdown_ablation(chapter: Chapter) -> list[str]:
    if not chapter.ablation:
        return []
    said = "Same network, epochs, memory and stream; in brackets the number of seeds."
    mark = f" ({chapter.edition.mark})" if chapter.edition.mark else ""
    return [f"## Beyond the paper{mark}", "", said, "", *ablation_table(chapter), ""]


def _markdown_rivals(chapter: Chapter, mark: str) -> list[str]:
    if not chapter.rivals:
        return []
    return [f"## The rivals, with the simplex and with their native head{mark}", "",
            *rivals.side_by_side(chapter.rivals), "", rivals.EXPLAINED, "", *rivals.markdown(chapter.rivals), ""]


def ablation_table(chapter: Chapter) -> list[str]:
    """Return the lines of the ablation table: one row per option, one column per head."""
    lines = [f"| benchmark | memory | replay | {' | '.join(HEADS)} |", "|---|--:|---|" + "--:|" * len(HEADS)]
    for row in chapter.ablation:
        missing = "none" if row["variant"] == PUBLISHED else "not run"
        cells = [missing if row[head] is None else _ablation_cell(row[head]) for head in HEADS]
        name = title(row["benchmark"], row["variant"])
        lines.append(f"| {row['benchmark']} | {row['memory']} | {name} | {' | '.join(cells)} |")
    return lines


def _ablation_cell(found: dict[str, Any]) -> str:
    spread = f" ± {found['std']:.2f}" if found["runs"] > 1 else ""
    return f"{found['mean']:.2f}{spread} ({found['runs']})"


def csv_text(report: Report) -> str:
    """Return CSV with one row per cell, in full precision; missing values are empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([
        "edition", "table", "method", "benchmark", "memory", "slots", "paper_mean", "paper_std", "ours_mean",
        "ours_std", "ours_low", "ours_high", "seeds", "difference", "paper_outside", "runs",
    ])
    for chapter in report.chapters:
        for table in chapter.tables:
            for entry in table.entries:
                cell, ours = entry.cell, entry.ours
                writer.writerow(["" if value is None else value for value in (
                    chapter.edition.mark or "full", table.name, cell.row, cell.benchmark, cell.memory, cell.slots,
                    cell.mean, cell.std, ours and ours.estimate, entry.std if len(entry.runs) > 1 else None,
                    ours and ours.low, ours and ours.high,
                    len(entry.runs), entry.difference, entry.outside, " ".join(run.hash for run in entry.runs),
                )])
    return buffer.getvalue()


def latex(report: Report) -> str:
    """Return one LaTeX table environment per table; they need \\usepackage{booktabs}."""
    lines = ["% made by holdfast report; needs \\usepackage{booktabs}"]
    for chapter in report.chapters:
        mark = f" ({chapter.edition.mark})" if chapter.edition.mark else ""
        for table in chapter.tables:
            lines += [
                "\\begin{table}", "\\centering", f"\\caption{{{escape(table.title + mark + '. ' + EXPLAINED)}}}",
                f"\\label{{tab:{chapter.prefix}{table.name}}}", "\\begin{tabular}{lrrrrr}", "\\toprule",
                f"method & {table.parts[0].column} & paper & ours & difference & seeds \\\\",
            ]
            for part in table.parts:
                lines += ["\\midrule", f"\\multicolumn{{6}}{{l}}{{\\emph{{{escape(part.caption + mark)}}}}} \\\\"]
                lines += [_latex_row(entry, part) for entry in part.entries]
            lines += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(lines)


def _latex_row(entry: Entry, part: Part) -> str:
    sign = SIGN if entry.outside else ""
    words = [
        entry.name, _key(entry, part), entry.paper_text(), entry.ours_text(), entry.difference_text() + sign,
        str(len(entry.runs)),
    ]
    return " & ".join(map(escape, words)) + " \\\\"


_SPECIAL = {
    "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "−": "$-$", "†": "$^\\dagger$",
}


def escape(text: str) -> str:
    """Escape LaTeX's special characters."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def _key(entry: Entry, part: Part) -> str:
    value = entry.cell.memory if part.column == "memory" else entry.cell.slots
    return "" if value is None else str(value)


def _cell(text: str) -> str:
    """Escape text for one cell of a Markdown table or one line of a list."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

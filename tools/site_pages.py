"""Pages of the site that are made from the code and the records, and links that leave the site (mkdocs hooks).

`mkdocs build --strict` calls `on_files` and `on_page_markdown`. No number on these pages is typed by hand.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
NAMED = re.compile(r"\[(?:docs/)?[\w/-]+\.md\]\(([\w./-]+\.md)((?:#[\w-]+)?)\)")  # a link that shows a file's name
OUTSIDE = re.compile(r"(?<!!)\[([^\]]*)\]\((?:\.\./)+(?!docs/)([^)]*)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    for name, make in (("reference/options.md", options), ("results.md", results), ("reproducibility.md", reproduced)):
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Fill the estimator's parameters in; write a link to a file outside the site as text."""
    markdown = markdown.replace("<!-- parameters -->", parameters())
    return titled(linked(markdown, page.file.src_uri), page.file.src_uri)


def titled(markdown: str, name: str) -> str:
    """Show the title of a page where a link shows its file name."""
    def text(found: re.Match[str]) -> str:
        path = (ROOT / "docs" / name).parent / found[1]
        if not path.is_file():
            return found[0]
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title}]({found[1]}{found[2]})"

    return NAMED.sub(text, markdown)


def linked(markdown: str, name: str) -> str:
    """Replace links to files outside docs/ by their text and path, and those to the README by the home page."""
    def text(found: re.Match[str]) -> str:
        label, path = found[1], found[2]
        if (ROOT / "docs" / path.partition("#")[0]).is_file():
            return found[0]  # one level up, inside the site
        if path == "README.md":
            return f"[{label}]({'../' * name.count('/')}index.md)"
        return label if label.strip("`").rstrip("/") in path else f"{label} (`{path}`)"

    return OUTSIDE.sub(text, markdown)


def parameters() -> str:
    """The parameters and attributes of the estimator, from its docstring."""
    from holdfast import IncrementalClassifier

    found = inspect.signature(IncrementalClassifier.__init__).parameters
    parts = re.split(r"^(\w+)\n-+\n", inspect.getdoc(IncrementalClassifier) or "", flags=re.M)
    lines = [parts[0].strip(), ""]
    for title, body in zip(parts[1::2], parts[2::2]):
        lines += [f"## {title}", "", "| name | default | meaning |", "|---|---|---|"]
        for names, meaning in re.findall(r"^(\w[\w, ]*) : (.*?)(?=^\w[\w, ]* : |\Z)", body, flags=re.M | re.S):
            defaults = [repr(found[n].default) for n in names.split(", ") if n in found]
            lines.append(row(f"`{names}`", ", ".join(f"`{each}`" for each in defaults), " ".join(meaning.split())))
        lines.append("")
    return "\n".join(lines)


def options() -> str:
    """Every declared option: of the protocol, the machine, and each method, head and backbone."""
    from holdfast.backbones import BACKBONES
    from holdfast.hardware import Machine
    from holdfast.heads import HEADS
    from holdfast.methods import METHODS
    from holdfast.options import declared
    from holdfast.runs.config import PROTOCOL

    lines = ["# Options", "", "From the declarations in the code: the command line, the validation and this page are "
             "made from the same ones. In Python, `--memory-batch 3` is `memory_batch=3`.", ""]
    lines += section("Every run", "", PROTOCOL) + section("The machine", "Not part of a run's hash.", declared(Machine))
    for kind, registry in (("Methods", METHODS), ("Heads", HEADS), ("Backbones", BACKBONES)):
        lines += [f"## {kind}", ""]
        for name, line in registry.describe().items():
            lines += section(name, line, declared(registry.options(name)), level=3)
    return "\n".join(lines)


def section(title: str, line: str, declared: Any, level: int = 2) -> list[str]:
    lines = ["#" * level + f" {title}", "", *([line, ""] if line else [])]
    if declared:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for each in declared:
            choices = f" ({', '.join(each.choices)})" if each.choices and len(each.choices) < 8 else ""
            default = "" if each.default is None else f"`{each.default}`"
            lines.append(row(f"`{each.flag}`", default, each.help + choices))
        lines.append("")
    return lines


def results() -> str:
    """The results of the README, which tools/show_results.py makes from the records."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text[text.index("## Results") : text.index("## The paper, from one command")]
    return part.replace("## Results", "# Results", 1).replace("](docs/", "](").replace("](results", "](../results")


def reproduced() -> str:
    """One row per method: the paper's number, ours, the verdict, and the command."""
    from holdfast.methods import METHODS
    from holdfast.paper import cells
    from holdfast.paper.editions import editions
    from holdfast.report.tables import Entry
    from holdfast.runs import records

    edition = editions(records.read(ROOT / "results").runs)[0]
    lines = [
        "# Reproducibility", "",
        "One row per method and published number, from the records in `results/`. **Verified**: the paper's mean lies "
        "in our 95 % interval over seeds. **Differs**: it does not. One seed has no interval. A method without a "
        "published number on these benchmarks is marked as such; its tests compare its update with an independent "
        "computation, which checks the method, not a number.", "",
        "| method | benchmark | memory | published | ours | verdict | command |", "|---|---|--:|--:|--:|---|---|",
    ]
    for name in METHODS:
        published = [cell for cell in cells.cells("table1") if cell.row.split("+")[0] == name and cell.mean is not None]
        found = [Entry(cell, edition.of_cell(cell)) for cell in published]
        lines += [judged(entry) for entry in found if entry.runs]
        if not any(entry.runs for entry in found):
            count = sum(run.config.method == name for run in edition.runs)
            told = unbroken("published, not run yet" if published else "no published number")
            lines.append(row(f"`{name}`", "", "", "", f"{count} run{'s' * (count > 1)}" if count else "no run", told,
                             f"`holdfast run split-digits --method {name}`"))
    return "\n".join(lines) + "\n"


def judged(entry: Any) -> str:
    """The row of one published number, judged as the report judges it."""
    verdict = {"paper inside our interval": "verified", "paper outside our interval": "differs"}
    seeds = f"{len(entry.runs)} seed{'s' * (len(entry.runs) > 1)}"
    return row(f"`{entry.cell.row}`", entry.cell.benchmark, str(entry.cell.memory or ""), entry.paper_text(),
               f"{entry.ours_text()} ({seeds})", unbroken(verdict.get(entry.verdict(), entry.verdict())),
               f"`{entry.runs[0].config.command()}`")


def unbroken(text: str) -> str:
    """Return text that stays on one line of a table."""
    return text.replace(" ", "\u00a0")


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

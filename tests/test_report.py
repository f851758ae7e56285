"""The report says what the records say: paper beside ours, what is missing, what did not count."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.methods import recipes
from holdfast.paper import cells as paper
from holdfast.report import exports
from holdfast.report import page as report
from holdfast.runs.benchmarks import BENCHMARKS
from holdfast.runs.config import Config
from holdfast.runs.records import LeftOut, Record, Records, read
from records_factory import make_features, make_record

SIMPLEX = Config("split-mnist", memory=100)
EXPANDING = Config("split-mnist", memory=100, head="expanding")


def put(folder: Path, config: Config, values: list[float], **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, value in enumerate(values):
        each = dataclasses.replace(config, seed=seed)
        (folder / f"{each.name}.json").write_text(json.dumps(make_record(each, value, **more)))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three seeds of two rows of split-mnist, one off the paper's number, and the feature figure."""
    folder = tmp_path / "results"
    put(folder, SIMPLEX, [82.0, 82.3, 82.6])
    put(folder, EXPANDING, [60.0, 60.5, 61.0], drift=30.0)
    (folder / "features.json").write_text(json.dumps(make_features()))
    return folder


class Page(HTMLParser):
    """The ids, links and addresses of a page, and the rows of its tables as text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href"):
                self.links.append(value or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.rows.append([])  # what follows is in no cell

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] = " ".join((self.rows[-1][-1] + " " + data).split())


def page_of(folder: Path) -> str:
    return report.page(report.build(read(folder)))


def test_each_cell_has_paper_ours_difference_seeds_and_a_mark_where_they_differ(results: Path) -> None:
    rows = Page(page_of(results)).rows
    assert ["Replay, simplex", "100", "82.32 ± 2.19", "82.30 ± 0.24", "−0.02", "3"] in rows
    assert ["Replay, expanding", "100", "80.10 ± 3.29", "60.50 ± 0.41", "−19.60 †", "3"] in rows
    assert ["GEM", "100", "74.92 ± 2.97", "not run", "", "0"] in rows
    assert ["GEM", "5600", "none", "not run", "", "0"] in rows


def test_the_page_starts_with_the_best_results_and_a_map_of_all_cells(results: Path) -> None:
    text = page_of(results)
    top = text[: text.index('id="tables"')]
    assert "split-mnist, M=100: <strong>82.30 ± 0.24</strong> by replay + simplex" in top
    cells = re.findall(r'<i class="([^"]+)" title="([^"]+)"', top)
    assert len(cells) == 72
    assert ("paper-inside-our-interval", "Replay, simplex, split-mnist, M=100: paper inside our interval") in cells
    assert sum(kind == "not-run" for kind, _ in cells) == 72 - sum(bool(e.runs) for t in report.build(read(results))
                                                                   .chapters[0].tables for e in t.entries)


def test_a_question_about_rates_has_a_column_for_each_rate(results: Path) -> None:
    text = page_of(results)
    (asked,) = re.findall(r"Which learning rate\? split-mnist, M=100.*?<thead>(.*?)</thead>", text, re.DOTALL)
    assert re.findall(r"<th[^>]*>(.*?)</th>", asked) == ["head", "learning rate 0.001", "learning rate 0.0001"]


def test_cells_that_were_not_run_are_folded(results: Path) -> None:
    text = page_of(results)
    shown = re.sub(r"<details class=\"missing\">.*?</details>", "", text, flags=re.DOTALL)
    assert "not run</td>" in text and "not run</td>" not in shown[: shown.index('id="evolution"')]


def test_the_same_records_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    written = [report.write(results, tmp_path / name)[1] for name in ("one", "two")]
    assert [path.name for path in written[0]] == ["report.html", "report.md", "report.csv", "tables.tex"]
    for one, two in zip(*written):
        assert one.read_bytes() == two.read_bytes()


def test_the_page_needs_nothing_from_elsewhere(results: Path) -> None:
    text = page_of(results)
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= set(page.ids)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert str(results) not in text


def test_figures_compare_runs_of_the_same_network_and_epochs_replay_first(results: Path) -> None:
    put(results, dataclasses.replace(SIMPLEX, epochs=1), [99.0, 99.1, 99.2])
    for method in ("icarl", "wa", "il2m", "er-ace", "der++", "lucir"):
        put(results, Config("split-mnist", memory=100, method=method), [90.0, 91.0, 92.0])
    put(results, Config("split-mnist", memory=100, balance=True), [85.0])
    text = page_of(results)
    (figure,) = re.findall(r"<svg.*?</svg>", text[text.index('id="evolution"'):], re.DOTALL)[:1]
    assert "replay + simplex, balance (1)" in figure and "epochs 1" not in figure
    assert "lucir" in figure and figure.count(" (3)") == 2 + 5 and "2 more sets of runs" in text.lower()


def test_figures_have_text_as_text_and_no_date(results: Path) -> None:
    built = report.build(read(results))
    svg = built.chapters[0].pictures[0].svg
    assert "tasks learned" in svg and "<dc:date>" not in svg and 'role="img"' in svg
    assert "Replay, simplex (3)" in svg
    assert "features turned" in built.feature_pictures[0].svg


def test_what_did_not_count_is_named_and_cannot_run_in_the_page(results: Path) -> None:
    (results / "<img src=x onerror=alert(1)>.json").write_text("{")
    found = read(results)
    text = report.page(report.build(found))
    assert "1 file did not count" in text
    assert "<img src=x" not in text and "&lt;img src=x" in text
    assert "<img" not in exports.markdown(report.build(found))


def test_a_hostile_feature_record_is_text_in_the_page(results: Path) -> None:
    record = make_features()
    record["labels"][0] = record["dataset"] = "</text><script>alert(1)</script>"
    record["heads"][0]["title"] = "<script>alert(2)</script>"
    (results / "features.json").write_text(json.dumps(record))
    assert page_of(results).count("<script>") == 1


def test_without_runs_the_page_says_what_to_type() -> None:
    text = report.page(report.build(Records()))
    assert "No runs yet" in text and "holdfast run split-mnist --memory 100" in text
    assert "holdfast reproduce fig-features" in text
    assert ["EWC", "–", "19.92 ± 0.06", "not run", "", "0"] in Page(text).rows


def test_quick_runs_are_marked_wherever_they_appear(results: Path) -> None:
    put(results, Config("split-mnist", memory=100, quick=True), [40.0, 41.0])
    built = report.build(read(results))
    text = report.page(built)
    rows = Page(text).rows
    full = ["Replay, simplex", "100", "82.32 ± 2.19", "82.30 ± 0.24", "−0.02", "3"]
    quick = ["Replay, simplex", "100", "82.32 ± 2.19", "40.50 ± 0.50", "−41.82 †", "2"]
    assert full in rows and quick in rows
    headings = re.findall(r"<(?:h2|h3|caption|summary)[^>]*>.*?</(?:h2|h3|caption|summary)>", text, re.DOTALL)
    second = text.index('id="quick-tables"')
    for heading in headings:
        shared = "Records that" in heading or "two dimensions" in heading or "How far each class" in heading
        if not shared:
            assert ("quick, scaled down" in heading) == (text.rindex(heading) > second), heading
    assert "quick, scaled down" in built.chapters[1].pictures[0].svg
    assert "quick, scaled down" in exports.latex(built) and "quick, scaled down" in exports.markdown(built)
    editions = {row["edition"] for row in csv.DictReader(io.StringIO(exports.csv_text(built)))}
    assert editions == {"full", "quick, scaled down"}


def test_the_runs_behind_a_cell_have_commands_versions_and_times(results: Path) -> None:
    words = " ".join(" ".join(Page(page_of(results)).words).split())
    assert EXPANDING.resolved().command() in words
    assert "code abcdef123456, torch 2.9.0" in words and "11 min" in words


def test_csv_has_a_row_a_cell_with_full_precision(results: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(exports.csv_text(report.build(read(results))))))
    assert len(rows) == len(paper.cells())
    row = next(r for r in rows if r["method"] == "replay+simplex" and r["benchmark"] == "split-mnist")
    assert float(row["ours_mean"]) == pytest.approx(82.3) and row["seeds"] == "3" and row["paper_outside"] == "False"
    assert len(row["runs"].split()) == 3
    empty = next(r for r in rows if r["method"] == "gem")
    assert empty["ours_mean"] == "" and empty["seeds"] == "0"


def test_latex_is_escaped_and_balanced(results: Path) -> None:
    assert exports.escape("a_b & 5 % {x} ± −1† ~^\\#$") == (
        "a\\_b \\& 5 \\% \\{x\\} $\\pm$ $-$1$^\\dagger$ \\textasciitilde{}\\textasciicircum{}\\textbackslash{}\\#\\$"
    )
    text = exports.latex(report.build(read(results)))
    assert text.count("\\begin{table}") == text.count("\\end{table}") == 3
    body = [line for line in text.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 5 for line in body)
    assert "Replay, expanding & 100 & 80.10 $\\pm$ 3.29 & 60.50 $\\pm$ 0.41 & $-$19.60$^\\dagger$ & 3 \\\\" in text


def test_markdown_tables_have_six_columns_and_the_claims(results: Path) -> None:
    found = read(results)
    odd = dataclasses.replace(found, left_out=(LeftOut("a|b.json", "bad\nthing"),))
    text = exports.markdown(report.build(odd))
    table = text[text.index("### split-mnist") : text.index("### permuted-mnist")].splitlines()
    assert all(line.count("|") == 7 for line in table if line.startswith("|"))
    assert "**The fixed simplex is as good as an expanding classifier: holds.**" in text
    assert "- a\\|b.json: bad thing" in text


def test_the_command_names_the_files_it_wrote(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (results / "broken.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["report"])
    assert shown.exit_code == 0, shown.output
    assert "6 runs from results" in shown.output and "left out: broken.json" in shown.output
    for name in ("report.html", "report.md", "report.csv", "tables.tex"):
        assert f"report/{name}" in shown.output and (tmp_path / "report" / name).exists()


def test_the_command_works_where_nothing_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["report", "--out", "page"]).exit_code == 0
    assert "No runs yet" in (tmp_path / "page" / "report.html").read_text()


def test_runs_are_titled_by_what_tells_them_apart(results: Path) -> None:
    def title(**fields: object) -> str:
        (record,) = (read_one(make_record(Config("split-cifar10", **fields))),)  # type: ignore[arg-type]
        return report.group_title((record,))

    assert title(memory=100) == "split-cifar10, replay + simplex, M=100, K=10"
    options = recipes.expand("strong", {}, augment="crop-flip", strong=BENCHMARKS["split-cifar10"].strong)
    assert title(memory=100, **options) == "split-cifar10, replay + simplex, strong recipe, M=100, K=10"
    assert title(method="ewc", strength=3.0) == "split-cifar10, ewc + expanding, strength 3, K=10"


def read_one(content: dict) -> Record:
    return Record("one", Config.from_json(content["config"]).resolved(), content)

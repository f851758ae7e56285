"""The report in a real browser: it renders, fits a phone, sorts, prints, and has nothing to complain of."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.paper import cells as paper
from holdfast.report import page as report
from holdfast.runs.config import Config
from records_factory import make_features, make_record

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install holdfast[browser]")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium: apt-get install chromium chromium-driver"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An empty page, and a full one: every kind of cell, long names, quick runs, a feature figure, left-out files."""
    root = tmp_path_factory.mktemp("page")
    results = root / "results"
    results.mkdir()
    for index, cell in enumerate(c for c in paper.cells() if c.benchmark.startswith("split")):
        record = make_record(cell.config(), 30.0 + index)
        (results / f"{record['hash']}.json").write_text(json.dumps(record))
    for seed in (1, 2):
        for head in ("simplex", "expanding"):
            config = Config("split-mnist", memory=100, head=head, seed=seed)
            (results / f"{config.name}.json").write_text(json.dumps(make_record(config, 80.0 + seed)))
    quick = Config("split-mnist", memory=100, quick=True)
    (results / f"{quick.name}.json").write_text(json.dumps(make_record(quick, 50.0)))
    (results / "features.json").write_text(json.dumps(make_features()))
    (results / f"{'a-very-long-name-without-any-space' * 5}.json").write_text("{")
    made = {}
    for name, folder in (("full", results), ("empty", None)):
        _, written = report.write(folder, root / name)
        made[name] = written[0].as_uri()
    return made


def open_page(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500,
    })
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)


@pytest.mark.parametrize("name", ["full", "empty"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_overflows_and_nothing_is_complained_of(
    browser: Any, pages: dict[str, str], name: str, width: int
) -> None:
    open_page(browser, pages[name], width)
    browser.execute_script("document.querySelectorAll('details').forEach(each => { each.open = true })")
    wide = browser.execute_script(
        """const most = document.documentElement.clientWidth;
        const scrolls = (each) => each.closest('.sheet');
        return [document.documentElement.scrollWidth, most, [...document.body.querySelectorAll('*')]
          .filter(each => !scrolls(each) && each.getBoundingClientRect().right > most + 1)
          .map(each => each.outerHTML.slice(0, 80))];"""
    )
    assert wide[2] == [] and wide[0] <= wide[1]
    assert browser.get_log("browser") == []


def test_it_renders_tables_figures_and_claims(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["full"])
    seen = browser.execute_script(
        """const size = (each) => { const b = each.getBoundingClientRect(); return b.width * b.height; };
        return {tables: document.querySelectorAll('section[id$=tables] .parts tbody tr').length,
          ablations: document.querySelectorAll('section[id$=beyond] table').length,
          figures: [...document.querySelectorAll('svg.plot')].map(size),
          text: document.body.innerText, requests: performance.getEntriesByType('resource').length};"""
    )
    assert seen["ablations"] >= 1
    assert seen["tables"] == 2 * 72 and len(seen["figures"]) >= 7 and min(seen["figures"]) > 10_000
    assert seen["requests"] == 0
    for words in ("did not count", "quick, scaled down", "cells are not run", "tasks learned", "does not hold"):
        assert words in seen["text"], words


def test_a_click_on_a_heading_sorts_and_another_reverses(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["full"])

    def column() -> list[str]:
        return browser.execute_script(
            "return [...document.querySelector('.parts table').tBodies[0].rows].map(r => r.cells[2].dataset.value)"
        )

    def click() -> str:
        return browser.execute_script(
            """const button = document.querySelectorAll('.parts table thead button')[2];
            button.click(); return button.closest('th').getAttribute('aria-sort');"""
        )

    before = column()
    assert click() == "ascending" and column() == sorted(before, key=float)
    assert click() == "descending" and column() == sorted(before, key=float, reverse=True)


def test_empty_cells_sort_last_both_ways(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["full"])
    last = browser.execute_script(
        """const cells = [...document.querySelectorAll('details.missing tbody td[data-value=""]')];
        const table = cells.find(each => each.innerText == 'none' || each.textContent == 'none').closest('table');
        table.closest('details').open = true;
        const button = table.querySelectorAll('thead button')[2], found = [];
        for (let i = 0; i < 2; i++) { button.click(); const rows = table.tBodies[0].rows;
          found.push(rows[rows.length - 1].cells[2].innerText, rows[0].cells[2].innerText == 'none'); }
        return found;"""
    )
    assert last == ["none", False, "none", False]


def test_a_link_from_a_cell_opens_its_runs(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["full"])
    opened = browser.execute_async_script(
        """const done = arguments[0], link = document.querySelector('.parts td a');
        const target = document.querySelector(link.getAttribute('href'));
        const before = target.open; link.click(); setTimeout(() => done([before, target.open]), 200);"""
    )
    assert opened == [False, True]


def test_dark_is_dark_and_figures_keep_a_light_ground(browser: Any, pages: dict[str, str]) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        open_page(browser, pages["full"], scheme=scheme)
        grounds[scheme] = browser.execute_script(
            """const ground = (each) => getComputedStyle(document.querySelector(each)).backgroundColor;
            return [ground('body'), ground('.sheet')];"""
        )
    assert grounds["light"] == ["rgb(255, 255, 255)", "rgb(255, 255, 255)"]
    assert grounds["dark"] == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]


def test_it_prints(browser: Any, pages: dict[str, str]) -> None:
    open_page(browser, pages["full"])
    made = browser.execute_cdp_cmd("Page.printToPDF", {})
    assert base64.b64decode(made["data"]).startswith(b"%PDF")

"""The page for teaching, in a real chromium: teach, ask, refuse a stranger, forget, reload, restart."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="the extra `http` is not installed")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

from serving_factory import picture, serving  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="chromium is not installed")]
SHAPES = ("circle", "cross", "stripes")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
                 f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def look(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500,
    })
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}],
    })
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(address)
    until(browser, lambda: element(browser, "main").is_displayed())


def element(browser: Any, name: str) -> Any:
    return browser.find_element(By.ID, name)


def until(browser: Any, ready: Any) -> Any:
    return WebDriverWait(browser, 20, 0.05).until(lambda _: ready())


def kept(folder: Path, kind: str, count: int, start: int = 0) -> list[str]:
    """Write pictures to a folder and return their paths."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{kind}-{start + i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_bytes(picture(kind, start + i))
    return [str(path) for path in paths]


def teach(browser: Any, label: str, paths: list[str]) -> None:
    element(browser, "teach-files").send_keys("\n".join(paths))
    until(browser, lambda: f"Teach {len(paths)}" in element(browser, "go").text)
    element(browser, "label").send_keys(label, Keys.ENTER)
    until(browser, lambda: f"Learned “{label}”" in element(browser, "said").text)


def ask(browser: Any, path: str) -> str:
    browser.execute_script("document.getElementById('result').replaceChildren()")
    element(browser, "ask-files").send_keys(path)
    until(browser, lambda: browser.find_elements(By.ID, "verdict"))
    return element(browser, "verdict").text


def classes(browser: Any) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('#classes li')].map(e => e.dataset.label)")


def spots(browser: Any) -> dict[str, list[int]]:
    """Return the centre of each class on the map, in pixels of the map."""
    return browser.execute_script(
        """const map = document.getElementById('map').getBoundingClientRect();
        return Object.fromEntries([...document.querySelectorAll('#map circle.class')].map(e => {
          const box = e.getBoundingClientRect();
          return [e.dataset.label, [box.x + box.width / 2 - map.x, box.y + box.height / 2 - map.y].map(Math.round)];
        }))""")


def overflow(browser: Any) -> list[Any]:
    return browser.execute_script(
        """const most = document.documentElement.clientWidth;
        return [...document.body.querySelectorAll('*')].filter(e => !e.closest('svg') && !e.closest('pre') &&
          e.getBoundingClientRect().right > most + 1).map(e => e.outerHTML.slice(0, 90))""")


def test_three_classes_are_taught_asked_refused_forgotten_and_survive(
    browser: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    shown = pytestconfig.rootpath / ".screenshots" if (pytestconfig.rootpath / ".screenshots").is_dir() else tmp_path
    model, pictures = tmp_path / "shapes", tmp_path / "pictures"
    with serving(model, "--new") as server:
        look(browser, server.address)
        browser.save_screenshot(str(shown / "empty.png"))
        teach(browser, "circle", kept(pictures, "circle", 12))
        first = spots(browser)
        for name in SHAPES[1:]:
            teach(browser, name, kept(pictures, name, 12))
        told = element(browser, "said").text
        assert float(told.split(" in ")[1].split(" s")[0]) > 0, "the page says how long it took"
        assert classes(browser) == sorted(SHAPES)
        assert spots(browser)["circle"] == first["circle"]  # it does not move, in pixels
        assert "no direction moved" in element(browser, "moved").text
        for name in SHAPES:
            assert ask(browser, kept(pictures, name, 1, start=90)[0]) == name
        assert ask(browser, kept(pictures, "stranger", 1)[0]) == "none of these"
        assert "Nothing moved" in element(browser, "knows").text
        assert len(browser.find_elements(By.CSS_SELECTOR, "#classes img")) == 18
        ask(browser, kept(pictures, "cross", 1, start=91)[0])
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
            look(browser, server.address, width, scheme)
            until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#map .sample")) == 18)
            ask(browser, str(pictures / "cross-91.png"))
            assert len(browser.find_elements(By.CSS_SELECTOR, "#map .asked")) == 1
            assert overflow(browser) == []
            whole = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
            (shown / f"taught-{width}-{scheme}.png").write_bytes(base64.b64decode(whole["data"]))
        look(browser, server.address)
        forget = browser.find_element(By.CSS_SELECTOR, "#classes li[data-label=cross] button")
        forget.send_keys(Keys.ENTER)  # by the keyboard
        until(browser, lambda: classes(browser) == ["circle", "stripes"])
        browser.refresh()
        until(browser, lambda: classes(browser) == ["circle", "stripes"])
        assert browser.get_log("browser") == []
        assert server.end() in (0, -15)
    with serving(model) as server:
        look(browser, server.address)
        until(browser, lambda: classes(browser) == ["circle", "stripes"])
        assert ask(browser, str(pictures / "circle-90.png")) == "circle"
        assert browser.get_log("browser") == []


def test_vectors_can_be_pasted_and_asked_with_the_keyboard_alone(browser: Any, tmp_path: Path) -> None:
    draw = np.random.RandomState(0)

    def lines(axis: int) -> str:
        return "\n".join(", ".join(f"{v:.3f}" for v in np.eye(4)[axis] + 0.1 * draw.normal(size=4)) for _ in range(15))

    with serving(tmp_path / "m", "--new", "--takes", "vectors") as server:
        look(browser, server.address, 390)
        assert "taught by programs" in element(browser, "vector-help").text
        for axis, name in enumerate(("left", "right")):
            element(browser, "label").send_keys(name, Keys.TAB)
            active = browser.switch_to.active_element
            assert active.get_attribute("id") == "lines"
            browser.execute_script("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
                                   active, lines(axis))
            active.send_keys(Keys.CONTROL, Keys.ENTER)
            until(browser, lambda name=name: f"Learned “{name}”" in element(browser, "said").text)
        element(browser, "question").send_keys("0, 1, 0, 0")
        until(browser, lambda: browser.find_elements(By.ID, "verdict"))
        assert element(browser, "verdict").text == "right"
        assert overflow(browser) == [] and browser.get_log("browser") == []


def test_a_class_may_have_the_name_of_a_property_of_objects(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "m", "--new") as server:
        look(browser, server.address)
        for name in ("constructor", "__proto__"):
            teach(browser, name, kept(tmp_path / "pictures", "circle", 2))
        browser.refresh()
        until(browser, lambda: classes(browser) == ["__proto__", "constructor"])
        assert len(browser.find_elements(By.CSS_SELECTOR, "#classes img")) == 4
        assert not element(browser, "problem").is_displayed() and browser.get_log("browser") == []


def test_the_camera_teaches_and_every_error_is_a_sentence_in_the_page(browser: Any, tmp_path: Path) -> None:
    """Chromium has a fake camera: a green ground with a moving pie."""
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"this is no picture")
    with serving(tmp_path / "m", "--new") as server:
        look(browser, server.address)
        element(browser, "ask-files").send_keys(str(broken))
        until(browser, lambda: "teach it a class first" in element(browser, "problem").text)
        element(browser, "teach-camera").click()
        until(browser, lambda: element(browser, "take-ten").is_displayed())
        element(browser, "take-ten").click()
        until(browser, lambda: "Teach 10" in element(browser, "go").text)
        element(browser, "label").send_keys("pie", Keys.ENTER)
        until(browser, lambda: "Learned “pie”" in element(browser, "said").text)
        assert not element(browser, "problem").is_displayed()
        element(browser, "ask-camera").click()
        until(browser, lambda: browser.find_elements(By.ID, "verdict"))
        assert element(browser, "verdict").text == "pie"
        element(browser, "ask-camera").click()
        assert browser.get_log("browser") == []
        element(browser, "teach-files").send_keys(str(broken))
        until(browser, lambda: "Teach 1 image" in element(browser, "go").text)
        element(browser, "label").send_keys("x", Keys.ENTER)
        until(browser, lambda: "cannot be read as an image" in element(browser, "problem").text)
        server.end(9)
        element(browser, "dismiss").click()
        element(browser, "go").click()
        until(browser, lambda: "does not answer" in element(browser, "problem").text)

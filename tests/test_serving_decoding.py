"""Decoding of uploads: a few processes, taken in turns, within the request's time."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")
pytest.importorskip("httpx", reason="no httpx: pip install 'holdfast[http]'")
from fastapi.testclient import TestClient
from PIL import Image

from holdfast.errors import BadInput
from holdfast.estimator import IncrementalClassifier
from holdfast.estimator.gate import Gate
from holdfast.serving.app import create_app
from holdfast.serving.decoding import Decoder, Process
from holdfast.serving.limits import Limits
from holdfast.serving.metrics import Metrics
from holdfast.serving.state import Keeper
from serving_factory import files, picture


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    made = Decoder(2)
    yield made
    made.close()


def stuck(monkeypatch: pytest.MonkeyPatch, name: str) -> threading.Event:
    """Let the image of this name take until the event is set."""
    gate, real = threading.Event(), Process.ask

    def ask(self: Process, asked: dict[str, Any], content: bytes, seconds: float) -> Any:
        if asked["name"] == name:
            gate.wait(60)
        return real(self, asked, content, seconds)

    monkeypatch.setattr(Process, "ask", ask)
    return gate


def test_a_slow_image_does_not_block_the_others(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = stuck(monkeypatch, "slow")

    async def both() -> list[str]:
        order: list[str] = []

        async def one(name: str) -> None:
            await decoder.decode([(name, picture("circle", 0))], 10**6, None, 60)
            order.append(name)
            if name == "quick":
                gate.set()

        await asyncio.gather(one("slow"), one("quick"))
        return order

    assert asyncio.run(both()) == ["quick", "slow"]


def test_requests_take_turns_image_by_image() -> None:
    decoder, content = Decoder(1), picture("circle", 0)

    async def both() -> list[str]:
        order: list[str] = []

        async def one(name: str, count: int) -> None:
            await decoder.decode([(name, content)] * count, 10**9, None, 60)
            order.append(name)

        large = asyncio.create_task(one("large", 60))
        await asyncio.sleep(0)
        await asyncio.gather(large, one("small", 1))
        return order

    try:
        assert asyncio.run(both()) == ["small", "large"]
    finally:
        decoder.close()


def test_decoding_counts_within_the_time_of_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(tmp_path / "m", IncrementalClassifier(image_size=32, width=0, device="cpu"), Gate(), "images",
                    Metrics())
    gate = stuck(monkeypatch, "image 0")
    limits = Limits(seconds=0.2)
    with TestClient(create_app(keeper, limits), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        for route, form in (("/predict", {}), ("/teach", {"label": "x"})):
            reply = client.post(route, data=form, files=files("circle", 1))
            assert reply.status_code == 504 and "0.2 seconds" in reply.json()["error"]
        gate.set()


def test_a_process_that_takes_too_long_is_stopped_and_the_next_image_gets_a_new_one() -> None:
    process = Process()
    process.start()
    first = process._process
    assert first is not None
    first.send_signal(signal.SIGSTOP)  # it never answers
    with pytest.raises(BadInput, match="took more than 0"):
        process.ask({"name": "image 0", "pixels": 10**6, "size": None}, picture("circle", 0), 0.2)
    assert first.poll() is not None
    found, pixels = process.ask({"name": "image 0", "pixels": 10**6, "size": None}, picture("circle", 0), 60)
    assert found.size == (48, 48) and pixels == 48 * 48
    process.end()


def test_reduced_images_give_the_bits_of_the_whole_file(tmp_path: Path, decoder: Decoder) -> None:
    """The decoder scales to the model's size as the estimator does, so predictions are those of the file."""
    noise = np.random.RandomState(0).randint(0, 255, (301, 407, 3), dtype=np.uint8)
    for name, options in (("a.png", {}), ("b.jpg", {"quality": 80})):
        Image.fromarray(noise).save(tmp_path / name, **options)
    clf = IncrementalClassifier(image_size=(24, 32), width=0, device="cpu")
    clf.partial_fit([tmp_path / "a.png", tmp_path / "b.jpg"] * 6, ["a", "b"] * 6)
    keeper = Keeper(tmp_path / "m", clf, Gate(), "images", Metrics())
    assert keeper.image_size() == (24, 32)
    paths = [tmp_path / "a.png", tmp_path / "b.jpg"]
    contents = [(path.name, path.read_bytes()) for path in paths]
    small = asyncio.run(decoder.decode(contents, 10**6, keeper.image_size(), 60))
    assert [each.size for each in small] == [(32, 24)] * 2
    np.testing.assert_array_equal(clf.embed(small), clf.embed(paths))


def test_a_limit_on_pixels_counts_the_file_s_own(decoder: Decoder) -> None:
    content = picture("circle", 0)

    async def both() -> None:
        two, each = [("a", content), ("b", content)], 48 * 48
        assert len(await decoder.decode(two, 2 * each, (8, 8), 60)) == 2
        with pytest.raises(BadInput, match="b cannot be read as an image"):
            await decoder.decode(two, 2 * each - 1, (8, 8), 60)

    asyncio.run(both())


def test_a_decoding_process_does_not_load_pytorch() -> None:
    code = "import sys, holdfast.serving.decoding as d; d.pictures.formats(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"

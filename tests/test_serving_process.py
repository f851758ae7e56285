"""`holdfast serve` as a process: starting, ending, slow senders, kills."""

from __future__ import annotations

import json
import random
import signal
import socket
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")
httpx = pytest.importorskip("httpx", reason="no httpx: pip install 'holdfast[http]'")
from typer.testing import CliRunner  # noqa: E402

from holdfast.cli.main import app  # noqa: E402
from holdfast.errors import BadConfig, RunLocked  # noqa: E402
from holdfast.estimator import IncrementalClassifier  # noqa: E402
from serving_factory import Running, files, serving, start  # noqa: E402

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-thirty-two-characters"


def lesson(name: str, seed: int, count: int = 30) -> dict[str, Any]:
    """Return vectors around a point of the class's own."""
    centre = np.random.RandomState(zlib.crc32(name.encode())).normal(size=16)
    noise = np.random.RandomState(seed).normal(size=(count, 16))
    return {"vectors": (centre + 0.1 * noise).tolist(), "labels": [name]}


def begin(server: Running, samples: dict[str, Any]) -> str:
    """Teach as a job and return its id."""
    return str(httpx.post(f"{server.address}/teach?job=true", json=samples, timeout=120).json()["id"])


def job_state(server: Running, job: str) -> str:
    return str(httpx.get(f"{server.address}/jobs/{job}", timeout=120).json()["state"])


def states_after_sigterm(server: Running, job: str) -> list[dict[str, Any]]:
    """Follow a job's events, send SIGTERM after the first, and return the states until the stream ends."""
    states = []
    with httpx.stream("GET", f"{server.address}/jobs/{job}/events", timeout=300) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                states.append(json.loads(line.removeprefix("data: ")))
                if len(states) == 1:
                    server.process.send_signal(signal.SIGTERM)
    return states


def listens(server: Running) -> bool:
    """Return True if the server takes a new connection."""
    try:
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2])), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def holdfast(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_token_a_lock_a_taken_port_and_slow_senders(tmp_path: Path) -> None:
    """One process, because it takes seconds to start."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    vectors = tmp_path / "v.npz"
    np.savez(vectors, vectors=np.eye(4, dtype=np.float32).repeat(5, 0), labels=np.array(list("abcd")).repeat(5))
    guarded = ("--host", "0.0.0.0", "--token", str(tmp_path / "token"), "--upload-seconds", "1")
    with serving(tmp_path / "m", "--new", "--takes", "vectors", *guarded) as server:
        port = int(server.address.rpartition(":")[2])
        address = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{address}/model").status_code == 401
        assert httpx.get(f"{address}/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200

        learning = holdfast("learn", vectors, "--model", tmp_path / "m")
        assert isinstance(learning.exception, RunLocked) and "Another process" in str(learning.exception)
        taken = holdfast("serve", tmp_path / "n", "--new", "--port", port)
        assert isinstance(taken.exception, BadConfig) and "choose another --port" in str(taken.exception)

        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
        slow, liar, thief = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3))
        slow.sendall(head + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        liar.sendall(head + b"Content-Length: 99999999999\r\n\r\n")
        wrong = head.replace(TOKEN.encode(), b"another-token-of-some-length")
        thief.sendall(wrong + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")  # and never the rest
        assert b" 401 " in thief.recv(2000).split(b"\r\n")[0]
        thief.close()
        assert b" 413 " in liar.recv(2000).split(b"\r\n")[0]
        assert httpx.get(f"{address}/health", timeout=60).status_code == 200
        assert b" 408 " in slow.recv(2000).split(b"\r\n")[0]
        slow.close()
        liar.close()
        server.end()
        assert server.process.stderr is not None and TOKEN not in server.process.stderr.read()


def test_sigterm_finishes_the_lesson_that_runs_then_ends(tmp_path: Path) -> None:
    trained = ("--with", "method=replay", "--with", "epochs=20")
    with serving(tmp_path / "m", "--new", "--takes", "vectors", *trained) as server:
        httpx.post(f"{server.address}/teach", json=lesson("a", 0), timeout=60)
        running = begin(server, lesson("b", 0, 200))
        while job_state(server, running) == "waiting":
            time.sleep(0.05)
        states = states_after_sigterm(server, running)
        assert server.end() in (0, -signal.SIGTERM)
    assert states[-1]["state"] == "done" and states[-1]["result"]["model"] == 2
    assert IncrementalClassifier.load(tmp_path / "m").classes_.tolist() == ["a", "b"]


def test_sigterm_refuses_lessons_that_wait_and_leaves_clients_that_never_read(tmp_path: Path) -> None:
    trained = ("--with", "method=replay", "--with", "epochs=60", "--grace-seconds", "1")
    with serving(tmp_path / "m", "--new", "--takes", "vectors", *trained) as server:
        httpx.post(f"{server.address}/teach", json=lesson("a", 0), timeout=60)
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", int(server.address.rpartition(":")[2])))
        body = json.dumps({"vectors": lesson("a", 1, 10_000)["vectors"]}).encode()  # the answer is about 10 MB
        head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        running = begin(server, lesson("b", 0, 400))
        while job_state(server, running) == "waiting":
            time.sleep(0.05)
        states = states_after_sigterm(server, begin(server, lesson("c", 0)))
        assert server.end(seconds=300) in (0, -signal.SIGTERM)
        deaf.close()
        assert server.process.stderr is not None and "Traceback" not in server.process.stderr.read()
    assert [each["state"] for each in states] == ["waiting", "cancelled"] and "server is ending" in states[-1]["error"]
    assert IncrementalClassifier.load(tmp_path / "m").classes_.tolist() == ["a", "b"]


def test_a_second_ctrl_c_does_not_wait_and_the_model_is_whole(tmp_path: Path) -> None:
    endless = ("--with", "method=replay", "--with", "epochs=100000")
    with serving(tmp_path / "m", "--new", "--takes", "vectors", *endless) as server:
        job = begin(server, lesson("a", 0))
        while job_state(server, job) != "running":
            time.sleep(0.05)
        server.process.send_signal(signal.SIGINT)
        while listens(server):
            time.sleep(0.05)
        assert server.process.poll() is None  # it finishes the lesson
        assert server.end(signal.SIGINT) == 130
        assert server.process.stderr is not None
        told = server.process.stderr.read()
        assert "Traceback" not in told and "was not learned" in told
    with serving(tmp_path / "m", "--new", "--takes", "vectors") as server:
        assert httpx.get(f"{server.address}/health").json() == {"ready": True, "model": 0, "classes": 0}


def killed_while_teaching(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Teach and kill; after each restart, all acknowledged classes are there. Return (kills, acknowledged)."""
    chance, acknowledged, asked = random.Random(seed), [], 0
    flags = ("--new", "--takes", "vectors", "--with", "width=256")  # a kill may come before the first model
    server: Running = start(folder, *flags)
    try:
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
            time.sleep(chance.uniform(0.02, 1.2))
            server.process.kill()
            stop.set()
            thread.join()
            server.process.wait()
            server = start(folder, *flags)
            known = {c["label"] for c in httpx.get(f"{server.address}/model").json()["classes"]}
            assert {*acknowledged} <= known, f"lost after kill {done}"
            assert len(known - {*acknowledged}) <= done + 1  # one per kill may be new without an answer
            if known:
                name = chance.choice(sorted(known))
                found = httpx.post(f"{server.address}/predict", json={"vectors": lesson(name, 1, 1)["vectors"]}).json()
                assert found["predictions"][0]["label"] == name
    finally:
        server.end(signal.SIGKILL)
    return kills, len(acknowledged)


def test_a_killed_server_loses_no_acknowledged_lesson(tmp_path: Path) -> None:
    killed_while_teaching(tmp_path / "m", 2, seed=0)


@pytest.mark.torture
def test_fifty_kills_lose_no_acknowledged_lesson(tmp_path: Path) -> None:
    kills, acknowledged = killed_while_teaching(tmp_path / "m", 50, seed=int(time.time()))
    print(f"{kills} kills, {acknowledged} acknowledged lessons, none lost")
    assert acknowledged >= 10


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

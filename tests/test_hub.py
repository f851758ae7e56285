"""A model goes to the Hub and comes back, with a card that is written from the model itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from holdfast import IncrementalClassifier
from holdfast.errors import BadConfig

pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
X, Y = make_blobs(80, centers=[[-5.0] * 4, [5.0] * 4], random_state=0)
NAMES = np.array(["ant_1", "<b>bee\nfly"])


@pytest.fixture(scope="module")
def model() -> IncrementalClassifier:
    found = IncrementalClassifier(slots=7)
    return found.partial_fit(X[Y == 0], NAMES[Y[Y == 0]]).partial_fit(X[Y == 1], NAMES[Y[Y == 1]])


def test_a_folder_has_safetensors_and_a_card_and_gives_the_model_back(
    model: IncrementalClassifier, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "model.safetensors"]
    again = IncrementalClassifier.from_pretrained(tmp_path)
    assert (again.predict(X) == model.predict(X)).all() and again.slots == 7
    again.partial_fit(X + 20, ["cow"] * len(X))  # learns on
    assert "cow" in again.classes_


def test_the_card_says_what_the_model_is(model: IncrementalClassifier, tmp_path: Path) -> None:
    text = (model.save_pretrained(tmp_path) / "README.md").read_text()
    assert text.startswith("---\n") and "library_name: holdfast" in text
    assert "| classes | 2 of 7 places |" in text and "| samples taught | 80, in 2 batches |" in text
    assert "| input | vectors of 4 numbers |" in text and "% of " in text and model.stability_.answer in text
    assert "contains samples that the model was taught" in text
    assert r"- ant\_1" in text and r"- \<b\>bee fly" in text and "<b>bee" not in text


def test_a_card_that_somebody_wrote_is_kept(model: IncrementalClassifier, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_without_the_library_the_extra_is_named(
    model: IncrementalClassifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "holdfast.estimator.hub", raising=False)
    with pytest.raises(BadConfig, match=r"holdfast\[hub\]"):
        model.save_pretrained(tmp_path)


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub's HTTP interface as an upload and a download need, on loopback."""

    files: dict[str, bytes]
    created: list[dict[str, Any]]
    commit = "0" * 40

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, content: Any = None, code: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        assert self.headers["Authorization"] == "Bearer hf_test"
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            self.answer({"url": f"http://{self.headers['Host']}/me/bugs", "id": "me/bugs"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self.answer({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"http://{self.headers['Host']}/me/bugs/commit/{self.commit}"
            self.answer({"success": True, "commitOid": self.commit, "commitUrl": url, "hookOutput": ""})
        else:
            self.answer({}, 404)

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1].partition("?")[0]
        if "/resolve/" in self.path and name in self.files:
            content = self.files[name]
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            self.answer(content, headers={"ETag": tag, "X-Repo-Commit": self.commit})
        else:
            self.answer({"error": "not found"}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit})

    do_HEAD = do_GET


@pytest.fixture
def hub() -> Iterator[tuple[str, type[Hub]]]:
    kind = type("TheHub", (Hub,), {"files": {}, "created": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_upload_and_a_download_over_http(
    model: IncrementalClassifier, hub: tuple[str, type[Hub]], tmp_path: Path
) -> None:
    """In a process of its own, because the library reads its endpoint when it is imported."""
    address, there = hub
    model.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    code = """
        import numpy as np
        from holdfast import IncrementalClassifier
        model, x = IncrementalClassifier.load("model"), np.load("x.npy")
        print(model.push_to_hub("me/bugs", token="hf_test"))
        again = IncrementalClassifier.from_pretrained("me/bugs", token="hf_test", device="cpu")
        assert (again.predict(x) == model.predict(x)).all()
    """
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1",
                   "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    made = there.created[0]  # the field's name depends on the library's version
    assert made.get("private") is True or made.get("visibility") == "private", "a model contains samples"
    assert sorted(there.files) == ["README.md", "model.safetensors"]
    assert "from_pretrained(\"me/bugs\")" in there.files["README.md"].decode()
    assert "/commit/" in done.stdout and "hf_test" not in there.files["README.md"].decode()

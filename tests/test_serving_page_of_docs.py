"""The curl lines of docs/serving.md are run against a real server, and its service files name flags that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="no fastapi: pip install 'holdfast[serve]'")
pytest.importorskip("httpx", reason="no httpx: pip install 'holdfast[http]'")
from typer.testing import CliRunner

from holdfast.cli.main import app
from serving_factory import picture, serving

PAGE = (Path(__file__).parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_every_curl_line_runs(tmp_path: Path) -> None:
    lines = re.findall(r"^    (curl .*)$", PAGE, flags=re.M)
    assert len(lines) >= 13
    for name in ("circle", "cross"):
        for i in range(4):
            (tmp_path / f"{name}-{i}.png").write_bytes(picture(name, i))
    answers = []
    with serving(tmp_path / "m", "--new") as images, serving(tmp_path / "v", "--new", "--takes", "vectors") as vectors:
        for line in lines:
            for port, server in (("8000", images), ("8001", vectors)):
                line = line.replace(f"http://127.0.0.1:{port}", server.address)
            done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            answers.append(done.stdout)
    assert [p["label"] for p in json.loads(answers[2])["predictions"]] == ["circle", "cross"]
    assert json.loads(answers[-2])["predictions"][0]["label"] == "up"
    assert json.loads(answers[-1])["vectors"][0] == pytest.approx([0.6, 0.8])
    assert (tmp_path / "model.safetensors").stat().st_size > 1000


def test_every_flag_of_the_page_exists() -> None:
    help_text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output
    commands = re.findall(r"holdfast serve [^`\n]*", PAGE.replace('", "', " "))
    flags = {flag for command in commands for flag in re.findall(r"--[a-z-]+", command)}
    flags |= set(re.findall(r"`(--(?!fail)[a-z-]+)", PAGE))
    assert len(flags) >= 12 and not [flag for flag in flags if flag not in help_text]

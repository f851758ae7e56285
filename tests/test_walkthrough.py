"""The walk-through in docs/ is run from top to bottom, as a reader would."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.estimator import model

PAGE = Path(__file__).parents[1] / "docs" / "your-own-data.md"


@pytest.mark.parametrize(("page", "least"), [("your-own-data.md", 5), ("pretrained.md", 1)])
def test_every_block_of_the_walk_through_runs(page, least):
    text = PAGE.with_name(page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def photograph(folder, brightness, count):
    """Grey pictures of 8 x 8 with noise."""
    draw = np.random.RandomState(brightness)
    folder.mkdir(parents=True)
    for i in range(count):
        pixels = np.clip(draw.normal(brightness, 20, (8, 8, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.jpg")


def test_the_commands_of_the_walk_through_run_too(tmp_path, monkeypatch):
    """In a folder with photos as it has them; with fewer updates than they take by default, which is for learning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model, "UPDATES", 4)
    monkeypatch.setattr(model, "FEWEST_EPOCHS", 1)
    photograph(tmp_path / "photos" / "cat", 60, 100)
    photograph(tmp_path / "photos" / "dog", 200, 100)
    photograph(tmp_path / "more-photos" / "emu", 130, 20)
    photograph(tmp_path / "inbox", 60, 3)
    commands = re.findall(r"^    (holdfast .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert done.exit_code == 0, f"{command}: {done.output} {done.exception}"
    assert np.load("vectors.npy").shape == (3, 1728) and len(json.loads(Path("vectors.ids.json").read_text())) == 3
    assert Path("m/model.png").exists()

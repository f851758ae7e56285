"""The walk-through in docs/ is run from top to bottom, as a reader would."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "your-own-data.md"


def test_every_block_of_the_walk_through_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)

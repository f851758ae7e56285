"""Bring records that `steadfast` wrote, before it was renamed, into the form that `holdfast` reads.

    python tools/migrate_records.py FROM... --to results

FROM are records, or folders of records or of finished runs. Options have new names, a run's hash covers its
benchmark's content, and the file is named by it. No measured number is changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast import files
from holdfast.runs.config import Config
from holdfast.runs.records import checked

RENAMED = {
    "over": "softmax_over", "vary": "augment_memory", "empty": "absent_count", "insert": "store",
    "remembered": "memory_batch",
}


def environments(old: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the environments of a record, oldest first, with the new name of the package."""
    every = [*old.pop("before", []), old]
    return [{"holdfast" if key == "steadfast" else key: value for key, value in each.items()} for each in every]


def migrated(old: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a record's new file name and content."""
    if old.get("kind") == "features":
        heads = [{**head, "config": _config(head["config"]).resolved().to_json()} for head in old["heads"]]
        return "features.json", {**old, "heads": heads, "environment": environments(old["environment"])[-1]}
    config = _config(old["config"]).resolved()
    every = environments(old["environment"])
    new = {**old, "config": config.to_json(), "hash": config.hash, "command": config.command(),
           "environment": every[-1], **({"environments": every} if len(every) > 1 else {})}
    checked(config.name, new)
    return f"{config.name}.json", new


def _config(values: dict[str, Any]) -> Config:
    return Config.from_json({RENAMED.get(key, key): value for key, value in values.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, default=Path("results"))
    asked = parser.parse_args()
    for source in asked.source:
        found = sorted([*source.glob("*.json"), *source.glob("*/result.json")]) if source.is_dir() else [source]
        for path in found:
            old = files.read_record(path)
            if "steadfast" not in (old.get("environment") or {}):
                continue
            name, new = migrated(old)
            if "hash" in new:
                files.write_record(asked.to / name, new)
            else:
                files.write_whole(asked.to / name, files.dumps(new).encode())
            if path.parent.resolve() == asked.to.resolve() and path.name != name:
                path.unlink()
            print(f"{path.name} -> {name}")


if __name__ == "__main__":
    main()

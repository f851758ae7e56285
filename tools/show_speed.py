"""Write what `benchmarks/records/` says into docs/speed.md: its tables, and its pictures in docs/images/.

    python benchmarks/loop_speed.py --record benchmarks/records/loop-lenet.json     # measure, for instance
    python tools/show_speed.py                                                      # then show it
    python tools/show_speed.py --check                 # only say what is out of date (the tests do this)

A block of the page whose benchmark has no record yet stays as it is, and the check names it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import pages
import speed_figures
from holdfast import files
from pages import ROOT
from speed_tables import BLOCKS, NETWORKS, Record, machines, rows_of, with_commands

TOOL = "show_speed.py"
Found = dict[str, list[Record]]  # the records of each benchmark


def read(folder: Path) -> Found:
    """The records by benchmark, in the order of their networks."""
    found: Found = {}
    for path in sorted(folder.glob("*.json")):
        record = files.read_record(path)
        kind = "at_once" if "--at-once" in record["command"].split() else record["benchmark"]
        found.setdefault(kind, []).append({**record, "file": path.name})
    order = [*NETWORKS]

    def place(record: Record) -> tuple[int, bool, int, str]:
        row = record["rows"][0]
        known = order.index(row["name"]) if row["name"] in order else len(order)
        return known, bool(row.get("compiled") or row.get("tuned")), record["threads"], record["file"]

    return {kind: sorted(records, key=place) for kind, records in found.items()}


def page(text: str, found: Found) -> str:
    """The page with every block that has records."""
    text = pages.filled(text, TOOL, "machine", machines([record for records in found.values() for record in records]))
    for name, (benchmark, content) in BLOCKS.items():
        if records := found.get(benchmark):
            text = pages.filled(text, TOOL, name, with_commands(records, content(records)))
    return text


def pictures(found: Found) -> dict[str, str]:
    """By file name, what must stand in it: that it was made from these records.

    Not the bytes: another Matplotlib draws the same a little differently."""
    made = {}
    for name, (benchmarks, _) in speed_figures.PICTURES.items():
        if rows := [rows_of(found[benchmark]) for benchmark in benchmarks if benchmark in found]:
            digest = hashlib.sha256(files.dumps(rows).encode()).hexdigest()[:16]
            made[name] = f"made by tools/{TOOL} from records {digest}"
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    found = read(ROOT / "benchmarks" / "records")
    place = ROOT / "docs" / "speed.md"
    wanted = {place: page(place.read_text(), found)}
    stale = pages.out_of_date(wanted)
    images = {ROOT / "docs" / "images" / name: about for name, about in pictures(found).items()}
    old = [path for path, about in images.items() if not path.exists() or about not in path.read_text()]
    missing = [name for name, (benchmark, _) in BLOCKS.items() if benchmark not in found]
    if check:
        if missing:
            print(f"docs/speed.md has blocks that no record is behind: {', '.join(missing)}")
            sys.exit(1)
        pages.complain(stale + old, TOOL)
    for path in stale:
        path.write_text(wanted[path])
    rows = {benchmark: rows_of(found.get(benchmark, [])) for benchmark, _ in BLOCKS.values()}
    for path, about in images.items():
        path.write_text(speed_figures.svg(path.name, rows, about))
    print(f"{sum(map(len, found.values()))} records; without one, and left as they are: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()

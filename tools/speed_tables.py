"""The tables of docs/speed.md, made from what the benchmarks recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.quantities import byte_size, duration
from pages import table

NETWORKS = {"lenet": "LeNet", "mlp": "MLP", "resnet20": "ResNet20", "resnet56": "ResNet56"}
Record = dict[str, Any]
Row = dict[str, Any]
Content = Callable[[Sequence[Record]], str]


def rows_of(records: Sequence[Record]) -> list[Row]:
    return [row for record in records for row in record["rows"]]


def one(rows: Sequence[Row], **wanted: object) -> Row:
    """The row that has these."""
    (found,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return found


def with_commands(records: Sequence[Record], content: str) -> str:
    """Above the content what made it, by which clock, and of which commit."""
    clocks = {(record["clock"], record["threads"]) for record in records}
    told = " or ".join(f"{'CPU' if clock == 'cpu' else 'wall'} time, {plural(threads, 'thread')}"
                       for clock, threads in sorted(clocks))
    commands = "\n".join(f"    {record['command']}" for record in records)
    commits = "; ".join(dict.fromkeys(str(record["code"]) for record in records))
    how = f"Medians, and in brackets the middle half of the rounds; {told}; commit {commits}."
    return f"{commands}\n\n{how}\n\n{content}"


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def spread(row: Row, show: Callable[[float], str] = lambda value: f"{value:.2f}") -> str:
    low, high = row["quartiles"]
    return f"{show(row['median'])} ({show(low)} to {show(high)})"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def network(row: Row) -> str:
    name = str(NETWORKS.get(row["name"], row["name"]))
    name += f", {plural(row['threads'], 'thread')}" if row.get("threads", 1) > 1 else ""
    return name + (", compiled" if row.get("compiled") else ", Avalanche tuned" if row.get("tuned") else "")


# The blocks, each from the records of one benchmark.


def machines(records: Sequence[Record]) -> str:
    """One line for each machine and set of versions; the record is named where there are several."""
    found: dict[str, list[str]] = {}
    for record in records:
        has = record["versions"]
        told = (f"{record['cpu']}, {plural(record['cores'], 'core')}; PyTorch {has['torch']}, Python {has['python']}, "
                f"holdfast {has['holdfast']}")
        found.setdefault(told, []).append(record["file"].removesuffix(".json"))
    if len(found) == 1:
        return f"Measured on: {next(iter(found))}."
    return "Measured on:\n\n" + "\n".join(f"- {told} ({', '.join(names)})" for told, names in found.items())


def loop_table(records: Sequence[Record]) -> str:
    grown = "step of the last task / of the second"
    lines = [["", "bare loop, images/s", "holdfast", "share reached", grown]]
    for record in records:
        rows = record["rows"]
        speeds = [f"{one(rows, what=what)['median']:,.0f}" for what in ("bare loop", "holdfast")]
        share = spread(one(rows, what="holdfast / bare loop"), percent)
        lines.append([network(rows[0]), *speeds, share, spread(one(rows, what=grown))])
    return table(*lines, numbers=4)


def speeds(records: Sequence[Record], ratio: str, *, base: str, same: str) -> list[list[str]]:
    """A line for each speed: the network, what it is of, images a second, its ratio; of `base`, `same`."""
    return [
        [name, row["what"], f"{row['median']:,.0f}",
         same if row["what"].startswith(base) else spread(one(record["rows"], what=ratio.format(row["what"])))]
        for record, name, row in named(records) if row["unit"] == "images/s"
    ]


def named(records: Sequence[Record]) -> list[tuple[Record, str, Row]]:
    """Every row with its network's name, and its number of threads where records differ in it."""
    differ = len({record["threads"] for record in records}) > 1
    return [
        (record, network(row) + (f", {plural(record['threads'], 'thread')}" if differ else ""), row)
        for record in records for row in record["rows"]
    ]


def at_once_table(records: Sequence[Record]) -> str:
    lines = [["two runs", "", "images/s", "at once is faster by"]]
    return table(*lines, *speeds(records, "at once / {}", base="at once", same=""), numbers=2)


TEAMS = re.compile(r"holdfast, (\d+) x (\d+) thread\(s\) / avalanche, (\d+) x (\d+) thread\(s\)")


def against(row: Row) -> str | None:
    """Who is compared: "2 runs of 1 thread / 1 run of 2 threads"."""
    if not (found := TEAMS.fullmatch(row["what"])):
        return None
    runs, threads, other_runs, other_threads = map(int, found.groups())
    ours, theirs = ((runs, threads), (other_runs, other_threads))
    told = [f"{plural(count, 'run')} of {plural(each, 'thread')}" for count, each in (ours, theirs)]
    return f"{told[0]} each" if ours == theirs else " / ".join(told)


def avalanche_table(records: Sequence[Record]) -> str:
    lines = [["", *(network(record["rows"][0]) for record in records)]]
    for told in dict.fromkeys(filter(None, map(against, rows_of(records)))):
        cells = [[spread(row) for row in record["rows"] if against(row) == told] for record in records]
        lines.append([told, *("".join(cell) for cell in cells)])
    for side in ("holdfast", "avalanche"):
        peaks = [[row for row in record["rows"] if row["unit"] == "MB" and row["what"].startswith(f"{side}, 1 x")]
                 for record in records]
        lines.append([f"peak memory of a run, {side}", *(f"{cell[0]['median']:,.0f} MB" for cell in peaks)])
    steps = [[row for row in record["rows"] if "step of the last task" in row["what"]] for record in records]
    lines.append(["step of the last task / of the second", *(spread(cell[0]) for cell in steps)])
    return table(*lines, numbers=len(records))


def methods_table(records: Sequence[Record]) -> str:
    rows = rows_of(records)
    lines = [["method", "ms a step", "relative to finetune"]]
    for row in rows:
        if row["unit"] == "ms":
            ratio = one(rows, name=row["name"], what="step / finetune's")
            lines.append([row["name"], f"{row['median']:.0f}", "1" if row["name"] == "finetune" else spread(ratio)])
    return table(*lines, numbers=2)


def importance_table(records: Sequence[Record]) -> str:
    rows = rows_of(records)
    names, ways = (list(dict.fromkeys(row[key] for row in rows if row["unit"] != "ms a sample"))
                   for key in ("name", "what"))
    lines = [["times the loop's speed", *(NETWORKS.get(name, name) for name in names)]]
    for what in ways[1:]:
        told = [spread(one(rows, name=name, what=what), lambda value: f"{value:.1f}") for name in names]
        lines.append([what.removesuffix(" / loop"), *told])
    return table(*lines, numbers=len(names))


def defaults_table(records: Sequence[Record]) -> str:
    lines = [["", "", "images/s", "of the default's speed"]]
    lines += speeds(records, "{} / default", base="default", same="1")
    shares = [f"{spread(row, lambda value: f'{value:.0%}')} on {name}"
              for _, name, row in named(records) if row["what"] == "convolutions / step"]
    return f"{table(*lines, numbers=2)}\n\nConvolutions' share of the default's step: {'; '.join(shares)}."


def convolutions_table(records: Sequence[Record]) -> str:
    """The kinds a network has most of, and all of its convolutions together."""
    rows = rows_of(records)
    passes = ("forward", "gradient of the input", "gradient of the weights")
    lines = [["", "convolution", "how often", *passes]]
    for name in dict.fromkeys(row["name"] for row in rows):
        kinds = dict.fromkeys((row["what"].removesuffix(f", {passes[0]}"), row["often"])
                              for row in rows if row["name"] == name and row["what"].endswith(passes[0]))
        most = max(often for _, often in kinds)
        for kind, often in kinds:
            if 2 * often > most:
                found = [[row for row in rows if row["name"] == name and row["what"] == f"{kind}, {each}"]
                         for each in passes]
                shares = [f"{cell[0]['median']:.0%}" if cell else "" for cell in found]
                lines.append([NETWORKS.get(name, name), kind, str(often), *shares])
        whole = spread(one(rows, name=name, what="all of a step"), lambda value: f"{value:.0%}")
        lines.append([NETWORKS.get(name, name), "all of a step", "", whole, "", ""])
    return table(*lines, numbers=4)


def seeds_table(records: Sequence[Record]) -> str:
    rows = rows_of(records)
    others = ("one by one", "processes")
    lines = [["", "seeds", "batch", "batched, images/s", *others, *(f"batched / {other}" for other in others)]]
    for row in rows:
        if row["what"] == "batched":
            same = {key: row[key] for key in ("name", "seeds", "batch")}
            speeds = [f"{each['median']:,.0f}" for each in (row, *(one(rows, what=other, **same) for other in others))]
            ratios = [spread(one(rows, what=f"batched / {other}", **same)) for other in others]
            lines.append([network(row), str(row["seeds"]), str(row["batch"]), *speeds, *ratios])
    return table(*lines, numbers=7)


def heads_table(records: Sequence[Record]) -> str:
    """Every simplex, the largest orthoplex, and the cubes whose dimension is 8, 16 or 64."""
    rows = rows_of(records)
    closed = [row for row in rows if row["what"] == "closed, time"]
    most = max(row["slots"] for row in closed if row["name"] == "orthoplex")
    shown = {"simplex": lambda row: True, "orthoplex": lambda row: row["slots"] == most,
             "cube": lambda row: row["slots"] == 2 ** row["dim"] and row["dim"] in (8, 16, 64)}
    lines = [["", "classes", "dense", "closed form", "dense / closed", "dense memory", "closed form's",
              "in bytes of the features"]]
    for row in closed:
        if shown[row["name"]](row):
            here = {each["what"]: each for each in rows if all(each[key] == row[key] for key in ("name", "slots"))}
            dense, ratio = here.get("dense, time"), here.get("dense / closed, time")
            held, needed = here.get("dense, memory"), here.get("dense, memory by arithmetic")
            peak = here["closed, memory"]["median"]
            classes = f"{row['slots']:,}" if row["name"] != "cube" else f"2^{row['dim']}"
            lines.append([
                row["name"], classes, duration(dense["median"]) if dense else "–", duration(row["median"]),
                spread(ratio, lambda value: f"{value:.3g}") if ratio else "–",
                byte_size(held["median"]) if held else f"(would need {byte_size(needed['median'])})" if needed else "–",
                byte_size(peak), f"{peak / row['features']:.2f}",
            ])
    return table(*lines, numbers=7)


BLOCKS: dict[str, tuple[str, Content]] = {  # in the page: the benchmark and what to make of it
    "loop": ("loop_speed", loop_table), "at once": ("at_once", at_once_table),
    "avalanche": ("against_avalanche", avalanche_table), "defaults": ("defaults", defaults_table),
    "convolutions": ("convolutions", convolutions_table), "seeds": ("multi_seed", seeds_table),
    "methods": ("method_cost", methods_table), "importance": ("importance", importance_table),
    "heads": ("head_cost", heads_table),
}

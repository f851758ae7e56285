"""Read a published data set from the first valid copy of each of its files."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..errors import BadData
from . import parse, places
from .dataset import Dataset
from .places import cache_folder
from .published import Entry


def read(entry: Entry, root: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Read the data set; skip damaged copies with a warning, and raise BadData if no valid copy is left."""
    search = complete(entry, root, download=download)
    for bad in search.damaged:
        used = ", ".join(str(path) for path in search.instead_of(bad))
        warnings.warn(f"{bad.path} ({bad.where}) is damaged: {bad.detail}. Used: {used}.", stacklevel=3)
    train_images, train_labels = parse.split(entry, search.parts, entry.train)
    test_images, test_labels = parse.split(entry, search.parts, entry.test)
    return Dataset(
        entry.name, train_images, train_labels, test_images, test_labels, entry.classes, entry.mean, entry.std
    )


def complete(entry: Entry, root: str | Path | None, *, download: bool) -> places.Search:
    """Find every file, downloading if necessary and allowed; raise BadData with instructions if one is missing."""
    search, failures = places.search(entry, root), []
    if search.wanted and download:
        from .download import download as get  # imported here because the web libraries take half a second

        failures = get(entry, search.wanted)
        search = places.search(entry, root)
    if search.wanted:
        raise BadData(_incomplete(search, failures, download))
    return search


def _incomplete(search: places.Search, failures: list[str], tried: bool) -> str:
    """Return the message that says what is missing or damaged, where we searched, and where to put the files."""
    entry = search.entry
    lines = [f"The data set {entry.name!r} is incomplete. No good copy of:"]
    lines += [f"  {file.file}  sha256 {file.sha256}  {file.size:,} bytes" for file in search.wanted]
    if search.damaged:
        lines += ["Damaged, and refused:"]
        lines += [f"  {bad.path} ({bad.where}): {bad.detail}" for bad in search.damaged]
    lines += ["Looked in: " + ", ".join(f"{place.folder} ({place.where})" for place in search.places)]
    if failures:
        lines += ["The download failed:", *(f"  {failure}" for failure in failures)]
    elif not tried:
        lines += ["Nothing was downloaded, because downloading is off."]
    lines += [
        f"Get the files from {entry.addresses[0]} and put them into {cache_folder() / entry.home}, or into a "
        "folder that you name with --data or HOLDFAST_DATA."
    ]
    return "\n".join(lines)

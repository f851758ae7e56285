"""Find, verify and parse a data set into uint8 tensors.

Looked for in the folder given, in STEADFAST_DATA, in the user's cache folder, and then downloaded. Every byte
is checked by SHA-256 before it is parsed, and nothing is ever unpickled.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import BadData
from . import catalog, parse, places
from .catalog import names
from .digits import CLASSES
from .digits import digits as _split_digits
from .places import Found, cache_folder

__all__ = ["Dataset", "Found", "cache_folder", "fetch", "fingerprint", "load", "locate", "names"]


@dataclass(frozen=True)
class Dataset:
    """A data set in memory: images as bytes, labels as 0..classes-1, and what normalises the images.

    Whole and resident, because then a batch is one index operation and no loader is needed.
    """

    name: str
    train_images: Tensor  # (n, channels, 32, 32) uint8
    train_labels: Tensor  # (n,) int64, 0..classes-1
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, in [0, 1] units, after padding
    std: tuple[float, ...]
    fingerprint: str | None = None  # of data that no digest of ours vouches for, by which a run knows them again


def load(name: str, root: str | Path | None = None, *, download: bool = True) -> Dataset:
    """The data set called `name`, from the first good copy of each of its files.

    A damaged copy is named in a warning and passed by; if nothing good is left, `BadData` says what to do.
    """
    if name == "digits":
        return _digits()
    from .. import own_data

    if (own := own_data.address(name)) is not None:  # one's own, that stay on disk
        kind, folder = own
        return own_data.open_arrays(folder) if kind == "arrays" else own_data.open_pictures(folder)
    entry = catalog.entry(name)
    search = _complete(entry, root, download=download)
    for bad in search.damaged:
        used = ", ".join(str(path) for path in search.instead_of(bad))
        warnings.warn(f"{bad.path} ({bad.where}) is damaged: {bad.detail}. Used: {used}.", stacklevel=2)
    train_images, train_labels = parse.split(entry, search.parts, entry.train)
    test_images, test_labels = parse.split(entry, search.parts, entry.test)
    return Dataset(
        name, train_images, train_labels, test_images, test_labels, entry.classes, entry.mean, entry.std
    )


def fingerprint(name: str) -> str | None:
    """Of one's own data as they are now; None for a data set that is known by its digests."""
    from .. import own_data

    return None if (own := own_data.address(name)) is None else own_data.fingerprint(*own)


def locate(name: str, root: str | Path | None = None) -> list[Found]:
    """What is found where: each refused copy and each good one, or a row that says a file is missing."""
    if name == "digits":
        return [Found("digits", "", None, "ok", "scikit-learn", "comes with the package")]
    return places.locate(catalog.entry(name), root)


def fetch(name: str, root: str | Path | None = None) -> list[Found]:
    """Download what has no good copy anywhere into the cache folder; returns what is then found where."""
    if name == "digits":
        return locate(name)
    return _complete(catalog.entry(name), root, download=True).rows


def _complete(entry: catalog.Entry, root: str | Path | None, *, download: bool) -> places.Search:
    """A search that found everything, after a download if need be; or the error that says what to do."""
    search, failures = places.search(entry, root), []
    if search.wanted and download:
        from .download import download as get  # only now: the web libraries take half a second to import

        failures = get(entry, search.wanted)
        search = places.search(entry, root)
    if search.wanted:
        raise BadData(_incomplete(search, failures, download))
    return search


def _digits() -> Dataset:
    """scikit-learn's digits, normalised by their own training images."""
    images, labels, test_images, test_labels = _split_digits()
    unit = images.double() / 255
    mean, std = float(unit.mean()), float(unit.std(correction=0))
    return Dataset("digits", images, labels, test_images, test_labels, CLASSES, (mean,), (std,))


def _incomplete(search: places.Search, failures: list[str], tried: bool) -> str:
    """What is missing or damaged, where it was looked for, and where to put it."""
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
        "folder that you name with --data or STEADFAST_DATA."
    ]
    return "\n".join(lines)

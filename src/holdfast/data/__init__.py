"""The registry of data sets: each name maps to a function that reads uint8 tensors.

`load` searches for a published data set in the given folder, in HOLDFAST_DATA and in the user's cache folder, and
downloads what is missing. It checks every file by SHA-256 before parsing it, and never unpickles anything.

To add a data set, register a function that takes the data folder (or None) and returns a `Dataset`:

    @data.register("birds", "200 species")
    def birds(folder):
        return data.from_arrays("birds", train_images, train_labels, test_images, test_labels)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry import Registry
from .dataset import Dataset, from_arrays
from .published import Entry

if TYPE_CHECKING:
    from .places import Found

__all__ = ["DATASETS", "Dataset", "fetch", "fingerprint", "from_arrays", "load", "locate", "names", "register",
           "write_arrays"]
_PUBLISHED = "holdfast.data.published"

DATASETS: Registry[Any] = Registry(
    "data set", "holdfast.datasets",
    {
        "digits": ("holdfast.data.digits:digits", "scikit-learn's 8x8 digits, 10 classes; needs no download"),
        "mnist": (f"{_PUBLISHED}:MNIST", "handwritten digits, 10 classes, 70,000 images"),
        "fashion-mnist": (f"{_PUBLISHED}:FASHION_MNIST", "clothes, 10 classes, 70,000 images"),
        "cifar10": (f"{_PUBLISHED}:CIFAR10", "small photographs, 10 classes, 60,000 images"),
        "cifar100": (f"{_PUBLISHED}:CIFAR100", "small photographs, 100 classes, 60,000 images"),
    },
)
register = DATASETS.register


def names() -> tuple[str, ...]:
    """Return the names of all registered data sets."""
    return tuple(DATASETS)


def load(name: str, root: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Read the data set called `name`; `arrays:FOLDER` and `images:FOLDER` read the user's own files."""
    from . import own

    if (address := own.address(name)) is not None:  # the images stay on disk
        kind, folder = address
        return own.open_arrays(folder) if kind == "arrays" else own.open_pictures(folder)
    source = DATASETS[name]
    if isinstance(source, Entry):
        from .reading import read

        return read(source, root, download=download)
    return source(None if root is None else Path(root))


def write_arrays(folder: str | Path, train: Any, test: Any, **options: Any) -> str:
    """Write other people's images into a new folder and return its name, `arrays:FOLDER` (`holdfast.data.writing`)."""
    from . import writing

    return writing.write_arrays(folder, train, test, **options)


def fingerprint(name: str) -> str | None:
    """Return a fingerprint of the current data, or None if our SHA-256 table already covers the data set."""
    from . import own

    if (address := own.address(name)) is not None:
        return own.fingerprint(*address)
    return None if isinstance(DATASETS[name], Entry) else load(name).fingerprint


def locate(name: str, root: str | Path | None = None) -> list[Found]:
    """Return one row per copy found, valid or damaged, and one row per missing file."""
    from . import places

    source = DATASETS[name]
    if isinstance(source, Entry):
        return places.search(source, root).rows
    return [places.Found(name, "", None, "ok", "package", "comes with its package")]


def fetch(name: str, root: str | Path | None = None) -> list[Found]:
    """Download files without a valid copy into the cache folder; return the rows of `locate` afterwards."""
    source = DATASETS[name]
    if isinstance(source, Entry):
        from .reading import complete

        return complete(source, root, download=True).rows
    return locate(name)

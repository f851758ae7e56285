"""Take samples from other libraries' containers: Hugging Face datasets, pandas, torchvision, loaders and generators.

They are recognised by what they offer, and none of the libraries is imported. Everything else is returned unchanged,
for the rules of `inputs`.

| container | samples | labels |
|---|---|---|
| `datasets.Dataset`, also streamed | the one column beside the labels | `y` names the column; default: its ClassLabel |
| `pandas.DataFrame` with y a name | the other columns | the column `y` |
| a torchvision-style data set | the first of each pair | the second; its name, if the data set has `classes` |
| a `DataLoader` | the first of each batch | the second |
| an iterator of (sample, label) | the first | the second |

Names are better than numbers here: the first class of every folder has the number 0, whatever its name is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..errors import BadInput
from ..quantities import some

LABELS = ("label", "labels", "target", "class")  # columns that hold labels, if none is a ClassLabel


def labelled(X: Any, y: Any) -> tuple[Any, Any]:
    """Return samples and labels; what is not one of these containers is returned as it is."""
    if _is_frame(X) and isinstance(y, str):
        return _frame(_without(X, y)), X[y].tolist()
    if not _is_columns(X) and not _is_pairs(X):
        return X, y
    return _split(*pairs(X, y))


def pairs(X: Any, y: Any = None) -> tuple[Iterator[tuple[Any, Any]], list[Any] | None]:
    """Return (sample, label) pairs, read one at a time, and the names of numbered classes if the container has them.

    Besides the containers, X may be any sequence of samples, with y its labels."""
    if _is_columns(X):
        return _from_columns(X, y)
    if _is_frame(X) and isinstance(y, str):
        rows = _without(X, y)
        return zip(rows.iloc[:, 0] if len(rows.columns) == 1 else rows.to_numpy(), X[y].tolist()), None
    if not _is_pairs(X):
        if y is None or isinstance(y, str) or len(y) != len(X):
            raise BadInput(f"A {type(X).__name__} of samples needs as many labels: give both, as (X, y).")
        return zip(X, y), None
    if y is not None:
        raise BadInput(f"The {type(X).__name__} has labels of its own: leave y out, or give the samples as a list.")
    names = getattr(X, "classes", None)
    return _pairs(X), list(names) if isinstance(names, list | tuple) and names else None


def samples(X: Any) -> Any:
    """Return the samples alone; labels that come with them are ignored."""
    if _is_columns(X):
        return _split(_from_columns(X, None, required=False)[0])[0]
    if _is_frame(X):
        return _frame(X)
    return _split(_pairs(X, required=False))[0] if _is_pairs(X) else X


# What a container is.


def _is_columns(X: Any) -> bool:
    """Return True for a Hugging Face data set, in memory or streamed."""
    return hasattr(X, "column_names") and hasattr(X, "features") and hasattr(X, "__iter__")


def _is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "iloc") and hasattr(X, "drop")


def _is_pairs(X: Any) -> bool:
    """Return True for an iterator, a loader, or a sequence that is neither an array nor one of Python's own."""
    if isinstance(X, list | tuple | str | bytes | dict | np.ndarray) or hasattr(X, "__array__") or hasattr(X, "ndim"):
        return False
    if hasattr(X, "shape"):  # sparse matrices
        return False
    return isinstance(X, Iterator) or _is_loader(X) or (hasattr(X, "__getitem__") and hasattr(X, "__len__"))


def _is_loader(X: Any) -> bool:
    return hasattr(X, "batch_sampler") and hasattr(X, "dataset")


# What is in it.


def _from_columns(
    X: Any, y: Any, *, required: bool = True
) -> tuple[Iterator[tuple[Any, Any]], list[Any] | None]:
    names = list(X.column_names or (X.features or {}))
    if y is not None and not isinstance(y, str):
        raise BadInput(f"y is a {type(y).__name__}; for a data set with columns it is a column's name: {some(names)}.")
    if y is not None and y not in names:
        raise BadInput(f"The data set has no column {y!r}; it has {some(names)}.")
    kinds = X.features or {}
    classes = [name for name in names if hasattr(kinds.get(name), "int2str")]
    label = y or next(iter([*classes, *(name for name in LABELS if name in names)]), None)
    rest = [name for name in names if name != label]
    if label is None and required:
        raise BadInput(f"None of the columns {some(names)} holds labels for sure: name one as y.")
    if len(rest) != 1:
        raise BadInput(
            f"The samples could be in any of the columns {some(rest) or 'left (none)'}: keep one beside the labels, by "
            f"select_columns([{rest[0] if rest else 'sample'!r}, {label!r}])."
        )
    names_of = getattr(kinds.get(label), "names", None) if label is not None else None
    return ((row[rest[0]], row.get(label)) for row in X), names_of  # decodes row by row, streamed or not


def _pairs(X: Any, *, required: bool = True) -> Iterator[tuple[Any, Any]]:
    """Yield (sample, label) from anything that `_is_pairs`."""
    items: Iterable[Any] = (X[at] for at in range(len(X))) if not hasattr(X, "__iter__") else X
    if hasattr(X, "__getitem__") and hasattr(X, "__len__"):
        items = (X[at] for at in range(len(X)))  # old-style iteration relies on an IndexError
    for at, item in enumerate(items):
        pair = isinstance(item, tuple | list) and len(item) == 2
        if not pair and required:
            raise BadInput(f"Item {at} of the {type(X).__name__} is a {type(item).__name__}, not (sample, label).")
        if _is_loader(X) and pair:
            yield from zip(item[0], item[1].tolist() if hasattr(item[1], "tolist") else item[1])
        else:
            yield (item[0], item[1]) if pair else (item, None)


def _split(pairs: Iterable[tuple[Any, Any]], names: list[Any] | None = None) -> tuple[Any, list[Any]]:
    found = list(pairs)
    return _stacked([sample for sample, _ in found]), [name_of(label, names) for _, label in found]


def _stacked(samples: list[Any]) -> Any:
    """Stack vectors to one array (n, features); leave images, texts and paths as a list."""
    first = samples[0] if samples else None
    flat = getattr(first, "ndim", None) == 1 or (
        isinstance(first, list | tuple) and first and isinstance(first[0], int | float)
    )
    if not flat:
        return samples
    widths = {len(sample) for sample in samples}
    if len(widths) > 1:
        raise BadInput(f"The vectors have different lengths, such as {sorted(widths)[:3]}: give them all one length.")
    return np.stack([np.asarray(sample) for sample in samples])


def _without(X: Any, y: str) -> Any:
    """Return the columns of a table beside the labels."""
    if y not in X.columns:
        raise BadInput(f"The table has no column {y!r}; it has {some([str(name) for name in X.columns])}.")
    return X.drop(columns=y)


def _frame(X: Any) -> Any:
    """Return a table of one column of texts, paths or images as a list; a table of numbers as it is."""
    return X.iloc[:, 0].tolist() if len(X.columns) == 1 and X.dtypes.iloc[0].kind not in "biuf" else X


def name_of(label: Any, names: list[Any] | None) -> Any:
    """Return a label as a Python value; a number as the name of its class, if the container has names."""
    label = label.item() if hasattr(label, "item") and getattr(label, "ndim", 0) == 0 else label
    if names is None or not isinstance(label, int):
        return label
    if not 0 <= label < len(names):
        raise BadInput(f"The label {label} is not one of the {len(names)} classes that the data set names.")
    return names[label]

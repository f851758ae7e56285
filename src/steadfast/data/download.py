"""Download what is missing into the cache folder: from the canonical address, then from the mirror.

A file appears there whole and with the right checksum, or not at all; an address that answers with something
else is passed by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pooch
import requests
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .catalog import Entry, Packed
from .places import cache_folder

TIMEOUT = (10, 30)  # seconds to connect, and between two pieces, before the next address is tried
HEADERS = {"Accept-Encoding": "identity"}  # or requests would unpack a .gz that was compressed in transit


class _Sink:
    """The file a download is written to: counts what comes, and refuses more than there should be."""

    def __init__(self, file: BinaryIO, size: int, progress: Progress, task: Any) -> None:
        self.file, self.left, self.progress, self.task = file, size, progress, task

    def write(self, chunk: bytes) -> int:
        self.left -= len(chunk)
        if self.left < 0:
            raise ValueError("the answer is longer than the file should be")
        self.progress.update(self.task, advance=len(chunk))
        return self.file.write(chunk)

    def flush(self) -> None:
        self.file.flush()


def _download(address: str, packed: Packed, folder: Path, progress: Progress) -> None:
    """One file from one address: pooch writes to a temporary name, checks the checksum, then renames."""
    task = progress.add_task(packed.file, total=packed.size)

    def into(url: str, output_file: str, _: Any) -> None:
        http = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=TIMEOUT, headers=HEADERS)
        with open(output_file, "wb") as file:
            http(url, _Sink(file, packed.size, progress, task), None)

    try:
        pooch.retrieve(
            address + packed.file,
            known_hash=f"sha256:{packed.sha256}",
            fname=packed.file,
            path=folder,
            downloader=into,
        )
    except BaseException:
        progress.remove_task(task)
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """Pooch's own log lines are left out: the bar says the same."""
    log = pooch.get_logger()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def download(entry: Entry, wanted: Iterable[Packed]) -> list[str]:
    """Fetch files into the cache folder; returns a line for each address that failed.

    An address that cannot be reached is not asked again for the next file: offline is known after one try.
    """
    folder = cache_folder() / entry.home
    reachable = list(entry.addresses)
    failures: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with _quiet(), Progress(*columns, console=Console(stderr=True)) as progress:
        for packed in wanted:
            for address in tuple(reachable):
                try:
                    _download(address, packed, folder, progress)
                    break
                except (OSError, ValueError) as error:  # requests' errors are OSErrors
                    failures.append(f"{address}{packed.file}: {_short(error)}")
                    if isinstance(error, OSError) and getattr(error, "response", None) is None:
                        reachable.remove(address)
    return failures


def _short(error: Exception) -> str:
    """What went wrong in one short line; requests' own text for an address out of reach fills a screen."""
    if isinstance(error, (requests.ConnectionError, requests.Timeout)):
        return f"cannot be reached ({type(error).__name__})"
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:200]}"

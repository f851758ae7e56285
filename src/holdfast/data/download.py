"""Download missing files into the cache folder, from the canonical address first, then from the mirror.

A file appears in the cache only when it is complete and its checksum is right. If an address returns other
content, the next address is tried.
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

from .places import cache_folder
from .published import Entry, Packed

TIMEOUT = (10, 30)  # seconds to connect, and between two chunks, before the next address is tried
HEADERS = {"Accept-Encoding": "identity"}  # otherwise requests would decompress a .gz file


class _Sink:
    """A file for a download that updates the progress bar and refuses more bytes than expected."""

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
    """Download one file from one address; pooch writes a temporary file, verifies its checksum, then renames it."""
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
    """Silence pooch's log: the progress bar shows the same."""
    log = pooch.get_logger()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def download(entry: Entry, wanted: Iterable[Packed]) -> list[str]:
    """Download files into the cache folder; return one line per failure.

    An unreachable address is not tried again for the next file, so that an offline machine fails fast.
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
    """Return the error as one short line; requests' own message for an unreachable address fills a screen."""
    if isinstance(error, (requests.ConnectionError, requests.Timeout)):
        return f"cannot be reached ({type(error).__name__})"
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:200]}"

"""A full disk, a read-only folder: a clear error, the last good state intact, and going on once it can."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import pytest
from survivor import differ, remains

from conftest import make_tiny_config
from steadfast import experiment, files, sweep
from steadfast.config import Config
from steadfast.errors import CannotRead, CannotWrite
from steadfast.training import Stopped, Watcher

Run = Callable[..., experiment.Result]
CONFIG: dict[str, Any] = {"backbone": "lenet", "epochs": 2}


class FullAt:
    """The n-th attempt to open, write, sync or rename fails; a write has then written half."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, error: int) -> None:
        self.calls, self.at, self.error, self.patch = 0, at, error, patch
        for owner, name in ((os, "fsync"), (os, "replace")):
            patch.setattr(owner, name, self.failing(getattr(os, name)))
        patch.setattr(files, "open", self.open, raising=False)

    def check(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise OSError(self.error, os.strerror(self.error))

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.check()
            return real(*args)

        return call

    def open(self, path: Path, mode: str) -> Any:
        if "w" not in mode:
            return open(path, mode)
        self.check()
        file = open(path, mode)  # noqa: SIM115  it is closed by the `with` that it is given to
        real = file.write

        class Half:
            def write(_, content: bytes) -> None:
                try:
                    self.check()
                except OSError:
                    real(content[: len(content) // 2])
                    raise
                real(content)

            def __getattr__(_, name: str) -> Any:
                return getattr(file, name)

            def __enter__(_) -> Any:
                return _

            def __exit__(_, *error: Any) -> None:
                file.close()

        return Half()


def check_intact(folder: Path) -> None:
    """Nothing half-written; every checkpoint that is there can be read."""
    run = experiment.RunFolder(folder)
    assert not list(folder.glob(".*.part"))
    for checkpoint in run.checkpoints():
        files.read_tensors(checkpoint)
    run.read_result()


def survive_faults(run_tiny: Run, tmp_path: Path, wanted: Iterator[tuple[int, int]], config: Config) -> dict[str, int]:
    """One run a fault; each ends in an error that is ours, or unharmed, and goes on to the same bits."""
    run_tiny(config, tmp_path / "whole")
    whole, told = remains(tmp_path / "whole"), {"clear": 0, "absorbed": 0}
    for at, error in wanted:
        out = tmp_path / f"{error}-{at}"
        with pytest.MonkeyPatch.context() as patch:
            layer = FullAt(patch, at, error)
            try:
                run_tiny(config, out)
                told["absorbed"] += 1  # a folder that cannot be synced, or a fault beyond the end
            except CannotWrite as refused:
                assert os.strerror(error) in str(refused) and "go on" in str(refused) and str(out) in str(refused)
                told["clear"] += 1
            if layer.calls < at:
                return told
        check_intact(out / config.name)
        run_tiny(config, out)
        differ(remains(out), whole, f"fault {error} at {at}")
    return told


def test_every_kind_of_write_may_fail(run_tiny: Run, tmp_path: Path) -> None:
    points = iter([(at, errno.ENOSPC) for at in (1, 2, 3, 4, 12, 13, 14, 33)] + [(14, errno.EROFS)])
    told = survive_faults(run_tiny, tmp_path, points, make_tiny_config(**CONFIG))
    assert told["clear"] >= 6


@pytest.mark.torture
@pytest.mark.parametrize("method", ["replay", "gem", "si", "ewc"])
def test_every_single_write_may_fail(method: str, run_tiny: Run, tmp_path: Path) -> None:
    changes = {"method": method, **({"strength": 1.0} if method in ("si", "ewc") else {})}
    config, total = make_tiny_config(**CONFIG, **changes), {"clear": 0, "absorbed": 0}
    for error in (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT):
        points = ((at, error) for at in range(1, 10**6, 1 if error == errno.ENOSPC else 5))
        told = survive_faults(run_tiny, tmp_path / str(error), points, config)
        total = {name: total[name] + told[name] for name in total}
    before = figures.read().get("disk", {}).get("by_method", {})
    by_method = {**before, method: total}
    clear, absorbed = (sum(each[name] for each in by_method.values()) for name in ("clear", "absorbed"))
    figures.keep("disk", faults=clear + absorbed, clear=clear, absorbed=absorbed, by_method=by_method)


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError(),
                                   RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")])
def test_checkpoints_that_cannot_be_read_now_are_kept_for_later(
    error: Exception, run_tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, taken = make_tiny_config(**CONFIG), iter(range(9))
    run_tiny(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        run_tiny(config, tmp_path / "cut", watcher=Watcher(stop=lambda: next(taken, None) is None))
    before = sorted((tmp_path / "cut" / config.name).iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(files, "_bounded", lambda path: raising(error))
        with pytest.raises(CannotRead, match=r"checkpoint-\d+.safetensors cannot be read: .*left as it is"):
            run_tiny(config, tmp_path / "cut")
    assert sorted((tmp_path / "cut" / config.name).iterdir()) == before
    run_tiny(config, tmp_path / "cut")
    differ(remains(tmp_path / "cut"), remains(tmp_path / "whole"), "the disk that could not be read")


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError()])
def test_a_result_that_cannot_be_read_now_is_kept_for_later(
    error: Exception, run_tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_tiny_config(**CONFIG)
    made = run_tiny(config)
    before = sorted((tmp_path / config.name).iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path, **options: raising(error))
        with pytest.raises(CannotRead, match=r"result.json cannot be read: .*left as it is"):
            run_tiny(config)
        assert sweep.survey([config], tmp_path)[0].state == "failed"
    assert sorted((tmp_path / config.name).iterdir()) == before
    assert run_tiny(config) == files.plain(made)


def raising(error: Exception) -> Any:
    raise error


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A real file system in memory, mounted anew with the options given; skipped where that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        words = ["mount", "-t", "tmpfs", "-o", ("remount," if mounted else "") + options, "steadfast", str(place)]
        try:
            subprocess.run(words, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting a small disk is not allowed here")
        mounted = True
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full_and_then_has_room(
    run_tiny: Run, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    config = make_tiny_config(**CONFIG)
    run_tiny(config, tmp_path / "whole")
    (checkpoint,) = experiment.RunFolder(tmp_path / "whole" / config.name).checkpoints()
    size = checkpoint.stat().st_size
    disk = small_disk(f"size={int(2.5 * size)}")  # the third checkpoint is written while two are kept
    with pytest.raises(CannotWrite, match=r"(?s)No space left.*intact.*same command"):
        run_tiny(config, disk)
    check_intact(disk / config.name)
    assert len(experiment.RunFolder(disk / config.name).checkpoints()) == 2
    small_disk(f"size={10 * size}")
    run_tiny(config, disk)
    differ(remains(disk), remains(tmp_path / "whole"), "the small disk")


def test_a_read_only_disk_is_named_and_its_results_can_still_be_read(
    run_tiny: Run, tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    config = make_tiny_config(**CONFIG)
    disk = small_disk("size=100m")
    small_disk("ro")
    with pytest.raises(CannotWrite, match="Read-only"):
        run_tiny(config, disk)
    assert list(disk.iterdir()) == []
    small_disk("rw")
    made = run_tiny(config, disk)
    small_disk("ro")
    assert run_tiny(config, disk) == files.plain(made)

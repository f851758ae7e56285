"""A full disk, a read-only folder: a clear error, the last good state intact, and the run can be resumed later."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import figures
import pytest
from survivor import differ, remains

from conftest import make_tiny_config
from holdfast import files
from holdfast.errors import CannotRead, CannotWrite
from holdfast.learning.training import Stopped, Watcher
from holdfast.runs import experiment
from holdfast.runs.config import Config
from holdfast.runs.folder import RunFolder
from holdfast.sweeps.survey import State, survey

Run = Callable[..., experiment.Result]
CONFIG: dict[str, Any] = {"backbone": "lenet", "epochs": 2}


class FullAt:
    """Make the n-th open, write, sync or rename fail; a failing write has written half."""

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
        if mode == "rb":
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
    """Assert that nothing is half-written, and that every checkpoint can be read."""
    run = RunFolder(folder)
    assert not list(folder.glob(".*.part"))
    for checkpoint in run.checkpoints():
        files.read_tensors(checkpoint)
    run.read_result()


def survive_faults(run_tiny: Run, tmp_path: Path, wanted: Iterator[tuple[int, int]], config: Config) -> dict[str, int]:
    """Do one run per fault: each ends in our error, or unharmed, and resumes to the same bits."""
    run_tiny(config, tmp_path / "whole")
    whole, told = remains(tmp_path / "whole"), {"clear": 0, "absorbed": 0}
    for at, error in wanted:
        out = tmp_path / f"{error}-{at}"
        with pytest.MonkeyPatch.context() as patch:
            layer = FullAt(patch, at, error)
            try:
                run_tiny(config, out)
                told["absorbed"] += 1  # a fault beyond the end
            except CannotWrite as refused:
                assert all(part in str(refused) for part in (os.strerror(error), "same command", str(out)))
                told["clear"] += 1
            if layer.calls < at:
                return told
        check_intact(out / config.name)
        run_tiny(config, out)
        differ(remains(out), whole, f"fault {error} at {at}")
    return told


def test_every_kind_of_write_may_fail(run_tiny: Run, tmp_path: Path) -> None:
    """Calls 3 to 7 write .holder: open, write, sync, rename, sync the folder; 18 to 22 the first checkpoint."""
    points = iter([(at, errno.ENOSPC) for at in (1, 3, 4, 5, 6, 7, 18, 19, 20, 21, 22)] + [(21, errno.EROFS)])
    told = survive_faults(run_tiny, tmp_path, points, make_tiny_config(**CONFIG))
    assert told == {"clear": 12, "absorbed": 0}


def test_the_older_checkpoint_goes_only_when_the_new_one_and_its_name_are_on_the_disk(
    run_tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, done = make_tiny_config(**CONFIG), []
    replace, fsync, unlink = os.replace, os.fsync, Path.unlink

    def name(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    monkeypatch.setattr(os, "replace", lambda old, new: (done.append(("rename", Path(new).name)), replace(old, new)))
    monkeypatch.setattr(os, "fsync", lambda d: (done.append(("sync", name(d))), fsync(d)))
    monkeypatch.setattr(Path, "unlink", lambda path, **o: (done.append(("delete", path.name)), unlink(path, **o)))
    run_tiny(config, tmp_path / "new")
    assert ("sync", tmp_path.name) in done and ("sync", "new") in done  # the folders' own names
    third = "checkpoint-000003.safetensors"
    begin = done.index(("sync", f".{third}.{os.getpid()}.part"))
    assert done[begin + 1 : begin + 3] == [("rename", third), ("sync", config.name)]
    assert ("delete", "checkpoint-000001.safetensors") in done[begin + 3 :]


@pytest.mark.parametrize("call", range(5))
def test_while_a_checkpoint_cannot_be_written_the_two_before_it_stay(call: int, run_tiny: Run, tmp_path: Path) -> None:
    """Each of its five calls in turn: open, write, sync, rename, sync the folder."""
    config = make_tiny_config(**CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        layer, real = FullAt(patch, -1, errno.EIO), files.write_tensors

        def write(path: Path, *content: Any) -> None:
            if path.name == "checkpoint-000003.safetensors":
                layer.at = layer.calls + 1 + call
            real(path, *content)

        patch.setattr(files, "write_tensors", write)
        with pytest.raises(CannotWrite, match="checkpoint-000003"):
            run_tiny(config)
    names = [path.name for path in RunFolder(tmp_path / config.name).checkpoints()]
    assert names[-2:] == ["checkpoint-000002.safetensors", "checkpoint-000001.safetensors"]
    check_intact(tmp_path / config.name)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_a_folder_is_written_to_all_the_same(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(error, os.strerror(error))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.write_json(tmp_path / "new" / "a.json", {"a": 1})
    assert files.read_json(tmp_path / "new" / "a.json") == {"a": 1}


def test_a_run_that_fails_in_its_pictures_has_no_result_and_is_tidied(
    run_tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_tiny_config(**CONFIG)
    folder = RunFolder(tmp_path / config.name)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runs.plots.run_pictures", lambda result, folder: raising(MemoryError()))
        with pytest.raises(MemoryError):
            run_tiny(config)
    assert folder.checkpoints() and not folder.result.exists()
    (folder.path / ".checkpoint-000009.safetensors.123.part").write_bytes(b"half")
    run_tiny(config)
    assert folder.result.exists() and not list(folder.path.glob(".*.part"))


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
        patch.setattr(files, "_read_bounded", lambda path: raising(error))
        with pytest.raises(CannotRead, match=r"checkpoint-\d+.safetensors cannot be read: .*left unchanged"):
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
        with pytest.raises(CannotRead, match=r"result.json cannot be read: .*left unchanged"):
            run_tiny(config)
        assert survey([config], tmp_path)[0].state is State.FAILED
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
        words = ["mount", "-t", "tmpfs", "-o", ("remount," if mounted else "") + options, "holdfast", str(place)]
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
    run_tiny: Run, tmp_path: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_tiny_config(**CONFIG)
    run_tiny(config, tmp_path / "whole")
    monkeypatch.setattr(files, "check_room", lambda folder, need: None)  # as if the disk filled up after the start
    (checkpoint,) = RunFolder(tmp_path / "whole" / config.name).checkpoints()
    size = checkpoint.stat().st_size
    disk = small_disk(f"size={int(2.5 * size)}")  # the third checkpoint is written while two are kept
    with pytest.raises(CannotWrite, match=r"(?s)No space left.*intact.*same command"):
        run_tiny(config, disk)
    check_intact(disk / config.name)
    assert len(RunFolder(disk / config.name).checkpoints()) == 2
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

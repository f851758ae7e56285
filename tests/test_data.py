"""The data sets: found in order, verified by checksum, parsed into tensors, downloaded whole or not at all.

The unit tests run on tiny stand-ins for the real files, registered with their own checksums.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from data_factory import NOWHERE, Fake, fake_cifar, fake_idx, sha256, use
from holdfast import data
from holdfast.data import DATASETS, published
from holdfast.errors import BadData, UnknownName


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Every test has a cache folder of its own, and no HOLDFAST_DATA unless it is about the real data."""
    cache = tmp_path / "cache"
    monkeypatch.setattr("holdfast.data.places.platformdirs.user_cache_path", lambda _: cache)
    if "real" not in request.node.name:
        monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    return cache


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = fake_idx("mnist", seed=1)
    use(fake.entry, monkeypatch)
    return fake


@pytest.fixture
def fashion(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = fake_idx("fashion-mnist", seed=2)
    use(fake.entry, monkeypatch)
    return fake


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = fake_cifar(request.param, seed=3)
    use(fake.entry, monkeypatch)
    return fake


Serve = Callable[[Path], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a web server on a folder; returns its address."""
    servers = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def from_addresses(fake: Fake, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    use(dataclasses.replace(fake.entry, addresses=addresses), monkeypatch)


# ---------------------------------------------------------------- names


def test_the_five_data_sets_are_known_by_name() -> None:
    assert data.names() == ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")


@pytest.mark.parametrize("call", [data.load, data.locate, data.fetch])
def test_an_unknown_name_is_answered_with_the_nearest(call: Callable[[str], object]) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'cifar10'"):
        call("cifar-10")


def test_every_checksum_of_a_published_file_is_a_different_sha256() -> None:
    sums = [s for entry in published.EVERY for packed in entry.packed for _, s in packed.known]
    sums += [part.sha256 for entry in published.EVERY for part in entry.parts]
    assert len(set(sums)) == len(sums) == 12 + 2 + 8 + 8
    assert all(len(s) == 64 and int(s, 16) for s in sums)


def test_every_data_set_has_a_mirror() -> None:
    assert all(len(set(entry.addresses)) == 2 for entry in published.EVERY)


# ---------------------------------------------------------------- people's own, registered


def colours(count: int, seed: int, channels: int = 2) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, channels, 5, 7), dtype=np.uint8), np.arange(count) % 3


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is registered here is gone afterwards."""
    for part in ("_things", "_lines"):
        monkeypatch.setattr(DATASETS, part, dict(getattr(DATASETS, part)))
    yield


@pytest.mark.usefixtures("registered")
def test_a_data_set_of_any_size_and_channels_is_one_registration(tmp_path: Path) -> None:
    given: list[Path | None] = []

    @data.register("fields", "two channels of 5 x 7")
    def fields(folder: Path | None) -> data.Dataset:
        given.append(folder)
        return data.from_arrays("fields", *colours(12, 0), *colours(6, 1), classes=("hay", "oats", "rye"))

    loaded = data.load("fields", tmp_path)
    assert "fields" in data.names() and given == [tmp_path]
    assert loaded.train_images.shape == (12, 2, 5, 7) and len(loaded.mean) == len(loaded.std) == 2
    unit = colours(12, 0)[0] / 255
    assert loaded.mean == pytest.approx(unit.mean((0, 2, 3))) and loaded.std == pytest.approx(unit.std((0, 2, 3)))
    assert [row.status for row in data.locate("fields")] == ["ok"] == [row.status for row in data.fetch("fields")]
    assert data.fingerprint("fields") == loaded.fingerprint is not None


def test_the_fingerprint_of_arrays_is_of_their_content() -> None:
    def fingerprint(seed: int = 0, **more: object) -> str | None:
        return data.from_arrays("fields", *colours(12, seed), *colours(6, 9), **more).fingerprint

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(1), fingerprint(classes=("a", "b", "c"))}) == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({0: colours(12, 0)[0].astype(float)}, r"images of torch.float64.*images are uint8"),
        ({0: colours(12, 0)[0][:, 0]}, r"shape \(12, 5, 7\)"),
        ({1: np.zeros(11)}, r"labels of shape \(11,\)"),
        ({2: colours(6, 1, channels=1)[0]}, "differ in shape"),
        ({1: np.full(12, -1)}, "labels outside 0 to"),
    ],
)
def test_arrays_that_are_no_data_set_are_refused(change: dict[int, np.ndarray], told: str) -> None:
    parts = [*colours(12, 0), *colours(6, 1)]
    for at, value in change.items():
        parts[at] = value
    with pytest.raises(BadData, match=told):
        data.from_arrays("fields", *parts)
    with pytest.raises(BadData, match="labels outside 0 to 1"):
        data.from_arrays("fields", *colours(12, 0), *colours(6, 1), classes=("two", "names"))


# ---------------------------------------------------------------- digits


def test_digits_need_no_files_and_are_split_by_class() -> None:
    digits = data.load("digits", download=False)
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    share = digits.test_labels.bincount() / (digits.test_labels.bincount() + digits.train_labels.bincount())
    assert ((share > 0.19) & (share <= 0.2)).all()


def test_a_digit_pixel_is_a_square_of_four_and_sixteen_is_white() -> None:
    from sklearn.datasets import load_digits

    original = load_digits().images
    digits = data.load("digits")
    everything = torch.cat([digits.train_images, digits.test_images])
    assert everything.shape == (1797, 1, 32, 32)
    first = digits.train_images[0, 0]  # the first sample of a class is a training sample
    assert torch.equal(first, torch.kron(first[::4, ::4], torch.ones(4, 4, dtype=torch.uint8)))
    assert np.abs(first[::4, ::4].numpy() / 255 * 16 - original[0]).max() < 16 / 255
    assert int(everything.max()) == 255 and int(everything.min()) == 0


def test_digits_train_and_test_hold_each_sample_once() -> None:
    from sklearn.datasets import load_digits

    digits = data.load("digits")
    ours = torch.cat([digits.train_images, digits.test_images])[:, 0, ::4, ::4].reshape(1797, -1)
    theirs = np.rint(load_digits().images * 255 / 16).reshape(1797, -1)
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, theirs.astype(int).tolist()))


def test_digits_are_normalised_by_their_own_training_part() -> None:
    digits = data.load("digits")
    normal = (digits.train_images.double() / 255 - digits.mean[0]) / digits.std[0]
    assert abs(float(normal.mean())) < 1e-9 and abs(float(normal.pow(2).mean()) - 1) < 1e-9


# ---------------------------------------------------------------- what is found, and where


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["MNIST/raw", "."])
def test_idx_files_are_padded_to_32_wherever_they_lie(
    mnist: Fake, tmp_path: Path, folder: str, packed: bool
) -> None:
    loaded = data.load("mnist", mnist.write(tmp_path / "data", folder, packed=packed), download=False)
    pixels = np.frombuffer(mnist.parts["train-images-idx3-ubyte"][16:], np.uint8).reshape(7, 28, 28)
    assert np.array_equal(loaded.train_images[:, 0].numpy(), np.pad(pixels, ((0, 0), (2, 2), (2, 2))))
    assert loaded.train_labels.tolist() == list(mnist.parts["train-labels-idx1-ubyte"][8:])
    assert loaded.test_images.shape == (3, 1, 32, 32)
    assert loaded.test_labels.tolist() == list(mnist.parts["t10k-labels-idx1-ubyte"][8:])


@pytest.mark.parametrize("packed", [True, False])
def test_cifar_records_become_images_and_their_last_label(cifar: Fake, tmp_path: Path, packed: bool) -> None:
    entry = cifar.entry
    folder = "." if packed else entry.folders[0]
    loaded = data.load(entry.name, cifar.write(tmp_path / "data", folder, packed=packed), download=False)
    for names, images, labels in (
        (entry.train, loaded.train_images, loaded.train_labels),
        (entry.test, loaded.test_images, loaded.test_labels),
    ):
        size = entry.label_bytes + 3072
        raw = b"".join(cifar.parts[name] for name in names)
        records = [raw[i : i + size] for i in range(0, len(raw), size)]
        assert images.shape == (len(records), 3, 32, 32)
        assert labels.tolist() == [record[entry.label_bytes - 1] for record in records]
        assert images[-1, 2, 31, 31] == records[-1][-1]
        assert images[1, 0, 0, 5] == records[1][entry.label_bytes + 5]


def test_the_tensors_are_bytes_and_longs_that_can_be_written(mnist: Fake, cifar: Fake, tmp_path: Path) -> None:
    root = mnist.write(tmp_path / "data", ".", packed=True)
    cifar.write(root, ".", packed=True)
    for name in ("digits", "mnist", cifar.entry.name):
        loaded = data.load(name, root, download=False)
        for images, labels in (
            (loaded.train_images, loaded.train_labels),
            (loaded.test_images, loaded.test_labels),
        ):
            assert images.dtype == torch.uint8 and labels.dtype == torch.int64
            assert images.is_contiguous() and images.numpy().flags.writeable and labels.numpy().flags.writeable
            assert images.shape[1] == len(loaded.mean) == len(loaded.std)


def test_the_folder_given_comes_before_the_variable_and_the_variable_before_the_cache(
    mnist: Fake, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, variable = tmp_path / "given", tmp_path / "variable"
    for root in (given, variable, own_cache):
        mnist.write(root, "MNIST/raw", packed=True)
    assert {row.where for row in data.locate("mnist")} == {"cache"}
    monkeypatch.setenv("HOLDFAST_DATA", str(variable))
    assert {row.where for row in data.locate("mnist")} == {"HOLDFAST_DATA"}
    rows = data.locate("mnist", given)
    assert {row.where for row in rows} == {"--data"} and len(rows) == 4
    assert all(row.path is not None and given in row.path.parents and row.status == "ok" for row in rows)


def test_files_with_the_same_name_are_told_apart_by_their_checksum(
    mnist: Fake, fashion: Fake, tmp_path: Path
) -> None:
    clothes = fashion.write(tmp_path / "clothes", ".", packed=True)
    assert len(data.load("fashion-mnist", clothes, download=False).train_labels) == 7
    assert [row.status for row in data.locate("mnist", clothes)] == ["missing"] * 4  # not "damaged"
    with pytest.raises(BadData, match="'mnist' is incomplete"):
        data.load("mnist", clothes, download=False)


def test_the_other_packing_in_circulation_is_accepted(
    fashion: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repacked = {name: gzip.compress(gzip.decompress(file), 1, mtime=5) for name, file in fashion.files.items()}
    packed = tuple(
        dataclasses.replace(p, also=((len(repacked[p.file]), sha256(repacked[p.file])),))
        for p in fashion.entry.packed
    )
    root = Fake(fashion.entry, {}, repacked).write(tmp_path / "debian", "fashion-mnist", packed=True)
    assert {row.status for row in data.locate("fashion-mnist", root)} == {"damaged"}
    use(dataclasses.replace(fashion.entry, packed=packed), monkeypatch)
    assert {row.status for row in data.locate("fashion-mnist", root)} == {"ok"}


def test_a_folder_that_is_not_there_is_refused_by_name(mnist: Fake, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"--data names .*nowhere, which is not a folder"):
        data.load("mnist", tmp_path / "nowhere", download=False)


# ---------------------------------------------------------------- damage


def cut(content: bytes) -> bytes:
    return content[:-1]


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flip, lambda _: b""])
@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_file_is_named_with_both_checksums_and_its_size(
    mnist: Fake, tmp_path: Path, damage: Callable[[bytes], bytes], packed: bool
) -> None:
    root = mnist.write(tmp_path / "data", "MNIST/raw", packed=packed)
    victim = root / "MNIST/raw" / ("t10k-images-idx3-ubyte" + ".gz" * packed)
    good = victim.read_bytes()
    bad = damage(good)
    victim.write_bytes(bad)
    with pytest.raises(BadData) as caught:
        data.load("mnist", root, download=False)
    message = str(caught.value)
    for expected in (str(victim), sha256(good), sha256(bad), f"{len(bad):,} bytes", f"{len(good):,} bytes"):
        assert expected in message
    assert [row.path for row in data.locate("mnist", root) if row.status == "damaged"] == [victim]


def test_a_good_copy_in_the_cache_replaces_a_damaged_one_with_a_warning(
    mnist: Fake, tmp_path: Path, own_cache: Path
) -> None:
    root = mnist.write(tmp_path / "data", "MNIST/raw", packed=True)
    mnist.write(own_cache, "MNIST/raw", packed=True)
    good = data.load("mnist", root, download=False)
    victim = root / "MNIST/raw/train-labels-idx1-ubyte.gz"
    victim.write_bytes(flip(victim.read_bytes()))
    with pytest.warns(UserWarning) as caught:
        loaded = data.load("mnist", root, download=False)
    assert torch.equal(loaded.train_labels, good.train_labels)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert str(victim) in message and message.endswith(f"Used: {own_cache / 'MNIST/raw' / victim.name}.")


def test_a_damaged_batch_is_replaced_by_the_archive_beside_it(cifar: Fake, tmp_path: Path) -> None:
    root = cifar.write(tmp_path / "data", cifar.entry.folders[0], packed=False)
    cifar.write(root, ".", packed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = data.load(cifar.entry.name, root, download=False)
    victim = root / cifar.entry.folders[0] / cifar.entry.train[0]
    victim.write_bytes(cut(victim.read_bytes()))
    with pytest.warns(UserWarning, match=cifar.entry.packed[0].file):
        loaded = data.load(cifar.entry.name, root, download=False)
    assert torch.equal(loaded.train_images, good.train_images)


def test_a_batch_that_is_absent_among_good_ones_is_named(cifar: Fake, tmp_path: Path) -> None:
    root = cifar.write(tmp_path / "data", cifar.entry.folders[0], packed=False)
    (root / cifar.entry.folders[0] / cifar.entry.test[0]).unlink()
    rows = data.locate(cifar.entry.name, root)
    assert [(row.file, row.path) for row in rows if row.status == "missing"] == [(cifar.entry.test[0], None)]
    assert sum(row.status == "ok" for row in rows) == len(cifar.entry.train)


def test_a_file_that_may_not_be_read_is_named(
    mnist: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = mnist.write(tmp_path / "data", ".", packed=True)
    victim, opened = root / "t10k-labels-idx1-ubyte.gz", Path.open

    def refuse(path: Path, mode: str) -> object:
        if path == victim:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", refuse)
    assert [row.path for row in data.locate("mnist", root) if row.status == "damaged"] == [victim]
    with pytest.raises(BadData, match="Permission denied"):
        data.load("mnist", root, download=False)


# ---------------------------------------------------------------- downloads


def cached(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_is_missing_is_downloaded_once_and_then_found(
    mnist: Fake, tmp_path: Path, own_cache: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_addresses(mnist, monkeypatch, serve(mnist.write(tmp_path / "web", ".", packed=True)))
    loaded = data.load("mnist")
    assert loaded.train_labels.tolist() == list(mnist.parts["train-labels-idx1-ubyte"][8:])
    assert cached(own_cache / "MNIST/raw") == sorted(mnist.files)
    from_addresses(mnist, monkeypatch, NOWHERE)
    assert torch.equal(data.load("mnist").train_images, loaded.train_images)


def test_only_what_is_missing_is_downloaded(
    mnist: Fake, tmp_path: Path, own_cache: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_addresses(mnist, monkeypatch, serve(mnist.write(tmp_path / "web", ".", packed=True)))
    root = mnist.write(tmp_path / "data", ".", packed=True)
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    rows = data.fetch("mnist", root)
    assert cached(own_cache) == ["t10k-labels-idx1-ubyte.gz"]
    assert sorted(row.where or "" for row in rows) == ["--data"] * 3 + ["cache"]


def test_an_archive_is_downloaded_and_read_as_it_is(
    cifar: Fake, tmp_path: Path, own_cache: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_addresses(cifar, monkeypatch, serve(cifar.write(tmp_path / "web", ".", packed=True)))
    (row,) = data.fetch(cifar.entry.name)
    assert (row.status, row.where, row.path) == ("ok", "cache", own_cache / cifar.entry.packed[0].file)
    assert len(data.load(cifar.entry.name, download=False).test_labels) == 4


@pytest.mark.parametrize("answer", [lambda _: b"<html>log in</html>", flip, cut, lambda c: c + bytes(1 << 20)])
def test_a_wrong_answer_is_refused_and_the_mirror_asked(
    mnist: Fake,
    tmp_path: Path,
    own_cache: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[bytes], bytes],
) -> None:
    wrong = dataclasses.replace(mnist, files={name: answer(file) for name, file in mnist.files.items()})
    bad = serve(wrong.write(tmp_path / "wrong", ".", packed=True))
    from_addresses(mnist, monkeypatch, bad)
    with pytest.raises(BadData, match="The download failed"):
        data.load("mnist")
    assert cached(own_cache) == []  # nothing half or wrong is left behind
    from_addresses(mnist, monkeypatch, bad, serve(mnist.write(tmp_path / "right", ".", packed=True)))
    assert len(data.load("mnist").train_labels) == 7


def test_a_file_not_on_the_server_is_asked_of_the_mirror(
    mnist: Fake, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    mirror = serve(mnist.write(tmp_path / "web", ".", packed=True))
    from_addresses(mnist, monkeypatch, serve(tmp_path / "empty"), mirror)
    assert {row.status for row in data.fetch("mnist")} == {"ok"}


def test_a_damaged_file_in_the_cache_is_downloaded_again(
    mnist: Fake, tmp_path: Path, own_cache: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist.write(own_cache, "MNIST/raw", packed=True)
    victim = own_cache / "MNIST/raw/train-images-idx3-ubyte.gz"
    victim.write_bytes(cut(victim.read_bytes()))
    from_addresses(mnist, monkeypatch, serve(mnist.write(tmp_path / "web", ".", packed=True)))
    data.load("mnist")
    assert victim.read_bytes() == mnist.files[victim.name]


def test_absent_and_offline_names_the_files_their_checksums_and_where_to_put_them(
    mnist: Fake, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_addresses(mnist, monkeypatch, NOWHERE)
    with pytest.raises(BadData) as caught:
        data.load("mnist")
    message = str(caught.value)
    for name, content in mnist.files.items():
        assert f"{name}  sha256 {sha256(content)}" in message
    assert f"put them into {own_cache / 'MNIST/raw'}" in message
    assert "--data or HOLDFAST_DATA" in message
    assert message.count(f"{NOWHERE}t") == 1  # an address that cannot be reached is not asked for each file


def test_nothing_is_downloaded_when_downloading_is_off(
    mnist: Fake, tmp_path: Path, own_cache: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_addresses(mnist, monkeypatch, serve(mnist.write(tmp_path / "web", ".", packed=True)))
    with pytest.raises(BadData, match="downloading is off"):
        data.load("mnist", download=False)
    assert not own_cache.exists()


# ---------------------------------------------------------------- the real data


@pytest.mark.parametrize(
    ("name", "train", "mean_std_within"),
    [("mnist", 60000, 5e-5), ("fashion-mnist", 60000, 5e-5), ("cifar10", 50000, 1e-3), ("cifar100", 50000, 1e-3)],
)
def test_the_real_data_has_its_known_shape_and_statistics(name: str, train: int, mean_std_within: float) -> None:
    if not os.environ.get("HOLDFAST_DATA"):
        pytest.skip("HOLDFAST_DATA is not set: no folder with the original data sets")
    if any(row.status == "missing" for row in data.locate(name)):
        pytest.skip(f"HOLDFAST_DATA holds no {name}")
    loaded = data.load(name, download=False)
    assert len(loaded.train_images) == train and len(loaded.test_images) == 10000
    for labels in (loaded.train_labels, loaded.test_labels):
        assert labels.unique().tolist() == list(range(len(loaded.classes)))
    for channel, (mean, std) in enumerate(zip(loaded.mean, loaded.std)):
        counts = torch.bincount(loaded.train_images[:, channel].flatten(), minlength=256).double()
        value, share = torch.arange(256).double() / 255, counts / counts.sum()
        seen = (value * share).sum()
        assert abs(float(seen) - mean) < mean_std_within
        assert abs(float(((value - seen).square() * share).sum().sqrt()) - std) < mean_std_within

"""Hostile and broken content, even under a right checksum: refused, and never unpacked beyond its size."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile

import numpy as np
import pytest

from data_factory import idx_bytes, tar_bytes
from holdfast.data import parse
from holdfast.data import published as catalog
from holdfast.data.published import Packed, Part
from holdfast.errors import BadData


def test_a_gzip_that_unpacks_to_more_than_it_should_is_stopped() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(BadData, match="more than 100 bytes"):
        parse.gunzip(bomb, Part("labels", 100, ""))


@pytest.mark.parametrize("junk", [b"\0", gzip.compress(b"more")], ids=["a zero", "another gzip"])
def test_a_gzip_with_something_behind_it_is_refused(junk: bytes) -> None:
    with pytest.raises(BadData, match="does not end where"):
        parse.gunzip(gzip.compress(b"content") + junk, Part("labels", 7, ""))


def test_a_gzip_cut_short_is_refused() -> None:
    whole = gzip.compress(b"content" * 100)
    with pytest.raises(BadData):
        parse.gunzip(whole[:-4], Part("labels", 700, ""))


WANTED = Packed("some.tar.gz", 0, "", (Part("a.bin", 5, ""),))


def test_only_the_wanted_members_of_an_archive_are_read() -> None:
    archive = tar_bytes({"../../evil": b"x", "dir/a.bin": b"12345", "dir/readme": b"hello", "/abs": b"y"})
    assert parse.untar(archive, WANTED, "dir") == {"a.bin": b"12345"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_no_regular_file_is_refused(kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("dir/a.bin")
        member.type, member.linkname = kind, "/etc/hostname"
        archive.addfile(member)
    with pytest.raises(BadData, match="not a regular file"):
        parse.untar(buffer.getvalue(), WANTED, "dir")


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"dir/a.bin": b"123456"}, "6 bytes, 5 wanted"),
        ({"dir/b.bin": b"12345"}, "dir/a.bin not in the archive"),
        ({"x": bytes(3 << 20), "dir/a.bin": b"12345"}, "more than it should hold"),
    ],
)
def test_an_archive_with_the_wrong_content_is_refused(members: dict[str, bytes], problem: str) -> None:
    with pytest.raises(BadData, match=problem):
        parse.untar(tar_bytes(members), WANTED, "dir")


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"no tar"), tar_bytes({"x": b"1"})[:30]],
    ids=["empty", "text", "a gzip", "cut short"],  # a gzip holds the time, and pytest-xdist compares the names
)
def test_something_that_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(BadData):
        parse.untar(content, WANTED, "dir")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\0\0\x08", "fewer than the 8"),
        (struct.pack(">2I", 0x0803, 1) + b"1", "0x00000801 wanted"),
        (struct.pack(">2I", 0x0D01, 1) + b"1", "0x00000801 wanted"),
        (struct.pack(">2I", 0x0801, 2) + b"1", "promises 2 = 2 bytes, 1 are there"),
        (struct.pack(">2I", 0x0801, 1) + b"12", "promises 1 = 1 bytes, 2 are there"),
        (struct.pack(">2I", 0x0801, 2**32 - 1), "0 are there"),
    ],
)
def test_an_idx_header_must_agree_with_the_bytes(content: bytes, problem: str) -> None:
    with pytest.raises(BadData, match=problem):
        parse.idx(content, "labels", 1)


def test_sizes_whose_product_overflows_do_not_pass_for_small_ones() -> None:
    with pytest.raises(BadData, match="0 are there"):
        parse.idx(struct.pack(">4I", 0x0803, 2**31, 2**31, 4), "images", 3)


def test_labels_beyond_the_classes_and_counts_that_differ_are_refused() -> None:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    images = idx_bytes(np.zeros((2, 28, 28), np.uint8))
    for labels, problem in (([1, 10], "label 10, but there are 10 classes"), ([1], "2 images, .* 1 labels")):
        parts = dict(zip(names, (images, idx_bytes(np.array(labels, np.uint8)))))
        with pytest.raises(BadData, match=problem):
            parse.split(catalog.MNIST, parts, names)


def test_a_cifar_batch_of_broken_records_is_refused() -> None:
    with pytest.raises(BadData, match="not whole records of 3073"):
        parse.split(catalog.CIFAR10, {"test_batch.bin": bytes(3072)}, ("test_batch.bin",))

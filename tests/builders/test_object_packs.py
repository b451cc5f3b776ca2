"""Packs of objects: what is in them, and what a hostile one cannot do."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from buildkit import files_in, quiet, write_tree
from conftest import failure
from kci.builders.native.objects import (
    HEAD,
    PackHead,
    missing_parts,
    pack_name,
    pack_objects,
    read_head,
    unpack_objects,
)
from kci.builders.request import BuildPart
from kci.errors import FindingsError, UnsafeError, UsageError

RESULT = "0/0/bc905050b3fd78f632a9e3f6c55f9eafb6b175"
MANIFEST = "3/c/e5curu5c6d6pgdejt954ojli1v2n3guM"
UNUSED = "0/1/bc905050b3fd78f632a9e3f6c55f9eafb6b175"
HEADER = PackHead(kernel="k", variant="v", objects=1, wanted=2)


def tar_of(place: Path, *members: dict[str, bytes]) -> Path:
    with tarfile.open(place, "w") as archive:
        for name, data in ((name, data) for each in members for name, data in each.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of ccache."""
    names = (RESULT, MANIFEST, UNUSED, "0/stats", "CACHEDIR.TAG", "tmp/x")
    made = write_tree(tmp_path / "ccache", {name: name for name in names})
    for name in names:
        os.utime(made / name, (1000, 1000))
    return made


@pytest.mark.parametrize("ending", ["tar", "tar.zst"])
def test_a_pack_has_what_a_build_used_and_says_what_it_is(
    folder: Path, tmp_path: Path, ending: str
) -> None:
    """Results and manifests; of two with one name the first is taken."""
    os.utime(folder / UNUSED, (500, 500))
    pack, out = pack_objects(folder, 1000, HEADER, tmp_path / f"one.{ending}"), tmp_path / "out"
    assert read_head(pack) == HEADER
    write_tree(out, {MANIFEST: "first"})
    assert unpack_objects(pack, out, quiet) == HEADER
    assert files_in(out) == [RESULT, MANIFEST]
    assert [(out / name).read_text() for name in (RESULT, MANIFEST)] == [RESULT, "first"]
    # What a build takes of it is newer.
    assert (out / RESULT).stat().st_mtime == 0.0


UP = "0/a/../../bc905050b3fd78f632a9e3f6c55f"


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "ccache.conf", UP, "0/stats", f"{RESULT}/x", HEAD]
)
def test_what_no_pack_has_is_refused(tmp_path: Path, name: str) -> None:
    """A configuration of ccache could run any program."""
    pack = tar_of(tmp_path / "one.tar", {HEAD: msgspec.json.encode(HEADER)}, {name: b"evil"})
    failure(UnsafeError, "", unpack_objects, pack, tmp_path / "out", quiet)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != pack]


def test_a_pack_that_is_cut_short_gives_what_is_whole(folder: Path, tmp_path: Path) -> None:
    (folder / MANIFEST).write_bytes(b"x" * 10**5)
    pack = pack_objects(folder, 0, HEADER, tmp_path / "one.tar")
    pack.write_bytes(pack.read_bytes()[:-50_000])
    said: list[str] = []
    unpack_objects(pack, tmp_path / "out", said.append)
    assert files_in(tmp_path / "out") == [RESULT, UNUSED]
    assert "cut short" in said[0]


def test_a_large_object_passes_through_a_little_memory(tmp_path: Path) -> None:
    size = 48 * 1024**2
    place = tmp_path / "ccache" / RESULT
    place.parent.mkdir(parents=True)
    place.write_bytes(bytes(size))
    tracemalloc.start()
    try:
        pack = pack_objects(tmp_path / "ccache", 0, HEADER, tmp_path / "one.tar.zst")
        unpack_objects(pack, tmp_path / "out", quiet)
        assert tracemalloc.get_traced_memory()[1] < size / 4
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out" / RESULT).stat().st_size == size


def test_an_object_that_is_larger_than_any_is_refused(tmp_path: Path) -> None:
    pack = tar_of(tmp_path / "one.tar", {HEAD: msgspec.json.encode(HEADER)})
    member = tarfile.TarInfo(RESULT)
    member.size = 1024**3 + 1
    pack.write_bytes(pack.read_bytes()[:1024] + member.tobuf())
    failure(UnsafeError, "larger than", unpack_objects, pack, tmp_path / "out", quiet)


def test_what_is_no_pack(tmp_path: Path) -> None:
    for content in (b"", b"no tar", b"\0" * 10_240):
        (tmp_path / "one.tar").write_bytes(content)
        for read in (read_head, lambda pack: unpack_objects(pack, tmp_path / "out", quiet)):
            failure(FindingsError, "", read, tmp_path / "one.tar")
    other = tmp_path / "one.zip"
    failure(UsageError, "not the name of a pack", pack_objects, tmp_path, 0, HEADER, other)


def test_what_is_missing_of_the_parts_is_said() -> None:
    def head(number: int, objects: int, wanted: int = 4, variant: str = "v") -> PackHead:
        return PackHead(
            kernel="k", variant=variant, part=BuildPart(number, 3), objects=objects, wanted=wanted
        )

    whole = PackHead(kernel="k", variant="v", objects=9, wanted=9)
    assert missing_parts([head(1, 4), head(2, 4), head(3, 4), head(1, 2), whole], "v") == []
    found = missing_parts([head(1, 4), head(2, 3), head(3, 4, variant="w")], "v")
    assert found == ["part 2/3 has 3 of 4 objects", "part 3/3 was not given"]
    assert missing_parts([whole], "v") == []
    assert pack_name("k", "v", BuildPart(2, 16)) == "objects.k.v.part2of16.tar.zst"

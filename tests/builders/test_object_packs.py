"""Packs of objects: carried to another machine, and whatever somebody has done to one on the way."""

from __future__ import annotations

import collections
import hashlib
import io
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from buildkit import with_changes
from kci.builders import recipe
from kci.builders.build import plan_commands
from kci.builders.object_packs import HEAD, PackHead, missing_parts, pack_name, packs_in, read_head
from kci.builders.object_store import ObjectRecord
from kci.builders.request import PartOf
from kci.errors import KciError, UnsafeError, UsageError
from kci.files.archive import plain_member
from kci.processes.memory_gate import Need
from kci.processes.running_commands import EndedCommand
from objectkit import ALL, Kernel, put

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the variant of these tests is for x86_64")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")
    return Kernel(tmp_path / "here" / "kernel", tmp_path / "here" / "cache")


@pytest.fixture
def there(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "over" / "there" / "deeper", tmp_path / "over" / "cache")


def remade(pack: Path, change: Callable[[str, bytes], list[tuple[str, bytes]]]) -> None:
    """Write a pack anew, with other members in place of each."""
    with tarfile.open(pack) as archive:
        members = [(item.name, archive.extractfile(item).read()) for item in archive]  # type: ignore[union-attr]
    with tarfile.open(pack, "w") as archive:
        for name, data in (made for item in members for made in change(*item)):
            archive.addfile(plain_member(name, len(data)), io.BytesIO(data))


@pytest.mark.parametrize("suffix", [".tar", ".tar.zst"])
def test_what_was_packed_here_is_not_compiled_there(here: Kernel, there: Kernel, tmp_path: Path, suffix: str) -> None:
    there.given = [here.pack(tmp_path / "packs" / f"one{suffix}")]
    assert there.compile() == set()
    assert there.objects.use().seconds == 4.5
    assert not list(there.store.place.glob("*/*.json")), "what somebody else made serves for one build"
    put(there.place / "include" / "a.h", "#define A 3\n")
    assert there.compile() == {"csrc/a.cpp"}
    there.given = ()
    assert there.compile() == {"csrc/b.cpp", "csrc/c.cpp"}


def members(pack: Path) -> list[tuple[str, bytes]]:
    """What a pack holds, in its order. How many of the objects its build found is another thing each time."""
    with tarfile.open(pack) as archive:
        held = [(item.name, archive.extractfile(item).read()) for item in archive]  # type: ignore[union-attr]
    name, head = held[0]
    assert name == HEAD
    without = msgspec.structs.replace(msgspec.json.decode(head, type=PackHead), use=None)
    return [(name, msgspec.json.encode(without)), *held[1:]]


def test_the_same_objects_are_the_same_pack(here: Kernel, tmp_path: Path) -> None:
    here.compile()  # from here on, each build finds all of them
    one, two = (here.pack(tmp_path / f"{name}.tar.zst") for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_what_was_taken_from_a_pack_is_packed_again(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    first = here.pack(tmp_path / "one.tar")
    there.given = [first]
    assert members(there.pack(tmp_path / "two.tar")) == members(first)


def test_a_pack_tells_what_was_lost(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    objects, _ = here.begin()
    step = objects.restore()[0]
    objects.ended(EndedCommand(step.output, 470.0, None, lost=True))
    here.objects = objects
    pack = here.packed(tmp_path / "one.tar")
    there.given = [pack]
    objects, _ = there.begin()
    last = objects.restore()[-1]
    assert (last.inputs, objects.cost(last)) == (step.inputs, (470.0, None))
    assert read_head(here.pack(tmp_path / "two.tar")).lost == {}, "all of them are done"


def test_a_pack_that_is_cut_short_gives_what_is_whole(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    pack = here.pack(tmp_path / "one.tar")
    data, taken = pack.read_bytes(), set()
    with tarfile.open(pack) as archive:
        ends = [item.offset_data + item.size for item in archive if item.name.endswith(".o")]
    for end in (ends[0] - 1, ends[0], ends[1] + 700, ends[2]):
        pack.write_bytes(data[:end])
        there.given, there.said = [pack], []
        taken.add(len(ALL) - len(there.compile()))
        assert "is cut short or damaged" in there.said[0]
        for old in there.store.place.glob("*/*.json"):
            old.unlink()
    assert taken == {0, 1, 2, 3}


def test_flipped_bytes_are_compiled_again_or_refused(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    pack = here.pack(tmp_path / "one.tar.zst")
    data = pack.read_bytes()
    for place in range(0, len(data), len(data) // 20):
        pack.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        there.given = [pack]
        with suppress(KciError):
            there.compile()


def test_a_lying_object_is_compiled_again(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    """Its bytes are not those of its record; its record is that of another name; its list is another one."""

    def other_bytes(name: str, data: bytes) -> list[tuple[str, bytes]]:
        return [(name, data[::-1] if name.endswith(".o") else data)]

    def other_reads(name: str, data: bytes) -> list[tuple[str, bytes]]:
        if not name.endswith(".json") or name == HEAD:
            return [(name, data)]
        record = msgspec.json.decode(data, type=ObjectRecord)
        reads = dict.fromkeys(record.reads, "0" * 64)
        return [(name, msgspec.json.encode(msgspec.structs.replace(record, reads=reads)))]

    def other_list(name: str, data: bytes) -> list[tuple[str, bytes]]:
        return [(name, b"[]" if name.endswith(".list") else data)]

    for change in (other_bytes, other_reads, other_list):
        pack = here.pack(tmp_path / "one.tar")
        remade(pack, change)
        there.given, there.said = [pack], []
        assert there.compile() == ALL
        assert "3 objects refused" in there.said[0]
        for old in there.store.place.glob("*/*.json"):
            old.unlink()


def test_an_object_that_is_there_twice_is_taken_once_and_whole(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    """A second record of the same name may have other bytes: neither is written over the other one."""
    made = b"other bytes" * 9999

    def twice(name: str, data: bytes) -> list[tuple[str, bytes]]:
        if name.endswith(".o"):
            return [(name, data), *records.pop(name), (name, made)]
        if name.endswith(".json") and name != HEAD:
            record = msgspec.json.decode(data, type=ObjectRecord)
            other = msgspec.structs.replace(record, digest=hashlib.sha256(made).hexdigest(), size=len(made))
            records[name.replace(".json", ".o")] = [(name, msgspec.json.encode(other))]
        return [(name, data)]

    records: dict[str, list[tuple[str, bytes]]] = {}
    pack = here.pack(tmp_path / "one.tar")
    remade(pack, twice)
    there.given = [pack, pack]
    assert there.compile() == set()
    assert "refused, not what the record says" in there.said[0]
    for step in there.begin()[1].steps:
        if step.depfile:
            assert (there.work / step.output).read_bytes() == (here.work / step.output).read_bytes()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("../evil.o", b""),
        ("/etc/evil", b""),
        (f"{'0' * 64}.sh", b""),
        (HEAD, b"{}"),
        (f"{'0' * 64}.json", b" " * (17 * 1024 * 1024)),
    ],
    ids=["up", "absolute", "suffix", "two heads", "long"],
)
def test_what_no_pack_has_is_refused(here: Kernel, there: Kernel, tmp_path: Path, name: str, data: bytes) -> None:
    pack = here.pack(tmp_path / "one.tar")
    remade(pack, lambda old, text: [(old, text), *([(name, data)] if old == HEAD else [])])
    there.given = [pack]
    with pytest.raises(UnsafeError, match="not safe to unpack"):
        there.compile()


def test_what_is_no_pack(there: Kernel, tmp_path: Path) -> None:
    pack = tmp_path / "none.tar"
    for data in (b"", b"no tar", b"\0" * 1024):
        pack.write_bytes(data)
        there.given = [pack]
        with pytest.raises(KciError, match=r"none\.tar"):
            there.compile()
    with pytest.raises(UsageError, match="no such file"):
        packs_in([tmp_path / "missing.tar"])


class Hostile:
    """A pack to which somebody does something, at random."""

    def __init__(self, seed: int, pack: Path) -> None:
        self.random, self.pack = random.Random(seed), pack

    def flip(self) -> None:
        data = bytearray(self.pack.read_bytes())
        for _ in range(self.random.randrange(1, 20)):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        self.pack.write_bytes(data)

    def cut(self) -> None:
        data = self.pack.read_bytes()
        self.pack.write_bytes(data[: self.random.randrange(len(data))])

    def members(self) -> None:
        """Other names, other contents, members that are gone, are there twice, or stand elsewhere."""
        with tarfile.open(self.pack) as archive:
            held = [(item.name, archive.extractfile(item).read()) for item in archive]  # type: ignore[union-attr]
        for _ in range(self.random.randrange(1, 4)):
            at, other = (self.random.randrange(len(held)) for _ in range(2))
            (name, data), (_, others) = held[at], held[other]
            evil = f"{'0' * 64}.{self.random.choice(('o', 'json', 'list', 'sh'))}"
            names = (f"../evil/{name}", f"/tmp/evil-{name}", evil, held[other][0], f"./{name}", name)
            held[at] = (self.random.choice(names), self.random.choice((data, others, data[::-1], b"", data * 2)))
            if (many := self.random.random()) < 0.3:
                held.insert(other, (name, data))
            elif many < 0.5:
                held.pop(other)
            elif many < 0.7:
                held.append(held.pop(other))
        with tarfile.open(self.pack, "w") as archive:
            for name, data in held:
                archive.addfile(plain_member(name, len(data)), io.BytesIO(data))

    def headers(self) -> None:
        """Sizes that are not those of a member, and members of other kinds."""
        with tarfile.open(self.pack) as archive:
            found = list(archive)
        item, data = self.random.choice(found), bytearray(self.pack.read_bytes())
        item.size = self.random.choice((0, 1, item.size + 512, 10**9, 2**40, 2**62))
        item.type = self.random.choice((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, b"9"))
        item.linkname = self.random.choice(("", "/etc/passwd", found[0].name))
        data[item.offset : item.offset + 512] = item.tobuf(tarfile.GNU_FORMAT)[:512]
        self.pack.write_bytes(data)

    def records(self) -> None:
        """Values of records that are not theirs."""

        def change(name: str, data: bytes) -> list[tuple[str, bytes]]:
            if not name.endswith(".json"):
                return [(name, data)]
            record = msgspec.json.decode(data)
            key = self.random.choice(sorted(record))
            record[key] = self.random.choice((10**30, -1, "0" * 64, {"../evil": "0" * 64}, [[]], None, record[key]))
            return [(name, msgspec.json.encode(record))]

        remade(self.pack, change)

    def attack(self) -> str:
        done = self.random.choice((self.flip, self.cut, self.members, self.members, self.headers, self.records))
        done()
        return done.__name__


def run_hostile(here: Kernel, there: Kernel, pack: Path, seeds: range) -> collections.Counter[str]:
    """What came of packs that were attacked: refused, or how many of three objects were taken; none is wrong."""
    here.pack(pack)
    whole = pack.read_bytes()
    right = {path.name: path.read_bytes() for path in here.work.glob("obj/*/*.o")}
    found: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        pack.write_bytes(whole)
        done = Hostile(seed, pack).attack()
        shutil.rmtree(there.cache / "objects", ignore_errors=True)
        there.given = [pack]
        try:
            taken = len(ALL) - len(there.compile())
        except KciError:
            found[f"{done}: refused"] += 1
            continue
        found[f"{done}: {taken} taken"] += 1
        assert {path.name: path.read_bytes() for path in there.work.glob("obj/*/*.o")} == right, f"seed {seed}: {done}"
    assert not list(pack.parent.rglob("*evil*"))
    return found


def test_packs_that_are_attacked_at_random(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    found = run_hostile(here, there, tmp_path / "one.tar", range(12))
    assert sum(found.values()) == 12


@pytest.mark.slow
def test_many_packs_that_are_attacked_at_random(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    """KCI_MANY=1 takes 300."""
    print(run_hostile(here, there, tmp_path / "one.tar", range(100, 400 if os.environ.get("KCI_MANY") else 200)))


def test_objects_of_another_compiler_are_not_taken(
    here: Kernel, there: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = here.pack(tmp_path / "one.tar")
    other = tmp_path / "other-compiler"
    other.write_text('#!/bin/sh\nexec g++ "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    there.given = [pack]
    assert there.compile() == ALL


def test_parts_share_out_all_objects_and_each_once(here: Kernel, tmp_path: Path) -> None:
    for parts in (1, 2, 3, 5):
        compiled: list[str] = []
        for number in range(1, parts + 1):
            part = Kernel(tmp_path / f"{parts}-{number}" / "kernel", tmp_path / f"{parts}-{number}" / "cache")
            part.part = f"{number}/{parts}"
            compiled += part.compile()
        assert sorted(compiled) == sorted(ALL)


def test_a_dry_run_of_a_part_prints_its_sources_and_limits(here: Kernel) -> None:
    whole = plan_commands(here.request())
    compiled = []
    for number in range(1, 4):
        here.part = f"{number}/3"
        lines = plan_commands(with_changes(here.request(), stop_after=340.0))
        assert f"# part {number}/3: 1 of 3 objects, and no link" in lines
        assert "# it ends itself after 340 minutes" in lines
        assert [line for line in lines if "expected to take up to" in line]
        (command,) = (line for line in lines if " -c kernel/" in line)
        compiled.append(command)
        assert not any("-shared" in line or "copies the module" in line for line in lines)
    assert sorted(compiled) == sorted(line for line in whole if " -c kernel/" in line)
    assert not any("part " in line or "ends itself" in line for line in whole)


def test_parts_of_two_states_are_compiled_again_where_they_differ(here: Kernel, there: Kernel, tmp_path: Path) -> None:
    here.part = "1/2"
    first = here.pack(tmp_path / "1.tar")
    other = Kernel(tmp_path / "other" / "kernel", tmp_path / "other" / "cache")
    put(other.place / "csrc" / "b.cpp", "int changed;\n")
    put(other.place / "include" / "a.h", "#define A 5\n")
    other.part = "2/2"
    there.given = [first, other.pack(tmp_path / "2.tar"), first]
    assert there.compile() <= {"csrc/a.cpp", "csrc/b.cpp"}


def test_what_is_missing_of_parts_is_named() -> None:
    def head(number: int, objects: int, *, variant: str = "v", wanted: int = 4) -> PackHead:
        return PackHead(kernel="k", variant=variant, part=PartOf(number, 3), objects=objects, wanted=wanted)

    whole = PackHead(kernel="k", variant="v", objects=9, wanted=9)
    assert missing_parts([head(1, 4), head(2, 4), head(3, 4), head(1, 2), whole], "v") == []
    found = missing_parts([head(1, 4), head(2, 3), head(3, 4, variant="w")], "v")
    assert found == ["part 2/3 has 3 of 4 objects", "part 3/3 was not given"]
    assert missing_parts([whole], "v") == []
    assert pack_name("k", "v", PartOf(2, 16)) == "objects.k.v.part2of16.tar.zst"


def test_what_the_largest_object_of_a_part_takes_is_said(here: Kernel) -> None:
    needs = {"a.o": Need(memory=1 << 30), "b.o": Need(memory=3 << 30), "c.o": Need(memory=9 << 30)}
    here.part = "1/2"
    said = list(recipe._limits(here.request(), frozenset({"a.o", "b.o"}), needs))
    assert "an object that is new here is expected to take up to 3.0 GiB" in said

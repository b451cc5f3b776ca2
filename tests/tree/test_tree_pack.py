"""Packing: the same files give the same bytes, and what packing makes unpacking takes."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import many, only, refusal
from kci.errors import FindingsError, MissingToolError, UnsafeError, UsageError
from kci.matrix.variants import artifact_name
from kci.tree.manifest import MAX_ATTEMPT, LegRecord
from kci.tree.pack import pack, read_leg, unpack
from kci.utils.archive import LIMITS
from variants import CPU, SOURCE, leg_of, make_artifact, make_variant, variant_digest


@pytest.mark.rule("KCI710", "KCI603", "KCI604", "KCI605", triggers=False)
@pytest.mark.parametrize("suffix", [".tar", ".tar.zst"])
def test_a_round_trip_gives_the_same_files_and_leg(tmp_path: Path, suffix: str) -> None:
    long = "d" * 120 + "/" + "f" * 150 + ".py"
    files = {"__init__.py": "", long: "x" * 5000, "ü.txt": "", "empty": ""}
    variant = make_variant(tmp_path / "b", files=files)
    (variant / "empty").chmod(0o777)
    artifact = make_artifact(tmp_path / "out", variant, suffix=suffix, seconds=12.5)
    assert artifact.name == artifact_name("gated-norm", CPU, zstd=suffix == ".tar.zst")
    leg, unpacked, _ = unpack(artifact, tmp_path / "into")
    assert unpacked == tmp_path / "into" / CPU
    modes = [(unpacked / name).stat().st_mode & 0o777 for name in ("empty", "__init__.py")]
    assert modes == [0o755, 0o644]
    assert variant_digest(unpacked) == variant_digest(variant) == leg.digest
    assert read_leg(artifact) == leg
    assert (leg.kernel, leg.version, leg.backend) == ("gated-norm", 1, "cpu")
    assert (leg.system, leg.source) == ("x86_64-linux", SOURCE)
    assert (leg.attempt, leg.seconds, leg.builder) == (1, 12.5, "native")
    assert sorted(path.name for path in (tmp_path / "into").iterdir()) == [CPU]


@pytest.mark.parametrize("suffix", [".tar", ".tar.zst"])
def test_equal_files_give_equal_bytes(tmp_path: Path, suffix: str) -> None:
    artifacts = []
    for name in ("one", "two"):
        variant = make_variant(tmp_path / name)
        if name == "two":
            os.utime(variant / "__init__.py", (1, 1))
            (variant / "__init__.py").chmod(0o600)
            (variant / "__pycache__").mkdir()
            (variant / "__pycache__" / "x.pyc").write_text("x")
        artifacts.append(make_artifact(tmp_path / name, variant, suffix=suffix).read_bytes())
    assert artifacts[0] == artifacts[1]


def test_the_archive_is_a_plain_sorted_tar_with_the_leg_first(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    (variant / "_ops.py").chmod(0o711)
    with tarfile.open(make_artifact(tmp_path, variant)) as archive:
        members = archive.getmembers()
    names = [member.name for member in members]
    assert names[0] == "leg.json"
    assert names[1:] == sorted(names[1:])
    assert {name.split("/")[0] for name in names[1:]} == {CPU}
    owners = {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in members}
    assert owners == {(0, 0, 0, "", "")}
    modes = {member.name: member.mode for member in members if member.mode != 0o644}
    assert modes == {f"{CPU}/_ops.py": 0o755}
    assert all(member.isreg() for member in members)


@pytest.mark.rule("KCI603", triggers=True)
def test_a_directory_that_was_not_sealed_or_was_changed_later_is_refused(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    leg = leg_of(variant)
    (variant / "_ops.py").write_text("changed")
    only(refusal(leg_of, variant), "KCI603", "not sealed: _ops.py changed after it was hashed")
    metadata = variant / "metadata.json"
    said = json.loads(metadata.read_text())
    del said["digest"]
    metadata.write_text(json.dumps(said))
    assert "has no digest" in refusal(leg_of, variant)[0].message
    metadata.unlink()
    assert "cannot read" in refusal(leg_of, variant)[0].message
    assert leg.variant == CPU


def test_wrong_file_names_and_legs_are_usage_errors(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    leg = leg_of(variant)
    with pytest.raises(UsageError, match="not an artifact name"):
        pack(variant, tmp_path / "x.zip", leg)
    with pytest.raises(UsageError, match="the leg is about torch-cpu"):
        pack(variant, tmp_path / "x.tar", msgspec.structs.replace(leg, variant="torch-cpu"))


def test_links_and_case_twins_are_not_packed(tmp_path: Path) -> None:
    for twin in ("A.py", "A.py/b"):
        variant = make_variant(tmp_path / twin, files={"__init__.py": "", twin: "", "a.py": ""})
        with pytest.raises(UnsafeError, match="in case only"):
            make_artifact(tmp_path, variant)
    variant = make_variant(tmp_path / "link")
    leg, old = leg_of(variant), make_artifact(tmp_path / "out", variant)
    before = old.read_bytes()
    for target in ("_ops.py", "/etc"):
        (variant / "link").symlink_to(target)
        with pytest.raises(UnsafeError, match="it is a link"):
            pack(variant, old, leg)
        (variant / "link").unlink()
    os.mkfifo(variant / "fifo")
    with pytest.raises(UnsafeError, match="neither a file nor a directory"):
        pack(variant, old, leg)
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [before]


def test_what_unpacking_would_refuse_for_its_size_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = make_variant(tmp_path)
    monkeypatch.setattr("kci.tree.pack.LIMITS", msgspec.structs.replace(LIMITS, members=2))
    with pytest.raises(FindingsError, match="too large"):
        make_artifact(tmp_path, variant)


def test_zstd_without_its_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = make_artifact(tmp_path, make_variant(tmp_path), suffix=".tar.zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingToolError) as caught:
        unpack(artifact, tmp_path / "into")
    assert "kci[zstd]" in caught.value.hint
    with pytest.raises(MissingToolError):
        pack(tmp_path / CPU, artifact, leg_of(tmp_path / CPU))


LEG = {
    "schema": 1, "kernel": "relu", "version": 1, "variant": "torch-cpu", "backend": "cpu",
    "system": "x86_64-linux", "digest": "0" * 64, "kci": "0.1.0", "builder": "noarch",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"kernel": "../x"},
        {"kernel": "relu\n"},
        {"version": -1},
        {"variant": ".."},
        {"variant": "torch-cpu/../x"},
        {"backend": "cuda"},
        {"system": "plan9"},
        {"digest": "x"},
        {"digest": "0" * 64 + "\n"},
        {"builder": "\x1b[31m"},
        {"kci": "a b|c"},
        *({"attempt": number} for number in (0, 1.5, MAX_ATTEMPT + 1, 10**30)),
        {"source": {"commit": "$(id)", "dirty": False}},
        {"archs": ["8.0\n"]},
    ],
)
def test_a_leg_that_lies_about_its_shape_is_refused(changes: dict[str, object]) -> None:
    msgspec.convert(LEG | {"attempt": MAX_ATTEMPT}, LegRecord)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(LEG | changes, LegRecord)


FILES = st.dictionaries(
    st.lists(st.text("abAé-_. ", min_size=1, max_size=6), min_size=1, max_size=3).map("/".join),
    st.binary(max_size=700),
    max_size=5,
)


@settings(
    max_examples=many(50),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(files=FILES, zstd=st.booleans())
def test_whatever_is_packed_is_unpacked_the_same(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], zstd: bool
) -> None:
    root = tmp_path_factory.mktemp("pack")
    try:
        variant = make_variant(root, files={"__init__.py": "", **files})
        artifact = make_artifact(root / "out", variant, suffix=".tar.zst" if zstd else ".tar")
    except (UnsafeError, OSError, FindingsError):
        return
    leg, unpacked, _ = unpack(artifact, root / "into")
    assert variant_digest(unpacked) == leg.digest == variant_digest(variant)

"""Unpacking: hostile archives write nothing anywhere, damaged ones are named.

`tarfile` and `tar` make them here.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import many, only, refusal
from kci.errors import FindingsError, KciError, UnsafeError
from kci.tree.identity import GitState
from kci.tree.manifest import LegRecord
from kci.tree.pack import read_leg, unpack
from kci.utils.archive import LIMITS, DamagedError, _records
from variants import CPU, leg_of, make_artifact, make_variant


def file(name: str, content: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def archive(
    path: Path,
    leg: LegRecord | None,
    *members: tuple[tarfile.TarInfo, bytes],
    format: int = tarfile.PAX_FORMAT,
) -> Path:
    """An archive with a true leg and whatever members, hostile or not."""
    with tarfile.open(path, "w", format=format) as tar:
        if leg is not None:
            info, content = file("leg.json", msgspec.json.encode(leg))
            tar.addfile(info, io.BytesIO(content))
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def leg(tmp_path: Path) -> LegRecord:
    return leg_of(make_variant(tmp_path / "good"))


def refused(artifact: Path, says: str) -> None:
    """Unpacking is refused for safety, names archive and reason, and leaves nothing behind."""
    into = artifact.parent / "into"
    with pytest.raises(UnsafeError, match=says) as caught:
        unpack(artifact, into)
    assert artifact.name in caught.value.message
    assert caught.value.diagnostics[0].rule == "KCI605"
    assert list(into.iterdir()) == []


REACHING_OUT = [
    ("/etc/passwd", "absolute"), (f"{CPU}/../../escape", r"'\.\.'"), ("../escape", r"'\.\.'"),
    (f"{CPU}//x", "the part ''"), (f"{CPU}/./x", r"the part '\.'"),
    (f"{CPU}/a\\..\\b", "backslash"), ("C:/x", "colon"), (f"{CPU}/file:stream", "colon"),
    (f"{CPU}/a\nb", "control character"), (f"{CPU}/\x1b[31m", "control character"),
    (f"{CPU}/\u202egpj.py", "control character"), ("elsewhere/x", "outside of"),
    ("leg.json", "outside of"), (CPU, "outside of"), (f"{CPU}/x.", "ends with a dot"),
    (f"{CPU}/{'a' * 300}", "longer than 255"), (f"{CPU}/{'a/' * 600}x", "longer than 1024"),
]  # fmt: skip
KINDS = [
    (tarfile.SYMTYPE, "a symbolic link"), (tarfile.LNKTYPE, "a hard link"),
    (tarfile.CHRTYPE, "a character device"), (tarfile.BLKTYPE, "a block device"),
    (tarfile.FIFOTYPE, "a fifo"), (tarfile.CONTTYPE, "unknown kind"), (b"Z", "unknown kind"),
]  # fmt: skip
OF_ONE_PLACE = [
    ("a.py", "a.py"), ("a.py", "A.py"), ("stra\u00dfe", "STRASSE"), ("\u00e9", "e\u0301"),
    ("dir/a", "DIR/b"), ("a", "a/b"), ("a/b", "a"),
]  # fmt: skip


@pytest.mark.rule("KCI605", triggers=True)
@pytest.mark.parametrize(
    ("members", "says"),
    [
        *(([file(name)], says) for name, says in REACHING_OUT),
        *(
            ([file(f"{CPU}/x", b"", type=kind, linkname="/etc/passwd")], says)
            for kind, says in KINDS
        ),
        *(([file(f"{CPU}/{name}") for name in pair], "collides with") for pair in OF_ONE_PLACE),
    ],
)
def test_members_that_reach_out_are_no_files_or_of_one_place_are_refused(
    tmp_path: Path, leg: LegRecord, members: list[tuple[tarfile.TarInfo, bytes]], says: str
) -> None:
    refused(archive(tmp_path / "x.tar", leg, *members), says)
    assert not (tmp_path / "escape").exists()


@pytest.mark.rule("KCI604", "KCI605", triggers=False)
def test_gnu_tar_s_own_format_is_read(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    (tmp_path / "leg.json").write_bytes(msgspec.json.encode(leg_of(variant)))
    artifact = tmp_path / "x.tar"
    subprocess.run(["tar", "-C", str(tmp_path), "-cf", str(artifact), "leg.json", CPU], check=True)
    unpack(artifact, tmp_path / "into")


def test_sparse_files_are_refused_in_every_form(tmp_path: Path, leg: LegRecord) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as stream:
        stream.truncate(1024**3)
    (tmp_path / "leg.json").write_bytes(msgspec.json.encode(leg))
    command = ["tar", "-S", "--transform", f"s,sparse,{CPU}/x,", "-cf", "x.tar"]
    for options in (["gnu"], ["pax"], ["pax", "--sparse-version=0.0"]):
        sparse_tar = [*command, f"--format={options[0]}", *options[1:], "leg.json", "sparse"]
        subprocess.run(sparse_tar, cwd=tmp_path, check=True)
        # A sparse pax member has a stand-in name of its own, which is refused as well.
        refused(tmp_path / "x.tar", "sparse|outside of")


def test_extended_headers_cannot_smuggle(tmp_path: Path, leg: LegRecord) -> None:
    def smuggled(**headers: str) -> Path:
        return archive(tmp_path / "x.tar", leg, file(f"{CPU}/x", pax_headers=headers))

    refused(smuggled(path="../escape"), r"'\.\.'")
    refused(smuggled(comment="x" * 20_000), "extended header is larger")
    refused(smuggled(**{"GNU.sparse.major": "1"}), "sparse")
    with pytest.raises(FindingsError, match="corrupt"):
        unpack(smuggled(size="-512"), tmp_path / "into")


@pytest.mark.parametrize(
    "raw", [b"99", b"x a=b\n", b"0000006 a=b\n", b"6 ab\n", b"9 a=b\n", b"6 a=bc"]
)
def test_records_of_an_extended_header_are_read_to_the_letter(raw: bytes) -> None:
    assert _records(b"6 a=b\n") == {"a": "b"}
    with pytest.raises(DamagedError, match="malformed"):
        _records(raw)


def padded(leg: LegRecord) -> int:
    """What a leg takes in an archive, with its header."""
    return 512 + (len(msgspec.json.encode(leg)) + 511) // 512 * 512


def test_a_chain_of_extended_headers_is_refused(tmp_path: Path, leg: LegRecord) -> None:
    artifact = archive(tmp_path / "x.tar", leg, file(f"{CPU}/é"))
    size, whole = padded(leg), artifact.read_bytes()
    extended = whole[size : size + 1024]
    empty = tarfile.TarInfo("x")
    empty.type = tarfile.XHDTYPE
    for first in (extended, empty.tobuf(tarfile.USTAR_FORMAT)):
        artifact.write_bytes(whole[:size] + first + whole[size:])
        refused(artifact, "more than one extended header")


def test_limits_hold(tmp_path: Path, leg: LegRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [file(f"{CPU}/{number}", b"12345") for number in range(5)]
    artifact = archive(tmp_path / "x.tar", leg, *members)
    size = len(msgspec.json.encode(leg))
    for change, says in (
        ({"members": 5}, "more than 5 members"),
        ({"size": size + 20}, "larger than"),
        ({"leg": 10}, "larger than 10 bytes"),
    ):
        for module in ("kci.utils.archive", "kci.tree.pack"):
            monkeypatch.setattr(f"{module}.LIMITS", msgspec.structs.replace(LIMITS, **change))
        refused(artifact, says)


def test_a_bomb_is_refused_by_what_its_header_claims(tmp_path: Path, leg: LegRecord) -> None:
    info, _ = file(f"{CPU}/x")
    info.size = 2**33 - 1
    data = archive(tmp_path / "x.tar", leg).read_bytes()[: padded(leg)]
    data += info.tobuf(tarfile.GNU_FORMAT) + bytes(1024**2)
    artifact = tmp_path / "x.tar.zst"
    artifact.write_bytes(zstandard.ZstdCompressor().compress(data))
    refused(artifact, "larger than")


def test_a_frame_that_asks_for_too_much_memory_is_refused(tmp_path: Path) -> None:
    """Two gigabytes, before its first byte."""
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with (
        (tmp_path / "x.tar.zst").open("wb") as stream,
        compressor.stream_writer(stream, closefd=False) as writer,
    ):
        writer.write(bytes(1024))
    with pytest.raises(FindingsError, match="memory"):
        unpack(tmp_path / "x.tar.zst", tmp_path / "into")


@pytest.mark.rule("KCI604", triggers=True)
@pytest.mark.parametrize("suffix", [".tar", ".tar.zst"])
def test_an_archive_cut_anywhere_is_no_half_a_variant(tmp_path: Path, suffix: str) -> None:
    whole = make_artifact(tmp_path, make_variant(tmp_path), suffix=suffix).read_bytes()
    # What comes after the last file's content is padding, and zstd's own checksum of it all.
    end = len(whole) - 64 if suffix == ".tar.zst" else len(whole.rstrip(b"\0"))
    artifact = tmp_path / f"cut{suffix}"
    for length in [*range(0, end, max(1, end // 60)), end - 1]:
        artifact.write_bytes(whole[:length])
        only(refusal(unpack, artifact, tmp_path / "into"), "KCI604", "cut.tar")
    assert list((tmp_path / "into").iterdir()) == []


def test_a_leg_that_contradicts_files_or_metadata_is_refused(
    tmp_path: Path, leg: LegRecord
) -> None:
    files = {path.name: path.read_bytes() for path in (tmp_path / "good" / CPU).iterdir()}
    other = GitState("f" * 40, dirty=False)
    no_ops = {name: content for name, content in files.items() if name != "_ops.py"}
    cases: list[tuple[dict[str, bytes], dict[str, object], str]] = [
        (files | {"_ops.py": b"evil"}, {}, "digest"),
        (files | {"extra.py": b""}, {}, "digest"),
        (no_ops, {}, "digest"),
        (files, {"kernel": "other"}, "contradicts itself about the kernel"),
        (files, {"version": 2}, "contradicts itself about the version"),
        (files, {"source": None}, "contradicts itself about the commit"),
        (files, {"source": other}, "contradicts itself about the commit"),
    ]
    for there, change, says in cases:
        members = [file(f"{CPU}/{name}", content) for name, content in there.items()]
        artifact = archive(tmp_path / "x.tar", msgspec.structs.replace(leg, **change), *members)
        with pytest.raises(FindingsError, match=says):
            unpack(artifact, tmp_path / "into")
        assert list((tmp_path / "into").iterdir()) == []


def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path, make_variant(tmp_path / "in"))
    unpack(artifact, tmp_path / "into")
    with pytest.raises(FindingsError, match="already exists"):
        unpack(artifact, tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").iterdir()] == [CPU]


def test_what_is_no_artifact_is_named(tmp_path: Path, leg: LegRecord) -> None:
    early = msgspec.structs.replace(leg, seconds=-5.0)
    for artifact, says in (
        (tmp_path / "x.zip", "does not end with"),
        (tmp_path / "none.tar", "not a file"),
        (archive(tmp_path / "empty.tar", None), "starts with nothing"),
        (archive(tmp_path / "other.tar", None, file("README")), "starts with 'README'"),
        (archive(tmp_path / "bad.tar", None, file("leg.json", b"{}")), "leg.json is invalid"),
        (archive(tmp_path / "time.tar", early), "leg.json is invalid: .*seconds"),
    ):
        with pytest.raises(FindingsError, match=says):
            read_leg(artifact)


CHANGES = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6
)


def test_names_beyond_the_classic_length_come_by_extended_header_or_prefix(tmp_path: Path) -> None:
    deep = "/".join(["d" * 40] * 4) + "/f.py"
    variant = make_variant(tmp_path, files={"__init__.py": "", deep: "x"})
    for format in (tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        names = ("__init__.py", deep, "metadata.json")
        members = [file(f"{CPU}/{name}", (variant / name).read_bytes()) for name in names]
        made = archive(tmp_path / f"{format}.tar", leg_of(variant), *members, format=format)
        _, unpacked, _ = unpack(made, tmp_path / str(format))
        assert (unpacked / deep).is_file()


@settings(max_examples=many(200), suppress_health_check=[HealthCheck.too_slow])
@given(changes=CHANGES, suffix=st.sampled_from([".tar", ".tar.zst"]))
def test_changed_bytes_never_give_a_traceback_or_a_stray_file(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]], suffix: str
) -> None:
    root = tmp_path_factory.mktemp("changed")
    artifact = make_artifact(root, make_variant(root / "src"), suffix=suffix)
    data = bytearray(artifact.read_bytes())
    for place, value in changes:
        data[int(place * len(data))] = value
    artifact.write_bytes(data)
    try:
        unpack(artifact, root / "into")
    except KciError:
        assert list(root.glob("into/*")) == []


def test_the_size_of_an_extended_header_counts(tmp_path: Path, leg: LegRecord) -> None:
    """tar puts a size there that has more than eleven octal digits; other tools may do so for any
    file.
    """
    good = sorted((tmp_path / "good" / CPU).iterdir())
    contents = {path.name: path.read_bytes() for path in good}
    members = [file("leg.json", msgspec.json.encode(leg))]
    members += [file(f"{CPU}/{name}", content) for name, content in contents.items()]
    data = b""
    for info, content in members:
        record = f" size={len(content)}\n"
        length = next(n for n in range(len(record), 99) if n == len(f"{n}{record}"))
        extended = tarfile.TarInfo("PaxHeaders/x")
        extended.type, extended.size, info.size = tarfile.XHDTYPE, length, 0
        data += extended.tobuf(tarfile.USTAR_FORMAT)
        data += f"{length}{record}".encode().ljust(512, b"\0")
        data += info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)
    (tmp_path / "a.tar").write_bytes(data + bytes(1024))
    (tmp_path / "into").mkdir()
    _, unpacked, _ = unpack(tmp_path / "a.tar", tmp_path / "into")
    assert {path.name: path.read_bytes() for path in unpacked.iterdir()} == contents

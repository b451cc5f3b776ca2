"""Opening an artifact that somebody else made. Everything in it is hostile until it was looked at.

The archive is read as a stream, once, front to back. Every header is judged before anything is done with it: only
plain files with tame names below `<variant>/` are let through, so there is no link to follow and nothing to sanitise.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from kci.diagnostics import finding
from kci.errors import FindingsError, KciError, UnsafeError
from kci.files.portable_names import collision, unsafe_name
from kci.tree.archive import LIMITS, SUFFIXES, DamagedError, Member, RefusedError, TarStream, zstandard
from kci.tree.digest import variant_digest
from kci.tree.findings import tree_error
from kci.tree.leg_record import LEG_NAME, LegRecord, decode_leg, read_sealed

_CHUNK = 1024 * 1024


def read_leg(artifact: Path) -> LegRecord:
    """The `leg.json` of an artifact, without unpacking the rest.

    Raises:
        UnsafeError: the first member is not a plain file.
        FindingsError: the file is not an artifact, truncated or corrupt.
        MissingToolError: `.tar.zst` without the zstandard package.
    """
    with _opened(artifact) as archive:
        return _leg(archive, archive.members(), artifact)


def unpack(artifact: Path, into_dir: Path) -> tuple[LegRecord, Path]:
    """Unpack an artifact to `into_dir/<variant>`, whole or not at all.

    Args:
        artifact: a `.tar` or `.tar.zst` that `pack` made, or that claims to be one.
        into_dir: an existing or new directory without an entry of the variant's name.

    Returns:
        What the leg says, and the variant directory.

    Raises:
        UnsafeError: a member could reach outside of the variant directory or eat the machine.
        FindingsError: the artifact is truncated, corrupt, contradicts itself, or the target exists.
        MissingToolError: `.tar.zst` without the zstandard package.
    """
    into_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into_dir, prefix=".kci-unpack-") as directory:
        work = Path(directory)
        with _opened(artifact) as archive:
            members = archive.members()
            leg = _leg(archive, members, artifact)
            variant_dir = work / leg.variant
            variant_dir.mkdir()
            _extract(archive, members, leg, variant_dir)
        _check(artifact, leg, variant_dir)
        target = into_dir / leg.variant
        if target.exists() or target.is_symlink():
            raise FindingsError(f"{target} already exists", hint="unpack into another directory")
        variant_dir.rename(target)
    return leg, target


@contextlib.contextmanager
def _opened(artifact: Path) -> Iterator[TarStream]:
    """The artifact as a tar stream; whatever breaks on the way becomes an error that names it."""
    where = str(artifact)
    if not artifact.name.endswith(SUFFIXES):
        ends = " or ".join(SUFFIXES)
        raise tree_error("KCI604", f"{artifact} is not an artifact: its name does not end with {ends}", path=where)
    if not artifact.is_file():
        raise tree_error("KCI604", f"{artifact} is not a file", path=where)
    try:
        with artifact.open("rb") as raw:
            yield TarStream(_decompressed(raw, artifact))
    except RefusedError as error:
        _refuse(artifact, error)
    except KciError:
        raise
    except Exception as error:
        # zstandard's own error type is only at hand where that package is.
        if not isinstance(error, DamagedError | OSError) and type(error).__name__ != "ZstdError":
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"{artifact} is truncated or corrupt: {reason}"
        raise tree_error("KCI604", message, hint="download it again, or rerun its leg", path=where) from error


def _refuse(artifact: Path, error: RefusedError) -> NoReturn:
    message = f"{artifact} is not safe to unpack: the member {error.member!r}: {error.reason}"
    raise UnsafeError(
        message,
        hint="kci pack never creates such an archive; find out where it comes from",
        diagnostics=[finding("KCI605", message, path=str(artifact))],
    )


def _decompressed(raw: IO[bytes], artifact: Path) -> IO[bytes]:
    if not artifact.name.endswith(".zst"):
        return raw
    reader: Any = zstandard().ZstdDecompressor(max_window_size=LIMITS.window)
    return cast("IO[bytes]", reader.stream_reader(raw, read_across_frames=True, closefd=False))


def _leg(archive: TarStream, members: Iterator[Member], artifact: Path) -> LegRecord:
    """Read the first member."""
    first = next(members, None)
    if first is None or first.name != LEG_NAME or first.directory:
        shown = "nothing" if first is None else repr(first.name)
        message = f"{artifact} is not an artifact: it starts with {shown}, not {LEG_NAME}"
        raise tree_error("KCI604", message, path=str(artifact))
    if first.size > LIMITS.leg:
        raise RefusedError(first.name, f"it is larger than {LIMITS.leg} bytes")
    try:
        return decode_leg(archive.read(first.size))
    except ValueError as error:
        raise tree_error("KCI604", f"{artifact}: {LEG_NAME} is invalid: {error}", path=str(artifact)) from error


def _extract(archive: TarStream, members: Iterator[Member], leg: LegRecord, variant_dir: Path) -> None:
    """Write the members that follow the leg."""
    seen: dict[str, str] = {}
    for member in members:
        relative = _judge(member, leg, seen)
        if not member.directory:
            _write(archive, member, variant_dir / relative)


def _judge(member: Member, leg: LegRecord, seen: dict[str, str]) -> str:
    """The member's path inside the variant.

    Args:
        member: a member after `leg.json`.
        leg: whose variant directory it has to be in.
        seen: paths so far, by the name that a file system without case sees; a directory's ends with `/`.
    """
    if reason := unsafe_name(member.name):
        raise RefusedError(member.name, reason)
    top, _, relative = member.name.partition("/")
    if top != leg.variant or not (relative or member.directory):
        raise RefusedError(member.name, f"it is outside of {leg.variant}/")
    path = f"{relative}/" if member.directory else relative
    if relative and (other := collision(path, seen)):
        raise RefusedError(member.name, f"it collides with {other!r}")
    return relative


def _write(archive: TarStream, member: Member, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("xb")
    except OSError as error:
        raise FindingsError(f"cannot write {target}: {error.strerror}") from error
    with file:
        while data := archive.read(_CHUNK):
            try:
                file.write(data)
            except OSError as error:
                raise FindingsError(f"cannot write {target}: {error.strerror}") from error
    target.chmod(0o755 if member.executable else 0o644)


def _check(artifact: Path, leg: LegRecord, variant_dir: Path) -> None:
    """Compare the unpacked directory with what the leg and its own metadata say."""
    found = variant_digest(variant_dir)
    if found != leg.digest:
        raise tree_error(
            "KCI604",
            f"{artifact} is truncated or corrupt: the files of {leg.variant} have the digest {found[:12]}, "
            f"not {leg.digest[:12]} as {LEG_NAME} says",
            hint="download it again, or rerun its leg",
            path=str(artifact),
        )
    try:
        metadata = read_sealed(variant_dir)
    except FindingsError as error:
        # The path in that message is a temporary one.
        raise tree_error(
            "KCI604", f"{artifact}: {_relocated(error.message, variant_dir)}", path=str(artifact)
        ) from error
    said = (leg.kernel, leg.version, leg.backend)
    holds = (metadata.name, metadata.version, metadata.backend.type.value)
    if said != holds:
        raise tree_error(
            "KCI604",
            f"{artifact} contradicts itself: {LEG_NAME} says {_shown(said)}, metadata.json says {_shown(holds)}",
            path=str(artifact),
        )


def _relocated(message: str, variant_dir: Path) -> str:
    return message.replace(str(variant_dir), variant_dir.name)


def _shown(identity: tuple[str, int, str]) -> str:
    return f"{identity[0]} version {identity[1]} for {identity[2]}"

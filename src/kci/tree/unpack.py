"""Opening an artifact that somebody else made. Everything in it is hostile until it was looked at.

The archive is read as a stream, once, front to back. Every header is judged before `tarfile` acts on it: only plain
files with tame names below `<variant>/` are let through, so there is no link to follow and nothing to sanitise.
"""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kci.diagnostics import finding
from kci.errors import FindingsError, UnsafeError, rule_error
from kci.files.archive import LIMITS, SUFFIXES, DamagedError, RefusedError, TarStream, opened_archive
from kci.files.full_disk import writing
from kci.files.portable_names import collision, unsafe_name
from kci.files.replace import start_writing
from kci.tree.digest import directory_digest
from kci.tree.leg_record import LEG_NAME, LegRecord, SealedVariant, decode_leg, read_sealed


def read_leg(artifact: Path) -> LegRecord:
    """The `leg.json` of an artifact, without unpacking the rest.

    Raises:
        UnsafeError: the first member is not a plain file.
        FindingsError: the file is not an artifact, truncated or corrupt.
        MissingToolError: `.tar.zst` without the zstandard package.
    """
    with _opened(artifact) as archive:
        return _leg(archive, archive.members(), artifact)


class Unpacked(NamedTuple):
    """An artifact that was unpacked and agrees with itself."""

    leg: LegRecord
    directory: Path
    sealed: SealedVariant


def unpack(artifact: Path, into_dir: Path) -> Unpacked:
    """Unpack an artifact, or what claims to be one, to `into_dir/<variant>`, whole or not at all.

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
            with writing(variant_dir):
                variant_dir.mkdir()
            seen: dict[str, str] = {}
            hashes = {}
            for member in members:
                relative = _judge(member, leg, seen)
                if member.isfile():
                    hashes[relative] = _write_member(archive, member, work)
        sealed = _check(artifact, leg, variant_dir, hashes)
        target = into_dir / leg.variant
        if target.exists() or target.is_symlink():
            raise FindingsError(f"{target} already exists", hint="unpack into another directory")
        variant_dir.rename(target)
    return Unpacked(leg, target, sealed)


@contextlib.contextmanager
def _opened(artifact: Path) -> Iterator[TarStream]:
    """The artifact as a tar stream; whatever breaks on the way becomes an error that names it."""
    where = str(artifact)
    if not artifact.name.endswith(SUFFIXES):
        ends = " or ".join(SUFFIXES)
        raise rule_error("KCI604", f"{artifact} is not an artifact: its name does not end with {ends}", path=where)
    if not artifact.is_file():
        raise rule_error("KCI604", f"{artifact} is not a file", path=where)
    try:
        with opened_archive(artifact) as archive:
            yield archive
    except RefusedError as error:
        message = f"{artifact} is not safe to unpack: the member {error.member!r}: {error.reason}"
        hint = "kci pack never creates such an archive; find out where it comes from"
        raise UnsafeError(message, hint=hint, diagnostics=[finding("KCI605", message, path=where)]) from error
    except OSError as error:
        raise rule_error("KCI604", f"cannot read {artifact}: {error.strerror}", path=where) from error
    except DamagedError as error:
        message = f"{artifact} is truncated or corrupt: {error}"
        raise rule_error("KCI604", message, hint="download it again, or rerun its leg", path=where) from error


def _leg(archive: TarStream, members: Iterator[tarfile.TarInfo], artifact: Path) -> LegRecord:
    """Read the first member."""
    first = next(members, None)
    if first is None or first.name != LEG_NAME or first.isdir():
        shown = "nothing" if first is None else repr(first.name)
        message = f"{artifact} is not an artifact: it starts with {shown}, not {LEG_NAME}"
        raise rule_error("KCI604", message, path=str(artifact))
    if first.size > LIMITS.leg:
        raise RefusedError(first.name, f"it is larger than {LIMITS.leg} bytes")
    try:
        return decode_leg(archive.read(first.size))
    except ValueError as error:
        raise rule_error("KCI604", f"{artifact}: {LEG_NAME} is invalid: {error}", path=str(artifact)) from error


def _judge(member: tarfile.TarInfo, leg: LegRecord, seen: dict[str, str]) -> str:
    """The member's path inside the variant.

    `seen` has the paths so far by the name that a file system without case sees; a directory's ends with `/`.
    """
    if reason := unsafe_name(member.name):
        raise RefusedError(member.name, reason)
    top, _, relative = member.name.partition("/")
    if top != leg.variant or not (relative or member.isdir()):
        raise RefusedError(member.name, f"it is outside of {leg.variant}/")
    path = f"{relative}/" if member.isdir() else relative
    if relative and (other := collision(path, seen)):
        raise RefusedError(member.name, f"it collides with {other!r}")
    return relative


def _write_member(archive: TarStream, member: tarfile.TarInfo, work: Path) -> str:
    """Write a member to its file; the hash of its content."""
    target = work / member.name
    with writing(target):
        archive.extract(member, work)
        target.chmod(0o755 if member.mode & 0o100 else 0o644)
        with target.open("rb") as file:
            start_writing(file.fileno())
            return hashlib.file_digest(file, "sha256").hexdigest()


def _check(artifact: Path, leg: LegRecord, variant_dir: Path, hashes: dict[str, str]) -> SealedVariant:
    """Compare the unpacked directory with what the leg and its own metadata say."""
    found = directory_digest(hashes)
    if found != leg.digest:
        raise rule_error(
            "KCI604",
            f"{artifact} is truncated or corrupt: the files of {leg.variant} have the digest {found[:12]}, "
            f"not {leg.digest[:12]} as {LEG_NAME} says",
            hint="download it again, or rerun its leg",
            path=str(artifact),
        )
    try:
        sealed = read_sealed(variant_dir, hashes)
    except FindingsError as error:
        # The path in that message is a temporary one.
        rule = "KCI612" if any(item.rule == "KCI612" for item in error.diagnostics) else "KCI604"
        message = error.message.replace(str(variant_dir), variant_dir.name)
        raise rule_error(rule, f"{artifact}: {message}", path=str(artifact)) from error
    metadata = sealed.metadata
    source = (metadata.provenance.kernel if metadata.provenance else None) or leg.source
    for what, said, holds in (
        ("kernel", leg.kernel, metadata.name),
        ("version", leg.version, metadata.version),
        ("backend", leg.backend, metadata.backend.type.value),
        ("architectures", leg.archs, metadata.backend.archs),
        ("commit", leg.source, source),
    ):
        if said != holds:
            raise rule_error(
                "KCI604",
                f"{artifact} contradicts itself about the {what}: {LEG_NAME} says {said}, metadata.json says {holds}",
                path=str(artifact),
            )
    return sealed

"""Packs variants as artifacts, and unpacks untrusted ones: each header is judged before `tarfile`
acts on it.
"""

from __future__ import annotations

import io
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kci.errors import FindingsError, UnsafeError, UsageError, rule_error
from kci.tree.identity import directory_digest
from kci.tree.manifest import LEG_NAME, LegRecord, SealedVariant, read_sealed
from kci.utils.archive import (
    LIMITS,
    SUFFIXES,
    RefusedError,
    TarStream,
    add_file,
    opened_archive,
    plain_member,
    written_archive,
)
from kci.utils.atomic import replacing, writing
from kci.utils.bounded_json import decode_json, encode_file
from kci.utils.suggest import count
from kci.utils.walk import (
    Entry,
    collision,
    is_lfs_pointer,
    unsafe_name,
    walk_packed,
)

_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def pack(variant_dir: Path, out_file: Path, leg: LegRecord) -> Path:
    """Write a sealed variant to a reproducible `.tar.zst` or `.tar`.

    Raises UsageError, UnsafeError, FindingsError.
    """
    if not out_file.name.endswith(SUFFIXES):
        raise UsageError(
            f"{out_file} is not an artifact name", f"end it with {' or '.join(SUFFIXES)}"
        )
    if leg.variant != variant_dir.name:
        raise UsageError(f"the leg is about {leg.variant}, the directory is {variant_dir}")
    files, text = files_to_pack(variant_dir), encode_file(leg)
    with replacing(out_file) as replacement:
        with written_archive(replacement.staging, zstd=out_file.name.endswith(".zst")) as archive:
            archive.addfile(plain_member(LEG_NAME, len(text)), io.BytesIO(text))
            for item in files:
                add_file(archive, f"{leg.variant}/{item.name}", item.path)
        replacement.commit()
    return out_file


def files_to_pack(variant_dir: Path) -> list[Entry]:
    """List the files to pack.

    Raises UnsafeError or FindingsError for files that unpacking would refuse.
    """
    files = walk_packed(variant_dir)
    for item, _, reason in unpackable_entries(files):
        raise UnsafeError(f"{variant_dir}: {item.name!r} cannot be packed: {reason}")
    if size := size_problem(files):
        raise rule_error(
            "KCI604",
            f"{variant_dir} is too large for an artifact: {size}",
            variant_dir,
            hint=f"an artifact holds up to {LIMITS.members} files and {LIMITS.size} bytes",
        )
    return files


def unpackable_entries(entries: Iterable[Entry]) -> Iterator[tuple[Entry, str, str]]:
    """Yield entries that an artifact cannot hold, with rule id and reason."""
    seen: dict[str, str] = {}
    for item in entries:
        if item.link:
            yield item, "KCI706", "it is a link; put the file itself there"
        elif not item.regular:
            yield item, "KCI706", "it is neither a file nor a directory"
        elif item.path.lstat().st_mode & _SPECIAL:
            yield item, "KCI727", "it has a setuid, setgid or sticky bit"
        elif is_lfs_pointer(item.path):
            yield item, "KCI732", "it is a pointer of Git LFS, and not the file"
        elif reason := unsafe_name(item.name):
            yield item, "KCI708", reason
        elif other := collision(item.name, seen):
            yield item, "KCI708", f"it differs from {other!r} in case only"


def size_problem(entries: Sequence[Entry]) -> str | None:
    """The reason why the files exceed an artifact's limits, if they do."""
    size = sum(item.path.stat().st_size for item in entries if item.regular and not item.link)
    if len(entries) > LIMITS.members or size > LIMITS.size:
        return f"{count(len(entries), 'file')}, {size} bytes"
    return None


def read_leg(artifact: Path) -> LegRecord:
    """Read only an artifact's `leg.json`.

    Raises UnsafeError, FindingsError, or MissingToolError without zstandard.
    """
    with _opened(artifact) as (_, _, leg):
        return leg


def unpack(artifact: Path, into_dir: Path) -> tuple[LegRecord, Path, SealedVariant]:
    """Unpack to `into_dir/<variant>`, which is returned with the records, whole or not at all.

    Raises UnsafeError, FindingsError or MissingToolError.
    """
    into_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into_dir, prefix=".kci-unpack-") as directory:
        work = Path(directory)
        with _opened(artifact) as (archive, members, leg):
            variant_dir = work / leg.variant
            with writing(variant_dir):
                variant_dir.mkdir()
            seen: dict[str, str] = {}
            hashes = {}
            for member in members:
                relative = _member_path(member, leg, seen)
                if member.isfile():
                    place = work / member.name
                    with writing(place):
                        hashes[relative] = archive.extract(place)
                        place.chmod(0o755 if member.mode & 0o100 else 0o644)
        sealed = _check(artifact, leg, variant_dir, hashes)
        target = into_dir / leg.variant
        if target.exists() or target.is_symlink():
            raise FindingsError(f"{target} already exists", "unpack into another directory")
        variant_dir.rename(target)
    return leg, target, sealed


@contextmanager
def _opened(artifact: Path) -> Iterator[tuple[TarStream, Iterator[tarfile.TarInfo], LegRecord]]:
    if not artifact.name.endswith(SUFFIXES):
        ends = " or ".join(SUFFIXES)
        raise rule_error(
            "KCI604", f"{artifact} is not an artifact: its name does not end with {ends}", artifact
        )
    if not artifact.is_file():
        raise rule_error("KCI604", f"{artifact} is not a file", artifact)
    with opened_archive(artifact) as archive:
        members = archive.members()
        first = next(members, None)
        if not first or first.name != LEG_NAME or first.isdir():
            shown = repr(first.name) if first else "nothing"
            message = f"{artifact} is not an artifact: it starts with {shown}, not {LEG_NAME}"
            raise rule_error("KCI604", message, artifact)
        if first.size > LIMITS.leg:
            raise RefusedError(first.name, f"it is larger than {LIMITS.leg} bytes")
        try:
            leg = decode_json(archive.read(first.size), LegRecord)
        except ValueError as error:
            message = f"{artifact}: {LEG_NAME} is invalid: {error}"
            raise rule_error("KCI604", message, artifact) from error
        yield archive, members, leg


def _member_path(member: tarfile.TarInfo, leg: LegRecord, seen: dict[str, str]) -> str:
    # returns the path inside the variant; `seen` has case-folded paths, of directories with a `/`
    if reason := unsafe_name(member.name):
        raise RefusedError(member.name, reason)
    top, _, relative = member.name.partition("/")
    if top != leg.variant or not (relative or member.isdir()):
        raise RefusedError(member.name, f"it is outside of {leg.variant}/")
    path = f"{relative}/" if member.isdir() else relative
    if relative and (other := collision(path, seen)):
        raise RefusedError(member.name, f"it collides with {other!r}")
    return relative


def _check(
    artifact: Path, leg: LegRecord, variant_dir: Path, hashes: dict[str, str]
) -> SealedVariant:
    if (digest := directory_digest(hashes)) != leg.digest:
        raise rule_error(
            "KCI604",
            f"{artifact} is truncated or corrupt: the files of {leg.variant} have the digest "
            f"{digest[:12]}, not {leg.digest[:12]} as {LEG_NAME} says",
            artifact,
            hint="download it again, or rerun its leg",
        )
    try:
        sealed = read_sealed(variant_dir, hashes)
    except FindingsError as error:
        # the message has a temporary path
        rule = "KCI612" if any(item.rule == "KCI612" for item in error.diagnostics) else "KCI604"
        message = error.message.replace(str(variant_dir), variant_dir.name)
        raise rule_error(rule, f"{artifact}: {message}", artifact) from error
    metadata = sealed.metadata
    source = metadata.made_from or leg.source
    for field, claimed, recorded in (
        ("kernel", leg.kernel, metadata.name),
        ("version", leg.version, metadata.version),
        ("backend", leg.backend, metadata.backend.type),
        ("architectures", leg.archs, metadata.backend.archs),
        ("commit", leg.source, source),
    ):
        if claimed != recorded:
            difference = f"{LEG_NAME} says {claimed}, metadata.json says {recorded}"
            raise rule_error(
                "KCI604", f"{artifact} contradicts itself about the {field}: {difference}", artifact
            )
    return sealed

"""Making the artifact of a variant directory."""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from kci.errors import UnsafeError, UsageError, rule_error
from kci.files.archive import LIMITS, SUFFIXES, plain_member, written_archive
from kci.files.full_disk import room_hint
from kci.files.portable_names import collision, unsafe_name
from kci.files.replace import replacing
from kci.files.walk import Entry, is_bytecode, is_executable, is_lfs_pointer, walk
from kci.plurals import count
from kci.tree.leg_record import LEG_NAME, LegRecord

_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def pack(variant_dir: Path, out_file: Path, leg: LegRecord) -> Path:
    """Write the artifact of a sealed variant directory to `out_file`; `.tar.zst` compresses, `.tar` does not.

    Names are sorted, times and owners zero and modes 644 or 755, so the same files always give the same bytes.

    Raises:
        UsageError: the file name ends with neither suffix, or the leg is another variant's.
        UnsafeError: the directory holds a link, a device or a name that cannot travel.
        FindingsError: a file cannot be read, the archive cannot be written, or the variant is too large.
    """
    if not out_file.name.endswith(SUFFIXES):
        raise UsageError(f"{out_file} is not an artifact name", hint=f"end it with {' or '.join(SUFFIXES)}")
    if leg.variant != variant_dir.name:
        raise UsageError(f"the leg is about {leg.variant}, the directory is {variant_dir}")
    files = packable(variant_dir)
    with replacing(out_file) as made:
        try:
            with written_archive(made.staging, zstd=out_file.name.endswith(".zst")) as archive:
                _write_members(archive, leg, files)
        except OSError as error:
            message = f"cannot write {out_file}: {error.strerror or error}"
            raise rule_error("KCI604", message, hint=room_hint(error), path=str(out_file)) from error
        made.commit()
    return out_file


def packable(variant_dir: Path) -> list[Entry]:
    """The files of a variant directory that an artifact can hold, after the same checks that unpacking makes.

    Raises:
        UnsafeError: there is a link, a device or a name that cannot travel.
        FindingsError: the variant is too large for an artifact.
    """
    found = [item for item in walk(variant_dir) if not is_bytecode(item.name)]
    for item, _, reason in untransportable(found):
        raise UnsafeError(f"{variant_dir}: {item.name!r} cannot be packed: {reason}")
    if size := too_large(found):
        raise rule_error(
            "KCI604",
            f"{variant_dir} is too large for an artifact: {size}",
            hint=f"an artifact holds up to {LIMITS.members} files and {LIMITS.size} bytes",
            path=str(variant_dir),
        )
    return found


def untransportable(entries: Iterable[Entry]) -> Iterator[tuple[Entry, str, str]]:
    """The entries of a variant that no artifact can hold, each with the rule that says so and the reason."""
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


def too_large(entries: Sequence[Entry]) -> str | None:
    """How much some files are, if that is more than an artifact can hold."""
    size = sum(item.path.stat().st_size for item in entries if item.regular and not item.link)
    if len(entries) > LIMITS.members or size > LIMITS.size:
        return f"{count(len(entries), 'file')}, {size} bytes"
    return None


def _write_members(archive: tarfile.TarFile, leg: LegRecord, files: list[Entry]) -> None:
    text = msgspec.json.format(msgspec.json.encode(leg), indent=2) + b"\n"
    archive.addfile(plain_member(LEG_NAME, len(text)), io.BytesIO(text))
    for item in files:
        with item.path.open("rb") as file:
            mode = 0o755 if is_executable(item.path) else 0o644
            archive.addfile(plain_member(f"{leg.variant}/{item.name}", item.path.stat().st_size, mode), file)

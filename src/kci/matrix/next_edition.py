"""Editions of the catalog made from what exists: wheels of torch, and the reference's `build-variants.json`.

That table lists, by system and backend, the names of the full-ABI variants that belong to a release. A name does not
carry everything that a row does, so an edition that is made from it lacks rows that are not bundled, and which rows
carry a tvm-ffi. Where a compute version is shortened in names (`xpu20253`), the editions that kci ships say what it is.

The rule is the reference's: users get the newest two releases of torch. What the table says counts where there is one;
the wheels alone say which toolkits exist, and not which of them the reference builds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import tomlkit

from kci.catalog.listings import RELEASES, Wheel
from kci.catalog.rows import Catalog, Row
from kci.config.document import refuse
from kci.config.values import SYSTEMS, Backend, Version
from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError
from kci.files.bounded_json import decode_json, read_bounded
from kci.matrix.names import Kind, parse_variant_name


class Proposal(msgspec.Struct, frozen=True):
    """Rows of an edition that does not exist yet."""

    rows: tuple[Published, ...]
    unknown: tuple[str, ...]
    """What neither wheels nor table say; a person has to."""

    def toml(self, *, name: str, as_of: str, source: str, neighbors: Sequence[str] = ()) -> str:
        """The edition as a file; see `edition_toml`."""
        comments = ["Proposed by `kci catalog next`: look at it before it is used.", *self.unknown]
        rows = list(self.rows)
        return edition_toml(rows, name=name, as_of=as_of, source=source, comments=comments, neighbors=neighbors)


def propose(current: Catalog, wheels: Iterable[Wheel], table: Iterable[Published] = ()) -> Proposal:
    """The next edition.

    Args:
        current: the edition in force; what it says about toolchains that stay, stays.
        wheels: the wheels that exist.
        table: the rows that the reference publishes; empty where they are unknown.

    Raises:
        FindingsError: there is no release of torch among the wheels and the table.
    """
    listed, published = set(wheels), list(table)
    # A release that the reference has not taken up yet is one that users get no kernels for: it is next.
    finals = sorted({row.torch for row in published} or {wheel.torch for wheel in listed if wheel.final})
    if not finals:
        raise FindingsError("no release of torch is listed", hint="name the index of releases, not only of nightlies")
    offered = set(finals[-RELEASES:])
    known = {row.key: row for row in current.rows}
    unknown: list[str] = []
    if published:
        bundled = [row for row in published if row.torch in offered]
    else:
        bundled = _existing(current, listed, offered, unknown)
        unknown.append("Without the reference's table: which of these toolkits it builds is not known.")
    rows = {row[:4]: row for row in bundled}
    later = {wheel.torch for wheel in listed if wheel.final and wheel.torch > finals[-1]}
    outside = [row._replace(bundled=False) for row in _existing(current, listed, later, unknown)]
    for wheel in sorted(listed, key=str):
        nightly = not wheel.final and wheel.torch > finals[-1] and wheel.backend in (Backend.CUDA, Backend.ROCM)
        if nightly and wheel.system in _systems(current, wheel.backend):
            outside.append(Published(wheel.torch, wheel.backend, wheel.compute, wheel.system, bundled=False))
    for one in outside:
        rows.setdefault(one[:4], one)
    for row in current.rows:  # kept back for users of an older torch, and built on demand
        if not row.bundled and row.torch < finals[-RELEASES:][0]:
            kept = Published(row.torch, row.backend, row.compute, row.system, bundled=False)
            rows.setdefault(kept[:4], kept)
    final = [row._replace(tvm_ffi=known[key].tvm_ffi) if key in known else row for key, row in rows.items()]
    return Proposal(tuple(in_table_order(_with_tvm_ffi(current, final, unknown))), tuple(unknown))


def _unlisted(
    current: Catalog, torch: Version, systems: set[str], found: Sequence[Published], unknown: list[str]
) -> list[Published]:
    """The rows for systems of which an index has one build of the release: it says nothing about all others.

    What the edition in force has of that release stays. For a new one, that there is a build for the CPU is taken over
    from the release before; a person has to find out about other toolkits.
    """
    known = [row for row in current.rows if row.system in systems]
    stay = [row for row in known if row.torch == torch and row.bundled]
    if stay:
        return [Published(torch, row.backend, row.compute, row.system) for row in stay]
    before = max((row.torch for row in known if row.bundled and row.torch < torch), default=None)
    made: list[Published] = []
    open_: dict[str, None] = {}
    for row in known:
        key = (torch, row.backend, row.compute, row.system)
        if key in {item[:4] for item in found} or not (row.torch == torch or (row.torch == before and row.bundled)):
            continue
        if row.backend is Backend.CPU:
            made.append(Published(*key))
            unknown.append(f"cpu of torch {torch} on {row.system}: taken over from torch {before}, no index lists it.")
        else:
            open_[" ".join(str(part) for part in (row.backend, row.compute) if part)] = None
    if open_:
        one = f"torch {torch} with {', '.join(open_)}: an index with one build for a system does not tell."
        unknown.append(f"{one} Add rows for those that exist.")
    return made


def _with_tvm_ffi(current: Catalog, rows: Sequence[Published], unknown: list[str]) -> list[Published]:
    """The rows, and what had a tvm-ffi has it still: its variants do not depend on the torch of the row.

    It stays with its toolkit; where that is gone, the newest one of the backend has it, if none has. Wheels and table
    do not say which row has one, so each one that moves or ends is told.
    """
    made = list(rows)
    for old in sorted(current.rows, key=lambda row: str(row.key)):
        if old.tvm_ffi is None:
            continue
        near = [at for at, row in enumerate(made) if (row.backend, row.system) == (old.backend, old.system)]
        same = [at for at in near if made[at].compute == old.compute]
        if any(made[at].tvm_ffi for at in same):
            continue
        of = " ".join(str(part) for part in (old.backend, old.compute) if part)
        gone = f"tvm-ffi {old.tvm_ffi} of {of} on {old.system}: its row, with torch {old.torch}, is gone"
        if not near:
            unknown.append(f"{gone}, and so is its backend there: its variants end. Add a row by hand to keep them.")
        elif not same and any(made[at].tvm_ffi for at in near):
            unknown.append(f"{gone}, and no other has that toolkit: its variants end. Those of other toolkits stay.")
        else:
            at = max(same or near, key=lambda at: (made[at].bundled, made[at].torch, made[at].compute or ()))
            new = " ".join(str(part) for part in (f"torch {made[at].torch}", *([] if same else [made[at].compute])))
            made[at] = made[at]._replace(tvm_ffi=old.tvm_ffi)
            unknown.append(f"{gone}; that with {new} has it here. Does the reference build it there?")
    return made


def _existing(current: Catalog, listed: set[Wheel], offered: set[Version], unknown: list[str]) -> list[Published]:
    """The toolkits that there are for some releases."""
    certain = {wheel for wheel in listed if wheel.compute is not None or wheel.backend is not Backend.CUDA}
    found = list(_from_wheels(current, certain, offered, unknown))
    for torch in sorted(offered):
        on = {wheel.system for wheel in listed if wheel.torch == torch and wheel.system.endswith("-linux")}
        named = {wheel.system for wheel in certain if wheel.torch == torch and wheel.named}
        found += _unlisted(current, torch, on - named, found, unknown)
    return found


def _from_wheels(
    current: Catalog, wheels: set[Wheel], offered: set[Version], unknown: list[str]
) -> Iterable[Published]:
    for torch, final, backend, compute, system, _ in sorted(wheels, key=str):
        if not final or torch not in offered or system not in _systems(current, backend):
            continue
        if backend is not Backend.XPU:
            yield Published(torch, backend, compute, system)
            continue
        same = [row for row in current.rows if row.backend is Backend.XPU and row.torch == torch]
        yield from (Published(row.torch, row.backend, row.compute, row.system) for row in same)
        if not same:
            unknown.append(f"XPU with torch {torch}: the wheel does not say which oneAPI; add its row by hand.")


def _systems(current: Catalog, backend: Backend) -> set[str]:
    return {row.system for row in current.rows if row.backend is backend and row.bundled}


MAX_BYTES = 4 * 1024 * 1024
_ORDER = ("aarch64-darwin", "x86_64-linux", "aarch64-linux", "x86_64-windows", "aarch64-windows")
"""The order in which the reference lists the systems of a row."""


class Published(NamedTuple):
    """One toolchain of an edition that is made, not read."""

    torch: Version
    backend: Backend
    compute: Version | None
    system: str
    bundled: bool = True
    tvm_ffi: Version | None = None


def read_published(path: Path, known: Iterable[Row]) -> list[Published]:
    """Read a published table; `known` rows say which compute version a shortened one stands for.

    Raises:
        FindingsError: the file cannot be read (KCI002) or is no such table (KCI120); it carries every finding.
    """
    shown = str(path)
    try:
        raw = read_bounded(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise refuse(finding("KCI002", f"cannot be read: {reason}", path=shown)) from None
    return published_table(raw, shown, known)


def published_table(raw: bytes, shown: str, known: Iterable[Row]) -> list[Published]:
    """Read a published table from its bytes; see `read_published`."""
    try:
        table = decode_json(raw, dict[str, dict[str, list[str]]])
    except ValueError as error:
        hint = "it maps systems to backends to lists of variant names"
        raise refuse(finding("KCI120", f"not a build-variants.json: {error}", hint=hint, path=shown)) from None
    rows = list(known)
    found: dict[Published, None] = {}
    problems: list[Diagnostic] = []
    for system, backends in table.items():
        for backend, names in backends.items():
            for name in names:
                try:
                    found[_published(system, backend, name, rows)] = None
                except ValueError as error:
                    problems.append(finding("KCI120", str(error), path=shown, span=_place(raw, name)))
    if problems:
        raise refuse(*problems)
    if not found:
        raise refuse(finding("KCI120", "the table names no variant", path=shown))
    return in_table_order(found)


def in_table_order(rows: Iterable[Published]) -> list[Published]:
    """By torch, backend, compute version and system, as the reference lists them."""
    return sorted(rows, key=lambda item: (item.torch, item.backend, item.compute or (), _ORDER.index(item.system)))


def _published(system: str, backend: str, name: str, known: list[Row]) -> Published:
    versions = {(str(row.backend), row.compute) for row in known if row.compute is not None}
    parsed = parse_variant_name(name, versions)
    if parsed.kind is not Kind.FULL or parsed.framework_version is None:
        raise ValueError(f"{name!r} is not a full-ABI variant, and such a table has no others")
    if system not in SYSTEMS or parsed.system != system or parsed.backend != backend:
        raise ValueError(f"{name!r} is listed for {system[:40]!r} and {backend[:40]!r}, and is for another")
    torch = Version.parse(parsed.framework_version)
    if parsed.compute_version is None:
        return Published(torch, Backend(backend), None, system)
    compute = Version.parse(parsed.compute_version)
    exact = {row.compute for row in known if row.backend == backend and row.torch == torch and row.compute is not None}
    longer = [version for version in sorted(exact) if version.minor_text == compute.minor_text]
    return Published(torch, Backend(backend), longer[-1] if longer else compute, system)


def _place(raw: bytes, name: str) -> Span | None:
    at = raw.find(msgspec.json.encode(name))
    if at < 0:
        return None
    before = raw[:at].decode("utf-8", "replace")
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    return Span(line, column, line, column + len(name) + 2)


IMPORTED = ("Made by `kci catalog import`. The table has no unbundled rows and no tvm-ffi versions.",)


def edition_toml(
    published: list[Published],
    *,
    name: str,
    as_of: str,
    source: str,
    comments: Sequence[str] = IMPORTED,
    neighbors: Sequence[str] = (),
) -> str:
    """An edition of the catalog as TOML; rows that differ only in compute version and system are one table.

    The rows are in table order; `as_of` is a date, and `neighbors` are the editions next to it.
    """
    groups: dict[tuple[Version, Backend, tuple[str, ...], bool, Version | None], list[Version]] = {}
    systems: dict[tuple[Version, Backend, Version | None, bool, Version | None], list[str]] = {}
    for item in published:
        key = (item.torch, item.backend, item.compute, item.bundled, item.tvm_ffi)
        systems.setdefault(key, []).append(item.system)
    for (torch, backend, compute, bundled, tvm_ffi), present in systems.items():
        group = (torch, backend, tuple(present), bundled, tvm_ffi)
        groups.setdefault(group, []).extend([compute] if compute else [])
    document = tomlkit.document()
    for line in comments:
        document.add(tomlkit.comment(line))
    document["name"] = name
    document["as-of"] = datetime.date.fromisoformat(as_of)
    document["source"] = source
    if neighbors:
        document["neighbors"] = list(neighbors)
    rows = tomlkit.aot()
    for (torch, backend, on, bundled, tvm_ffi), computes in groups.items():
        row = tomlkit.table()
        row["torch"] = torch.text
        row["backend"] = str(backend)
        if computes:
            row["compute"] = [compute.text for compute in computes]
        row["systems"] = list(on)
        if not bundled:
            row["bundled"] = False
        if tvm_ffi is not None:
            row["tvm-ffi"] = tvm_ffi.text
        rows.append(row)
    document["row"] = rows
    return tomlkit.dumps(document)

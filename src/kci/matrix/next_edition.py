"""The next edition of the catalog, proposed from what exists: wheels of torch, and the reference's published table.

The rule is the reference's: users get the newest two releases of torch. What the table says counts where there is one;
the wheels alone say which toolkits exist, and not which of them the reference builds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kci.catalog.rows import Catalog
from kci.catalog.wheel_index import Wheel
from kci.config.values import Backend, Version
from kci.errors import FindingsError
from kci.matrix.reference_table import Published, edition_toml, in_table_order

RELEASES = 2
"""How many releases of torch users get."""


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
        table: the rows that the reference publishes; empty where nobody has looked.

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
        bundled = list(_from_wheels(current, listed, offered, unknown))
        unknown.append("Without the reference's table: which of these toolkits it builds is not known.")
    rows = {row[:4]: row for row in bundled}
    for wheel in sorted(listed, key=str):
        key = (wheel.torch, wheel.backend, wheel.compute, wheel.system)
        next_one = wheel.torch > finals[-1] and wheel.backend in (Backend.CUDA, Backend.ROCM)
        if next_one and key not in rows and wheel.system in _systems(current, wheel.backend):
            rows[key] = Published(*key, bundled=False)
    for row in current.rows:  # kept back for users of an older torch, and built on demand
        if not row.bundled and row.torch < finals[-RELEASES:][0]:
            kept = Published(row.torch, row.backend, row.compute, row.system, bundled=False)
            rows.setdefault(kept[:4], kept)
    final = [row._replace(tvm_ffi=known[key].tvm_ffi) if key in known else row for key, row in rows.items()]
    return Proposal(tuple(in_table_order(_with_tvm_ffi(current, final, unknown))), tuple(unknown))


def _with_tvm_ffi(current: Catalog, rows: Sequence[Published], unknown: list[str]) -> list[Published]:
    """The rows, and each toolkit that had a tvm-ffi has it still: its variants do not depend on the torch of the row.

    Wheels and table do not say which row has one, so whatever moves or ends is told.
    """
    made = list(rows)
    for old in sorted(current.rows, key=lambda row: str(row.key)):
        same = [at for at, row in enumerate(made) if row[1:4] == old.key[1:]]
        if old.tvm_ffi is None or any(made[at].tvm_ffi for at in same):
            continue
        of = " ".join(str(part) for part in (old.backend, old.compute) if part)
        gone = f"tvm-ffi {old.tvm_ffi} of {of} on {old.system}: its row, with torch {old.torch}, is gone"
        if same:
            at = max(same, key=lambda at: (made[at].bundled, made[at].torch))
            made[at] = made[at]._replace(tvm_ffi=old.tvm_ffi)
            unknown.append(f"{gone}; that with torch {made[at].torch} has it here. Does the reference build it there?")
        else:
            unknown.append(f"{gone}, and no other has that toolkit: its variants end. Add a row by hand to keep them.")
    return made


def _from_wheels(
    current: Catalog, wheels: set[Wheel], offered: set[Version], unknown: list[str]
) -> Iterable[Published]:
    for torch, final, backend, compute, system in sorted(wheels, key=str):
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
    """Where a backend is built for users today."""
    return {row.system for row in current.rows if row.backend is backend and row.bundled}

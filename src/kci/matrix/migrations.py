"""What a kernel's build.toml needs when the range of toolchains moves: a pure function, and exact edits where possible.

What is due depends on the newer edition alone, so that a kernel which was left behind by an earlier move is found too.
The edition before says what is due because of this move, and has to wait for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple

import msgspec
import tomli

from kci.catalog.arch_tables import toolkits
from kci.catalog.loading import outside_range
from kci.catalog.rows import Catalog, Row
from kci.config.document import BOM
from kci.config.model import CudaComponent
from kci.config.reader import BUILD_TOML, Kernel, parse_kernel
from kci.config.update import Update, plan_update
from kci.config.values import Backend, Version
from kci.errors import FindingsError
from kci.matrix.archs import arch_lists, compiled_components
from kci.matrix.selection import exclusion

Edit = Callable[[MutableMapping[str, Any]], None]
"""Changes a parsed build.toml: plain data, and the document whose text is kept, in the same way."""

MIGRATIONS = {
    "edition": "a build.toml in the newest edition of the format",
    "torch-minver": "a bound below every torch that is left",
    "torch-maxver": "a bound that keeps the newest torch out",
    "cuda-minver": "a bound below every CUDA that is left",
    "cuda-maxver": "a bound below every CUDA that is left: no variant",
    "arch-renamed": "a capability under the name that the toolkits have for it",
    "arch-dropped": "a capability that no toolkit has any more",
    "stable-abi": "one binary for all versions of torch, where the sources need only the stable ABI",
}
"""Every migration, and what it is about."""


class Migration(msgspec.Struct, frozen=True):
    """One thing that a kernel's owner has to do, or that can be done for them."""

    id: str
    title: str
    reason: str
    change: Update | None = None
    """The edit, of what the migrations before it leave; None where it takes a person."""
    todo: str = ""
    """What that person has to do."""
    waits: bool = False
    """It is right with the newer edition only."""


class _Due(NamedTuple):
    id: str
    title: str
    reason: str
    todo: str = ""
    edit: Edit | None = None


def plan_migrations(
    raw: bytes,
    before: Catalog,
    after: Catalog,
    *,
    directory: str = ".",
    shown_as: str = BUILD_TOML,
    stable_sources: bool = False,
    only: Collection[str] = (),
) -> list[Migration]:
    """Everything that one kernel needs for an edition of the catalog; nothing is written. FindingsError: it is invalid.

    Args:
        raw: its build.toml.
        before: the edition in force.
        after: the newer one; the same one says what is overdue.
        directory: the kernel's directory, for messages.
        shown_as: how messages name the file.
        stable_sources: whether its sources include nothing of torch but the headers of the stable ABI.
        only: the migrations to consider; empty for all.
    """
    wanted = only or MIGRATIONS
    found, text = [], raw
    if "edition" in wanted:
        update = plan_update(raw, directory, shown_as)
        text = update.after
        if update.changes:
            reason = "the next editions of the format are read from this one"
            found.append(Migration("edition", MIGRATIONS["edition"], reason, update))
    kernel = parse_kernel(text, directory, shown_as)
    already = {(due.id, due.title) for due in _due(kernel, before, stable_sources)}
    for due in _due(kernel, after, stable_sources):
        if due.id not in wanted:
            continue
        change = _edited(text, due, shown_as) if due.edit is not None else None
        waits = (due.id, due.title) not in already
        found.append(Migration(due.id, due.title, due.reason, change, "" if change else due.todo, waits))
        text = change.after if change is not None else text
    return found


def whole_change(migrations: Iterable[Migration]) -> Update | None:
    """The edits of several migrations of one kernel as one; None where none has an edit."""
    changes = [item.change for item in migrations if item.change is not None]
    if not changes:
        return None
    said = tuple(text for change in changes for text in change.changes)
    return Update(changes[0].path, changes[0].before, changes[-1].after, said)


def _edited(raw: bytes, due: _Due, shown_as: str) -> Update | None:
    """The file after an edit; None where tomlkit makes of it something else than the edit means."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    assert due.edit is not None  # noqa: S101  - the caller has looked
    text = raw.removeprefix(BOM).decode("utf-8")
    meant = copy.deepcopy(tomli.loads(text))
    due.edit(meant)
    try:
        document = tomlkit.parse(text)
        due.edit(document)
        after = tomlkit.dumps(document)
        if tomli.loads(after) != meant:
            return None
        parse_kernel(after.encode(), shown_as=shown_as)
    except (TOMLKitError, FindingsError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return Update(shown_as, raw, (BOM if raw.startswith(BOM) else b"") + after.encode(), (due.title,))


# --- what is due ------------------------------------------------------------------------------------------------------


def _due(kernel: Kernel, catalog: Catalog, stable_sources: bool) -> list[_Due]:
    found = [*_torch_bounds(kernel, catalog), *_cuda_bounds(kernel, catalog), *_archs(kernel, catalog)]
    return [*found, *(_stable_abi(kernel, catalog) if stable_sources else ())]


def _torch_bounds(kernel: Kernel, catalog: Catalog) -> Iterator[_Due]:
    torch = kernel.build.torch
    if torch is None:
        return
    left, offered = sorted({row.torch for row in _left(catalog)}), _offered(catalog)
    if torch.minver is not None and left and torch.minver <= left[0]:
        title = f"remove `torch.minver = {torch.minver}`"
        reason = f"every torch that is left is at least {left[0]}, so it says nothing"
        yield _Due("torch-minver", title, reason, title, _without_key("torch", "minver"))
    if torch.maxver is not None and offered and torch.maxver < offered[-1]:
        what = "no variant is left" if torch.maxver < offered[0] else "users of it get no variant"
        reason = f"`torch.maxver = {torch.maxver}` keeps torch {offered[-1]} out: {what}"
        yield _Due(
            "torch-maxver", f"support torch {offered[-1]}", reason, "build and test with it, then raise the bound"
        )


def _cuda_bounds(kernel: Kernel, catalog: Catalog) -> Iterator[_Due]:
    left = _cuda(_left(catalog))
    bounds = kernel.build.general.cuda
    if not left or Backend.CUDA not in kernel.build.general.backends:
        return
    places: list[tuple[tuple[str, ...], Version | None]] = [
        (("general", "cuda", "minver"), bounds.minver if bounds else None),
        *(
            (("kernel", label, "cuda-minver"), part.cuda_minver)
            for label, part in kernel.build.kernel.items()
            if isinstance(part, CudaComponent)
        ),
    ]
    for place, version in places:
        if version is not None and version <= left[0]:
            title = f"remove `{'.'.join(place)} = {version}`"
            reason = f"every CUDA that is left is at least {left[0]}, so it says nothing"
            yield _Due("cuda-minver", title, reason, title, _without_key(*place))
    offered = _cuda(row for row in catalog.rows if row.bundled)
    if bounds and bounds.maxver is not None and offered and bounds.maxver < offered[0]:
        reason = (
            f"`general.cuda.maxver = {bounds.maxver}` is below CUDA {offered[0]}, the oldest that is left: no variant"
        )
        todo = f"make it build with CUDA {offered[0]} and raise the bound, or take `cuda` out of `backends`"
        yield _Due("cuda-maxver", f"support CUDA {offered[0]}", reason, todo)


def _archs(kernel: Kernel, catalog: Catalog) -> Iterator[_Due]:
    versions = _cuda(row for row in _left(catalog) if exclusion(kernel.build, row) is None)
    if not versions:
        return
    for place, entries in arch_lists(kernel, Backend.CUDA):
        for entry in dict.fromkeys(entries):
            yield from _arch(tuple(map(str, place)), entries, entry, versions)


def _arch(place: tuple[str, ...], entries: Sequence[str], entry: str, versions: list[Version]) -> Iterator[_Due]:
    known = toolkits()
    if not known.ever_built(entry) or known.builds(entry, versions[-1]):
        return
    shown = ".".join(place)
    building = [version for version in versions if known.builds(entry, version)]
    new = known.new_name(entry, versions[-1])
    if new and known.builds(new, versions[-1]):
        if building and new in entries:
            return
        title = f"{new} {'beside' if building else 'for'} {entry} in `{shown}`"
        reason = f"CUDA {versions[-1]} has {entry} under the name {new}"
        yield _Due("arch-renamed", title, reason, title, _in_list(place, entry, new, keep=bool(building)))
    elif not building and known.newest_building(entry) < versions[0]:
        title, reason = f"remove {entry} from `{shown}`", f"CUDA {versions[0]} and newer cannot build it"
        others = [other for other in entries if any(known.builds(other, version) for version in versions)]
        if others:
            yield _Due("arch-dropped", title, reason, title, _in_list(place, entry, None, keep=False))
        else:
            yield _Due("arch-dropped", title, reason, "list a capability that they have, or give the component up")


def _stable_abi(kernel: Kernel, catalog: Catalog) -> Iterator[_Due]:
    torch, offered = kernel.build.torch, _offered(catalog)
    if torch is None or torch.stable_abi is not None or not offered:
        return
    backends = [
        str(backend)
        for backend in dict.fromkeys(kernel.build.general.backends)
        if compiled_components(kernel.build, backend, None)
    ]
    if not backends:
        return
    oldest = offered[0].text

    def edit(data: MutableMapping[str, Any]) -> None:
        data["torch"]["stable-abi"] = dict.fromkeys(backends, oldest)

    title = f"the stable ABI of torch {oldest} for {', '.join(backends)}"
    reason = "the sources include its headers only, and every torch that users get has it: one binary for all"
    yield _Due("stable-abi", title, reason, f"add `[torch.stable-abi]` with {oldest} for each backend", edit)


def _offered(catalog: Catalog) -> list[Version]:
    return sorted({row.torch for row in catalog.rows if row.bundled})


def _left(catalog: Catalog) -> list[Row]:
    """The rows that are offered, and those that only the compat tier tests."""
    return [*catalog.rows, *outside_range(catalog)[0]]


def _cuda(rows: Iterable[Row]) -> list[Version]:
    """The CUDA versions of some rows, oldest first."""
    return sorted({row.compute for row in rows if row.backend is Backend.CUDA and row.compute})


# --- the edits --------------------------------------------------------------------------------------------------------


def _without_key(*place: str) -> Edit:
    def edit(data: MutableMapping[str, Any]) -> None:
        tables = [data]
        for name in place[:-1]:
            tables.append(tables[-1][name])
        del tables[-1][place[-1]]
        for number in range(len(place) - 2, 0, -1):
            if not tables[number + 1]:
                del tables[number][place[number]]

    return edit


def _in_list(place: tuple[str, ...], old: str, new: str | None, *, keep: bool) -> Edit:
    """Put an entry of a list in the place of another, or beside it, or remove it; never twice."""

    def edit(data: MutableMapping[str, Any]) -> None:
        values = data
        for name in place:
            values = values[name]
        assert isinstance(values, list)  # noqa: S101  - the file was read as a build.toml
        there = new is None or new in values
        at = values.index(old)
        if keep:
            values.insert(at + 1, new)
        elif there:
            while old in values:
                values.remove(old)
        else:
            values[at] = new

    return edit

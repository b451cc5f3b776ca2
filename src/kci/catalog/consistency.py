"""Is an edition or overlay consistent: do its toolkits exist, can they build the default archs, can a job build it.

`kci catalog check` runs these; one function per rule. What cannot be read at all is refused by the readers (KCI120,
KCI128) before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kci.catalog.arch_tables import toolkits
from kci.catalog.loading import editions
from kci.catalog.overlay import apply, subject
from kci.catalog.rows import Catalog, Overlay, Row
from kci.catalog.runners import default_runners
from kci.config.values import Backend, Version, quoted
from kci.diagnostics import Diagnostic, in_file_order
from kci.files.dated_data import Dated, shipped


def check_catalog(catalog: Catalog) -> list[Diagnostic]:
    """Everything that is wrong with the rows of a catalog, in file order."""
    return sorted((diagnostic for rule in RULES for diagnostic in rule(catalog)), key=in_file_order)


def check_overlay(base: Catalog, overlay: Overlay) -> list[Diagnostic]:
    """Everything that is wrong with an overlay of a catalog, in file order; what is wrong with the catalog is not."""
    found = [*overlay_without_effect(base, overlay), *_twice(overlay.rows)]
    path = overlay.document.path
    found += [item for item in check_catalog(apply(base, overlay)) if item.path == path and item not in found]
    return sorted(found, key=in_file_order)


def row_twice(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI121: the same torch, backend, compute version and system twice."""
    yield from _twice(catalog.rows)


def _twice(rows: Sequence[Row]) -> Iterator[Diagnostic]:
    first: dict[object, Row] = {}
    said = set()
    for row in rows:
        earlier = first.setdefault(row.key, row)
        if earlier is not row and (earlier.place, row.place) not in said:
            said.add((earlier.place, row.place))
            message = f"{_shown(row)} is already in line {earlier.line()[1]}"
            yield row.document.at_key(row.place, "KCI121", message, "keep one of the two")


def toolkit_unknown(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI122: a CUDA version outside of those that kci has facts about."""
    known = [entry.version for entry in toolkits().toolkit]
    # a toolkit that is newer than the last entry, and within its minor version, counts as that one
    last = Version.parse(f"{known[-1].minor_text}.999")
    for row in _once(catalog, lambda row: (row.backend, row.compute)):
        if row.backend is Backend.CUDA and row.compute and not known[0] <= row.compute <= last:
            hint = f"known are CUDA {known[0]} to {known[-1]}"
            yield row.document.at_key(row.place, "KCI122", f"kci does not know CUDA {row.compute}", hint)


def default_arch_not_buildable(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI123: a default capability that the row's toolkit cannot generate code for."""
    for row in _once(catalog, lambda row: (row.backend, row.compute)):
        if row.backend is not Backend.CUDA or row.compute is None:
            continue
        bad = [arch for arch in catalog.archs.cuda_default(row.compute) if not toolkits().builds(arch, row.compute)]
        if bad:
            message = f"CUDA {row.compute} cannot build {', '.join(bad)}, which is built by default"
            yield row.document.at_key(row.place, "KCI123", message, "remove the row, or correct the default archs")


def row_without_runner(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI124: a bundled row for a system that no hosted runner has."""
    for row in _once(catalog, lambda row: row.system):
        if row.bundled and row.system not in default_runners().runner:
            hint = f"name one in kci.toml: `[runners.any.{row.system}]`"
            yield row.document.at_key(row.place, "KCI124", f"no runner is known for {row.system}", hint)


class _ImageFile(Dated, frozen=True):
    cuda: tuple[str, ...]
    rocm: tuple[str, ...]


known_images = shipped("catalog/data/images.toml", _ImageFile)
"""The compute versions for which public build images exist, by backend."""


def row_without_image(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI125: a compute version that kci compiles for, and that no known build image has."""
    for row in _once(catalog, lambda row: (row.backend, row.compute)):
        build = default_runners().build.get(str(row.backend))
        known = getattr(known_images(), row.backend, None)
        if build is None or known is None or row.compute is None or row.system not in build.image:
            continue
        if row.compute.minor_text not in known:
            hint = f"known for {row.backend} are {', '.join(known)}; kci.toml can name another image"
            yield row.document.at_key(
                row.place, "KCI125", f"no build image is known for {row.backend} {row.compute}", hint
            )


def neighbor_unknown(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI126: a neighbor that is not an edition."""
    for index, name in enumerate(catalog.neighbors):
        if name not in editions():
            hint = f"the editions are {', '.join(editions())}"
            yield catalog.document.at_value(("neighbors", index), "KCI126", f"there is no edition {quoted(name)}", hint)


def rows_share_a_name(catalog: Catalog) -> Iterator[Diagnostic]:
    """KCI129: two rows that differ only in what a variant name does not carry."""
    first: dict[object, Row] = {}
    said = set()
    for row in catalog.rows:
        digits = row.compute.minor_text.replace(".", "") if row.compute else ""
        torch = row.torch.minor_text.replace(".", "")
        earlier = first.setdefault((torch, row.backend, digits, row.system), row)
        if earlier.key != row.key and (earlier.place, row.place) not in said:
            said.add((earlier.place, row.place))
            message = f"{_shown(row)} has the same variant name as {_shown(earlier)}, line {earlier.line()[1]}"
            yield row.document.at_key(row.place, "KCI129", message, "keep the one that should be built")


RULES: tuple[Callable[[Catalog], Iterator[Diagnostic]], ...] = (
    row_twice,
    toolkit_unknown,
    default_arch_not_buildable,
    row_without_runner,
    row_without_image,
    neighbor_unknown,
    rows_share_a_name,
)


def overlay_without_effect(base: Catalog, overlay: Overlay) -> Iterator[Diagnostic]:
    """KCI127: an expression of an overlay that takes out or changes nothing, or that leaves nothing."""
    subjects = [subject(row) for row in base.rows]
    parts = [(where, place) for where, place in overlay.drop]
    parts += [(change.where, (*change.place, "where")) for change in overlay.change]
    for where, place in parts:
        if not any(map(where.over(subjects), subjects)):
            yield overlay.document.at_value(place, "KCI127", f"no row matches `{where.text}`: it has no effect")
    for where, place in overlay.keep:
        if subjects and not any(map(where.over(subjects), subjects)):
            yield overlay.document.at_value(place, "KCI127", f"no row matches `{where.text}`: nothing is left")


def _once(catalog: Catalog, key: Callable[[Row], object]) -> list[Row]:
    """The first row of each kind, so that a finding is said once and not for each system."""
    first: dict[object, Row] = {}
    for row in catalog.rows:
        first.setdefault(key(row), row)
    return list(first.values())


def _shown(row: Row) -> str:
    compute = f"{row.backend} {row.compute}" if row.compute else str(row.backend)
    return f"torch {row.torch} with {compute} on {row.system}"

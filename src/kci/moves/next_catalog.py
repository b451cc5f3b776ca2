"""The next edition of the catalog for a workspace, from pages that are read now, and what it would change there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from kci.catalog.listings import read_indexes, read_listing
from kci.catalog.loading import editions, interpret_edition, load_catalog
from kci.catalog.rows import Catalog
from kci.config.discover import FaultyKernel
from kci.config.document import parse_document
from kci.errors import FindingsError
from kci.matrix.diff import KernelDiff, diff_matrices
from kci.matrix.next_edition import propose, published_table
from kci.moves.wheel_metadata import own_build
from kci.plan.budget import cost_sentence, estimate
from kci.plan.plan import Estimate, Leg
from kci.plurals import between, count
from kci.workspace.migrating import KernelMigrations, migrations_of
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Choice, Workspace

_AT_ONCE = 200
"""Kernels whose legs fit into one run; all of a large repository would be too many to start at once."""


class NextCatalog(msgspec.Struct, frozen=True):
    """An edition that was proposed."""

    catalog: Catalog
    text: str
    """The edition as a file."""
    unknown: tuple[str, ...]
    """What a person has to find out."""


def next_catalog(
    workspace: Workspace, day: str, indexes: Sequence[str], table: str | None = None, root: Path = Path()
) -> NextCatalog:
    """Propose the edition that follows the one in force.

    Args:
        workspace: the kernels and the catalog in force.
        day: the day of the pages; the edition is named after it.
        indexes: addresses or files that list the wheels of torch.
        table: address or file of the reference's table.
        root: what names of files are relative to.

    FindingsError if a page cannot be read, or is not what it should be.
    """
    known = [row for edition in editions() for row in load_catalog(edition).rows]
    published = published_table(read_listing(table, root), table, known) if table is not None else []
    proposal = propose(workspace.catalog, read_indexes(indexes, root, partial(own_build, root)), published)
    places = [*indexes, *([table] if table else [])]
    shown = [place if "://" in place else PurePosixPath(Path(place).as_posix()).name for place in places]
    before = workspace.catalog
    neighbors = [before.name] if before.name in editions() else before.neighbors
    text = proposal.toml(name=day, as_of=day, source=", ".join(shown), neighbors=neighbors)
    made = interpret_edition(parse_document(text.encode(), "the proposal"))
    return NextCatalog(made, text, proposal.unknown)


class Impact(msgspec.Struct, frozen=True):
    """What a change of the catalog leads to in the release tier."""

    kernels: tuple[KernelDiff, ...]
    to_build: Estimate | None
    """What it takes to build what is new or different; None if nothing is."""
    faulty: tuple[FaultyKernel, ...] = ()
    """Kernels that differ and that could not be planned; what they take is not in the estimate."""
    migrations: tuple[KernelMigrations, ...] = ()
    """Kernels whose build.toml has to change."""


def impact(workspace: Workspace, proposed: Catalog) -> Impact:
    """Compare the matrices of the catalog in force and another one, for which the overlays of kci.toml hold too.

    FindingsError if a build.toml cannot be read any more.
    """
    after = msgspec.structs.replace(workspace, catalog=proposed)
    diffs = diff_matrices(workspace.matrix().kernels, after.matrix().kernels)
    names = {item.name for diff in diffs for item in diff.added}
    names |= {item.name for diff in diffs for item in diff.changed}
    different = {diff.name for diff in diffs if diff.added or diff.changed}
    kernels = [kernel for kernel in after.kernels if kernel.build.name in different]
    migrations = tuple(migrations_of(workspace, proposed))
    request = PlanRequest(choice=Choice(only=tuple(sorted(names))), allow_empty=True)
    legs: list[Leg] = []
    faulty: list[FaultyKernel] = []
    for start in range(0, len(kernels), _AT_ONCE):
        batch = kernels[start : start + _AT_ONCE]
        try:
            plan = plan_run(after.of(batch), request).plan
        except FindingsError as error:  # none of them can be planned
            faulty += [FaultyKernel(kernel.directory, kernel.build.name, error.message, ()) for kernel in batch]
        else:
            legs += plan.legs
            faulty += plan.faulty
            left = {item.kernel: item for item in plan.left_out if item.path}
            faulty += [FaultyKernel(item.path, item.kernel, item.why, ()) for item in left.values()]
    return Impact(tuple(diffs), estimate(legs) if legs else None, tuple(faulty), migrations)


def impact_lines(found: Impact, unknown: Sequence[str] = ()) -> list[str]:
    """The variants that come and go by kernel, what building takes, what has to change, and what a person finds out."""
    lines: list[str] = []
    for kernel in found.kernels:
        if not kernel.differs:
            continue
        counts = f"{len(kernel.added)} come, {len(kernel.removed)} go, {len(kernel.changed)} change"
        lines.append(f"{kernel.name}: {counts}, {kernel.same} stay")
        for sign, items in (("+", kernel.added), ("-", kernel.removed), ("~", kernel.changed)):
            lines += [f"  {sign} {item.name}" for item in items]
    if not lines:
        lines.append("no variant changes")
    if (takes := found.to_build) is not None:
        minutes = between(takes.at_least, takes.at_most, "runner minute")
        lines.append(f"to build: {count(takes.legs, 'leg')}, {minutes}; {cost_sentence(takes)}")
    lines += [f"not estimated: {kernel.kernel or kernel.path}: {kernel.message}" for kernel in found.faulty]
    for needed in found.migrations:
        for item in needed.migrations:
            by_hand = f" (by hand: {item.todo})" if item.todo else ""
            lines.append(f"{needed.kernel}: {item.id}: {item.title}{by_hand}")
    lines += [f"unknown: {text}" for text in unknown]
    return lines

"""What an artifact claims to be against what it may be: its file name, its run, and the commit that was planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.tree.artifacts import PREFIX, Source
from kci.tree.findings import several
from kci.tree.leg_record import artifact_name
from kci.tree.manifest import Replaced
from kci.tree.planned import Planned


class CiRun(msgspec.Struct, frozen=True):
    """The run that a merge belongs to, as far as it is known."""

    id: str = ""
    attempt: int | None = None
    """Which attempt of the run the merge is in; no leg of it can be of a later one."""


def require_bound(sources: Sequence[Source], planned: Planned | None, run: CiRun) -> list[Diagnostic]:
    """Hold every source against its own file name, the plan and the run.

    Args:
        sources: what is to be merged.
        planned: the plan, if there is one.
        run: the run that merges.

    Returns:
        What could not be told.

    Raises:
        FindingsError: a source is not what its name says, is not planned, or comes from another run or commit.
    """
    refused = [*_misnamed(sources), *_of_other_runs(sources, run)]
    unknown: list[Diagnostic] = []
    if planned is not None:
        refused += [*_unplanned(sources, planned), *_of_other_commits(sources, planned.commit)]
        unknown += _of_unknown_commits(sources, planned.commit)
    if refused:
        raise several(refused, refused[0].hint or "merge the artifacts of the plan's own run only")
    return unknown


def _misnamed(sources: Iterable[Source]) -> Iterator[Diagnostic]:
    for source in sources:
        leg = source.leg
        expected = artifact_name(leg.kernel, leg.variant, zstd=source.artifact.endswith(".zst"))
        if source.artifact.startswith(PREFIX) and source.artifact != expected:
            yield finding(
                "KCI612",
                f"{source.path} holds {leg.variant} of {leg.kernel}, which its name does not say",
                hint=f"an artifact of that variant is called {expected}; find out who renamed it",
                path=str(source.path),
            )


def _of_other_runs(sources: Iterable[Source], run: CiRun) -> Iterator[Diagnostic]:
    for source in sources:
        leg = source.leg
        if run.id and leg.run and leg.run != run.id:
            message = f"{source.path} was built in the run {leg.run}; this is the run {run.id}"
            yield finding("KCI612", message, hint="merge the artifacts of one run only", path=str(source.path))
        elif run.attempt is not None and leg.attempt > run.attempt:
            message = f"{source.path} says that it is of attempt {leg.attempt}; this run is at attempt {run.attempt}"
            yield finding("KCI612", message, hint="find out where the artifact comes from", path=str(source.path))


def _unplanned(sources: Iterable[Source], planned: Planned) -> Iterator[Diagnostic]:
    for source in sources:
        part = planned.kernels.get(source.leg.kernel)
        if part is None or source.leg.variant not in part.planned:
            what = f"the variant {source.leg.variant}" if part else "that kernel"
            message = f"{source.path} is about {source.leg.kernel}; {what} is not planned"
            yield finding("KCI607", message, path=str(source.path))


def _of_other_commits(sources: Iterable[Source], commit: str | None) -> Iterator[Diagnostic]:
    for source in sources:
        made_from = source.leg.source
        if commit is not None and made_from is not None and made_from.commit != commit:
            message = f"{source.path} was built from {made_from.commit[:12]}; {commit[:12]} was planned"
            hint = "make the plan and the artifacts from one commit"
            yield finding("KCI612", message, hint=hint, path=str(source.path))


def _of_unknown_commits(sources: Iterable[Source], commit: str | None) -> Iterator[Diagnostic]:
    for source in sources:
        if commit is not None and source.leg.source is None:
            message = f"{source.path} does not say from which commit it was built; {commit[:12]} was planned"
            yield finding("KCI614", message, hint="build where git can be asked", path=str(source.path))


def older_attempts(chosen: Source, all_sources: Iterable[Source]) -> list[Replaced]:
    """The earlier attempts for a variant whose content is another than the chosen one's."""
    found = [
        Replaced(source.leg.variant, source.artifact, source.leg.attempt, source.leg.digest)
        for source in all_sources
        if source.leg.digest != chosen.leg.digest
    ]
    return sorted(set(found), key=lambda item: (item.variant, item.attempt, item.artifact, item.digest))


def report_replaced(kernel: str, attempt: int, item: Replaced) -> Diagnostic:
    """Say that an attempt gave other bytes than a later one."""
    return finding(
        "KCI613",
        f"{kernel}: attempt {attempt} of {item.variant} holds other files than attempt {item.attempt} "
        f"(digest {item.digest[:12]}), and replaces it",
        hint="equal sources should give equal files; the manifest records both digests",
        path=item.artifact,
    )

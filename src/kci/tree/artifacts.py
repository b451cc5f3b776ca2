"""Finds the artifacts and variant directories of a merge, checks their records, and picks the
newest attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kci.diagnostics import Diagnostic, Findings, errors_in, finding
from kci.errors import FindingsError, UsageError, rule_error
from kci.matrix.variants import artifact_name, is_variant_name
from kci.plan.durations import Duration, encode, read_durations
from kci.plan.plan import Plan
from kci.tree import metadata
from kci.tree.manifest import LegRecord, leg_for
from kci.tree.pack import read_leg
from kci.utils.archive import SUFFIXES
from kci.utils.atomic import write_atomic
from kci.utils.frozen import Frozen

PREFIX = "kci-"
"""Name prefix of artifacts in a folder."""

_ARCHIVES = (".tar", ".tar.zst", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
"""Archive suffixes that a merge reports when it skips them."""


class Source(Frozen):
    """An artifact or variant directory, with the record of its leg."""

    path: Path
    leg: LegRecord
    artifact: str
    """File name; empty for a variant directory."""

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Sort key: the newest attempt first, independent of argument order."""
        return (-self.leg.attempt, self.leg.system, self.artifact, str(self.path))


Report = Callable[[Diagnostic], None]


def find_sources(
    paths: Iterable[Path], skip: Path | None = None, report: Report = lambda _finding: None
) -> list[Source]:
    """Find artifacts and variant directories below paths, sorted.

    Raises UsageError or UnsafeError.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_file():
            found.add(path.resolve())
        elif path.is_dir():
            found.update(_search(path.resolve(), skip, report))
        else:
            raise UsageError(
                f"{path} does not exist",
                "name artifacts, folders of artifacts or variant directories",
            )
    return [
        Source(path, read_leg(path), path.name)
        if path.is_file()
        # the system does not matter for noarch names
        else Source(path, leg_for(path, system="x86_64-linux", builder=""), "")
        for path in sorted(found)
    ]


def is_variant_dir(path: Path) -> bool:
    """True if a directory has a variant's name and metadata."""
    return is_variant_name(path.name) and (path / metadata.FILE_NAME).is_file()


def _search(folder: Path, skip: Path | None, report: Report) -> Iterator[Path]:
    if is_variant_dir(folder):
        yield folder
        return
    for path in sorted(folder.iterdir()):
        plain = not path.is_symlink()
        if plain and path.is_dir():
            if not path.name.startswith(".") and path != skip:
                yield from _search(path, skip, report)
        elif (
            plain
            and path.is_file()
            and path.name.startswith(PREFIX)
            and path.name.endswith(SUFFIXES)
        ):
            yield path
        elif path.name.lower().endswith(_ARCHIVES):
            message = f"{path} is ignored: its name is not that of an artifact"
            hint = (
                "an artifact is called kci-<kernel>-<variant>.tar or .tar.zst; name the file "
                "itself to merge it"
            )
            report(finding("KCI615", message, path, hint=hint))


def newest_source(sources: Iterable[Source]) -> Source:
    """Pick the newest attempt. Raises FindingsError if two sources of that attempt differ."""
    best, *others = sorted(sources, key=lambda source: source.order)
    for other in others:
        if other.leg.attempt == best.leg.attempt and other.leg.digest != best.leg.digest:
            raise rule_error(
                "KCI608",
                f"{best.leg.kernel}: {best.leg.variant} differs between {best.path} (built on "
                f"{best.leg.system}) and {other.path} (built on {other.leg.system})",
                best.path,
                hint="equal sources must give equal files; compare the two with diffoscope, and "
                "merge one",
            )
    return best


class CiRun(Frozen):
    """The CI run of a merge, as far as known."""

    id: str = ""
    attempt: int | None = None
    """Artifacts of later attempts are refused."""


def require_same_commit(
    sources: Sequence[Source], planned: Plan | None, run: CiRun
) -> list[Diagnostic]:
    """Check sources against their names, the plan and the run; return warnings.

    Raises FindingsError on a mismatch.
    """
    findings = [item for source in sources for item in _mismatches(source, planned, run)]
    if refused := errors_in(findings):
        raise combined_error(
            refused, refused[0].hint or "merge the artifacts of the plan's own run only"
        )
    return findings


def combined_error(findings: Sequence[Diagnostic], hint: str) -> FindingsError:
    """Make one error of several findings; its message is the first finding's."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return FindingsError(findings[0].message + more, hint, diagnostics=findings)


def _mismatches(source: Source, planned: Plan | None, run: CiRun) -> Findings:
    leg, path = source.leg, source.path
    expected = artifact_name(leg.kernel, leg.variant, zstd=source.artifact.endswith(".zst"))
    if source.artifact.startswith(PREFIX) and source.artifact != expected:
        message = f"{path} holds {leg.variant} of {leg.kernel}, but its name says something else"
        hint = f"an artifact of that variant is called {expected}; find out who renamed it"
        yield finding("KCI612", message, path, hint=hint)
    if run.id and leg.run and leg.run != run.id:
        message = f"{path} was built in the run {leg.run}; this is the run {run.id}"
        yield finding("KCI612", message, path, hint="merge the artifacts of one run only")
    elif run.attempt is not None and leg.attempt > run.attempt:
        message = (
            f"{path} says that it is of attempt {leg.attempt}; this run is at attempt {run.attempt}"
        )
        yield finding("KCI612", message, path, hint="find out where the artifact comes from")
    if not planned:
        return
    part = planned.kernel(leg.kernel)
    if not part or leg.variant not in (*part.planned, *part.elsewhere):
        what = f"the variant {leg.variant}" if part else "that kernel"
        yield finding("KCI607", f"{path} is about {leg.kernel}; {what} is not planned", path)
    if leg.source and planned.commit not in (None, leg.source.commit):
        message = (
            f"{path} was built from {leg.source.commit[:12]}; {planned.commit[:12]} was planned"
        )
        yield finding(
            "KCI612", message, path, hint="make the plan and the artifacts from one commit"
        )


def record_durations(path: Path, artifacts: Iterable[Path]) -> None:
    """Update a durations file; legs that reused objects do not count."""
    earlier = read_durations(path) if path.exists() else ()
    sources = sorted(find_sources(artifacts), key=lambda item: item.order, reverse=True)
    newest = {
        (leg.kernel, leg.variant): Duration(leg.kernel, leg.variant, leg.seconds)
        for leg in (source.leg for source in sources)
        if leg.seconds is not None and not (leg.objects and leg.objects.found)
    }
    write_atomic(path, encode(earlier, newest.values()))

"""Many artifacts into one tree per kernel.

Everything is read and checked first, then every tree is built whole beside the old one, and only then swapped in. A
merge that fails leaves what was there.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UsageError
from kci.files.replace import Log, replacing
from kci.tree import manifest as manifests
from kci.tree import metadata
from kci.tree.artifacts import Source, find_sources, is_variant_dir, newest
from kci.tree.digest import variant_digest
from kci.tree.findings import tree_error
from kci.tree.leg_record import LegRecord, read_sealed
from kci.tree.manifest import Manifest, Origin, Present, read_manifest
from kci.tree.pack import packable
from kci.tree.planned import Planned, PlannedKernel
from kci.tree.unpack import unpack

KEPT_AT_TOP = ("CARD.md", "benchmarks", manifests.FILE_NAME)
"""What a tree holds at its top besides variants (docs/format.md#tree)."""


class _Job(msgspec.Struct, frozen=True):
    """One tree to make."""

    kernel: str
    version: int | None
    """None when neither plan nor artifacts say."""
    planned: PlannedKernel | None
    sources: tuple[Source, ...]
    target: Path
    commit: str | None = None
    """The commit that was planned."""

    def fingerprint(self, leg: LegRecord) -> str | None:
        """What the plan says that a leg's variant is made from, unless the leg was built from something else."""
        if self.planned is None or self.planned.fingerprints is None or leg.source is None:
            return None
        if leg.source.dirty or leg.source.commit != self.commit:
            return None
        return self.planned.fingerprints.get(leg.variant)

    def fits(self, entry: Present) -> bool:
        """Whether a variant of the old tree is made from what the plan asks for."""
        prints = self.planned.fingerprints if self.planned is not None else None
        return entry.fingerprint is not None and prints is not None and prints.get(entry.variant) == entry.fingerprint


def merge(
    artifacts: Sequence[Path],
    into: Path,
    planned: Planned | None = None,
    *,
    allow_partial: bool = False,
    kernel: str | None = None,
    log: Log = lambda _line: None,
) -> list[Manifest]:
    """Merge artifacts, folders of artifacts and variant directories.

    One kernel (by the plan, or by the artifacts if there is none): `into` is its tree. Several: `into/<kernel>` is each
    one's. Variants that the tree already has and the artifacts do not are carried over. One counts toward the plan only
    if its id says that it was built from the same source as what is merged now, or if the plan has its fingerprint.

    Args:
        artifacts: what to merge, in any order.
        into: the tree, existing or not.
        planned: what has to be there.
        allow_partial: whether planned variants may be missing.
        kernel: merge this kernel only.
        log: takes lines about waiting for another merge, and about what a dead one left.

    Returns:
        The manifest of each tree, by kernel name.

    Raises:
        UsageError: a path does not exist, or `kernel` is in neither plan nor artifacts.
        FindingsError: planned variants are missing, others are not planned, artifacts conflict or are damaged, or
            `into` is not a tree.
        UnsafeError: an artifact is unsafe to unpack.
    """
    sources = find_sources(artifacts, skip=into)
    if kernel is not None:
        sources, planned = _only(kernel, sources, planned)
    if not sources and not (planned is not None and (allow_partial or _may_be_carried(planned))):
        raise tree_error(
            "KCI606",
            f"no artifact in {', '.join(str(path) for path in artifacts) or 'nothing'}",
            hint="an artifact is called kci-<kernel>-<variant>.tar or .tar.zst",
        )
    jobs = _jobs(sources, into, planned)
    with ExitStack() as stack:
        # Sorted by name, so that two merges of the same kernels take their locks in the same order.
        replacements = [stack.enter_context(replacing(job.target, log)) for job in jobs]
        built = [_build(job, made.staging) for job, made in zip(jobs, replacements, strict=True)]
        findings = [item for manifest in built for item in _missing(manifest)]
        if findings and not allow_partial:
            hint = "see why their legs failed, or pass --allow-partial"
            raise FindingsError(_summary(findings), hint=hint, diagnostics=findings)
        for replacement in replacements:
            replacement.commit()
    return built


def _may_be_carried(planned: Planned) -> bool:
    """Whether the tree may have all that is planned: the plan then skipped every variant."""
    return any(part.fingerprints for part in planned.kernels.values())


def _only(kernel: str, sources: list[Source], planned: Planned | None) -> tuple[list[Source], Planned | None]:
    chosen = [source for source in sources if source.leg.kernel == kernel]
    part = planned.kernels.get(kernel) if planned is not None else None
    if not chosen and part is None:
        raise UsageError(f"no artifact and no plan is about the kernel {kernel!r}")
    if planned is None:
        return chosen, None
    return chosen, Planned({kernel: part} if part is not None else {}, planned.commit)


def _jobs(sources: list[Source], into: Path, planned: Planned | None) -> list[_Job]:
    """Group by kernel and choose one source for each variant."""
    grouped: dict[str, dict[str, list[Source]]] = defaultdict(lambda: defaultdict(list))
    for source in sources:
        grouped[source.leg.kernel][source.leg.variant].append(source)
    names = sorted(grouped if planned is None else planned.kernels)
    _refuse_unplanned(sources, planned)
    jobs = []
    for name in names:
        part = planned.kernels[name] if planned is not None else None
        chosen = tuple(newest(same) for _, same in sorted(grouped[name].items()))
        version = _version(name, part, chosen)
        target = into.resolve() if len(names) == 1 else into.resolve() / name
        jobs.append(_Job(name, version, part, chosen, target, planned.commit if planned is not None else None))
    return jobs


def _refuse_unplanned(sources: Iterable[Source], planned: Planned | None) -> None:
    if planned is None:
        return
    findings = []
    for source in sources:
        part = planned.kernels.get(source.leg.kernel)
        if part is None or source.leg.variant not in part.planned:
            what = f"the variant {source.leg.variant}" if part else "that kernel"
            message = f"{source.path} is about {source.leg.kernel}; {what} is not planned"
            findings.append(finding("KCI607", message, path=str(source.path)))
    if findings:
        hint = "merge the artifacts of the plan's own run only"
        raise FindingsError(_summary(findings), hint=hint, diagnostics=findings)


def _version(name: str, planned: PlannedKernel | None, sources: Sequence[Source]) -> int | None:
    """The one version that plan and artifacts agree on; None if there is neither."""
    versions: dict[int, str] = {}
    if planned is not None and planned.version is not None:
        versions[planned.version] = "the plan"
    for source in sources:
        versions.setdefault(source.leg.version, str(source.path))
    if len(versions) > 1:
        shown = ", ".join(f"{version} in {where}" for version, where in sorted(versions.items()))
        raise tree_error("KCI609", f"{name} has more than one version: {shown}", hint="merge one version at a time")
    return next(iter(versions), None)


def _build(job: _Job, tree: Path) -> Manifest:
    """Make the whole new tree in a directory that does not exist yet."""
    tree.mkdir()
    _require_tree(job.target)
    present: dict[str, Present] = {}
    ids = set()
    for source in job.sources:
        leg, directory = _place(source, tree)
        ids.add(_unique(read_sealed(directory)))
        commit, dirty = (leg.source.commit, leg.source.dirty) if leg.source else (None, None)
        origin = Origin(source.artifact, commit, dirty, leg.attempt, leg.builder)
        present[leg.variant] = Present(leg.variant, leg.digest, leg.backend, origin, job.fingerprint(leg))
    stale = set()
    version = job.version
    for entry in _carried(job, present):
        directory = tree / entry.variant
        _copy(job.target / entry.variant, directory)
        carried = read_sealed(directory)
        version = carried.version if version is None else version
        if (carried.name, carried.version) != (job.kernel, version):
            raise _mixed(job.target / entry.variant, carried, f"{job.kernel} version {version}")
        if _unique(carried) not in ids and not job.fits(entry):
            stale.add(entry.variant)
        present[entry.variant] = entry
    for name in KEPT_AT_TOP:
        if name != manifests.FILE_NAME and (job.target / name).exists():
            _copy(job.target / name, tree / name)
    manifest = _manifest(job, version or 0, present, stale)
    (tree / manifests.FILE_NAME).write_bytes(manifests.encode(manifest))
    return manifest


def _manifest(job: _Job, version: int, present: dict[str, Present], stale: set[str]) -> Manifest:
    planned = tuple(sorted(set(job.planned.planned))) if job.planned is not None else None
    missing = tuple(name for name in planned or () if name not in present or name in stale)
    entries = tuple(present[name] for name in sorted(present))
    return Manifest(job.kernel, version, planned, entries, missing, complete=not missing)


def _place(source: Source, tree: Path) -> tuple[LegRecord, Path]:
    """Put the source's variant into the tree."""
    if source.artifact:
        return unpack(source.path, tree)
    directory = tree / source.leg.variant
    packable(source.path)
    _copy(source.path, directory)
    return source.leg, directory


def _unique(data: metadata.Metadata) -> str:
    """The unique id inside a kernel id."""
    return data.id.rpartition(f"_{data.backend.type.value}_")[2]


def _require_tree(target: Path) -> None:
    """Refuse to replace a directory that holds anything but a tree."""
    if not target.exists():
        return
    if not target.is_dir():
        raise tree_error("KCI610", f"{target} is a file", hint="name a directory", path=str(target))
    for entry in sorted(target.iterdir()):
        if entry.name not in KEPT_AT_TOP and not is_variant_dir(entry):
            message = f"{target} is not a tree: it holds {entry.name!r}"
            raise tree_error("KCI610", message, hint="merge into an empty or new directory", path=str(target))


def _carried(job: _Job, present: dict[str, Present]) -> list[Present]:
    """The old tree's variants that stay."""
    if not job.target.is_dir():
        return []
    old = read_manifest(job.target)
    known = {entry.variant: entry for entry in old.present} if old is not None else {}
    found = []
    for directory in sorted(path for path in job.target.iterdir() if is_variant_dir(path)):
        if directory.name in present:
            continue
        backend = read_sealed(directory).backend.type.value
        digest = variant_digest(directory)
        before = known.get(directory.name, Present(directory.name, "", backend, Origin("")))
        origin = msgspec.structs.replace(before.origin, carried=True)
        # A variant that was replaced by hand is not the one that the manifest speaks of.
        made_from = before.fingerprint if before.digest == digest else None
        found.append(Present(directory.name, digest, backend, origin, made_from))
    return found


def _mixed(directory: Path, data: metadata.Metadata, expected: str) -> FindingsError:
    return tree_error(
        "KCI609",
        f"{directory} is {data.name} version {data.version}; this merge is about {expected}",
        hint="merge into an empty directory",
        path=str(directory),
    )


def _missing(manifest: Manifest) -> list[Diagnostic]:
    there = {entry.variant for entry in manifest.present}
    return [
        finding(
            "KCI606",
            f"{manifest.kernel}: the planned variant {name} "
            + ("exists only from another source" if name in there else "is in no artifact"),
        )
        for name in manifest.missing
    ]


def _summary(findings: Sequence[Diagnostic]) -> str:
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return findings[0].message + more


def _copy(source: Path, target: Path) -> None:
    """Copy a file or directory; links are copied as links, so that nothing outside is read."""
    try:
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    except (OSError, shutil.Error) as error:
        raise FindingsError(f"cannot copy {source}: {error}") from error

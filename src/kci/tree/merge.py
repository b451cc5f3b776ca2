"""Merges artifacts into one tree per kernel.

Trees are swapped in last, so a failed merge changes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256
from operator import attrgetter
from pathlib import Path

from msgspec.structs import replace

from kci.config.sources.card import CARD
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UsageError, rule_error
from kci.matrix.variants import must_load, parse_variant_name
from kci.plan.plan import KernelPlan, Plan
from kci.tree.artifacts import (
    CiRun,
    Report,
    Source,
    combined_error,
    find_sources,
    is_variant_dir,
    newest_source,
    require_same_commit,
)
from kci.tree.manifest import (
    FILE_NAME,
    UNKNOWN_LOADING,
    LegRecord,
    Loading,
    Manifest,
    Origin,
    Present,
    Replaced,
    SealedVariant,
    encode,
    missing_variants,
    read_manifest,
    read_sealed,
)
from kci.tree.metadata import refuse_partial
from kci.tree.pack import files_to_pack, unpack
from kci.tree.top_level import SUMS_NAME, encode_sums, require_tree, tree_hashes
from kci.utils.atomic import Log, failed_path, full_disk_hint, replacing
from kci.utils.cache import StatCache, default_cache
from kci.utils.frozen import Frozen
from kci.utils.walk import walk_packed


def copy(source: Path, target: Path, *, linked: bool = False) -> None:
    """Copy a file, or a directory without bytecode; links stay links. `linked` files are hard
    links where the system can.
    """
    pairs = [(source, target)]
    if source.is_dir() and not source.is_symlink():
        pairs = [(item.path, target / item.name) for item in walk_packed(source)]
    for old, new in pairs:
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            if not (linked and _is_linked(old, new)):
                shutil.copy2(old, new, follow_symlinks=False)
        except OSError as error:
            message = f"cannot copy {old} to {failed_path(error, new)}: {error.strerror or error}"
            raise FindingsError(message, full_disk_hint(error)) from error


def _is_linked(source: Path, target: Path) -> bool:
    # not on another file system, without links, with a link count at its limit, on Windows
    with suppress(OSError, NotImplementedError):
        os.link(source, target, follow_symlinks=False)
        return True
    return False


_Hashes = dict[str, dict[str, str]]
"""Hex SHA-256 by variant and file name."""


class _Job(Frozen):
    kernel: str
    version: int
    plan: Plan | None
    planned: KernelPlan | None
    sources: tuple[Source, ...]
    target: Path
    replaced: tuple[Replaced, ...]
    card: str | None
    loaded: Mapping[str, Loading]

    @property
    def fingerprints(self) -> Mapping[str, str]:
        return (self.planned and self.planned.fingerprints) or {}

    def fingerprint(self, leg: LegRecord) -> str | None:
        # none for a leg that was built from another commit
        commit = self.plan.commit if self.plan else None
        same = leg.source and not leg.source.dirty and leg.source.commit == commit
        return self.fingerprints.get(leg.variant) if same else None

    def loading(self, variant: str, known: Loading | None) -> Loading | None:
        """The known outcome of loading it, or that it had to be loaded and nobody says so."""
        loads = self.plan.loads if self.plan else ()
        must = must_load(variant) and parse_variant_name(variant).backend in loads
        return known or (Loading(reason=UNKNOWN_LOADING, must=True) if must else None)

    def fits(self, entry: Present) -> bool:
        return (
            entry.fingerprint is not None
            and self.fingerprints.get(entry.variant) == entry.fingerprint
        )


def merge(
    artifacts: Sequence[Path],
    into: Path,
    planned: Plan | None = None,
    *,
    allow_partial: bool = False,
    kernel: str | None = None,
    run: CiRun | None = None,
    card: str | None = None,
    log: Log = lambda _line: None,
    report: Report = lambda _finding: None,
    loaded: Mapping[str, Loading] = {},
) -> list[Manifest]:
    """Merge artifacts, folders of artifacts and variant directories; return manifests by kernel
    name.

    `into` is the tree of a single kernel, and has a tree per kernel otherwise. Variants of the old
    tree without an artifact are carried over. Artifacts have the kernel's card, and say what was
    loaded; `card` and `loaded` are those of variant directories, which have no record.

    Raises UsageError: no such path or kernel. FindingsError: missing, unplanned, conflicting or
    damaged variants. UnsafeError: an artifact is unsafe to unpack.
    """
    into = _resolved(into)
    sources = find_sources(artifacts, skip=into, report=report)
    if kernel:
        sources, planned = _only(kernel, sources, planned)
    # a plan that skips every variant has fingerprints
    if not sources and not (
        planned and (allow_partial or any(part.fingerprints for part in planned.kernels))
    ):
        raise rule_error(
            "KCI606",
            f"no artifact in {', '.join(str(path) for path in artifacts) or 'nothing'}",
            hint="an artifact is called kci-<kernel>-<variant>.tar or .tar.zst",
        )
    for item in require_same_commit(sources, planned, run or CiRun()):
        report(item)
    jobs = _jobs(sources, into, planned, card, loaded)
    for job in jobs:
        attempts = {source.leg.variant: source.leg.attempt for source in job.sources}
        for old in job.replaced:
            message = (
                f"{job.kernel}: attempt {attempts[old.variant]} of {old.variant} holds other "
                f"files than attempt {old.attempt} (digest {old.digest[:12]}), and replaces it"
            )
            hint = "equal sources should give equal files; the manifest records both digests"
            report(finding("KCI613", message, old.artifact, hint=hint))
    with ExitStack() as stack:
        # sorted: two merges must lock in the same order
        replacements = [stack.enter_context(replacing(job.target, log)) for job in jobs]
        built = [
            _build(job, result.staging) for job, result in zip(jobs, replacements, strict=True)
        ]
        findings = [item for manifest, _ in built for item in _missing(manifest)]
        if findings and not allow_partial:
            raise combined_error(findings, "see why their legs failed, or pass --allow-partial")
        for replacement in replacements:
            replacement.commit()
    for job, (_, hashes) in zip(jobs, built, strict=True):
        _remember_files(job.target, hashes)
    return [manifest for manifest, _ in built]


def _resolved(path: Path) -> Path:
    # unlike pathlib's, this ends for a circle of links
    return Path(os.path.realpath(path))


def _only(
    kernel: str, sources: list[Source], planned: Plan | None
) -> tuple[list[Source], Plan | None]:
    chosen = [source for source in sources if source.leg.kernel == kernel]
    part = planned.kernel(kernel) if planned else None
    if not chosen and not part:
        raise UsageError(f"no artifact and no plan is about the kernel {kernel!r}")
    return chosen, planned and replace(planned, kernels=(part,) if part else ())


def _jobs(
    sources: list[Source],
    into: Path,
    plan: Plan | None,
    card: str | None,
    loaded: Mapping[str, Loading],
) -> list[_Job]:
    grouped: dict[str, dict[str, list[Source]]] = defaultdict(lambda: defaultdict(list))
    for source in sources:
        grouped[source.leg.kernel][source.leg.variant].append(source)
    names = sorted({part.name for part in plan.kernels} if plan else grouped)

    jobs = []
    for name in names:
        part = plan.kernel(name) if plan else None
        chosen = tuple(newest_source(same) for _, same in sorted(grouped[name].items()))
        version = _version(name, part, chosen)
        # one kernel of an existing folder of trees stays there
        alone = len(names) == 1 and not (into / name / FILE_NAME).is_file()
        target = into if alone else _resolved(into / name)
        replaced = {
            Replaced(source.leg.variant, source.artifact, source.leg.attempt, source.leg.digest)
            for best in chosen
            for source in grouped[name][best.leg.variant]
            if source.leg.digest != best.leg.digest
        }
        older = tuple(sorted(replaced, key=attrgetter("variant", "attempt", "artifact", "digest")))
        legs = sorted((source.leg for source in chosen), key=lambda leg: -leg.attempt)
        own = next((leg.card for leg in legs if leg.card is not None), card)
        jobs.append(_Job(name, version, plan, part, chosen, target, older, own, loaded))
    return jobs


def _version(name: str, planned: KernelPlan | None, sources: Sequence[Source]) -> int:
    versions = {source.leg.version: str(source.path) for source in reversed(sources)}
    if planned:
        versions[planned.version] = "the plan"
    if len(versions) > 1:
        shown = ", ".join(f"{version} in {where}" for version, where in sorted(versions.items()))
        raise rule_error(
            "KCI713",
            f"{name} has more than one version: {shown}",
            hint="merge one version at a time",
        )
    return next(iter(versions))


def _build(job: _Job, tree: Path) -> tuple[Manifest, _Hashes]:
    tree.mkdir()
    require_tree(job.target)
    present: dict[str, Present] = {}
    hashes: _Hashes = {}
    ids = set()
    for source in job.sources:
        placed, leg = _place(source, tree), source.leg
        refuse_partial(tree / leg.variant)
        ids.add(placed.metadata.unique)
        commit, dirty = (leg.source.commit, leg.source.dirty) if leg.source else (None, None)
        committed = placed.metadata.kci.committed if placed.metadata.kci else None
        origin = Origin(
            source.artifact, commit, dirty, leg.attempt, leg.builder, committed=committed
        )
        known = leg.loaded if source.artifact else job.loaded.get(leg.variant)
        present[leg.variant] = Present(
            leg.variant,
            leg.digest,
            leg.backend,
            origin,
            job.fingerprint(leg),
            objects=leg.objects if leg.objects and leg.objects.runs else None,
            loaded=job.loading(leg.variant, known),
        )
        hashes[leg.variant] = placed.hashes
    for entry, carried in _carried_variants(job, present):
        data, where = carried.metadata, job.target / entry.variant
        refuse_partial(where)
        if (data.name, data.version) != (job.kernel, job.version):
            message = (
                f"{where} is {data.name} version {data.version}; this merge is about {job.kernel} "
                f"version {job.version}"
            )
            raise rule_error("KCI713", message, where, hint="merge into an empty directory")
        copy(where, tree / entry.variant, linked=True)
        stale = data.unique not in ids and not job.fits(entry)
        present[entry.variant] = replace(entry, stale=stale)
        hashes[entry.variant] = carried.hashes
    manifest = _manifest(job, present, _put_card(job, tree))
    (tree / FILE_NAME).write_bytes(encode(manifest))
    _carry_at_top("benchmarks", job, tree)
    (tree / SUMS_NAME).write_bytes(encode_sums(tree_hashes(hashes, tree)))
    return manifest, hashes


def _put_card(job: _Job, tree: Path) -> str | None:
    old = read_manifest(job.target)
    rendered = old.card if old else None
    if job.card:
        content = job.card.encode()
        (tree / CARD).write_bytes(content)
        return sha256(content).hexdigest()
    if job.card is None or rendered is None:
        _carry_at_top(CARD, job, tree)
        return rendered
    return None  # the kernel has none any more


def _carry_at_top(name: str, job: _Job, tree: Path) -> None:
    if (job.target / name).exists():
        copy(job.target / name, tree / name, linked=True)


def _manifest(job: _Job, present: dict[str, Present], card: str | None) -> Manifest:
    planned = tuple(sorted(set(job.planned.planned))) if job.planned else None
    entries = tuple(present[name] for name in sorted(present))
    missing = missing_variants(planned, entries)
    return Manifest(
        job.kernel, job.version, planned, entries, missing, not missing, job.replaced, card
    )


def _place(source: Source, tree: Path) -> SealedVariant:
    if source.artifact:
        unpacked = unpack(source.path, tree)
        if unpacked.leg != source.leg:
            raise rule_error("KCI612", f"{source.path} changed while it was merged", source.path)
        return unpacked.sealed
    directory = tree / source.leg.variant
    files_to_pack(source.path)
    copy(source.path, directory)
    sealed = read_sealed(directory)
    if sealed.digest != source.leg.digest:
        raise rule_error("KCI603", f"{source.path} changed while it was merged", source.path)
    return sealed


def _carried_variants(
    job: _Job, present: dict[str, Present]
) -> list[tuple[Present, SealedVariant]]:
    # unchanged files keep their recorded hash
    if not job.target.is_dir():
        return []
    old = read_manifest(job.target)
    known = {entry.variant: entry for entry in old.present} if old else {}
    seen = _files_seen(job.target)
    carried = []
    for directory in sorted(path for path in job.target.iterdir() if is_variant_dir(path)):
        if directory.name in present:
            continue
        sealed = read_sealed(directory, _known_hashes(directory, seen))
        name, backend = directory.name, sealed.metadata.backend.type
        before = known.get(name, Present(name, "", "", Origin("")))
        origin = replace(before.origin, carried=True)
        if before.digest != sealed.digest:  # replaced by hand since the merge
            before = Present(name, sealed.digest, "", origin)
        loaded = job.loading(name, before.loaded)
        entry = replace(before, backend=backend, origin=origin, loaded=loaded)
        carried.append((entry, sealed))
    return carried


def _files_seen(tree: Path) -> StatCache:
    # in the cache: a tree tells nothing about the machine that merged it
    return StatCache(tree, default_cache() / "trees")


def _remember_files(tree: Path, hashes: _Hashes) -> None:
    seen = _files_seen(tree)
    with suppress(OSError):  # another process changes the tree
        seen.put_written(
            {
                f"{variant}/{name}": value
                for variant, files in hashes.items()
                for name, value in files.items()
            }
        )
        seen.save()


def _known_hashes(directory: Path, seen: StatCache) -> dict[str, str] | None:
    # None if a file may have changed
    hashes = {}
    for item in walk_packed(directory):
        place = f"{directory.name}/{item.name}"
        known = seen.get(place, item.path.lstat()) if item.regular else None
        if not known:
            return None
        hashes[item.name] = known
    return hashes


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

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
from kci.diagnostics import finding
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
    seen: StatCache
    """Hashes of the target's files; in the cache, as a tree tells nothing about the machine."""

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
        sources = [source for source in sources if source.leg.kernel == kernel]
        part = planned.kernel(kernel) if planned else None
        if not sources and not part:
            raise UsageError(f"no artifact and no plan is about the kernel {kernel!r}")
        planned = planned and replace(planned, kernels=(part,) if part else ())
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
        for old in job.replaced:
            message = (
                f"{job.kernel}: attempt {old.attempt} of {old.variant} holds other files (digest "
                f"{old.digest[:12]}) than a later attempt, which replaces it"
            )
            hint = "equal sources should give equal files; the manifest records both digests"
            report(finding("KCI613", message, old.artifact, hint=hint))
    with ExitStack() as stack:
        # sorted: two merges must lock in the same order
        replacements = [stack.enter_context(replacing(job.target, log)) for job in jobs]
        built = [
            _build(job, result.staging) for job, result in zip(jobs, replacements, strict=True)
        ]
        findings = [
            finding("KCI606", f"{manifest.kernel}: the planned variant {name} {what}")
            for manifest, _ in built
            for name in manifest.missing
            for what in [
                "exists only from another source"
                if name in manifest.digests
                else "is in no artifact"
            ]
        ]
        if findings and not allow_partial:
            raise combined_error(findings, "see why their legs failed, or pass --allow-partial")
        for replacement in replacements:
            replacement.commit()
    for job, (_, hashes) in zip(jobs, built, strict=True):
        with suppress(OSError):  # another process changes the tree
            job.seen.put_written(hashes)
            job.seen.save()
    return [manifest for manifest, _ in built]


def _resolved(path: Path) -> Path:
    # unlike pathlib's, this ends for a circle of links
    return Path(os.path.realpath(path))


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
        # one kernel of an existing folder of trees stays there
        alone = len(names) == 1 and not (into / name / FILE_NAME).is_file()
        target = into if alone else _resolved(into / name)
        replaced = {
            Replaced(source.leg.variant, source.artifact, source.leg.attempt, source.leg.digest)
            for best in chosen
            for source in grouped[name][best.leg.variant]
            if source.leg.digest != best.leg.digest
        }
        legs = sorted((source.leg for source in chosen), key=lambda leg: -leg.attempt)
        job = _Job(
            name,
            _version(name, part, chosen),
            plan,
            part,
            chosen,
            target,
            tuple(sorted(replaced, key=attrgetter("variant", "attempt", "artifact", "digest"))),
            next((leg.card for leg in legs if leg.card is not None), card),
            loaded,
            StatCache(target, default_cache() / "trees"),
        )
        jobs.append(job)
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


def _build(job: _Job, tree: Path) -> tuple[Manifest, dict[str, str]]:
    tree.mkdir()
    require_tree(job.target)
    old = read_manifest(job.target)
    known = {entry.variant: entry for entry in old.present} if old else {}
    present: dict[str, Present] = {}
    hashes: dict[str, str] = {}
    ids = set()
    for source in job.sources:
        placed, leg = _place(source, tree), source.leg
        refuse_partial(tree / leg.variant)
        ids.add(placed.metadata.unique)
        commit, dirty = (leg.source.commit, leg.source.dirty) if leg.source else (None, None)
        present[leg.variant] = Present(
            leg.variant,
            leg.digest,
            leg.backend,
            Origin(
                source.artifact,
                commit,
                dirty,
                leg.attempt,
                leg.builder,
                committed=placed.metadata.committed,
            ),
            job.fingerprint(leg),
            objects=leg.objects if leg.objects and leg.objects.runs else None,
            loaded=job.loading(
                leg.variant, leg.loaded if source.artifact else job.loaded.get(leg.variant)
            ),
        )
        hashes |= {f"{leg.variant}/{name}": digest for name, digest in placed.hashes.items()}
    for where in sorted(job.target.iterdir()) if job.target.is_dir() else ():
        name = where.name
        if name in present or not is_variant_dir(where):
            continue
        refuse_partial(where)
        carried = read_sealed(where, _known_hashes(where, job.seen))
        data = carried.metadata
        if (data.name, data.version) != (job.kernel, job.version):
            message = (
                f"{where} is {data.name} version {data.version}; this merge is about {job.kernel} "
                f"version {job.version}"
            )
            raise rule_error("KCI713", message, where, hint="merge into an empty directory")
        copy(where, tree / name, linked=True)
        before = known.get(name, Present(name, "", "", Origin("")))
        origin = replace(before.origin, carried=True)
        if before.digest != carried.digest:  # replaced by hand since the merge
            before = Present(name, carried.digest, "", origin)
        fits = before.fingerprint and job.fingerprints.get(name) == before.fingerprint
        present[name] = replace(
            before,
            backend=data.backend.type,
            origin=origin,
            loaded=job.loading(name, before.loaded),
            stale=not fits and data.unique not in ids,
        )
        hashes |= {f"{name}/{inner}": digest for inner, digest in carried.hashes.items()}
    planned = tuple(sorted(set(job.planned.planned))) if job.planned else None
    entries = tuple(present[name] for name in sorted(present))
    missing = missing_variants(planned, entries)
    card = _put_card(job, tree, old.card if old else None)
    manifest = Manifest(
        job.kernel, job.version, planned, entries, missing, not missing, job.replaced, card
    )
    (tree / FILE_NAME).write_bytes(encode(manifest))
    _carry_at_top("benchmarks", job, tree)
    (tree / SUMS_NAME).write_bytes(encode_sums(tree_hashes(hashes, tree)))
    return manifest, hashes


def _put_card(job: _Job, tree: Path, rendered: str | None) -> str | None:
    # `rendered` is the hash of the old tree's
    if job.card:
        (tree / CARD).write_bytes(content := job.card.encode())
        return sha256(content).hexdigest()
    if job.card is None or rendered is None:
        _carry_at_top(CARD, job, tree)
        return rendered
    return None  # the kernel has none any more


def _carry_at_top(name: str, job: _Job, tree: Path) -> None:
    if (job.target / name).exists():
        copy(job.target / name, tree / name, linked=True)


def _place(source: Source, tree: Path) -> SealedVariant:
    leg = source.leg
    if source.artifact:
        leg, _, sealed = unpack(source.path, tree)
    else:
        files_to_pack(source.path)
        copy(source.path, tree / leg.variant)
        sealed = read_sealed(tree / leg.variant)
    if leg != source.leg or sealed.digest != leg.digest:
        raise rule_error("KCI612", f"{source.path} changed while it was merged", source.path)
    return sealed


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

"""From a workspace to a run on engines: which leg goes where, as which job, with which sources, for how much money."""

from __future__ import annotations

import hashlib
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kci.builders.request import BuildOptions
from kci.ci.run_records import TEST_FILE
from kci.config.discover import refuse_faulty
from kci.config.engine_settings import EngineKind, EngineSettings
from kci.diagnostics import Severity
from kci.errors import FindingsError, UsageError
from kci.files.bounded_json import read_json, require_schema
from kci.files.replace import write_atomic
from kci.matrix.names import Kind, objects_name, parse_variant_name
from kci.matrix.variants import Matrix
from kci.plan.budget import check_budget, estimate
from kci.plan.plan import LeftOut, Leg, Plan
from kci.remote.engine_choice import SentLeg, choose_engines, let_through, need_of, priced, share_out, takes
from kci.remote.job import OUT, EngineJob, HardwareNeed, JobFile
from kci.remote.leg_sources import pack_sources, place_of
from kci.run.local import tree_places
from kci.tree import identity
from kci.tree.leg_record import artifact_name
from kci.tree.planned import Planned, PlannedKernel
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Choice, Workspace

SCHEMA = 1
RUN_FILE = "run.json"
TEST_MINUTES, TEST_TIMEOUT = 10, 60
"""What testing a tree on one kind of hardware takes, roughly; and its limit, as of the plan's own tests."""


class Given(msgspec.Struct, frozen=True):
    """What a leg is given when it begins."""

    tree: JobFile | None = None
    """What it tests: an archive of these variants."""
    variants: tuple[str, ...] = ()
    objects: tuple[JobFile, ...] = ()
    """Packs of objects: of the parts that it links, and of its own earlier attempts."""
    near: tuple[str, ...] = ()
    """The jobs that it waits for on its engine, whose packs it finds there."""


class EngineLeg(msgspec.Struct, frozen=True):
    """A leg on its engine."""

    name: str
    """`<kernel>/<leg>`, which tells it from all others of the run."""
    engine: str
    job: EngineJob
    """Its first attempt; for one that tests, all of it but the tree."""
    minutes: int
    rate: float | None
    """What a minute costs; None if that is not known."""
    tests: bool = False
    """Whether it tests what others have built."""
    takes: tuple[str, ...] = ()
    """The legs whose objects it links; it begins when they have ended, or waits for them on its engine."""
    fallback: EngineLeg | None = None
    """The same leg on the engine that takes it over; it has no fallback itself, so a leg moves once."""

    def attempt(self, number: int, given: Given = Given()) -> EngineJob:  # noqa: B008  - it is frozen
        """The job of an attempt, with what that was given."""
        packs = [f"{{work}}/{item.name}" for item in given.objects]
        packs += [f"{{folder}}/../{name}/{OUT}" for name in given.near]
        words = [word for name in given.variants for word in ("--variant", name)]
        words += [f"--objects-from={path}" for path in packs]
        words += ["--link"] if packs and self.takes else []
        return msgspec.structs.replace(
            self.job,
            name=self.job_name(number),
            attempt=number,
            environment=self.job.environment | {"KCI_ATTEMPT": str(number)},
            command=(*self.job.command, *words),
            inputs=(*self.job.inputs, *([given.tree] if given.tree else []), *given.objects),
        )

    def job_name(self, number: int) -> str:
        """What the job of an attempt is called, wherever it runs."""
        return f"{self.job.name.rpartition('-')[0]}-{number}"

    def on(self, engine: str) -> EngineLeg:
        """The leg where it is: with a name that is empty, where it was planned."""
        return self.fallback if self.fallback is not None and self.fallback.engine == engine else self


class EngineRun(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`: everything that was decided before the first leg was submitted; nothing in it changes afterwards."""

    id: str
    legs: tuple[EngineLeg, ...]
    engines: dict[str, EngineSettings]
    planned: Planned
    trees: dict[str, str]
    """By kernel."""
    left: tuple[LeftOut, ...] = ()
    untested: tuple[LeftOut, ...] = ()
    """What is built, and no engine tests."""
    max_cost: float | None = None
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked for."""

    choice: Choice
    engine: str
    """A name in `[engines]` of kci.toml, a type of engine, or `auto`."""
    into: Path | None = None
    jobs: int | None = None
    max_cost: float | None = None
    test: bool = False
    allow_empty: bool = False
    """Whether a run is good that tests nothing."""


def runs_folder(cache: Path) -> Path:
    """Where the runs lie."""
    return cache / "runs"


def prepare_run(workspace: Workspace, request: EngineRequest, cache: Path) -> tuple[Path, EngineRun]:
    """Decide everything about a run and write it down; nothing is submitted yet.

    Returns:
        The run's folder, which is made below the cache, and the run.

    Raises:
        UsageError: there is no such engine.
        FindingsError: nothing is selected or tested, a kernel is faulty, or the run costs too much.
    """
    engines = choose_engines(workspace.settings.settings.engines, request.engine)
    plan = plan_run(workspace, PlanRequest(choice=request.choice, split=True)).plan
    if plan.faulty:
        raise refuse_faulty(plan.faulty, len(workspace.kernels))
    # A leg goes to a fallback later at most, where one engine was named.
    first = {request.engine: engines[request.engine]} if request.engine in engines else engines
    # What links begins when its parts have ended, so these come first.
    placed, left = _placed(map(SentLeg, sorted(plan.legs, key=lambda leg: bool(leg.takes))), first)
    untested: list[LeftOut] = []
    if request.test:
        built = [item.leg for item in placed]
        limits = {
            (leg.kernel, leg.backend): workspace.runners.limit(leg.kernel, leg.backend).timeout_minutes for leg in built
        }
        testing, untested = _placed(group_tests(workspace.matrix(request.choice), built, limits), first)
        if not testing and not request.allow_empty:
            wanted = "; ".join(sorted({item.reason for item in untested})) or "no leg builds anything"
            hint = "set `tests` of an engine in kci.toml (docs/engines.md), or give --allow-empty"
            raise FindingsError(f"nothing would be tested: {wanted}", hint=hint)
        placed += testing
    found = check_budget(plan, estimate([item.leg for item in placed]), max_cost=request.max_cost)
    problems = [item for item in found if item.severity is Severity.ERROR or request.max_cost is not None]
    if problems:
        raise FindingsError(problems[0].message, hint=problems[0].hint, diagnostics=problems)
    identifier = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder = runs_folder(cache) / identifier
    jobs = _Jobs(workspace, request, engines, plan.commit, folder)
    run = EngineRun(
        id=identifier,
        legs=tuple(jobs.leg(item) for item in placed),
        engines=engines,
        planned=_planned(plan),
        trees={name: str(path.resolve()) for name, path in tree_places(workspace, request.into).items()},
        left=(*plan.left_out, *left),
        untested=tuple(untested),
        max_cost=request.max_cost,
    )
    write_atomic(folder / RUN_FILE, msgspec.json.encode(run))
    return folder, run


def open_run(cache: Path, identifier: str) -> tuple[Path, EngineRun]:
    """A run that was begun.

    Raises:
        UsageError: there is no such run here.
        FindingsError: its file cannot be read.
    """
    folder = runs_folder(cache) / identifier[:100]
    plain = identifier.replace("-", "").isalnum()
    if not plain or not (folder / RUN_FILE).is_file():
        known = sorted(path.parent.name for path in runs_folder(cache).glob(f"*/{RUN_FILE}"))
        hint = f"the latest here: {', '.join(known[-3:])}" if known else f"there are no runs in {runs_folder(cache)}"
        raise UsageError(f"there is no run {identifier[:60]!r}", hint=hint)
    try:
        return folder, read_json(folder / RUN_FILE, EngineRun)
    except (OSError, ValueError) as error:
        raise FindingsError(f"{folder / RUN_FILE} cannot be read: {error}") from error


def _placed(work: Iterable[SentLeg], engines: Mapping[str, EngineSettings]) -> tuple[list[SentLeg], list[LeftOut]]:
    """The legs that engines take, at their prices; and the variants of the others."""
    placed: list[SentLeg] = []
    left: list[LeftOut] = []
    for item in share_out(work, engines):
        if item.engine:
            placed.append(msgspec.structs.replace(item, leg=priced(item, engines[item.engine])))
            continue
        leg, need = item.leg, item.need
        what = f"tests {_hardware(need, leg.system)}" if need else f"takes {leg.backend} on {leg.system}"
        why = f"no engine of this run {what}"
        left += [LeftOut(leg.kernel, name, leg.backend, leg.system, "", why) for name in leg.variants]
    return placed, left


def group_tests(matrix: Matrix, built: Iterable[Leg], timeouts: Mapping[tuple[str, str], int | None]) -> list[SentLeg]:
    """The legs that test what these legs have built: one for the variants of a kernel that need the same hardware.

    The timeouts are in minutes, by kernel and backend.
    """
    archs = {(kernel.name, item.name): item.archs for kernel in matrix.kernels for item in kernel.variants}
    grouped: dict[tuple[str, str, HardwareNeed], list[tuple[str, Leg]]] = {}
    for leg in built:
        for variant in leg.variants:
            name = parse_variant_name(variant)
            need = need_of(name.backend, archs.get((leg.kernel, variant)))
            grouped.setdefault((leg.kernel, name.system or "", need), []).append((variant, leg))
    found: list[SentLeg] = []
    for (kernel, system, need), members in sorted(grouped.items(), key=lambda item: (item[0][:2], str(item[0][2]))):
        same = sum(item.leg.kernel == kernel and item.leg.backend == need.backend for item in found)
        leg = msgspec.structs.replace(
            members[0][1],
            name=f"test-{need.backend}" + (f"-{same + 1}" if same else ""),
            variants=tuple(sorted(variant for variant, _ in members)),
            backend=need.backend,
            system=system,
            minutes=TEST_MINUTES,
            at_least=None,
            at_most=None,
            timeout=timeouts.get((kernel, need.backend)) or TEST_TIMEOUT,
        )
        found.append(SentLeg(leg, need))
    return found


def _hardware(need: HardwareNeed, system: str) -> str:
    what = f" {need.minimum} or newer" if need.minimum else f" {' or '.join(need.archs)}" if need.archs else ""
    return f"{need.backend}{what}" + (f" on {system}" if system else "")


def _planned(plan: Plan) -> Planned:
    """What each tree must have; what is left out is missing in it."""
    left: dict[str, set[str]] = {}
    for item in plan.left_out:
        left.setdefault(item.kernel, set()).add(item.variant)
    wanted = {kernel.name: tuple(sorted({*kernel.planned, *left.get(kernel.name, ())})) for kernel in plan.kernels}
    kernels = {
        kernel.name: PlannedKernel(kernel.name, wanted[kernel.name], kernel.version, tree=kernel.tree)
        for kernel in plan.kernels
        if wanted[kernel.name]
    }
    return Planned(kernels, plan.commit, plan.suppressions)


class _Jobs:
    """Makes the jobs of a run; each kernel's sources are packed once."""

    def __init__(
        self,
        workspace: Workspace,
        request: EngineRequest,
        engines: Mapping[str, EngineSettings],
        commit: str | None,
        folder: Path,
    ) -> None:
        self.workspace, self.request, self.engines = workspace, request, engines
        self.commit, self.run = commit, folder.name
        self.kernels = {kernel.build.name: kernel for kernel in workspace.kernels}
        inputs = folder / "inputs"
        self.sources = {name: pack_sources(workspace, kernel, inputs) for name, kernel in self.kernels.items()}
        self.ids = {name: identity.unique_id(Path(kernel.directory)) for name, kernel in self.kernels.items()}

    def leg(self, item: SentLeg) -> EngineLeg:
        """A leg of the run, and what it would be on the engine's fallback if that takes it."""
        made, name = self._on(item), self.engines[item.engine].fallback
        if name is None or not takes(self.engines[name], item):
            return made
        moved = msgspec.structs.replace(item, leg=priced(item, self.engines[name]), engine=name)
        return msgspec.structs.replace(made, fallback=self._on(moved))

    def _on(self, item: SentLeg) -> EngineLeg:
        leg, need, engine, kernel = item.leg, item.need, self.engines[item.engine], self.kernels[item.leg.kernel]
        # The cache of the other types of engines stays: they find the objects of their earlier jobs in it.
        forgets = engine.type in (EngineKind.HF_JOBS, EngineKind.COMMAND) and leg.kind is not Kind.NOARCH
        carries = need is None and (leg.part or forgets)
        pack = f"{objects_name(leg.kernel, leg.name)}.tar" if carries else ""
        own = [sys.executable, "-m", "kci"] if engine.type is EngineKind.LOCAL else ["kci"]
        words = [part.replace("{image}", leg.image) for part in engine.kci or own]
        words += ["build" if need is None else "test", place_of(self.workspace, kernel)]
        words += self._build_words(leg, engine, pack) if need is None else self._test_words(need, engine)
        if self.workspace.catalog_name:
            words += ["--catalog", "catalog.toml" if self.workspace.catalog_file else self.workspace.catalog_name]
        # The kci that runs here may be found by PYTHONPATH.
        own_path = ["PYTHONPATH"] if engine.type is EngineKind.LOCAL else []
        short = hashlib.sha256(f"{leg.kernel}/{leg.name}".encode()).hexdigest()[:10]
        built = [artifact_name(leg.kernel, variant) for variant in leg.variants] + ([pack] if pack else [])
        job = EngineJob(
            name=f"kci-{self.run}-{short}-1",
            run=self.run,
            attempt=1,
            kernel=leg.kernel,
            leg=leg.name,
            variants=leg.variants,
            command=tuple(words),
            image=leg.image,
            hardware=need or HardwareNeed(),
            cores=engine.cores,
            memory_gb=engine.memory_gb,
            timeout=leg.timeout,
            inputs=(self.sources[leg.kernel],),
            environment={"KCI_RUN": self.run, "KCI_ATTEMPT": "1"},
            let_through=tuple(sorted({*let_through(), *engine.environment, *own_path})),
            artifacts=tuple(built) if need is None else (TEST_FILE,),
            pack=pack,
            most_bytes=engine.max_artifact_mb * 1024 * 1024,
        )
        takes = tuple(f"{leg.kernel}/{name}" for name in leg.takes) if need is None else ()
        name = f"{leg.kernel}/{leg.name}"
        return EngineLeg(name, item.engine, job, leg.minutes, leg.rate, tests=need is not None, takes=takes)

    def _build_words(self, leg: Leg, engine: EngineSettings, pack: str) -> list[str]:
        how = BuildOptions(
            builder=leg.builder or "auto",
            container=leg.image if engine.container == "auto" and leg.image else "none",
            tier=self.request.choice.tier,
            jobs=self.request.jobs or leg.max_jobs or engine.cores,
            unique_id=self.ids[leg.kernel],
            commit=self.commit or None,
            stop_after=leg.stop_after,
            part=f"{leg.part}/{leg.parts}" if leg.part else None,
            torch_only=leg.torch_only,
            objects_to=Path(f"{{out}}/{pack}") if pack else None,
        )
        variants = [f"--variant={variant}" for variant in leg.variants or [leg.variant]]
        artifacts = [] if leg.part else ["--pack", "{out}"]
        return ["--output", "{work}/built", *artifacts, *variants, *how.words()]

    def _test_words(self, need: HardwareNeed, engine: EngineSettings) -> list[str]:
        python = engine.test_python or (None if need.backend == "cpu" else "python3")
        words = ["--tree", "{work}/tree", "--record", f"{{out}}/{TEST_FILE}"]
        words += ["--python", python] if python else []
        return words + (["--allow-empty"] if self.request.allow_empty else [])

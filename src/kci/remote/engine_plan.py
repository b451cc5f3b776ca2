"""From a workspace to a run on engines: which leg goes where, as which job, with which sources, for how much money."""

from __future__ import annotations

import hashlib
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from kci.builders.request import BuildOptions
from kci.ci.run_records import TEST_FILE
from kci.config.discover import refuse_faulty
from kci.config.engine_settings import EngineKind, EngineSettings
from kci.diagnostics import Severity
from kci.errors import FindingsError, UsageError
from kci.files.bounded_json import read_json, require_schema
from kci.files.replace import write_atomic
from kci.plan.budget import check_budget, estimate
from kci.plan.plan import LeftOut, Leg, Plan
from kci.remote.engine_choice import (
    can_build,
    choose_engines,
    let_through,
    price_of,
    sent_to,
    share_out,
    tests,
)
from kci.remote.engine_tests import group_tests, test_words
from kci.remote.job import EngineJob, HardwareNeed, InputFile
from kci.remote.leg_sources import pack_sources, place_of
from kci.run.local import tree_places
from kci.tree import identity
from kci.tree.leg_record import artifact_name
from kci.tree.planned import Planned, PlannedKernel
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Choice, Workspace

SCHEMA = 1
RUN_FILE = "run.json"


class EngineLeg(msgspec.Struct, frozen=True):
    """A leg and its place."""

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
    fallback: EngineLeg | None = None
    """The same leg on the engine that takes it over; it has no fallback itself, so a leg moves once."""

    def attempt(self, number: int) -> EngineJob:
        environment = self.job.environment | {"KCI_ATTEMPT": str(number)}
        return msgspec.structs.replace(self.job, name=self.job_name(number), attempt=number, environment=environment)

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
    """Where each kernel's tree goes."""
    left: tuple[LeftOut, ...] = ()
    untested: tuple[LeftOut, ...] = ()
    """What is built and was to be tested, and has no engine for that."""
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
    """Whether the merged trees are tested as well."""
    allow_empty: bool = False
    """Whether it is fine that there is nothing to test."""


def runs_folder(cache: Path) -> Path:
    """Where the runs lie."""
    return cache / "runs"


def prepare_run(workspace: Workspace, request: EngineRequest, cache: Path) -> tuple[Path, EngineRun]:
    """Decide everything about a run and write it down; nothing is submitted yet.

    Args:
        workspace: the kernels.
        request: what to do with them.
        cache: below which the run's folder is made.

    Returns:
        The run's folder, and the run.

    Raises:
        UsageError: there is no such engine.
        FindingsError: nothing is selected, a kernel is faulty, nothing would be tested, or the run costs more than it
            may.
    """
    engines = choose_engines(workspace.settings.settings.engines, request.engine)
    plan = plan_run(workspace, PlanRequest(choice=request.choice)).plan
    if plan.faulty:
        raise refuse_faulty(plan.faulty, len(workspace.kernels))
    first = sent_to(engines, request.engine)
    placed: list[_Placed] = []
    left = list(plan.left_out)
    for leg, name in share_out(plan.legs, first):
        if name is not None:
            placed.append(_Placed(_priced(leg, engines[name], None), name))
        else:
            left += _left(leg, f"no engine of this run takes {leg.backend} on {leg.system}")
    untested: list[LeftOut] = []
    if request.test:
        placed += _tests(workspace, request, placed, first, untested)
    _require_affordable(plan, [item.leg for item in placed], request.max_cost)
    identifier = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder = runs_folder(cache) / identifier
    jobs = _Jobs(workspace, request, plan.commit, engines, identifier, folder / "inputs")
    run = EngineRun(
        id=identifier,
        legs=tuple(jobs.leg(item) for item in placed),
        engines=engines,
        planned=_planned(plan),
        trees={name: str(path.resolve()) for name, path in tree_places(workspace, request.into).items()},
        left=tuple(left),
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


class _Placed(msgspec.Struct, frozen=True):
    """A leg, the engine that it goes to, and the hardware that it needs if it tests."""

    leg: Leg
    engine: str
    need: HardwareNeed | None = None


def _left(leg: Leg, why: str) -> list[LeftOut]:
    return [LeftOut(leg.kernel, item, leg.backend, leg.system, "", why) for item in leg.variants]


def _tests(
    workspace: Workspace,
    request: EngineRequest,
    placed: Iterable[_Placed],
    first: Mapping[str, EngineSettings],
    untested: list[LeftOut],
) -> list[_Placed]:
    """The legs that test, on engines with the hardware.

    Raises:
        FindingsError: there is none, and that is not allowed.
    """
    built = [item.leg for item in placed]
    limits = {(leg.kernel, leg.backend): workspace.runners.limit(leg.kernel, leg.backend).timeout for leg in built}
    timeouts = {key: minutes for key, minutes in limits.items() if minutes}
    groups = group_tests(workspace.matrix(request.choice), built, timeouts)
    needs = {(group.leg.kernel, group.leg.name): group.need for group in groups}
    found: list[_Placed] = []
    for leg, name in share_out(
        (group.leg for group in groups),
        first,
        lambda engine, leg: tests(engine, leg, needs[leg.kernel, leg.name]),
    ):
        need = needs[leg.kernel, leg.name]
        if name is not None:
            found.append(_Placed(_priced(leg, first[name], need), name, need))
        else:
            untested += _left(leg, f"no engine of this run tests {_hardware(need, leg.system)}")
    if not found and not request.allow_empty:
        wanted = "; ".join(sorted({item.reason for item in untested})) or "no leg builds anything"
        hint = "set `tests` of an engine in kci.toml (docs/engines.md), or give --allow-empty"
        raise FindingsError(f"nothing would be tested: {wanted}", hint=hint)
    return found


def _hardware(need: HardwareNeed, system: str) -> str:
    what = f" {need.minimum} or newer" if need.minimum else f" {' or '.join(need.archs)}" if need.archs else ""
    return f"{need.backend}{what}" + (f" on {system}" if system else "")


def _priced(leg: Leg, engine: EngineSettings, need: HardwareNeed | None) -> Leg:
    price, currency = price_of(engine, need)
    return msgspec.structs.replace(leg, rate=None if price is None else price / 60, currency=currency)


def _require_affordable(plan: Plan, legs: list[Leg], max_cost: float | None) -> None:
    problems = [
        item
        for item in check_budget(plan, estimate(legs), max_cost=max_cost)
        if item.severity is Severity.ERROR or max_cost is not None
    ]
    if problems:
        raise FindingsError(problems[0].message, hint=problems[0].hint, diagnostics=problems)


def _planned(plan: Plan) -> Planned:
    """What each tree is to have: what was left is missing in it, and said to be."""
    left: dict[str, set[str]] = {}
    for item in plan.left_out:
        left.setdefault(item.kernel, set()).add(item.variant)
    kernels = {
        kernel.name: PlannedKernel(
            kernel.name, tuple(sorted({*kernel.planned, *left.get(kernel.name, ())})), kernel.version
        )
        for kernel in plan.kernels
    }
    return Planned({name: kernel for name, kernel in kernels.items() if kernel.planned}, plan.commit)


class _Jobs:
    """Makes the jobs of a run; each kernel's sources are packed once."""

    def __init__(
        self,
        workspace: Workspace,
        request: EngineRequest,
        commit: str | None,
        engines: Mapping[str, EngineSettings],
        run: str,
        inputs: Path,
    ) -> None:
        self.workspace, self.request, self.commit, self.engines, self.run = workspace, request, commit, engines, run
        self.kernels = {kernel.build.name: kernel for kernel in workspace.kernels}
        self.sources = {name: pack_sources(workspace, kernel, inputs) for name, kernel in self.kernels.items()}
        self.ids = {name: identity.unique_id(Path(kernel.directory)) for name, kernel in self.kernels.items()}

    def leg(self, placed: _Placed) -> EngineLeg:
        """A leg of the run, and what it would be on the engine's fallback if that takes it."""
        leg, need, name = placed.leg, placed.need, self.engines[placed.engine].fallback
        made = self._on(leg, placed.engine, need)
        other = self.engines[name] if name else None
        if name is None or other is None or not (tests(other, leg, need) if need else can_build(other, leg)):
            return made
        return msgspec.structs.replace(made, fallback=self._on(_priced(leg, other, need), name, need))

    def _on(self, leg: Leg, name: str, need: HardwareNeed | None) -> EngineLeg:
        engine, kernel = self.engines[name], self.kernels[leg.kernel]
        if need is None:
            words = self._build_words(leg, engine)
        else:
            words = test_words(engine, need) + (["--allow-empty"] if self.request.allow_empty else [])
        if self.workspace.catalog_name:
            words += ["--catalog", "catalog.toml" if self.workspace.catalog_file else self.workspace.catalog_name]
        place = str(PurePosixPath("source") / place_of(self.workspace, kernel))
        words = [*_kci(engine, leg), "build" if need is None else "test", place, *words]
        job = _job(self.run, leg, engine, words, self.sources[leg.kernel])
        if need is not None:
            job = msgspec.structs.replace(job, hardware=need, artifacts=(TEST_FILE,))
        return EngineLeg(f"{leg.kernel}/{leg.name}", name, job, leg.minutes, leg.rate, tests=need is not None)

    def _build_words(self, leg: Leg, engine: EngineSettings) -> list[str]:
        how = BuildOptions(
            container=leg.image if engine.container == "auto" and leg.image else "none",
            tier=self.request.choice.tier,
            jobs=self.request.jobs or leg.max_jobs or engine.cores,
            unique_id=self.ids[leg.kernel],
            commit=self.commit or None,
        )
        variants = [f"--variant={variant}" for variant in leg.variants]
        return ["--output", "{work}/built", "--pack", "{out}", *variants, *how.words()]


def _kci(engine: EngineSettings, leg: Leg) -> list[str]:
    own = [sys.executable, "-m", "kci"] if engine.type is EngineKind.LOCAL else ["kci"]
    return [part.replace("{image}", leg.image) for part in engine.kci or own]


def _job(run: str, leg: Leg, engine: EngineSettings, words: Iterable[str], source: InputFile) -> EngineJob:
    seen = {*let_through(), *engine.environment}
    if engine.type is EngineKind.LOCAL:
        seen.add("PYTHONPATH")  # the kci that runs may be found by it
    short = hashlib.sha256(f"{leg.kernel}/{leg.name}".encode()).hexdigest()[:10]
    return EngineJob(
        name=f"kci-{run}-{short}-1",
        run=run,
        attempt=1,
        kernel=leg.kernel,
        leg=leg.name,
        variants=leg.variants,
        command=tuple(words),
        image=leg.image,
        cores=engine.cores,
        memory_gb=engine.memory_gb,
        timeout=leg.timeout,
        inputs=(source,),
        environment={"KCI_RUN": run, "KCI_ATTEMPT": "1"},
        let_through=tuple(sorted(seen)),
        artifacts=tuple(artifact_name(leg.kernel, variant) for variant in leg.variants),
        most_bytes=engine.max_artifact_mb * 1024 * 1024,
    )

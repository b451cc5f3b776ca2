"""From a workspace to a run on engines: which leg goes where, as which job, with which sources, for how much money."""

from __future__ import annotations

import hashlib
import io
import secrets
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from kci.config.discover import refuse_faulty
from kci.config.engine_settings import EngineKind, EngineSettings
from kci.config.reader import Kernel
from kci.config.settings import KCI_TOML
from kci.diagnostics import Severity
from kci.engines.hardware import hf_flavors, let_through
from kci.engines.job import EngineJob, InputFile
from kci.errors import FindingsError, UsageError
from kci.files.bounded_json import read_json, require_schema
from kci.files.replace import write_atomic
from kci.files.walk import is_bytecode, is_own, walk
from kci.matrix.names import Kind, this_system
from kci.plan.budget import check_budget, estimate
from kci.plan.plan import LeftOut, Leg, Plan
from kci.run.local import tree_places
from kci.tree import identity
from kci.tree.leg_record import artifact_name
from kci.tree.planned import Planned, PlannedKernel
from kci.workspace.choice import Choice
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Workspace

SCHEMA = 1
RUN_FILE = "run.json"
SOURCES = "source.tar"
BY_BACKEND = "auto"
"""In place of an engine's name: each leg goes to the engine of kci.toml that takes its backend."""


class EngineLeg(msgspec.Struct, frozen=True):
    """A leg and its place."""

    name: str
    """`<kernel>/<leg>`, which tells it from all others of the run."""
    engine: str
    job: EngineJob
    """Its first attempt."""
    minutes: int
    rate: float | None
    """What a minute costs; None if that is not known."""

    def attempt(self, number: int) -> EngineJob:
        """The job of an attempt."""
        stem = self.job.name.rpartition("-")[0]
        environment = self.job.environment | {"KCI_ATTEMPT": str(number)}
        return msgspec.structs.replace(self.job, name=f"{stem}-{number}", attempt=number, environment=environment)


class EngineRun(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`: everything that was decided before the first leg was submitted; nothing in it changes afterwards."""

    id: str
    legs: tuple[EngineLeg, ...]
    engines: dict[str, EngineSettings]
    planned: Planned
    trees: dict[str, str]
    """Where each kernel's tree goes."""
    left: tuple[LeftOut, ...] = ()
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
        FindingsError: nothing is selected, a kernel is faulty, or the run costs more than it may.
    """
    engines = choose_engines(workspace.settings.settings.engines, request.engine)
    plan = plan_run(workspace, PlanRequest(choice=request.choice)).plan
    if plan.faulty:
        raise refuse_faulty(plan.faulty, len(workspace.kernels))
    placed: list[tuple[Leg, str]] = []
    left = list(plan.left_out)
    for leg, name in share_out(plan.legs, engines):
        if name is not None:
            placed.append((_priced(leg, engines[name]), name))
        else:
            why = f"no engine of this run takes {leg.backend} on {leg.system}"
            left += [LeftOut(leg.kernel, item, leg.backend, leg.system, "", why) for item in leg.variants]
    _require_affordable(plan, [leg for leg, _ in placed], request.max_cost)
    identifier = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder = runs_folder(cache) / identifier
    inputs = {kernel.build.name: _sources(workspace, kernel, folder / "inputs") for kernel in workspace.kernels}
    kernels = {kernel.build.name: kernel for kernel in workspace.kernels}
    ids = {name: identity.unique_id(Path(kernel.directory)) for name, kernel in kernels.items()}
    legs = []
    for leg, name in placed:
        words = _words(workspace, kernels[leg.kernel], leg, engines[name], request)
        words += ["--unique-id", ids[leg.kernel], *(["--commit", plan.commit] if plan.commit else [])]
        job = _job(identifier, leg, engines[name], words, inputs[leg.kernel])
        legs.append(EngineLeg(f"{leg.kernel}/{leg.name}", name, job, leg.minutes, leg.rate))
    run = EngineRun(
        id=identifier,
        legs=tuple(legs),
        engines=engines,
        planned=_planned(plan),
        trees={name: str(path.resolve()) for name, path in tree_places(workspace, request.into).items()},
        left=tuple(left),
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
    folder = runs_folder(cache) / identifier
    plain = identifier.replace("-", "").isalnum()
    if not plain or not (folder / RUN_FILE).is_file():
        known = sorted(path.parent.name for path in runs_folder(cache).glob(f"*/{RUN_FILE}"))
        hint = f"the latest here: {', '.join(known[-3:])}" if known else f"there are none in {runs_folder(cache)}"
        raise UsageError(f"there is no run {identifier[:60]!r}", hint=hint)
    try:
        return folder, read_json(folder / RUN_FILE, EngineRun)
    except (OSError, ValueError) as error:
        raise FindingsError(f"{folder / RUN_FILE} cannot be read: {error}") from error


def choose_engines(known: Mapping[str, EngineSettings], asked: str) -> dict[str, EngineSettings]:
    """The engines that legs may go to, in the order in which they are asked.

    Raises:
        UsageError: there is no such engine.
    """
    if asked == BY_BACKEND and known:
        return dict(known)
    if asked in known:
        return {asked: msgspec.structs.replace(known[asked], backends=())}
    if asked in list(EngineKind):
        return {asked: EngineSettings(EngineKind(asked))}
    names = [*known, *EngineKind]
    hint = f"there are {', '.join(dict.fromkeys(names))}; kci.toml adds others: [engines.<name>]"
    raise UsageError(f"there is no engine {asked[:60]!r}", hint=hint)


def share_out(legs: Iterable[Leg], engines: Mapping[str, EngineSettings]) -> Iterator[tuple[Leg, str | None]]:
    """Where each leg goes; None where no engine takes it.

    Of several that do, it is the one that would be done with it first, by the minutes and by how many legs each runs
    at once. A plan has the longest legs first, so no long one is left for the end.
    """
    busy = dict.fromkeys(engines, 0.0)
    for leg in legs:
        after = {
            name: busy[name] + (leg.minutes + item.queue_minutes) / at_once(item)
            for name, item in engines.items()
            if takes(item, leg)
        }
        chosen = min(after, key=lambda name: after[name], default=None)
        if chosen is not None:
            busy[chosen] = after[chosen]
        yield leg, chosen


def at_once(engine: EngineSettings) -> int:
    """How many legs an engine may have at the same time."""
    return max(1, engine.at_once)


def takes(engine: EngineSettings, leg: Leg) -> bool:
    """Whether a leg can go to an engine. What is Python only is built on any system."""
    systems = engine.systems or ((this_system(),) if engine.type is EngineKind.LOCAL else ("x86_64-linux",))
    if engine.backends and leg.backend not in engine.backends:
        return False
    return leg.kind is Kind.NOARCH or leg.system in systems


def _priced(leg: Leg, engine: EngineSettings) -> Leg:
    """A leg with the price of the engine that it goes to, in place of a CI runner's."""
    price, currency = engine.price, engine.currency
    if price is None and engine.type is EngineKind.HF_JOBS:
        flavor = engine.flavor or hf_flavors().cheapest_for(engine.cores, engine.memory_gb)
        known = hf_flavors().flavor.get(flavor or "")
        price, currency = (known.price if known else None), hf_flavors().currency
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


def _words(workspace: Workspace, kernel: Kernel, leg: Leg, engine: EngineSettings, request: EngineRequest) -> list[str]:
    """The `kci build` of a leg, where `source/` is the repository."""
    own = [sys.executable, "-m", "kci"] if engine.type is EngineKind.LOCAL else ["kci"]
    words = [part.replace("{image}", leg.image) for part in engine.kci or own]
    words += ["build", str(PurePosixPath("source") / _place(workspace, kernel)), "--output", "{work}/built"]
    words += ["--pack", "{out}", "--tier", request.choice.tier]
    for variant in leg.variants:
        words += ["--variant", variant]
    words += ["--container", leg.image if engine.container == "auto" and leg.image else "none"]
    words += ["--jobs", str(request.jobs or leg.max_jobs or engine.cores)]
    if workspace.catalog_name:
        words += ["--catalog", "catalog.toml" if workspace.catalog_file else workspace.catalog_name]
    return words


def _job(run: str, leg: Leg, engine: EngineSettings, words: Iterable[str], inputs: tuple[InputFile, ...]) -> EngineJob:
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
        inputs=inputs,
        environment={"KCI_RUN": run, "KCI_ATTEMPT": "1"},
        let_through=tuple(sorted(seen)),
        artifacts=tuple(artifact_name(leg.kernel, variant) for variant in leg.variants),
        most_bytes=engine.max_artifact_mb * 1024 * 1024,
    )


def _place(workspace: Workspace, kernel: Kernel) -> str:
    """Where a kernel lies in the sources that travel: as in its repository, so that kci.toml is found above it."""
    directory, root = Path(kernel.directory).resolve(), workspace.settings.root.resolve()
    return directory.relative_to(root).as_posix() if directory.is_relative_to(root) else kernel.build.name


def _sources(workspace: Workspace, kernel: Kernel, inputs: Path) -> tuple[InputFile, ...]:
    """The archive of all that a kernel's legs read, the same bytes for the same files, under its digest."""
    root, place = workspace.settings.root, PurePosixPath("source") / _place(workspace, kernel)
    files = {str(place / item.name): item.path for item in walk(Path(kernel.directory)) if is_own(item.name)}
    if workspace.settings.document is not None:
        files[f"source/{KCI_TOML}"] = root / KCI_TOML
        catalog = workspace.settings.settings.catalog
        if catalog and (root / catalog).is_file():
            files[f"source/{PurePosixPath(catalog)}"] = root / catalog
    for declared in workspace.settings.settings.inputs_of(kernel.build.name):
        below = root / declared
        entries = walk(below) if below.is_dir() else ()
        files |= {f"source/{declared}/{item.name}": item.path for item in entries if not is_bytecode(item.name)}
        files |= {f"source/{declared}": below} if below.is_file() else {}
    if workspace.catalog_name and workspace.catalog_file:
        files["catalog.toml"] = workspace.catalog_file
    data = _archive(files)
    digest = hashlib.sha256(data).hexdigest()
    inputs.mkdir(parents=True, exist_ok=True)
    write_atomic(inputs / digest, data)
    return (InputFile(SOURCES, digest, len(data)),)


def _archive(files: Mapping[str, Path]) -> bytes:
    """A tar of files and links, without owners and times.

    Raises:
        FindingsError: a file cannot be read.
    """
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            try:
                if path.is_symlink():
                    entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
                    archive.addfile(entry)
                elif path.is_file():
                    content = path.read_bytes()
                    entry.size, entry.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
                    archive.addfile(entry, io.BytesIO(content))
            except OSError as error:
                raise FindingsError(f"cannot read {path}: {error.strerror}") from error
    return made.getvalue()

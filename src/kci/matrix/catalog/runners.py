"""Runners, images, limits and prices: kci's defaults and those of kci.toml."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec.structs import asdict, replace

from kci.config.facts import HOST
from kci.config.settings import BackendImages, Limit, Machine, Machines, Settings
from kci.config.values import RunnerKind, System
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped

_UNKNOWN_MEMORY = 4
"""GiB of a compiler without a measurement."""


class Runner(Frozen, rename="kebab", forbid_unknown_fields=True):
    """A kind of machine for jobs."""

    labels: tuple[str, ...]
    cpus: int
    memory_gb: int
    group: str = ""
    price: float | None = None
    """Per hour, in `currency`."""
    currency: str = ""
    pool_size: int | None = None
    spare: bool = False
    """True if it tests only what no other machine of its backend tests."""

    @property
    def hosted(self) -> bool:
        return not self.group and is_hosted(self.labels)


class BuildDefaults(Frozen, rename="kebab", forbid_unknown_fields=True):
    """The build of one backend's variants."""

    minutes: int
    timeout: int
    """Minutes of a leg with one variant."""
    setup: int = 1
    """Minutes before the build: start, checkout, image."""
    memory: int = 0
    """Peak GiB of one compiler; 0 for no limit."""
    memory_cutlass: int = 0
    """Peak GiB with CUTLASS headers; 0 for no difference."""
    image: dict[str, str] = {}
    """The build image by system; kci's builders cannot build a system without one."""
    images: dict[str, dict[str, str]] = {}
    """Images by system and compute version, before `image`."""
    disk: int = 0
    """Gigabytes of free disk for the image and a build; 0 if each runner has enough."""

    def image_for(self, system: str, compute: str | None) -> str:
        version = ".".join((compute or "").split(".")[:2])
        image = self.images.get(system, {}).get(version) or self.image.get(system, "")
        return image.replace("{compute}", version) if version else image


class Runners(Frozen):
    """The content of runners.toml, with additions of kci.toml."""

    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]
    own: dict[tuple[str, str], Runner] = {}
    """Runners of kci.toml by backend (or `noarch`) and system, before `runner`."""
    test: dict[tuple[str, str], Runner] = {}
    """Machines that test, by backend and system: those of kci.toml, and hosted ones for the CPU."""
    limits: tuple[Limit, ...] = ()
    nix: frozenset[str] = frozenset()
    """Systems and backends of the nix builder, for variants without an image."""

    def machine(self, backend: str, system: str) -> Runner | None:
        """The runner for a backend (or `noarch`) and system; None for none."""
        return self.own.get((backend, system)) or self.runner.get(system)

    def compiler_memory(self, backend: str, *, cutlass: bool = False) -> int:
        build = self.build.get(backend)
        gigabytes = build and ((cutlass and build.memory_cutlass) or build.memory)
        return (gigabytes or _UNKNOWN_MEMORY) * 2**30

    def limit(self, kernel: str, backend: str) -> Limit:
        """The limits of a kernel's legs for a backend; for each key the last matching entry
        counts.
        """
        values: dict[str, Any] = {}
        for entry in self.limits:
            if entry.kernel in (None, kernel) and entry.backend in (None, backend):
                values |= _given(entry)
        return Limit(**values)


def _given(table: Limit | Machine) -> dict[str, Any]:
    return {key: value for key, value in asdict(table).items() if value is not None}


class _RunnerTable(Dated):
    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]


@cache
def default_runners() -> Runners:
    """The runners and images of kci."""
    table = shipped("matrix/catalog/data/runners.toml", _RunnerTable)()
    return Runners(table.runner, table.build)


class Quotas(Dated):
    """GitHub's limits for an account's hosted runners."""

    max_minutes: int
    concurrent: int
    concurrent_macos: int


quotas = shipped("matrix/catalog/data/quotas.toml", Quotas)


class HostedRunners(Dated):
    """The GitHub-hosted runners."""

    default: str
    """The label for jobs without a build: plan, merge, gate."""
    labels: dict[str, str]
    retired: frozenset[str]
    short: dict[str, int]
    """The most minutes of a job by label, where they are fewer than elsewhere."""


hosted_runners = shipped("matrix/catalog/data/hosted.toml", HostedRunners)


def is_hosted(runner: object) -> bool:
    """True if a `runs-on` (label, labels or group) can only mean GitHub-hosted machines, where a
    fork's code may run.

    A runner has all of the labels, so an unknown label means self-hosted, and so does a group.
    GitHub ignores case.
    """
    labels = [runner] if isinstance(runner, str) else runner
    if not isinstance(labels, list | tuple):
        return False
    hosted_labels = hosted_runners().labels
    return bool(labels) and all(
        isinstance(label, str) and label.lower() in hosted_labels for label in labels
    )


class Prices(Dated):
    """A price table; `rate` is per minute, by label."""

    currency: str
    rate: dict[str, float]

    def rate_for(self, labels: Iterable[str]) -> float | None:
        """The price of a minute for these labels; None for none."""
        return next((self.rate[label] for label in labels if label in self.rate), None)


default_prices = shipped("matrix/catalog/data/prices.toml", Prices)


OWN_MINUTES = 5 * 24 * 60
"""GitHub's limit for a job on a self-hosted runner ("Actions limits")."""


class Pool(Frozen):
    """Machines with a common queue."""

    name: str
    """Empty for runners of unknown number."""
    size: int | None
    queued: bool = False
    """True if GitHub queues jobs itself."""


UNKNOWN = Pool("", None)


def pool_of(runner: Runner) -> Pool:
    """The pool of a runner."""
    if runner.pool_size is not None:
        return Pool(
            " ".join((*([f"group:{runner.group}"] if runner.group else []), *runner.labels)),
            runner.pool_size,
        )
    if not runner.hosted:
        return UNKNOWN
    if runner.labels[0].lower().startswith("macos"):
        return Pool("github-macos", quotas().concurrent_macos, queued=True)
    return Pool("github-hosted", quotas().concurrent, queued=True)


def max_job_minutes(runner: Runner) -> int:
    """The most minutes of a job on a runner."""
    usual = quotas().max_minutes if runner.hosted else OWN_MINUTES
    return min(hosted_runners().short.get(label.lower(), usual) for label in (*runner.labels, ""))


def price_of(runner: Runner) -> tuple[float, str] | None:
    """The price of a minute and its currency, of kci.toml before the table; None if unknown."""
    if runner.price is not None:
        return runner.price / 60, runner.currency or default_prices().currency
    rate = None if runner.group else default_prices().rate_for(runner.labels)
    return None if rate is None else (rate, default_prices().currency)


def runners_from(settings: Settings) -> Runners:
    """The runners, images and limits of a repository: kci's with those of kci.toml.

    Each key is that of `runners.<backend>.<system>`, else of `runners.any.<system>`, else the
    default; labels and group go together. An entry without either is not a runner.
    """
    defaults = default_runners()
    build = dict(defaults.build)
    for backend, images in settings.images.items():
        build[backend] = _with_images(build.get(backend) or UNKNOWN_BUILD, images)
    usual, other = (defaults.runner[system] for system in ("x86_64-linux", "aarch64-linux"))
    hosted = {(HOST, "x86_64-linux"): usual, (HOST, "aarch64-linux"): replace(other, spare=True)}
    test = hosted | _machines(
        {kind: table for kind, table in settings.test.items() if isinstance(table, dict)}, {}
    )
    return Runners(
        runner=defaults.runner,
        build=build,
        own=_machines(settings.runners, defaults.runner),
        test={
            place: test[place]
            for place in test
            if settings.test.get(RunnerKind(place[0])) is not False
        },
        limits=settings.limits,
        nix=frozenset(map(str, (*settings.nix.systems, *settings.nix.backends))),
    )


def _with_images(base: BuildDefaults, images: BackendImages) -> BuildDefaults:
    # The disk of another image is unknown
    image, single = dict(base.image), dict(base.images)
    for system, named in (
        ("aarch64-linux", images.aarch64_linux),
        ("x86_64-linux", images.x86_64_linux),
    ):
        if isinstance(named, str):
            image[system] = named
        elif named:
            single[system] = single.get(system, {}) | named
            image.setdefault(system, "")
    disk = base.disk if images.disk_gb is None else images.disk_gb
    return replace(base, image=image, images=single, disk=disk)


UNKNOWN_BUILD = BuildDefaults(minutes=30, timeout=350)


def _machines(table: Machines, defaults: dict[str, Runner]) -> dict[tuple[str, str], Runner]:
    machines: dict[tuple[str, str], Runner] = {}
    for backend in RunnerKind:
        for system in System if backend != "any" else ():
            layers = [
                of[system]
                for of in (table.get(RunnerKind("any")), table.get(backend))
                if of and system in of
            ]
            runner = defaults.get(system, Runner((), 0, 0))
            for machine in layers:
                given = _given(machine)
                if machine.labels is not None or machine.group is not None:
                    given |= {"labels": machine.labels or (), "group": machine.group or ""}
                runner = replace(runner, **given)
            if layers and (runner.labels or runner.group):
                machines[backend, system] = runner
    return machines

"""Runners, images, limits and prices: kci's defaults (hosted runners, public images), and what users add."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from kci.config.settings import BackendImages, Limit, Machine, Machines, Settings
from kci.config.values import RunnerKind, System
from kci.utils.shipped import Dated, shipped

_UNKNOWN_MEMORY = 4
"""GiB, for a compiler that was never measured."""


class Runner(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A kind of machine that takes jobs."""

    labels: tuple[str, ...]
    cpus: int
    memory_gb: int
    group: str = ""
    """The runner group; empty for none."""
    price: float | None = None
    """What an hour costs, in `currency`."""
    currency: str = ""
    pool_size: int | None = None
    """How many of them there are."""

    @property
    def hosted(self) -> bool:
        """True if GitHub hosts the machine for everybody; see `is_hosted`."""
        return not self.group and is_hosted(self.labels)


class BuildDefaults(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How the variants of one backend are built."""

    minutes: int
    """What a variant takes, roughly, where nothing was recorded."""
    timeout: int
    """Minutes after which a leg of one variant is given up."""
    setup: int = 1
    """Minutes that pass before a leg builds: starting, fetching the sources, pulling the image."""
    memory: int = 0
    """The GiB that one compiler needs at its worst; 0 where that bounds nothing."""
    memory_cutlass: int = 0
    """The same of a source with the headers of CUTLASS; 0 where they make no difference."""
    image: dict[str, str] = {}
    """The build image by system; a system without one cannot be built by kci's own builders."""
    images: dict[str, dict[str, str]] = {}
    """Images of single compute versions by system and version; they go before `image`."""
    disk: int = 0
    """The gigabytes of free disk that the image and a build in it need; 0 where every runner has enough."""

    def image_for(self, system: str, compute: str | None) -> str:
        """The image for a system and a compute version; empty for none."""
        version = ".".join((compute or "").split(".")[:2])
        found = self.images.get(system, {}).get(version) or self.image.get(system, "")
        return found.replace("{compute}", version) if version else found


class Runners(msgspec.Struct, frozen=True):
    """Everything in runners.toml; `build` is keyed by backend, or `noarch`. The rest is what users add to it."""

    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]
    own: dict[tuple[str, str], Runner] = {}
    """Runners by backend (or `noarch`) and system; they go before `runner`."""
    test: dict[tuple[str, str], Runner] = {}
    """Runners that test, by backend and system."""
    limits: tuple[Limit, ...] = ()
    nix: frozenset[str] = frozenset()
    """The systems and backends for which the nix builder makes what no image of `build` compiles."""

    def machine(self, backend: str, system: str) -> Runner | None:
        """The runner on which a backend (or `noarch`) is built for a system; None if kci knows no such runner."""
        return self.own.get((backend, system)) or self.runner.get(system)

    def compiler_memory(self, backend: str, *, cutlass: bool = False) -> int:
        """The bytes that one compiler is expected to take at its worst, where nothing was recorded."""
        build = self.build.get(backend)
        found = build and ((cutlass and build.memory_cutlass) or build.memory)
        return (found or _UNKNOWN_MEMORY) * 2**30

    def limit(self, kernel: str, backend: str) -> Limit:
        """The limits of one kernel's legs for one backend: for each key the last entry that holds for them."""
        found: dict[str, Any] = {}
        for entry in self.limits:
            if entry.kernel in (None, kernel) and entry.backend in (None, backend):
                keys = {key: getattr(entry, key) for key in ("timeout_minutes", "max_jobs", "cores", "parts")}
                found |= {key: value for key, value in keys.items() if value is not None}
        return Limit(**found)


class _RunnerTable(Dated, frozen=True):
    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]


@cache
def default_runners() -> Runners:
    """The runners and images that kci ships."""
    table = shipped("matrix/catalog/data/runners.toml", _RunnerTable)()
    return Runners(table.runner, table.build)


class Quotas(Dated, frozen=True):
    """What one account may use of the machines that GitHub hosts for everybody."""

    max_minutes: int
    concurrent: int
    concurrent_macos: int


quotas = shipped("matrix/catalog/data/quotas.toml", Quotas)
"""GitHub's limits for its own runners."""


class HostedRunners(Dated, frozen=True):
    """The runners that GitHub hosts for everybody."""

    default: str
    """The label for jobs that do not build: plan, merge, gate."""
    labels: dict[str, str]
    """Each with the system of its machines."""
    retired: frozenset[str]


hosted_runners = shipped("matrix/catalog/data/hosted.toml", HostedRunners)
"""The one list of GitHub's own runners."""


def is_hosted(runner: object) -> bool:
    """True if a `runs-on` can only mean machines that GitHub hosts and throws away, on which a fork's code may run.

    A runner must have all of the labels, so one that GitHub does not give to its own runners means a self-hosted one;
    a group is never GitHub's. GitHub ignores the case of labels.

    Args:
        runner: a label, a list of labels, or a mapping with a group, as in a leg or a workflow.
    """
    labels = [runner] if isinstance(runner, str) else runner
    if not isinstance(labels, list | tuple):
        return False
    known = hosted_runners().labels
    return bool(labels) and all(isinstance(label, str) and label.lower() in known for label in labels)


class Prices(Dated, frozen=True):
    """A price table; `rate` is by label and minute."""

    currency: str
    rate: dict[str, float]

    def of(self, labels: Iterable[str]) -> float | None:
        """The price of a minute on a runner with these labels, or None if no label is in the table."""
        return next((self.rate[label] for label in labels if label in self.rate), None)


default_prices = shipped("matrix/catalog/data/prices.toml", Prices)
"""The price table that kci ships."""


OWN_MINUTES = 5 * 24 * 60
"""What a job on a self-hosted runner may take: GitHub gives it five days (GitHub docs, "Actions limits")."""


class Pool(msgspec.Struct, frozen=True):
    """Machines that take jobs from one queue."""

    name: str
    """Empty for runners whose number is unknown."""
    size: int | None
    queued: bool = False
    """True if GitHub holds jobs back itself, so that a workflow needs no limit."""


UNKNOWN = Pool("", None)


def pool_of(runner: Runner) -> Pool:
    """The pool that a runner is taken from."""
    if runner.pool_size is not None:
        return Pool(" ".join((*([f"group:{runner.group}"] if runner.group else []), *runner.labels)), runner.pool_size)
    if not runner.hosted:
        return UNKNOWN
    if runner.labels[0].lower().startswith("macos"):
        return Pool("github-macos", quotas().concurrent_macos, queued=True)
    return Pool("github-hosted", quotas().concurrent, queued=True)


def most_minutes(runner: Runner) -> int:
    """What one job may take on a runner at most."""
    return quotas().max_minutes if runner.hosted else OWN_MINUTES


def price_of(runner: Runner) -> tuple[float, str] | None:
    """The price of a minute and its currency; None if unknown. A price of kci.toml goes before the table's."""
    if runner.price is not None:
        return runner.price / 60, runner.currency or default_prices().currency
    rate = None if runner.group else default_prices().of(runner.labels)
    return None if rate is None else (rate, default_prices().currency)


def runners_from(settings: Settings, defaults: Runners | None = None) -> Runners:
    """The runners, images and limits of a repository: its kci.toml laid over what kci ships.

    For a backend and a system, each key is taken from `runners.<backend>.<system>`, else `runners.any.<system>`, else
    the defaults; labels and group go together. What has neither labels nor group is no runner.
    """
    defaults = defaults or default_runners()
    build = dict(defaults.build)
    for backend, images in settings.images.items():
        build[backend] = _with_images(build.get(backend) or UNKNOWN_BUILD, images)
    return Runners(
        runner=defaults.runner,
        build=build,
        own=_machines(settings.runners, defaults.runner),
        test=_machines(settings.test, {}),
        limits=settings.limits,
        nix=frozenset(map(str, (*settings.nix.systems, *settings.nix.backends))),
    )


def _with_images(base: BuildDefaults, images: BackendImages) -> BuildDefaults:
    """What a backend's images make of the defaults; a size that is not named is unknown for another image."""
    image, single = dict(base.image), dict(base.images)
    for (system, *compute), named in images.images():
        if compute:
            single[system] = {**single.get(system, {}), compute[0]: named}
            image.setdefault(system, "")
        else:
            image[system] = named
    disk = base.disk if images.disk_gb is None else images.disk_gb
    return msgspec.structs.replace(base, image=image, images=single, disk=disk)


UNKNOWN_BUILD = BuildDefaults(minutes=30, timeout=350)
"""Of a backend for which kci has no image."""


def _machines(table: Machines, defaults: dict[str, Runner]) -> dict[tuple[str, str], Runner]:
    found: dict[tuple[str, str], Runner] = {}
    for backend in RunnerKind:
        for system in System if backend != "any" else ():
            layers = [of[system] for of in (table.get(RunnerKind("any")), table.get(backend)) if of and system in of]
            runner = defaults.get(system, Runner((), 0, 0))
            for machine in layers:
                runner = _overlay(runner, machine)
            if layers and (runner.labels or runner.group):
                found[backend, system] = runner
    return found


def _overlay(runner: Runner, machine: Machine) -> Runner:
    set_here = {
        key: value
        for key in ("cpus", "memory_gb", "price", "currency", "pool_size")
        if (value := getattr(machine, key)) is not None
    }
    if machine.labels is not None or machine.group is not None:
        set_here |= {"labels": machine.labels or (), "group": machine.group or ""}
    return msgspec.structs.replace(runner, **set_here)

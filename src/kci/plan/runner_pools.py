"""The machines of a plan: kci.toml's laid over those that kci ships, and of each its pool, its time and its price."""

from __future__ import annotations

import msgspec

from kci.config.settings import BackendImages, Machine, Machines, Settings
from kci.config.values import RunnerKind, System
from kci.matrix.catalog.runners import BuildDefaults, Runner, Runners, default_prices, default_runners, quotas

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

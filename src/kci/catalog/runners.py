"""Runners, images and limits: kci's defaults (hosted runners, public images), and what users add."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


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


class BuildDefaults(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How the variants of one backend are built."""

    minutes: int
    """What a variant takes, roughly, where nothing was recorded."""
    timeout: int
    """Minutes after which a leg of one variant is given up."""
    setup: int = 1
    """Minutes that pass before a leg builds: starting, fetching the sources, pulling the image."""
    image: dict[str, str] = {}
    """The build image by system; a system without one cannot be built by kci's own builders."""


class LegLimit(msgspec.Struct, frozen=True):
    """Limits of the legs of one kernel, one backend, or both; empty means every one."""

    kernel: str = ""
    backend: str = ""
    timeout: int | None = None
    max_jobs: int | None = None
    cores: int | None = None


class Runners(msgspec.Struct, frozen=True):
    """Everything in runners.toml; `build` is keyed by backend, or `noarch`. The rest is what users add to it."""

    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]
    own: dict[tuple[str, str], Runner] = {}
    """Runners by backend (or `noarch`) and system; they go before `runner`."""
    test: dict[tuple[str, str], Runner] = {}
    """Runners that test, by backend and system."""
    limits: tuple[LegLimit, ...] = ()

    def machine(self, backend: str, system: str) -> Runner | None:
        """The runner on which a backend (or `noarch`) is built for a system; None where there is none."""
        return self.own.get((backend, system)) or self.runner.get(system)

    def limit(self, kernel: str, backend: str) -> LegLimit:
        """The limits of one kernel's legs for one backend: for each key the last entry that holds for them."""
        found: dict[str, int | None] = {"timeout": None, "max_jobs": None, "cores": None}
        for entry in self.limits:
            if entry.kernel in ("", kernel) and entry.backend in ("", backend):
                found |= {key: getattr(entry, key) for key in found if getattr(entry, key) is not None}
        return LegLimit(kernel, backend, found["timeout"], found["max_jobs"], found["cores"])


@cache
def default_runners() -> Runners:
    """The runners and images that kci ships."""
    data = _data("runners")
    return msgspec.convert({"runner": data["runner"], "build": data["build"]}, Runners)


class Quotas(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """What one account may use of the machines that GitHub hosts for everybody."""

    as_of: Any
    source: str
    max_minutes: int
    concurrent: int
    concurrent_macos: int


@cache
def quotas() -> Quotas:
    """GitHub's limits for its own runners."""
    return msgspec.convert(_data("quotas"), Quotas)


@cache
def hosted_labels() -> frozenset[str]:
    """The labels of the runners that GitHub hosts for everybody."""
    return frozenset(_data("hosted")["labels"])


def _data(name: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415

    return tomllib.loads((Path(__file__).parent / "data" / f"{name}.toml").read_text(encoding="utf-8"))

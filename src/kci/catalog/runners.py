"""The hosted runners and public images that kci knows, for a plan without any configuration."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec


class Runner(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A kind of machine that takes jobs."""

    labels: tuple[str, ...]
    cpus: int
    memory_gb: int
    pool: str = ""
    """The key of the pool in `Runners.pool` that it is taken from; empty where nobody knows how many there are."""
    max_minutes: int = 7200
    """What one job may take at most; GitHub's own limit for a self-hosted runner is five days."""
    rate: float | None = None
    """The price of a minute, in the currency of the price table; None to look its labels up there."""


class BuildDefaults(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How the variants of one backend are built."""

    minutes: int
    """What a variant takes, roughly, where nothing was recorded."""
    timeout: int
    """Minutes after which a leg of one variant is given up."""
    setup: int = 1
    """Minutes that pass before a leg builds: starting, fetching the sources, pulling the image."""
    job_gb: int = 2
    """Memory that one compiler may need; it bounds how many run side by side."""
    image: dict[str, str] = {}
    """The build image by system; a system without one cannot be built by kci's own builders."""


class Runners(msgspec.Struct, frozen=True):
    """Everything in runners.toml; `runner` is keyed by system, `build` by backend or `noarch`."""

    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]
    pool: dict[str, int] = {}
    """How many jobs may run at once in each pool."""
    queued: tuple[str, ...] = ()
    """Pools whose size is GitHub's matter: it holds jobs back itself, so a workflow sets no limit for them."""


@cache
def default_runners() -> Runners:
    """The runners and images that kci ships."""
    import tomllib  # noqa: PLC0415

    data = tomllib.loads((Path(__file__).parent / "data" / "runners.toml").read_text(encoding="utf-8"))
    return msgspec.convert(data, Runners)

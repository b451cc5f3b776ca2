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


class BuildDefaults(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How the variants of one backend are built."""

    minutes: int
    """What a leg takes, roughly, where nothing was measured."""
    timeout: int
    """Minutes after which a leg is given up."""
    image: dict[str, str] = {}
    """The build image by system; a system without one cannot be built by kci's own builders."""


class Runners(msgspec.Struct, frozen=True):
    """Everything in runners.toml; `build` is keyed by backend, or `noarch`."""

    runner: dict[str, Runner]
    build: dict[str, BuildDefaults]


@cache
def default_runners() -> Runners:
    """The runners and images that kci ships."""
    import tomllib  # noqa: PLC0415

    data = tomllib.loads((Path(__file__).parent / "data" / "runners.toml").read_text(encoding="utf-8"))
    return msgspec.convert(data, Runners)

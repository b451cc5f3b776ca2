"""What a plan promises: the variants of each kernel. Read from the JSON that `kci plan --format json` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.settings import Ignore
from kci.errors import FindingsError, rule_error
from kci.files.bounded_json import decode_json, read_bounded
from kci.matrix.names import parse_variant_name
from kci.tree.metadata import NAME_PATTERN

PLANNED_SCHEMA = 1
_MAX_BYTES = 64 * 1024 * 1024


class PlannedKernel(msgspec.Struct, frozen=True):
    """The variants of one kernel that a run set out to build. `version` is null where the plan does not say."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    planned: tuple[str, ...]
    version: Annotated[int, Meta(ge=0)] | None = None
    fingerprints: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]] | None = None
    """What each planned variant is made from, if the plan says so."""
    tree: Annotated[str, Meta(max_length=4096)] = ""
    """Where its tree would lie in the repository, relative to kci.toml; `Planned.suppressions` name files so."""

    elsewhere: tuple[str, ...] = ()
    """Variants that nothing builds here. They are taken from whoever uploads them, and nobody has to."""

    def __post_init__(self) -> None:
        for variant in (*self.planned, *self.elsewhere):
            parse_variant_name(variant)


class Planned(msgspec.Struct, frozen=True):
    """The kernels of a plan by name. A run without legs has none."""

    kernels: dict[str, PlannedKernel]
    commit: str | None = None
    """The commit that was planned, if the plan says so: fingerprints hold for what was built from it."""
    suppressions: tuple[Ignore, ...] = ()
    """What the kci.toml of the repository suppresses of the findings about trees."""


class _Plan(msgspec.Struct):
    schema: int
    kernels: tuple[PlannedKernel, ...]
    commit: str | None = None
    suppressions: tuple[Ignore, ...] = ()


def read_plan(path: Path) -> Planned:
    """Read a plan file.

    Raises:
        FindingsError: it cannot be read, or is no plan that this kci knows.
    """
    try:
        return parse_plan(read_bounded(path, _MAX_BYTES), str(path))
    except OSError as error:
        raise _error(f"cannot read the plan {path}: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise _error(f"{path} is not a plan: {error}", str(path)) from error


def parse_plan(text: bytes | str, where: str = "the plan") -> Planned:
    """Read the JSON of a plan, called `where` in errors; keys that are not about planned variants are ignored."""
    try:
        schema = decode_json(text, dict[str, msgspec.Raw]).get("schema")
        if schema != msgspec.Raw(str(PLANNED_SCHEMA).encode()):
            raise ValueError(
                f"schema {bytes(schema).decode() if schema else 'missing'}; this kci reads schema {PLANNED_SCHEMA}"
            )
        plan = decode_json(text, _Plan)
    except ValueError as error:
        raise _error(f"{where} is not a plan: {error}", where) from error
    kernels: dict[str, PlannedKernel] = {}
    for kernel in plan.kernels:
        if kernel.name in kernels:
            raise _error(f"{where} names the kernel {kernel.name} twice", where)
        kernels[kernel.name] = kernel
    return Planned(kernels, plan.commit, plan.suppressions)


def _error(message: str, where: str) -> FindingsError:
    return rule_error("KCI611", message, hint="kci plan --format json makes one", path=where)

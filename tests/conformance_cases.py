"""The cases of `conformance/`: build.toml texts, and the variants that the reference builder
derives from them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

DATA = Path(__file__).parent / "conformance"


class Against(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a variant is built against."""

    torch: str | None = None
    compute: str | None = None


Expected = dict[str, dict[str, dict[str, Against]]]
"""Variants by system, backend and name."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A build.toml and its variants."""

    name: str
    build: str
    release: Expected = {}
    pr: Expected = {}

    @property
    def raw(self) -> bytes:
        """The build.toml as a file holds it."""
        return self.build.encode()


@cache
def cases() -> tuple[Case, ...]:
    """All of them, sorted by name."""
    found = [
        msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Case)
        for path in DATA.glob("*.toml")
    ]
    assert len(found) == 31, "a case of conformance/ is missing, or a new one is not counted here"
    return tuple(sorted(found, key=lambda case: case.name))

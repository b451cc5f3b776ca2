"""Makes legs and plans for the tests of the plan room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kci.config.document import parse_document
from kci.config.reader import read_as
from kci.config.settings import KCI_TOML, Settings
from kci.matrix.catalog.runners import Pool
from kci.matrix.variants import KernelMatrix, Kind, Matrix, Variant
from kci.plan.plan import Leg, Plan


def leg(name: str = "torch213-cxx11-cpu-x86_64-linux", kernel: str = "k", **keys: Any) -> Leg:
    """A leg; keys replace what does not matter to a test."""
    usual: dict[str, Any] = {
        "kernel": kernel, "path": kernel, "variant": name, "variants": (name,), "name": name, "kind": Kind.FULL,
        "backend": "cpu", "system": "x86_64-linux", "runner": ("ubuntu-24.04",), "image": "", "timeout": 60,
        "minutes": 5, "measured": False, "pool": Pool("github-hosted", 20, queued=True), "rate": 0.006,
        "currency": "USD", "artifact": f"kci-{kernel}-{name}",
    }  # fmt: skip
    return Leg(**(usual | keys))


def parse_settings(raw: bytes) -> Settings:
    """The settings of a kci.toml."""
    return read_as(parse_document(raw, KCI_TOML), Settings)


def plan(legs: Iterable[Leg], **keys: Any) -> Plan:
    """A plan of some legs."""
    return Plan(1, "release", (), tuple(legs), **keys)


def matrix(kernels: dict[str, list[Variant]]) -> Matrix:
    """A matrix of some variants."""
    return Matrix("release", "c", "2026-08-20", tuple(KernelMatrix(n, n, 1, tuple(v)) for n, v in kernels.items()))

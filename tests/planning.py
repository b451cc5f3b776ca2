"""Makes legs and plans for the tests of the plan room, and changes files of a kernel."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kci.config.document import parse_document
from kci.config.reader import read_as
from kci.config.settings import KCI_TOML, Settings
from kci.errors import FindingsError
from kci.matrix.catalog.runners import Pool
from kci.matrix.variants import KernelMatrix, Kind, Matrix, Variant
from kci.plan.github_limits import caller_matrices
from kci.plan.plan import KernelPlan, Leg, Plan, TestLeg
from kci.tree.manifest import Manifest, Origin, Present


def leg(name: str = "torch213-cxx11-cpu-x86_64-linux", kernel: str = "k", **keys: Any) -> Leg:
    """A leg; keys replace what does not matter to a test."""
    usual: dict[str, Any] = {
        "kernel": kernel, "path": kernel, "variant": name, "variants": (name,), "name": name,
        "kind": Kind.FULL,
        "backend": "cpu", "system": "x86_64-linux", "runner": ("ubuntu-24.04",), "image": "",
        "timeout": 60,
        "minutes": 5, "measured": False, "pool": Pool("github-hosted", 20, queued=True),
        "rate": 0.006,
        "currency": "USD", "artifact": f"kci-{kernel}-{name}",
    }  # fmt: skip
    return Leg(**(usual | keys))


def parse_settings(raw: bytes) -> Settings:
    """The settings of a kci.toml."""
    return read_as(parse_document(raw, KCI_TOML), Settings)


def plan(legs: Iterable[Leg], **keys: Any) -> Plan:
    """A plan of some legs."""
    return Plan(1, "release", (), tuple(legs), **keys)


def works(made: Plan, *how: Any, **keys: Any) -> dict[str, Any]:
    """What the caller job tells the workflow of each kernel."""
    (caller,) = json.loads(caller_matrices(made, 1, *how, **keys))
    return {entry["kernel"]: entry["work"] for entry in caller["include"]}


def whole_plan(legs: Iterable[Leg]) -> Plan:
    """A plan that has the kernels of its legs, too."""
    made, names = plan(legs), dict[str, list[str]]()
    for item in made.legs:
        names.setdefault(item.kernel, []).extend(item.variants)
    kernels = (
        KernelPlan(name, f"kernels/{name}", 1, tuple(variants)) for name, variants in names.items()
    )
    return msgspec.structs.replace(made, kernels=tuple(kernels))


def hardware_leg(kernel: str, variant: str, path: str = "", inputs: str = "") -> TestLeg:
    """A job that tests a variant for CUDA."""
    machine = ("cuda-x86_64-linux", "cuda", "x86_64-linux")
    return TestLeg(kernel, path or kernel, *machine, (variant,), ("gpu",), 60, inputs)


def manifest_of(
    kernel: str, planned: tuple[str, ...], digests: dict[str, str], version: int = 1
) -> Manifest:
    """The manifest of a tree that has these variants."""
    present = tuple(Present(name, digest, "cuda", Origin("")) for name, digest in digests.items())
    return Manifest(kernel, version, planned, present, (), complete=True)


def matrix(kernels: dict[str, list[Variant]]) -> Matrix:
    """A matrix of some variants."""
    found = tuple(KernelMatrix(name, name, 1, tuple(kept)) for name, kept in kernels.items())
    return Matrix("release", "c", "2026-08-20", found)


def refused(rule: str, call: Callable[..., object], *arguments: object) -> FindingsError:
    """The error of a call, whose findings are of one rule."""
    with pytest.raises(FindingsError) as caught:
        call(*arguments)
    assert {item.rule for item in caught.value.diagnostics} == {rule}
    return caught.value


Change = Callable[[Path], object]
"""What happens to the files below a directory."""


def write(path: str, text: str = "x") -> Change:
    """Write a file."""

    def change(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return change


def append(path: str, text: str = "\n// more\n") -> Change:
    """Add to a file."""
    return lambda root: (root / path).write_text((root / path).read_text() + text)


def replace(path: str, old: str, new: str) -> Change:
    """Replace a part of a file."""

    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text, (path, old)
        (root / path).write_text(text.replace(old, new, 1))

    return change


def git(where: Path, *arguments: str) -> str:
    """What git says to a command, as somebody who may commit."""
    who = ("user.name=a", "user.email=a@example.org")
    settings = (*who, "commit.gpgsign=false", "protocol.file.allow=always")
    command = ["git", *(part for setting in settings for part in ("-c", setting)), *arguments]
    done = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()

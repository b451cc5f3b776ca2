"""The option combinations whose rendered files are kept as golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kci.render.pins import Pin, shipped_pins
from kci.render.workflow import Inputs, Mode, PublishJobs, render

GOLDEN = Path(__file__).parents[1] / "golden"
VERSION = "1.2.3"


def leg(variant: str, runner: Any = ("ubuntu-24.04",), **more: Any) -> dict[str, Any]:
    """A leg as the plan's GitHub form has it."""
    backend = variant.split("-")[2] if "cxx11" in variant else variant.removeprefix("torch-")
    return {
        "kernel": "relu",
        "path": "kernels/relu",
        "variant": variant,
        "name": variant,
        "backend": backend,
        "system": "x86_64-linux",
        "runner": list(runner) if isinstance(runner, tuple) else runner,
        "image": "",
        "timeout": 60,
        "artifact": f"kci-relu.{variant}",
        "tier": "release",
        **more,
    }


CPU = leg("torch213-cxx11-cpu-x86_64-linux", image="docker.io/example/builder:cpu")
GPU = leg("torch213-cxx11-cu130-x86_64-linux", ("self-hosted", "gpu"), timeout=350, max_jobs=4)
NOARCH = leg("torch-cpu", timeout=15)
PR_CPU, PR_GPU = {**CPU, "tier": "pr"}, {**GPU, "tier": "pr"}


class Case(NamedTuple):
    """Inputs and pins under a name."""

    name: str
    inputs: Inputs
    pins: dict[str, Pin]

    def files(self) -> dict[str, str]:
        """What kci renders."""
        return render(self.inputs, self.pins, VERSION)


def _pinned() -> dict[str, Pin]:
    pins = dict(shipped_pins())
    pins["kci/build"] = Pin("0123456789abcdef0123456789abcdef01234567", "v1.4.0")
    return pins


CASES = [
    Case("runtime", Inputs(names=("relu",)), shipped_pins()),
    Case(
        "several",
        Inputs(
            names=("org/relu", "org/rms-norm"),
            kernels=("kernels/a b", "kernels/c"),
            branch="dev",
            callers=1,
            pr_tier="quick",
            schedule_tier="nightly",
            schedule="17 4 * * 1",
            timezone="Europe/Paris",
            tiers=("nightly", "quick"),
        ),
        _pinned(),
    ),
    Case("many", Inputs(names=("relu", "rms-norm"), callers=2), shipped_pins()),
    Case(
        "static",
        Inputs(
            names=("relu",),
            mode=Mode.STATIC,
            release_legs=(CPU, GPU, NOARCH),
            release_parallel=2,
            pr_legs=(PR_CPU, PR_GPU),
        ),
        shipped_pins(),
    ),
    Case("static-hosted", Inputs(names=("relu",), mode=Mode.STATIC, release_legs=(CPU,), pr_legs=(PR_CPU,)), _pinned()),
    Case(
        "published",
        Inputs(
            names=("relu", "rms-norm"),
            callers=1,
            tested=True,
            publish=PublishJobs(environment="the hub", tags=("v*", "release-*"), attest=True, sign=True),
        ),
        shipped_pins(),
    ),
    Case(
        "published-alone",
        Inputs(names=("relu",), tested=True, publish=PublishJobs("hub", ("v*",), attest=False, sign=False)),
        _pinned(),
    ),
]

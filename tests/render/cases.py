"""The option combinations whose rendered files are kept as golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kci.render.own_parts import NO_PARTS, OwnParts
from kci.render.pins import Pin, shipped_pins
from kci.render.without_actions import KciWheel
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
    own: OwnParts = NO_PARTS

    def files(self) -> dict[str, str]:
        """What kci renders."""
        return render(self.inputs, self.pins, VERSION, self.own)


def _pinned() -> dict[str, Pin]:
    pins = dict(shipped_pins())
    pins["kci/build"] = Pin("0123456789abcdef0123456789abcdef01234567", "v1.4.0")
    return pins


OWN = OwnParts(
    steps={
        "before-build": """\
# A license server that the sources need.
- name: Log in
  shell: bash
  env:
    SERVER: ${{ vars.SERVER }}
  run: |
    set -euo pipefail

    echo "$SERVER" > "$RUNNER_TEMP/server"
""",
        "after-build": '- name: Tell how large it is\n  shell: bash\n  run: du -sh "$RUNNER_TEMP/kci-build"\n',
        "before-merge": """\
- name: Check out once more
  uses: actions/checkout@0000000000000000000000000000000000000000 # v1.0.0
  with:
    persist-credentials: false
""",
        "after-merge": """\
- name: Count
  shell: bash
  env:
    TREE: ${{ steps.merge.outputs.tree }}
  run: find "$TREE" -type f | wc -l
""",
    },
    jobs="""\
lint:
  name: lint
  runs-on: ubuntu-24.04
  timeout-minutes: 5
  permissions:
    contents: read # check out
  steps:
    - name: Check out
      uses: actions/checkout@0000000000000000000000000000000000000000 # v1.0.0
      with:
        persist-credentials: false

    - name: Lint
      shell: bash
      run: make lint
""",
    job_ids=("lint",),
)
"""What a repository adds. Its pin of an action that kci uses as well is replaced by kci's."""

CASES = [
    Case(
        "forks",
        Inputs(
            names=("relu",),
            forks="dispatch",
            comment=True,
            commands=True,
            staging="acme-staging",
            moves=True,
            compiled=True,
            part_jobs=1,
            finish=True,
        ),
        _pinned(),
    ),
    Case("forks-many", Inputs(names=("relu", "rms-norm"), callers=2, forks="dispatch"), _pinned()),
    Case("forks-noarch", Inputs(names=("relu",), forks="dispatch"), _pinned()),
    Case("own", Inputs(names=("relu",)), _pinned(), OWN),
    Case("own-many", Inputs(names=("relu", "rms-norm"), callers=1), _pinned(), OWN),
    Case("runtime", Inputs(names=("relu",)), shipped_pins()),
    Case(
        "several",
        Inputs(
            names=("org/relu", "org/rms-norm"),
            kernels=("kernels/a b", "kernels/c"),
            branch="dev",
            callers=1,
            compiled=True,
            part_jobs=1,
            finish=True,
            pr_tier="quick",
            schedule_tier="nightly",
            schedule="17 4 * * 1",
            timezone="Europe/Paris",
            moves=True,
            tiers=("nightly", "quick"),
        ),
        _pinned(),
    ),
    Case("nix", Inputs(names=("relu",), compiled=True, nix=True, install_nix=True), shipped_pins()),
    Case(
        "elsewhere",
        Inputs(names=("relu",), installer="uv"),
        shipped_pins() | {"kci/build": Pin("", "ci/main", repository="acme/kci-fork")},
    ),
    Case(
        "without-actions",
        Inputs(
            names=("relu", "rms-norm"),
            callers=1,
            tested=True,
            compiled=True,
            part_jobs=1,
            finish=True,
            forks="dispatch",
            comment=True,
            commands=True,
            staging="acme-staging",
            moves=True,
            publish=PublishJobs("hub", ("v*",), attest=True, sign=True, again=True),
            signatures=True,
            installer="pip",
            wheel=KciWheel("vendor/kci-1.2.3-py3-none-any.whl", "0123456789abcdef" * 4),
        ),
        shipped_pins(),
    ),
    Case(
        "without-actions-alone",
        Inputs(
            names=("relu",), wheel=KciWheel("kci==1.2.3", "0123456789abcdef" * 4, "https://index.example.org/simple")
        ),
        shipped_pins(),
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
            commands=True,
            publish=PublishJobs(
                environment="the hub", tags=("v*", "release-*"), attest=True, sign=True, again=True, benchmarks=True
            ),
            signatures=True,
        ),
        shipped_pins(),
    ),
    Case(
        "published-alone",
        Inputs(
            names=("relu",),
            commands=True,
            tested=True,
            compiled=True,
            part_jobs=2,
            finish=True,
            publish=PublishJobs("hub", ("v*",), attest=False, sign=False),
        ),
        _pinned(),
    ),
]

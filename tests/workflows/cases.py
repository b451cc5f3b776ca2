"""The option combinations whose rendered files are kept as golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kci.config.settings import Publish
from kci.config.values import PublishOn
from kci.workflows.extensions import NO_EXTENSIONS, WorkflowExtensions
from kci.workflows.render import Inputs, render, render_reusable
from kci.workflows.rendered_files import Pin, shipped_pins

GOLDEN = Path(__file__).parents[1] / "golden"
VERSION = "1.2.3"


class Case(NamedTuple):
    """Inputs and pins under a name."""

    name: str
    inputs: Inputs
    pins: dict[str, Pin]
    own: WorkflowExtensions = NO_EXTENSIONS

    def files(self) -> dict[str, str]:
        """What kci renders."""
        return render(self.inputs, self.pins, VERSION, self.own)


class Reusable(Case):
    """The workflow of kci's repository that short files call."""

    def files(self) -> dict[str, str]:
        return render_reusable(self.pins)


def _pinned() -> dict[str, Pin]:
    pins = dict(shipped_pins())
    pins["kci/build"] = Pin("0123456789abcdef0123456789abcdef01234567", "v1.4.0")
    return pins


OWN = WorkflowExtensions(
    {
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
        "after-build": "- name: Tell how large it is\n  shell: bash\n"
        '  run: du -sh "$RUNNER_TEMP/kci-build"\n',
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
        "jobs": """\
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
    }
)
"""What a repository adds. Its pin of an action that kci uses as well is replaced by kci's."""

BOTH, FORK = ("relu", "rms-norm"), Pin("", "ci/main", repository="acme/kci-fork")
SEVERAL = Inputs(
    names=("org/relu", "org/rms-norm"), kernels=("kernels/a b", "kernels/c"), branch="dev",
    compiled=True, part_jobs=1, pr_tier="quick", schedule_tier="nightly", schedule="17 4 * * 1",
    tiers=("nightly", "quick"),
)  # fmt: skip
HUB = Publish(
    environment="the hub", tags=("v*", "release-*"), attest=True, sign=True, pull_request=("relu",)
)
PUSHED = Publish(on=PublishOn.PUSH)
ALONE = Publish(attest=False, pull_request=True, on=PublishOn.PUSH)


def relu(**inputs: Any) -> Inputs:
    """Inputs of a repository with one kernel."""
    return Inputs(names=("relu",), **inputs)


ON_OWN = relu(forks="dispatch", comment=True, compiled=True, nix=True, part_jobs=2)
SHORT = Inputs(names=BOTH, kernels=("kernels/a b", "kernels/c"), short=True)
CASES = [
    Case("several", SEVERAL, _pinned(), OWN),
    Case("published", Inputs(names=BOTH, publish=HUB), shipped_pins()),
    Case("own-machines", ON_OWN, shipped_pins() | {"kci/build": FORK}),
    Case("short", SHORT, shipped_pins()),
]
"""Those that have golden files."""

MANY = Inputs(names=BOTH, callers=2, forks="dispatch", comment=True)
BY_COMMIT = {"lfs": True, "schedule": "17 4 * * 1", "forks": "dispatch", "comment": True}
OTHERS = [
    Case("one", relu(submodules=True, token="READ_TOKEN", lfs=True), shipped_pins()),
    Case("many", MANY, _pinned(), OWN),
    Case(
        "published-alone",
        relu(comment=True, compiled=True, part_jobs=1, publish=ALONE),
        _pinned(),
    ),
    Case("short-by-commit", relu(short=True, **BY_COMMIT), _pinned()),
    Case("short-and-plain", relu(short=True), _pinned()),
    Case(
        "short-and-published",
        relu(kernels=("kernels/a b",), short=True, publish=Publish()),
        _pinned(),
    ),
    Case("short-and-pushed", relu(short=True, publish=PUSHED), _pinned()),
]
"""Those that hold what is left of the templates to the same tests."""

REUSABLE = Reusable(
    "reusable", Inputs(()), {**shipped_pins(), "kci/build": Pin("", "", repository="$")}
)
"""It has its golden files among the project's own workflows."""

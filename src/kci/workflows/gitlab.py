"""GitLab: the file that plans, and the child pipeline of a plan. Both are pure functions."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from kci.config.facts import needs_device
from kci.config.settings import Publish
from kci.matrix.catalog.runners import is_hosted
from kci.matrix.variants import Kind, objects_name
from kci.plan.plan import KernelPlan, Leg, Plan, RunnerGroup, TestLeg
from kci.utils.shipped import Dated, fill_template, shipped
from kci.utils.suggest import command_line
from kci.version import __version__
from kci.workflows.render import Inputs, one_file, refuse_unsafe

GITLAB_FILE = ".gitlab/kci.gitlab-ci.yml"

_SETUP = r"""
install=${KCI_INSTALL-kci${KCI_EXTRA:-}==VERSION}
if [ -n "$install" ]; then
  for python in python3.14 python3.13 python3.12 python3.11 python3 \
      /opt/python/cp31[4321]-cp31[4321]/bin/python; do
    "$python" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && break
  done
  venv=$(mktemp -d) && "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$install"
  export PATH="$venv/bin:$PATH"
fi
""".strip()
"""The start of a job's script; an empty KCI_INSTALL is for images that have kci."""


_UNFINISHED = 75
"""EX_TEMPFAIL: the exit code of an unfinished build, after which GitLab retries the job."""


class Purpose(enum.StrEnum):
    """The result of a pipeline besides its status."""

    KEEP = "keep"
    """Trees for the next pipeline: on pushes to the default branch."""
    PUBLISH = "publish"
    """A release, of kept trees too: on pushed tags."""


class GitlabData(Dated):
    """`data/gitlab.toml`."""

    image: str
    max_needs: int
    tags: dict[str, tuple[str, ...]]


gitlab_data = shipped("workflows/data/gitlab.toml", GitlabData)


def render_gitlab(inputs: Inputs) -> dict[str, str]:
    """The file that plans, by its path in the repository; UnsafeError as `refuse_unsafe`."""
    more = {"file": GITLAB_FILE, "kernels": shlex.join(inputs.kernels)}
    values = _common() | asdict(inputs) | more
    return one_file(GITLAB_FILE, "gitlab/parent.yml.j2", inputs, values, "gitlab")


def child_pipeline(
    plan: Plan, publish: Publish | None = None, purpose: Purpose | None = None
) -> str:
    """The child pipeline of a plan: a job per leg, jobs per kernel that merge, test and publish,
    and the gate.
    """
    refuse_unsafe([plan.tier, plan.commit, plan.legs, plan.kernels, plan.tests, plan.faulty])
    busy = {leg.kernel for leg in plan.legs} | {test.kernel for test in plan.tests}
    if purpose is Purpose.PUBLISH:
        busy |= {item.kernel for item in plan.skipped}
    kernels = [_kernel(plan, kernel, purpose) for kernel in plan.kernels if kernel.name in busy]
    legs = [_leg(leg, plan.tier) for leg in plan.legs]
    records = [f"{kernel['name']}: record" for kernel in kernels]
    values = _common() | {
        "tier": plan.tier,
        "legs": legs,
        "parts": any(leg["part"] for leg in legs),
        "kernels": kernels,
        "publish": publish if purpose is Purpose.PUBLISH else None,
        "faulty": plan.faulty,
        "purpose": purpose,
        "records": records + [test["job"] for kernel in kernels for test in kernel["tests"]],
        "check": lambda path: command_line("check", place=path),
        "shell": shlex.quote,
        "plan": _write_json_command(plan.as_json(), "kci-records/kci-plan.json"),
    }
    return fill_template("gitlab/child.yml.j2", values)


def _write_json_command(value: Any, file: str) -> str:
    # GitLab expands variables in `variables:`, and nothing in a script
    return f"printf '%s' {shlex.quote(msgspec.json.encode(value).decode())} > {file}"


def _common() -> dict[str, Any]:
    return {
        "version": __version__,
        "image": gitlab_data().image,
        "unfinished": _UNFINISHED,
        "setup": _SETUP.replace("VERSION", __version__).splitlines(),
    }


def _leg(leg: Leg, tier: str) -> dict[str, Any]:
    words = ["kci", "build", *(f"--variant={name}" for name in leg.variants or [leg.variant])]
    words += ["--tier", tier, "--container", "none"]
    words += ["--builder", leg.builder] if leg.builder else []
    if leg.part:
        words += ["--part", f"{leg.part}/{leg.parts}"]
    else:
        words += ["--pack", "kci-artifacts", "--output", "kci-build", "--failures", "kci-artifacts"]
    words += ["--jobs", str(leg.max_jobs)] if leg.max_jobs is not None else []
    name = pack = ""
    if leg.kind is not Kind.NOARCH and not leg.builder and len(leg.variants) <= 1:
        name = objects_name(leg.kernel, leg.name)
        pack = f"kci-objects/{name}.tar"
        words += ["--objects-from", "kci-objects", "--objects-to", pack]
        words += ["--stop-after", str(leg.stop_after), *(["--link"] if leg.takes else [])]
    threads = f"NVCC_THREADS={leg.cores} " if leg.cores is not None else ""
    return {
        "job": f"{leg.kernel}: {leg.name}",
        "image": leg.image or gitlab_data().image,
        "tags": _tags(leg.runner, leg.system),
        "timeout": leg.timeout,
        "part": leg.part,
        # Beyond GitLab's limit, the job waits for the whole stage of the parts.
        "takes": [f"{leg.kernel}: {name}" for name in leg.takes]
        if len(leg.takes) <= gitlab_data().max_needs
        else [],
        "links": bool(leg.takes),
        "objects": name,
        "pack": pack,
        "script": threads + shlex.join([*words, "--", leg.path]),
    }


def _kernel(plan: Plan, kernel: KernelPlan, purpose: Purpose | None) -> dict[str, Any]:
    name = kernel.name
    own = replace(
        plan,
        kernels=(kernel,),
        legs=tuple(leg for leg in plan.legs if leg.kernel == name),
        tests=tuple(test for test in plan.tests if test.kernel == name),
        skipped=tuple(item for item in plan.skipped if item.kernel == name),
        left_out=(),
        faulty=(),
    )
    jobs = [f"{name}: {leg.name}" for leg in own.legs if leg.variants]
    return {
        "name": name,
        "path": kernel.path,
        "needs": jobs if len(jobs) <= gitlab_data().max_needs else None,
        "planned": _write_json_command(own.tree_plan(), "kci-planned.json"),
        "carries": bool(own.skipped),
        "tests": [_test(test) for test in own.tests],
        "plan": _write_json_command(own.as_json(), "kci-records/kci-plan.json")
        if purpose is Purpose.PUBLISH
        else "",
    }


def _test(test: TestLeg) -> dict[str, Any]:
    record = f"kci-records/{test.kernel}/{test.name}/kci-test.json"
    words = ["kci", "test", "kci-tree", "--kernel", test.path]
    words += [f"--variant={name}" for name in test.variants]
    words += ["--leg", test.name, "--record", record]
    python = ' --python "${KCI_TEST_PYTHON:-python3}"' if needs_device(test.backend) else ""
    return {
        "job": f"{test.kernel}: test {test.name}",
        "image": "" if python else gitlab_data().image,
        "tags": _tags(test.runner, test.system),
        "timeout": test.timeout,
        "record": record,
        "script": shlex.join(words) + python,
    }


def _tags(runner: Sequence[str] | RunnerGroup, system: str) -> list[str]:
    if isinstance(runner, RunnerGroup):
        return [*runner.labels] or [runner.group]
    return [*gitlab_data().tags.get(system, ())] if is_hosted(runner) else [*runner]

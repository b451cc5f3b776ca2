"""Runs a workflow with act on this machine: real jobs, real expressions, real actions of ours.

GitHub's own actions are replaced by the stand-ins beside this file. They move files in a folder,
and are as strict as the real ones where it matters. act runs jobs side by side, skips what GitHub
skips, and tells all of it as JSON.
"""

from __future__ import annotations

import collections
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checkout import copy_checkout
from conftest import ran
from forked_program import forked_program
from kci.utils.atomic import locked
from kci.workflows.render import REUSABLE_FILES
from kci.workflows.rendered_files import find_pins
from planning import git

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parent / "stand-ins"
_CALLED = re.compile(r"(.+?)(?:-\d+)?/kci kernel/.*", re.DOTALL)
"""What act calls a job of the called workflow: the caller's name, a number where there are several,
and its own."""
PLATFORMS = ("ubuntu-24.04", "ubuntu-24.04-arm", "self-hosted")
FIRST_RUN = 41
TOKEN = "ghs_standin0000000000000000000000000000"


def act_path() -> str | None:
    """The act program, if there is one."""
    beside = Path(sys.executable).parent / "act"
    return str(beside) if beside.exists() else shutil.which("act")


NEEDS_ACT = [
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for Linux"),
]


class Run(NamedTuple):
    """What a run did."""

    jobs: dict[str, str]
    """The result of every job that ran: `plan`, `build swiglu torch-cpu`, ... Skipped jobs are not
    in it."""
    artifacts: Path
    """One folder for each uploaded artifact."""
    log: str
    """Everything that the steps printed, job after job; what failed is the end, for that is what a
    long log keeps."""
    ok: bool
    checks: Mapping[str, str]
    """The results of the jobs of the file itself by the names that GitHub lists, for branch
    protection among others."""
    event: str
    """What started it; what the branch goes on from are its pushes."""


def copy_actions(into: Path) -> Path:
    """What a job reads of an action's checkout where kci is installed already (`installed`).

    act copies a checkout for every step that uses an action: a whole one takes it longer than all
    else.
    """
    checkout = copy_checkout(into, "actions/", "action.yml", ":(glob)*/action.yml", *REUSABLE_FILES)
    # act does not know `$/`: here the tag that the caller names stands in for the same commit.
    for file in REUSABLE_FILES:
        text = (checkout / file).read_text(encoding="utf-8")
        named = re.sub(r"uses: \$/(\S+)", r"uses: kci/build/\1@v1", text).replace("/.@", "@")
        (checkout / file).write_text(named, encoding="utf-8")
    return checkout


def installed(shared: Path, *actions: str) -> dict[str, str]:
    """Environment variables with which jobs find kci installed, with what these actions need
    besides, once for all workers of a test run, which have the folder in common.
    """
    root, checkout = shared / "kci-of-the-actions", shared / "kci-checkout"
    command = [sys.executable, "-I", str(checkout / "actions" / "install.py"), str(root)]
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    with locked(root):
        for action in ("", *actions):
            if not (root / "-".join(filter(None, ("complete", action)))).exists():
                if not action:
                    copy_checkout(checkout)
                more = [action] if action else []
                subprocess.run(
                    [*command, *more], check=True, capture_output=True,
                    env=os.environ | {"PATH": path},
                )  # fmt: skip
    # An environment of which nothing but its Python is asked for, and that is forked.
    forked = shared / f"kci-forked-{os.getpid()}"
    if not forked.exists():
        (forked / "bin").mkdir(parents=True)
        (forked / "bin" / "python").symlink_to(forked_program(str(root / "bin" / "python")))
    for mark in root.glob("complete*"):
        (forked / mark.name).touch()
    find = STAND_INS.parent / "find-installed.sh"
    return {"KCI_ACT_INSTALLED": str(forked), "KCI_ACT_FIND_INSTALLED": str(find)}


def commit_all(repository: Path) -> str:
    """Make the directory a git repository with one more commit that holds everything in it; that
    commit.
    """
    if not (repository / ".git").exists():
        git(repository, "init", "--quiet", "--initial-branch=main")
        git(repository, "remote", "add", "origin", "https://github.com/example/kernels")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--allow-empty", "--message=test")
    return git(repository, "rev-parse", "HEAD")


def pull_request(
    repository: Path, base: str, by: str = "example/kernels", known_base: str = ""
) -> dict[str, Any]:
    """Make HEAD of a repository, the newest commit of a pull request of `by`, what GitHub checks
    out: the merge commit with `base`. `known_base` is what GitHub says that the base is, which it
    looks up at pushes to the pull request only.
    """
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--quiet", "--detach", base)
    git(repository, "merge", "--quiet", "--no-ff", "--message=test", head)
    of = {"sha": known_base or base, "ref": "main"}
    return {"pull_request": {"head": {"repo": {"full_name": by}, "sha": head}, "base": of}}


def run_workflow(
    repository: Path, workflow: str, event: str, scratch: Path, *, checkout: Path,
    payload: dict[str, Any] | None = None, env: dict[str, str] | None = None,
    earlier: Sequence[Run] = (), variables: dict[str, str] | None = None,
    own: str = "kci/build@v1", secrets: dict[str, str] | None = None,
) -> Run:  # fmt: skip
    """Run a workflow file of a committed repository, whose HEAD is what the run builds.

    Running twice with the same `scratch` keeps the artifacts, as a second attempt does. kci's own
    actions, `own` in the workflow, come from `checkout` (see `copy_actions`). `payload` is the
    event as GitHub sends it; `earlier` are the runs on the branch before this one, oldest first,
    whose artifacts can be fetched; `variables` and `secrets` are the repository's.
    """
    act = act_path()
    assert act, "act is not installed"
    payload = payload or {}
    store, runs = scratch / "artifacts", scratch / "runs"
    store.mkdir(exist_ok=True)
    event_file = scratch / "event.json"
    event_file.write_text(json.dumps({"repository": {"default_branch": "main"}, **payload}))
    places = (repository / workflow).parent, checkout / ".github" / "workflows"
    files = [file for place in places for file in sorted(place.glob("*.yml"))]
    files += sorted(checkout.glob("**/action.yml"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    # act refuses the queue of a concurrency group, and heeds no group at all.
    read = scratch / Path(workflow).name
    given = (repository / workflow).read_text()
    read.write_text(re.sub(r"^ +queue: max\n", "", given, flags=re.MULTILINE))
    command = [act, event, "--workflows", str(read), "--eventpath", str(event_file), "--json"]
    command += ["--no-skip-checkout", "--no-cache-server", "--concurrent-jobs", "2"]
    options = [("--platform", f"{label}=-self-hosted") for label in PLATFORMS]
    options += [("--local-repository", f"{own}={checkout}")] if own else []
    pinned = {(action, pin.sha) for action, pin in find_pins(text)}
    tagged = set(re.findall(r"uses: (actions/[a-z-]+)@(v[0-9]+)$", text, flags=re.MULTILINE))
    for action, version in sorted(pinned | tagged):
        place = STAND_INS / action.rpartition("/")[2]
        options.append(("--local-repository", f"{action}@{version}={place}"))
    shutil.rmtree(runs, ignore_errors=True)  # of an earlier attempt
    runs.mkdir()
    pushed = ""
    for number, run in enumerate(earlier, start=FIRST_RUN):
        (runs / str(number)).symlink_to(run.artifacts)
        pushed = str(number) if run.event == "push" else pushed
    used = set(re.findall(r"uses: (kci/build(?:/[a-z-]+)*)@v1\b", text))
    ref = payload.get("ref", "refs/heads/main")
    ref = "refs/pull/1/merge" if event == "pull_request" else ref
    told = {
        "KCI_ACT_REPOSITORY": str(repository),
        "KCI_ACT_STORE": str(store),
        "KCI_ACT_PYTHON": sys.executable,
        "KCI_ACT_RUNS": str(runs),
        "KCI_ACT_EARLIER_RUN": pushed,
        "KCI_ACT_WORKFLOW": str(repository / workflow),
        "KCI_ACT_ACTIONS": " ".join(sorted(name.replace("/", "-") for name in used)),
        "GITHUB_WORKFLOW_REF": f"example/kernels/{workflow}@{ref}",
        # act asks git anew for all of it at each step, which takes it longer than all else
        "GITHUB_REPOSITORY": "example/kernels",
        "GITHUB_REPOSITORY_OWNER": "example",
        "GITHUB_REF": ref,
        "SHA_REF": git(repository, "rev-parse", "HEAD"),
        **(env or {}),
    }
    for option, values in {
        "--env": told,
        "--var": {"KCI_CONTAINER": "none", **(variables or {})},
        "--secret": {"GITHUB_TOKEN": TOKEN, **(secrets or {})},
    }.items():
        options += [(option, f"{key}={value}") for key, value in values.items()]
    command += [word for option in options for word in option]
    path = os.pathsep.join([str(STAND_INS / "bin"), str(STAND_INS / "here"), os.environ["PATH"]])
    surroundings = os.environ | {"PATH": path, "XDG_CACHE_HOME": str(scratch / "cache")}
    # act needs 50 MB, and spends a third of its time on less. Jobs that run side by side note in
    # one unguarded map where local actions are; on one thread none is interrupted there. On
    # several, Go ends act: "concurrent map writes".
    surroundings |= {"DOCKER_HOST": "", "GOGC": "off", "GOMEMLIMIT": "500MiB", "GOMAXPROCS": "1"}
    done = ran(*command, cwd=repository, env=surroundings)
    (scratch / "act.log").write_text(done.stdout + done.stderr)
    jobs, checks, log = _parse(done.stdout)
    return Run(jobs, store, log, done.returncode == 0, checks, event)


def _parse(output: str) -> tuple[dict[str, str], dict[str, str], str]:
    """Jobs, checks and log. act gives all legs of a matrix the result of the worst one; here each
    leg has the result of its own steps.
    """
    jobs: dict[str, str] = {}
    checks: dict[str, str] = {}
    failed: set[str] = set()
    printed = collections.defaultdict[str, list[str]](list)
    for line in output.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        message = str(entry.get("msg", "")).rstrip()
        if "jobID" not in entry:
            printed[""].append(message)
            continue
        matrix = entry.get("matrix") or {}
        which = (str(matrix[key]) for key in ("kernel", "name") if key in matrix)
        name = " ".join([entry["jobID"], *which])
        if not matrix and (called := _CALLED.fullmatch(entry["job"])):
            name = f"{entry['jobID']} {called[1]}"
        printed[name].append(message)
        if entry.get("stepResult") == "failure":
            failed.add(name)
        if "jobResult" in entry:
            own = "failure" if name in failed else "success"
            # A job beside a called one that failed is told the same; its own steps know better.
            jobs[name] = own if matrix or _CALLED.fullmatch(entry["job"]) else entry["jobResult"]
            checks[entry["job"].partition("/")[2].rstrip()] = jobs[name]
    # The first job that failed is why others do.
    names = [name for name in printed if name not in failed]
    names += [name for name in reversed(printed) if name in failed]
    log = "\n".join(line for name in names for line in [f"== {name}", *printed[name]])
    return jobs, checks, log

"""Minutes that merges of a repository's history would take: with and without the objects of what is published.

    python benchmarks/replay.py REPOSITORY [--merges 40] [--tier pr]

REPOSITORY is a clone that nobody else uses: commits are checked out in it. The newest commits that touch an input of
a variant are planned one after the other, each with `--affected` against its parent and with all of the parent
published. Objects are there if a commit touched the kernel in as many days before as a column says, and in the last
one always. The sums are the plan's minutes, and those of the merges that changed Python alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import kci
from kci.catalog.runners import default_runners
from kci.config.discover import find_kernels
from kci.errors import KciError
from kci.inputs.source_tree import SourceTree
from kci.plan.fingerprint import Fingerprints, Key
from kci.plan.hardware_tests import CarriedTree
from kci.plan.legs import compiled_by
from kci.plan.plan import KeptObjects
from kci.workspace.planning import PlannedRun, PlanRequest
from kci.workspace.workspace import Choice

DAYS = (14, 60, 10_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--merges", type=int, default=40)
    parser.add_argument("--tier", default="pr")
    asked = parser.parse_args()
    root = asked.repository.resolve()
    branch = git(root, "rev-parse", "HEAD")
    total, of_python, planned = [0] * (len(DAYS) + 1), [0] * (len(DAYS) + 1), 0
    try:
        for commit in git(root, "log", "--first-parent", "--format=%H", "HEAD").split():
            found = replayed(root, commit, asked.tier)
            if found is None:
                continue
            minutes, python = found
            planned += 1
            print(commit[:12], *(f"{each:6}" for each in minutes), "Python alone" if python else "", flush=True)
            total = [sum(pair) for pair in zip(total, minutes, strict=True)]
            of_python = [sum(pair) for pair in zip(of_python, minutes, strict=True)] if python else of_python
            if planned == asked.merges:
                break
    finally:
        git(root, "checkout", "-q", branch)
    print(f"{planned} merges, tier {asked.tier}; without objects, then with those of {DAYS} days:")
    print(f"minutes {total}, of these where Python alone changed {of_python}")
    return 0


def replayed(root: Path, commit: str, tier: str) -> tuple[list[int], bool] | None:
    """Minutes without and with objects, and whether Python alone changed; None where nothing is built."""
    parent = git(root, "rev-parse", f"{commit}^")
    changed = git(root, "diff", "--name-only", "--no-renames", parent, commit).split("\n")
    names = sorted({path.partition("/")[0] for path in changed if "/" in path})
    git(root, "checkout", "-q", parent)
    known = published(root, names, tier)
    git(root, "checkout", "-q", commit)
    directories = [str(root / name) for name in names if (root / name / "build.toml").is_file()]
    if not directories:
        return None
    when = int(git(root, "show", "-s", "--format=%ct", commit))
    since = {name: int(git(root, "log", "-1", "--format=%ct", parent, "--", name) or 0) for name in names}
    kept = [
        {key: KeptObjects("1", "objects.x") for key in known if when - since[key[0]] < days * 86400} for days in DAYS
    ]
    plans = [plan(directories, parent, known, tier, objects) for objects in ({}, *kept)]
    if not all(planned is not None and planned.plan.legs for planned in plans):
        return None
    package = all("/torch-ext/" in path and path.endswith(".py") for path in changed if not outside(path))
    return [planned.estimate.minutes for planned in plans if planned is not None], package


def outside(path: str) -> bool:
    """Whether a file is surely no input of a variant."""
    return "/tests/" in path or "/" not in path or path.endswith((".md", ".lock", ".nix", ".yml", ".yaml"))


def plan(
    directories: list[str],
    base: str,
    known: Mapping[Key, str],
    tier: str,
    objects: Mapping[Key, KeptObjects],
) -> PlannedRun | None:
    trees = {name: CarriedTree("1", {}) for name, _ in known}
    request = PlanRequest(
        choice=Choice(tier=tier), affected=base, published=known, trees=trees, objects=objects, fingerprints=True,
        split=True, allow_empty=True,
    )  # fmt: skip
    try:
        return kci.plan_run(kci.open_workspace(directories, set_aside=True), request)
    except KciError as error:
        print(f"left out: {error.message}", file=sys.stderr)
        return None


def published(root: Path, names: list[str], tier: str) -> dict[Key, str]:
    """The fingerprints of all variants of some kernels as they are now."""
    found = {}
    tree = SourceTree(root)
    for name in names:
        try:
            for directory in find_kernels([str(root / name)]):
                workspace = kci.open_workspace([str(directory)])
                (kernel,) = workspace.kernels
                prints = Fingerprints(kernel, tree)
                for variant in workspace.matrix(Choice(tier=tier)).kernels[0].each_once():
                    made = prints.fingerprint(variant, compiled_by(variant, default_runners()))
                    found[kernel.build.name, variant.name] = made
        except KciError as error:
            print(f"left out: {name}: {error.message}", file=sys.stderr)
    return found


def git(root: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_ADVICE": "0"}
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

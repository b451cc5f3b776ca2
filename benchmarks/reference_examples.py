"""The example kernels of the reference, from `kci check` to `kci verify`, and the community's, as
one repository.

    python benchmarks/reference_examples.py              fetches both at the commits of
    tests/reference_examples.toml
    python benchmarks/reference_examples.py NAME ...     only these examples, of the reference
    python benchmarks/reference_examples.py --smallest   reads the table

A line an example says what is not as in the table; the exit code is 1 if anything is. Builds
download toolkits and torch. Their sources are not in this repository; what a build.toml alone
decides is in tests/test_reference_examples.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kci import Choice, PlanRequest, open_workspace, plan_run

TABLE = tomllib.loads(
    (Path(__file__).parents[1] / "tests" / "reference_examples.toml").read_text(encoding="utf-8")
)
COMMUNITY = TABLE["community"]
SETTINGS = f'catalog = "{TABLE["edition"]}"\n'
Differs = Iterator[tuple[str, Any, Any]]
"""What was looked at, what it is, and what the table says."""


def fetched(source: str, place: Path) -> Path:
    """The folder that a text such as `FOLDER of OWNER/NAME at COMMIT` names."""
    folder, name, commit = re.fullmatch(r"(?:(\S+) of )?(\S+) at ([0-9a-f]{40})", source).groups("")  # type: ignore[union-attr]
    subprocess.run(["git", "init", "--quiet", place], check=True)
    git = ["git", "-C", str(place)]
    subprocess.run(
        [*git, "fetch", "--quiet", "--depth=1", f"https://github.com/{name}", commit], check=True
    )
    subprocess.run([*git, "checkout", "--quiet", commit], check=True)
    return place / folder


def kci(*words: object) -> tuple[int, Any]:
    """The exit code and the JSON of a command."""
    command, env = (
        [sys.executable, "-m", "kci", *map(str, words)],
        {**os.environ, "GITHUB_ACTIONS": ""},
    )
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    return done.returncode, json.loads(done.stdout) if "json" in words and done.stdout else {}


def said(*words: object) -> dict[str, Any]:
    """The exit code of a command, and the rules of what it found; one that spoke twice is there
    twice.
    """
    code, answer = kci(*words, "--format", "json")
    return {"exit": code, "rules": sorted(item["rule"] for item in answer["diagnostics"])}


def planned(kernel: Path) -> dict[str, Any]:
    """How many variants have a job, and how many have none, by rule."""
    code, plan = kci("plan", kernel, "--catalog", TABLE["edition"], "--format", "json")
    left = Counter(item["rule"] for item in plan.get("left_out", ()))
    return {"exit": code, "legs": len(plan.get("legs", ())), "left-out": dict(sorted(left.items()))}


def one_example(name: str, kernel: Path, place: Path) -> Differs:
    """Check and plan it; build its variants, merge and verify.

    One for a single GPU is refused by merge.
    """
    example = TABLE["example"][name]
    yield "check", said("check", kernel), example["check"]
    yield "plan", planned(kernel), example.get("with-sources", example["plan"])
    for variant in (*example.get("builds", ()), *example.get("for-one-gpu", ())):
        whole = variant in example.get("builds", ())
        how = ("build", kernel, "--variant", variant, *(() if whole else ("--arch", TABLE["gpu"])))
        yield f"{variant}, a dry run", kci(*how, "--dry-run")[0], 0
        out, packed, tree = (place / f"{part} {variant}" for part in ("out", "packed", "tree"))
        yield (
            variant,
            kci(*how, "--output", out, "--pack", packed / f"kci-{name}-{variant}.tar")[0],
            0,
        )
        yield f"{variant}, merged", kci("merge", packed, "--into", tree)[0], 0 if whole else 1
        expected = example.get("verify", {"exit": 0, "rules": []})
        yield f"{variant}, verified", said("verify", tree if whole else out / variant), expected


def one_repository(repository: Path) -> Differs:
    """The community's: faulty kernels are set aside, the files are rendered, and the others go
    their way.
    """
    os.chdir(repository)
    shutil.rmtree(repository / ".github", ignore_errors=True)
    shutil.rmtree(repository / ".git")
    git = ["git", "-c", "user.name=kci", "-c", "user.email=kci@example.invalid"]

    def commit() -> None:
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message=kernels"], check=True)

    drop = 'drop = ["backend == cpu and system ~ aarch64-*"]'
    overlays = (f'[[overlay]]\nkernel = "{name}"\n{drop}\n' for name in COMMUNITY["x86"])
    (repository / "kci.toml").write_text(SETTINGS + "".join(overlays))
    subprocess.run([*git, "init", "--quiet"], check=True)
    commit()
    found = kci("check", "--format", "json")[1]["diagnostics"]
    errors = {item["path"].partition("/")[0] for item in found if item["severity"] == "error"}
    yield "kernels with errors", sorted(errors), COMMUNITY["faulty"]
    plan = plan_run(open_workspace(["."], set_aside=True), PlanRequest(sources=True)).plan
    yield "set aside", sorted(Path(item.path).name for item in plan.faulty), COMMUNITY["faulty"]
    yield (
        "kernels and legs",
        (len(plan.kernels), len(plan.legs)),
        (COMMUNITY["kernels"], COMMUNITY["legs"]),
    )
    yield "render", kci("render")[0], 0
    commit()
    for kernel, faulty in (
        (COMMUNITY["sound"], []),
        (COMMUNITY["faulty"][0], [COMMUNITY["faulty"][0]]),
    ):
        package = next((repository / kernel).glob("torch-ext/*/__init__.py"))
        package.write_text(package.read_text() + "\n")
        asked = PlanRequest(
            sources=True, choice=Choice(tier="pr"), affected="HEAD", allow_empty=True
        )
        plan = plan_run(open_workspace(["."], set_aside=True), asked).plan
        yield f"{kernel} changed, set aside", [Path(item.path).name for item in plan.faulty], faulty
        yield (
            f"{kernel} changed, built",
            {leg.kernel for leg in plan.legs},
            set() if faulty else {kernel},
        )
        commit()


def main(names: list[str]) -> int:
    """Compare, and print; 1 if anything differs."""
    if names == ["--smallest"]:
        print(f"{len(TABLE['example'])} examples of {TABLE['source']}")
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kci-reference-") as folder:
        place = Path(folder).resolve()
        (place / "kci.toml").write_text(SETTINGS)
        examples = fetched(TABLE["source"], place / "reference")
        parts = [
            (name, one_example(name, examples / name, place / "of" / name))
            for name in names or TABLE["example"]
        ]
        if not names:
            parts.append(
                (
                    COMMUNITY["source"],
                    one_repository(fetched(COMMUNITY["source"], place / "community")),
                )
            )
        for name, looked_at in parts:
            differs = [
                f"{what}: {found}, not {expected}"
                for what, found, expected in looked_at
                if found != expected
            ]
            print(f"{name}: {'; '.join(differs) or 'as the table says'}", flush=True)
            wrong += bool(differs)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""kci/build/plan: which variants to build, as a matrix and as the plan that merging is held against."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from common import (
    OUTPUT_LIMIT,
    add_summary,
    answer,
    fail,
    flag,
    group,
    lines_input,
    output_units,
    set_output,
    table_row,
    text_input,
    unpacked,
    words_input,
)
from kci.render.workflow import is_hosted


def main() -> None:
    """Run kci twice, for the matrix and for the plan, and set the outputs."""
    arguments = [f"--tier={text_input('tier', 'release')}"]
    arguments += [f"--backend={backend}" for backend in words_input("backends")]
    arguments += [f"--only={glob}" for glob in words_input("only")]
    if base := text_input("affected-base"):
        arguments.append(f"--affected={base}")
    arguments += [f"--published={unpacked(Path(place))}" for place in lines_input("published")]
    arguments += ["--", *(lines_input("kernels") or ["."])]
    with group("Plan"):
        legs: list[dict[str, Any]] = json.loads(answer("plan", "--format=github", *arguments))["include"]
        plan: dict[str, Any] = json.loads(answer("plan", "--format=json", "--fingerprints", *arguments))
    unbuilt = [*plan.get("left_out", []), *plan.get("skipped", [])]
    left_out = [(item["kernel"], item["variant"], item.get("reason", "")) for item in unbuilt]
    if is_fork():
        legs, refused = split_for_fork(legs)
        left_out += refused
    compact = compact_plan(plan, legs)
    matrix_text, plan_text = compact_json({"include": legs}), compact_json(compact)
    if output_units(matrix_text, plan_text) > OUTPUT_LIMIT:
        fail("the plan is larger than the outputs of a job may be", 1, "plan fewer kernels, or fewer backends")
    set_output("matrix", matrix_text)
    set_output("has-work", "true" if legs else "false")
    set_output("carries", "true" if plan.get("skipped") else "false")
    set_output("has-tree", "true" if compact["kernels"] else "false")
    set_output("plan", plan_text)
    report(legs, left_out, compact["tier"])


def is_fork() -> bool:
    """Whether the run builds a pull request from another repository."""
    return flag("KCI_FORK", os.environ.get("KCI_FORK", "false"))


def split_for_fork(legs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[str, str, str]]]:
    """The legs that foreign code may run on, and the others with the reason why it may not."""
    reason = "a pull request from a fork runs on GitHub's own machines only"
    refused = [(leg["kernel"], leg["variant"], reason) for leg in legs if not is_hosted(leg["runner"])]
    return [leg for leg in legs if is_hosted(leg["runner"])], refused


def compact_plan(plan: dict[str, Any], legs: list[dict[str, Any]]) -> dict[str, Any]:
    """The plan without its legs: what the merged tree must have. Kernels without a variant in it are left out.

    What is published already is still planned: merging carries it over. The fingerprints let merging record what each
    variant was made from, for the next run to compare with.
    """
    built = {(leg["kernel"], leg["variant"]) for leg in legs}
    there = {(item["kernel"], item["variant"]) for item in plan.get("skipped", [])}
    kernels = []
    for kernel in plan["kernels"]:
        name, prints = kernel["name"], kernel.get("fingerprints") or {}
        planned = [variant for variant in kernel["planned"] if (name, variant) in built | there]
        if planned:
            entry = {key: kernel[key] for key in ("name", "path", "version")} | {"planned": planned}
            wanted = {variant: prints[variant] for variant in planned if variant in prints}
            kernels.append(entry | ({"fingerprints": wanted} if wanted else {}))
    compact = {"schema": plan["schema"], "tier": plan["tier"], "kernels": kernels}
    return compact | ({"commit": plan["commit"]} if plan.get("commit") else {})


def compact_json(value: object) -> str:
    """JSON without blanks: the outputs of a job are short."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def report(legs: list[dict[str, Any]], left_out: list[tuple[str, str, str]], tier: str) -> None:
    """Show in log and summary what is built and what is not."""
    print(f"{len(legs)} legs, {len(left_out)} variants left out")
    head = [f"### {len(legs)} variants to build ({tier})", ""]
    if legs:
        head += ["| kernel | variant | runner | image | minutes at most |", "|---|---|---|---|---|"]
    rows = [
        table_row(leg["kernel"], leg["variant"], runner_text(leg["runner"]), leg["image"] or "none", leg["timeout"])
        for leg in legs
    ]
    add_summary(head, rows)
    if left_out:
        head = [f"### {len(left_out)} variants left out", "", "| kernel | variant | why |", "|---|---|---|"]
        add_summary(head, [table_row(*item) for item in left_out])


def runner_text(runner: Any) -> str:
    """The labels of a runner, or its group, for people."""
    return " ".join(runner) if isinstance(runner, list) else str(runner)


if __name__ == "__main__":
    main()

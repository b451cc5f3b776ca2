"""A step of kci/build/plan: what a change takes from the users of kernels, as `kci diff --api` says it."""

from __future__ import annotations

import re

import kci
from common import add_table, group, lines_input, required_input, run_action, runner_temp, warn
from kci.ci.run_records import INTERFACE_FILE, InterfaceBreak, InterfaceRecord, ci_run, write_record
from kci.cli._output import print_diagnostics
from kci.config.values import ApiCheck
from kci.diagnostics import Diagnostic
from kci.plurals import count
from kci.sources.interface_changes import compare_kernels, kernels_then


def main() -> None:
    """Compare with the base, and leave a record for the gate and the comment."""
    base, roots = required_input("base"), lines_input("kernels") or ["."]
    unread: list[Diagnostic] = []
    with group("Compare interfaces"):
        workspace = kci.open_workspace(roots, set_aside=True)
        places = dict.fromkeys(re.sub(r"\[[^]]*\]\Z", "", root) or "." for root in roots)  # `relu[cuda]` is of relu
        old = [kernel for place in places for kernel in kernels_then(base, place, unread)]
        found, problems = compare_kernels(old, workspace.kernels)
        print_diagnostics([*unread, *(item.diagnostic for item in problems)])
    breaks = tuple(InterfaceBreak(item.kernel, item.directory, item.diagnostic.message) for item in problems)
    told = tuple(item.message for item in unread)
    gate = workspace.settings.settings.pull_request.api is ApiCheck.GATE
    record = InterfaceRecord(
        base=base, attempt=ci_run().attempt or 1, gate=gate, kernels=tuple(found), breaks=breaks, unread=told
    )
    write_record(runner_temp() / "kci-plan" / INTERFACE_FILE, record)
    if unread:
        warn(f"{count(len(unread), 'build.toml')} of {base[:12]} cannot be read, and is not compared")
    rows = [
        (item.kernel, item.versions, change.name, change.what, "breaking" if change.breaking else "")
        for item in found
        for change in item.changes
    ]
    print(f"{count(len(rows), 'change')} for users since {base[:12]}", flush=True)
    rows += [(item.kernel, "", "", item.message, "without a new version") for item in breaks]
    if rows:
        add_table("What changes for users", ("kernel", "version", "name", "change", ""), rows)


if __name__ == "__main__":
    run_action(main)

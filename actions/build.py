"""kci/build: one variant, built and packed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from common import (
    add_summary,
    fail,
    flag_input,
    group,
    kci_command,
    printable,
    required_input,
    runner_temp,
    set_output,
    table_row,
    text_input,
)
from kci.cli._output import print_error
from kci.config.reader import read_kernel
from kci.errors import KciError

_LEG_LIMIT = 1024 * 1024


def main() -> None:
    """Build, then set the outputs; on failure print how to do the same at home."""
    kernel, variant = text_input("kernel", "."), required_input("variant")
    builder, container = text_input("builder", "auto"), text_input("container", "auto")
    output = text_input("output", str(runner_temp() / "kci-build"))
    flag_input("upload")  # the upload step compares text; a word that it would take for false must not pass
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", variant) or variant.startswith((".", "-")):
        fail(f"{variant!r} is not the name of a variant", 2, "kci matrix --format names lists them")
    name = artifact_name(kernel, variant)
    artifact = runner_temp() / "kci-artifacts-out" / f"{name}.tar"
    artifact.parent.mkdir(parents=True, exist_ok=True)
    options = [f"--variant={variant}", f"--builder={builder}", f"--container={container}"]
    options += [f"--tier={tier}"] if (tier := text_input("tier")) else []
    options += [f"--jobs={jobs}"] if (jobs := text_input("jobs")) else []
    command = kci_command("build", *options, f"--output={output}", f"--pack={artifact}", "--", kernel)
    with group(f"Build {variant}"):
        code = subprocess.run(command, check=False).returncode
    if code:
        replay = printable(shlex.join(["kci", "build", *options, "--output=build", "--", kernel]))
        print(f"To do the same on your machine:\n  {replay}", flush=True)
        add_summary([f"### {variant} was not built", "", "To do the same on your machine:", "", f"    {replay}"], [])
        fail(f"{variant} was not built (exit code {code}); the same at home: {replay}", code)
    leg = read_leg(artifact)
    set_output("variant-dir", str(Path(output) / variant))
    set_output("artifact", str(artifact))
    # An artifact cannot be replaced, and those of all attempts of a run are one set: merging takes the newest.
    set_output("artifact-name", f"{name}-{os.environ.get('GITHUB_RUN_ATTEMPT', '1')}")
    set_output("digest", str(leg["digest"]))
    add_summary(
        ["| kernel | variant | builder | seconds | digest |", "|---|---|---|---|---|"],
        [table_row(leg.get("kernel"), variant, leg.get("builder"), leg.get("seconds"), leg["digest"])],
    )


def artifact_name(kernel: str, variant: str) -> str:
    """`kci-<kernel>-<variant>`, with the kernel's name from its build.toml."""
    try:
        name = str(read_kernel(kernel).build.general.name)
    except KciError as error:
        print_error(error)
        sys.exit(error.exit_code)
    return f"kci-{name}-{variant}"


def read_leg(artifact: Path) -> dict[str, Any]:
    """The leg manifest, the first file of an artifact."""
    with tarfile.open(artifact) as archive:
        member = archive.next()
        stream = archive.extractfile(member) if member and member.name == "leg.json" else None
        if stream is None:
            fail(f"{artifact.name} does not begin with leg.json", 4, "this is a fault of kci; please report it")
        leg: dict[str, Any] = json.loads(stream.read(_LEG_LIMIT))
    return leg


if __name__ == "__main__":
    main()

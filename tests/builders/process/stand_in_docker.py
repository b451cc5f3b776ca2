"""Stands in for docker, because no container engine runs where these tests run.

It takes exactly the flags that kci uses, as docker's own command line takes them, and refuses
everything else with docker's exit code for a wrong command. Instead of in a container the command
runs on this machine, but with docker's idea of its surroundings: only the environment that was
passed, the given working directory, and mounts that exist.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

IMAGE = "registry.example/builder:1"


def refuse(message: str) -> None:
    print(f"docker: {message}", file=sys.stderr)
    sys.exit(125)


def main(arguments: list[str]) -> int:
    if arguments == ["version", "--format", "{{.Server.Version}}"]:
        print("28.0.0")
        return 0
    if arguments == ["image", "inspect", "--format", "{{index .RepoDigests 0}}", IMAGE]:
        print(f"{IMAGE.partition(':')[0]}@sha256:{'0' * 64}")
        return 0
    if not arguments or arguments.pop(0) != "run":
        refuse("unknown command")
    flags = {
        "--rm": False,
        "--init": False,
        "--cap-drop=ALL": False,
        "--security-opt=no-new-privileges": False,
    }
    environment, mounts, workdir = {"PATH": os.environ["PATH"]}, {}, "/"
    while arguments and arguments[0].startswith("-"):
        flag = arguments.pop(0)
        name, _, value = flag.partition("=")
        if flag in flags:
            flags[flag] = True
        elif name == "--name" and re.fullmatch(r"kci-\d+-[0-9a-f]{8}", value):
            pass
        elif name == "--user" and re.fullmatch(r"\d+:\d+", value):
            if value != f"{os.getuid()}:{os.getgid()}":
                refuse("another user")
        elif name == "--mount":
            fields = dict(field.partition("=")[::2] for field in value.split(","))
            if fields.pop("type") != "bind" or not Path(fields["source"]).exists():
                refuse(f"invalid mount config: bind source path does not exist: {fields['source']}")
            mounts[fields["target"]] = "readonly" not in fields
        elif name == "--env":
            key, has_value, text = value.partition("=")
            environment[key] = text if has_value else os.environ[key]
        elif name == "--workdir":
            workdir = value
        else:
            refuse(f"unknown flag: {flag}")
    if not all(flags.values()):
        refuse(f"missing: {[flag for flag, there in flags.items() if not there]}")
    if not arguments or arguments.pop(0) != IMAGE:
        refuse("pull access denied")
    Path(os.environ["STAND_IN_LOG"]).write_text(
        json.dumps({"mounts": mounts, "environment": sorted(environment)})
    )
    return subprocess.run(arguments, cwd=workdir, env=environment, check=False).returncode


sys.exit(main(sys.argv[1:]))

"""Loads a variant in a fresh process, with no secrets and a home of its own."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from kci.builders.process.run import run_in_group, silent
from kci.config.facts import BACKENDS
from kci.errors import MissingToolError
from kci.matrix.variants import parse_variant_name
from kci.run.load_script import MARK
from kci.tree.metadata import Metadata
from kci.utils.bounded_json import decode_json
from kci.utils.frozen import Frozen
from kci.utils.git import last_line

_LOAD = Path(__file__).with_name("load_script.py")
_SECONDS = 300
_KEPT = 16_000
_PASSED_ON = [
    "LD_LIBRARY_PATH",
    "PATH",
    "SYSTEMROOT",
    *(name for facts in BACKENDS.values() for name in facts.variables),
    # to the Hub, for kernels that depend on others
    *("HF_ENDPOINT", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "https_proxy", "no_proxy"),
]


def environment_without_secrets(home: Path) -> dict[str, str]:
    """The variables that a process gets which runs a kernel's code."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    fixed = {
        "HOME": str(home),
        "TMPDIR": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return passed_on | fixed


def python_path(*folders: Path | None) -> dict[str, str]:
    """Environment with PYTHONPATH for folders."""
    paths = [str(folder) for folder in folders if folder]
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}


def last_answer(output: str, mark: str) -> str:
    """The last line that a program has printed behind a mark; empty without one."""
    lines = (line for line in reversed(output.splitlines()) if line.startswith(mark))
    return next(lines, "").removeprefix(mark)


class LoadedVariant(Frozen):
    """The answer of a process that loads a variant."""

    torch: str = ""
    faults: tuple[tuple[str, str], ...] = ()
    """Rules and sentences about what it registers."""
    error: str = ""
    """Why it was not loaded, in a line."""
    output: str = ""
    """The end of the output; empty if it was loaded."""


def load_alone(
    variant_dir: Path, metadata: Metadata, folder: Path, python: Path, packages: Path | None
) -> LoadedVariant:
    """Load a copy of a variant in a fresh process. Raises MissingToolError without torch."""
    tree, home = folder / "tree", folder / "home"
    home.mkdir()
    # a copy protects the tree; alone, because the loader picks among variants
    shutil.copytree(variant_dir, tree / variant_dir.name)
    environment = environment_without_secrets(home) | python_path(packages)
    # the first load compiles torch for all, for uv does not
    del environment["PYTHONDONTWRITEBYTECODE"]
    if metadata.kernel_depends:
        del environment["HF_HUB_OFFLINE"]
    backend = parse_variant_name(variant_dir.name).backend
    arguments = [str(tree), backend, metadata.id, str(_SECONDS)]
    command = [str(python), "-c", _LOAD.read_text(encoding="utf-8"), *arguments]
    done = run_in_group(command, silent, env=environment, cwd=home)
    if MARK not in done.output:
        raise MissingToolError(
            f"{python} does not import torch and kernels: {last_line(done.output)}",
            "take another torch, or remove that environment, and kci installs it again",
        )
    answer = LoadedVariant()
    with suppress(ValueError):
        answer = decode_json(last_answer(done.output, MARK), LoadedVariant)
    if done.code == 0 and answer.torch:
        return answer
    lines = [line for line in done.tail().splitlines() if not line.startswith(MARK)]
    timeout = next((line for line in lines if line.startswith("Timeout (")), "")
    output = "\n".join(lines).replace(f"{tree}/", "")[-_KEPT:]
    error = timeout or answer.error or f"the process ended with exit status {done.code}"
    return LoadedVariant(error=error, output=output or error)

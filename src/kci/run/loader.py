"""A Python with torch and the loader: what it has, which variants the loader takes there, and
loading one in a fresh process, with no secrets and a home of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from kci.builders.process.run import run_in_group, silent
from kci.config.facts import BACKENDS, HOST, needs_device
from kci.errors import MissingToolError
from kci.matrix.variants import Kind, VariantName, parse_variant_name, this_system
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


_PROBE_MARK = "kci-load-result:"
_PROBE = """
import json, sys
try:
    import kernels, torch
except ImportError as error:
    print("MARK" + json.dumps({"lacks": str(error)})); sys.exit()
try:
    from kernels.backends import _backend
    backend = str(getattr(_backend(), "name", "cpu")).lower()
except Exception:
    backend = "cuda" if torch.version.cuda and torch.cuda.is_available() else "cpu"
toolkits = [getattr(torch.version, name, None) for name in NAMES]
print("MARK" + json.dumps({"torch": torch.__version__.split("+")[0],
    "toolkit": next(filter(None, toolkits), ""), "backend": backend}))
""".replace("MARK", _PROBE_MARK).replace(
    "NAMES", str([facts.torch_version for facts in BACKENDS.values()])
)


class LoaderEnvironment(Frozen):
    """A Python that can load kernels."""

    torch: str = ""
    toolkit: str = ""
    """The version that torch was built with."""
    backend: str = HOST
    lacks: str = ""


def probe(python: Path) -> LoaderEnvironment:
    """Inspect a Python. Raises MissingToolError if it lacks torch or the loader."""
    command = [str(python), "-I", "-B", "-c", _PROBE]
    try:
        with tempfile.TemporaryDirectory(prefix="kci-load-") as folder:
            home = Path(folder)
            environ = environment_without_secrets(home)
            done = run_in_group(command, silent, env=environ, cwd=home, seconds=_SECONDS)
        if not (answer := last_answer(done.output, _PROBE_MARK)):
            shown = "; ".join(done.output.splitlines()[-3:])[-300:]
            raise ValueError(f"exit status {done.code}: {shown}")
        environment = decode_json(answer, LoaderEnvironment)
    except (MissingToolError, ValueError) as error:
        message = f"{python} does not answer: {error}"
        raise MissingToolError(message, "name a Python with --python") from error
    if environment.lacks:
        hint = "pip install torch kernels there, or name another Python with --python"
        raise MissingToolError(f"{python} cannot load kernels: {environment.lacks}", hint)
    return environment


def why_incompatible(name: VariantName, environment: LoaderEnvironment) -> str:
    """The reason why the loader rejects a variant; empty if it does not."""
    needed, system = [], this_system()
    if name.system is not None and name.system != system:
        needed.append(f"a {name.system} machine")
    if needs_device(name.backend) and name.backend != environment.backend:
        needed.append(f"the backend {name.backend} {name.compute_version or ''}".rstrip())
    have, needs = _minor(environment.torch), _minor(name.framework_version or "0")
    compute = _minor(name.compute_version or "")
    toolkit = _minor(environment.toolkit)
    known = bool(compute and toolkit) and name.backend == environment.backend
    if name.kind is Kind.FULL and have != needs:
        needed.append(f"torch {name.framework_version}")
    elif name.kind is Kind.STABLE_ABI and have < needs:
        needed.append(f"torch {name.framework_version} or newer")
    elif known and compute != toolkit:
        facts = BACKENDS[name.backend]
        if not (facts.minor_compatible and compute[0] == toolkit[0] and compute < toolkit):
            newer = ", or a newer minor version of it" if facts.minor_compatible else ""
            needed.append(f"{facts.title} {name.compute_version}{newer}")
    if not needed:
        return ""
    here = f"torch {environment.torch} for {environment.backend} on {system}"
    return f"it needs {' and '.join(needed)}; this is {here}"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:2])

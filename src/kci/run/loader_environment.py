"""A Python with torch and the loader: what it has, and which variants the loader takes there."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from kci.builders.process.run import run_in_group, silent
from kci.config.facts import BACKENDS, HOST, needs_device
from kci.errors import MissingToolError
from kci.matrix.variants import Kind, VariantName, this_system
from kci.run.loader import environment_without_secrets, last_answer
from kci.utils.bounded_json import decode_json
from kci.utils.frozen import Frozen

_SECONDS = 300
_MARK = "kci-load-result:"
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
""".replace("MARK", _MARK).replace(
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
        if not (answer := last_answer(done.output, _MARK)):
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

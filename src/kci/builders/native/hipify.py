"""Translates a copy of CUDA sources to HIP with torch's hipify (docs/format.md#flags).

Like the reference, C++ sources stay. A stable-ABI build also translates torch's headers: the CPU
wheel hides GPU functions behind `USE_CUDA`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from kci.builders.kernel_files import KERNEL, kernel_error
from kci.builders.native.units import CXX, Unit
from kci.builders.process.run import Log, run, shell_line
from kci.builders.toolchains.environment import Environment
from kci.config.values import CXX_ENDINGS, HEADER_ENDINGS
from kci.errors import BuildFailedError
from kci.utils.atomic import full_disk_program_hint
from kci.utils.cache import CACHE_VARIABLE
from kci.utils.frozen import Frozen

FOLDER = "hip"
"""The translated kernel, in the work directory."""
TORCH_FOLDER = "torch-hip"
"""The translated torch headers, in the work directory."""

_SCRIPT = Path(__file__).with_name("hipify_script.py")
_ASKED = "hipify.json"
_UNSUPPORTED = 3
"""Exit code of the script for calls that HIP lacks, which it names last."""
_RENAMED = (("cuda", "hip"), ("CUDA", "HIP"), ("THC", "THH"))
_ERROR_HINTS = {
    "UnicodeDecodeError": "the sources are read as UTF-8",
    "no kernel end found": "every kernel launch needs its <<<...>>> on both sides",
}
"""Hints for hipify's errors."""


class Translation(Frozen):
    """The input and output of a translation."""

    work: Path
    environment: Environment
    sources: dict[str, str]
    """Each `.cu` source with its translation, relative to the kernel and to `FOLDER`."""
    include: tuple[str, ...]
    """Include directories, relative to the kernel."""
    torch_headers: bool

    def command(self) -> list[str]:
        return [str(self.environment.python), "-I", "-B", str(_SCRIPT), str(self.work / _ASKED)]


def translate_units(units: Iterable[Unit]) -> tuple[tuple[Unit, ...], dict[str, str]]:
    """Replace `.cu` sources by translations, and return both.

    Raises FindingsError if two translations collide.
    """
    translations: list[Unit] = []
    names: dict[str, str] = {}
    sources: dict[str, str] = {}
    for unit in units:
        relative = unit.source.as_posix()
        translate = unit.language != CXX and relative.lower().endswith(".cu")
        name = hip_path(relative) if translate else relative
        if sources.setdefault(name, relative) != relative:
            both = " and ".join(sorted((repr(relative), repr(sources[name]))))
            raise kernel_error("KCI509", f"for ROCm, {both} are both {name!r}")
        if not translate:
            translations.append(unit)
            continue
        names[relative] = name
        include = dict.fromkeys(unit.include)
        if PurePosixPath(name).parent != unit.source.parent:
            # untranslated files stay in the old folder
            include[unit.source.parent] = None
        translations.append(
            replace(unit, source=PurePosixPath(name), include=tuple(include), translated=True)
        )
    return tuple(translations), names


def hip_path(relative: str) -> str:
    """Path of a translation: `csrc/cuda/a.cu` becomes `csrc/hip/a.hip`."""
    path = relative[: -len(".cu")]
    for cuda, hip in _RENAMED:
        path = path.replace(cuda, hip)
    return f"{path}.hip"


def translate(plan: Translation, log: Log) -> None:
    """Translate; unchanged files are not written.

    Raises BuildFailedError for hipify errors and unsupported calls.
    """
    project, headers = (plan.work / f"{name}.new" for name in (FOLDER, TORCH_FOLDER))
    for folder in (project, headers):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    shutil.copytree(plan.work / KERNEL, project, copy_function=shutil.copyfile, dirs_exist_ok=True)
    request = {
        "hipify": str(plan.environment.torch / "utils" / "hipify"),
        "project": str(project),
        "sources": plan.sources,
        "include": [path for path in plan.include if (project / path).is_dir()],
        "endings": [".cu", ".c", *CXX_ENDINGS, *HEADER_ENDINGS],
        "header_endings": list(HEADER_ENDINGS),
        "torch": str(plan.environment.torch / "include") if plan.torch_headers else "",
        "torch_copy": str(headers),
    }
    (plan.work / _ASKED).write_text(json.dumps(request, indent=1), encoding="utf-8")
    log(f"translating {', '.join(plan.sources) or 'the headers of torch'} to HIP")
    done = run(plan.command())
    if done.code == _UNSUPPORTED:
        calls = "".join(done.output.splitlines()[-1:])
        raise BuildFailedError(
            f"hipify reports calls that HIP does not have: {calls}",
            "leave them out with `#ifndef USE_ROCM`, or write the source for HIP, as a .hip file",
        )
    if done.code != 0:
        hint = full_disk_program_hint(done.output, plan.work, CACHE_VARIABLE)
        hints = (meaning for word, meaning in _ERROR_HINTS.items() if word in done.output)
        message = f"hipify failed\n{shell_line(plan.command())}\n{done.tail()}"
        raise BuildFailedError(message, hint or next(hints, ""))
    for output in (project, headers):
        _replace_changed(output, output.with_suffix(""))


def _replace_changed(output: Path, folder: Path) -> None:
    # ninja goes by the time of a file: an unchanged one keeps its own
    for new in output.rglob("*"):
        old = folder / new.relative_to(output)
        if new.is_file() and old.is_file() and new.read_bytes() == old.read_bytes():
            shutil.copystat(old, new)
    shutil.rmtree(folder, ignore_errors=True)
    output.rename(folder)

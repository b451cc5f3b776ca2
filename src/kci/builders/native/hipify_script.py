"""A separate program: runs torch's hipify on a copy of a kernel, `python hipify_script.py REQUEST`.

hipify is loaded by path, because the build's torch has no dependencies and cannot be imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# torch headers for stable-ABI kernels
_STABLE_HEADERS = ("torch/csrc/inductor/aoti_torch", "torch/csrc/stable", "torch/headeronly")
_COUNT = re.compile(r"Total number of unsupported CUDA function calls: (\d+)\n(.*)")


def main(request: Path) -> None:
    """Run a request; the last line of output lists unsupported calls, if any, and ends it."""
    request_data: dict[str, Any] = json.loads(request.read_text(encoding="utf-8"))  # noqa: TID251  - without kci
    try:
        module = load(Path(request_data["hipify"]))
        unsupported = translate_kernel(module, request_data)
        if request_data["torch"]:
            torch, copy = Path(request_data["torch"]), Path(request_data["torch_copy"])
            translate_torch(module, torch, copy, request_data["header_endings"])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    if unsupported:
        print(", ".join(sorted(unsupported)))
        sys.exit(3)


def load(package: Path) -> ModuleType:
    """Import `hipify_python` without its parent package, torch.utils."""
    spec = importlib.util.spec_from_file_location(
        "hipify", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        sys.exit(f"there is no hipify in {package}")
    sys.modules["hipify"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["hipify"])
    return importlib.import_module("hipify.hipify_python")


def translate_kernel(module: ModuleType, request: dict[str, Any]) -> list[str]:
    """Translate sources in place, move each to its destination, and return unsupported calls."""
    project = Path(request["project"])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        results = module.hipify(
            project_directory=str(project),
            output_directory=str(project),
            extensions=tuple(request["endings"]),
            header_extensions=tuple(request["header_endings"]),
            header_include_dirs=request["include"],
            extra_files=[str(project / source) for source in request["sources"]],
            show_detailed=True,
            is_pytorch_extension=True,
            hipify_extra_files_only=True,
        )
    for original, result in results.items():
        name = project.with_suffix("").name / Path(original).relative_to(project)
        _count_as(name, original, result.hipified_path)
    for source, destination in request["sources"].items():
        original = str(project / source)
        # None: the source is hipify's own output
        translation = Path(results[original].hipified_path or original)
        if translation != project / destination:
            (project / destination).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(translation, project / destination)
    match = _COUNT.search(output.getvalue())
    return [call.strip() for call in match[2].split(",")] if match and int(match[1]) else []


def _count_as(name: Path, original: str, translation: str | None) -> None:
    # compilers should name the original file and lines; hipify adds lines on top
    if translation in (None, original):
        return
    written = Path(original).read_text(encoding="utf-8").splitlines(keepends=True)
    lines = Path(translation).read_text(encoding="utf-8").splitlines(keepends=True)
    top = max(len(lines) - len(written), 0)
    lines.insert(top, f'#line 1 "{name.as_posix()}"\n')
    Path(translation).write_text("".join(lines), encoding="utf-8")


def translate_torch(module: ModuleType, include: Path, copy: Path, endings: list[str]) -> None:
    """Copy torch's stable headers, translate them as torch's own ROCm build does, and keep the
    changed ones.
    """
    for folder in _STABLE_HEADERS:
        if (include / folder).is_dir():
            shutil.copytree(include / folder, copy / folder)
    with contextlib.redirect_stdout(io.StringIO()):
        module.hipify(
            project_directory=str(copy),
            output_directory=str(copy),
            extensions=tuple(endings),
            show_progress=False,
        )
    for header in copy.rglob("*"):
        original = include / header.relative_to(copy)
        if header.is_file() and original.is_file() and header.read_bytes() == original.read_bytes():
            header.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Runs the setup.py of the working directory up to its configuration, in a sandbox and without kci;
writes JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

SETUP_PY = "setup.py"
_KEYS = (
    "name",
    "sources",
    "include_dirs",
    "libraries",
    "extra_link_args",
    "define_macros",
    "undef_macros",
    "extra_compile_args",
)
_MOST_BYTES = 64 * 1024 * 1024


def _limit() -> None:
    try:
        import resource
    except ImportError:
        return
    for what, most in (
        ("CPU", 120),
        ("FSIZE", _MOST_BYTES),
        ("AS", 256 * _MOST_BYTES),
        ("CORE", 0),
    ):
        getattr(resource, "setrlimit")(getattr(resource, f"RLIMIT_{what}"), (most, most))  # noqa: B009  - not on Windows


def _run() -> Any:
    import setuptools.dist

    core: Any = importlib.import_module("distutils.core")  # setuptools' own, since that is imported

    setuptools.dist.Distribution.fetch_build_eggs = (
        lambda *_: []
    )  # setup_requires: there is no network
    core._setup_stop_after, core._setup_distribution = "config", None
    sys.path.insert(0, str(Path.cwd()))
    sys.argv[:] = [SETUP_PY, "build_ext"]
    code = compile(Path(SETUP_PY).read_bytes(), SETUP_PY, "exec")
    exec(code, {"__name__": "__main__", "__file__": str(Path(SETUP_PY).absolute())})  # noqa: S102  - what it is for
    if core._setup_distribution is None:
        raise RuntimeError("it does not call setup()")
    return core._setup_distribution


def main() -> None:
    """Write the extensions and metadata of setup.py, or its error, to the answer file."""
    answer, cuda_home = sys.argv[1:3]
    answer_data: dict[str, Any]
    _limit()
    try:
        import torch
        from torch.utils import cpp_extension

        # Either torch may run both: one for the CPU looks for no toolkit, and one for CUDA finds
        # the machine's.
        cpp_extension.CUDA_HOME = cuda_home or None
        if not cuda_home:
            torch.version.cuda = None
        distribution = _run()
        metadata = distribution.metadata
        answer_data = {
            "extensions": [
                {key: getattr(item, key, ()) or () for key in _KEYS}
                for item in distribution.ext_modules or ()
            ],
            "license": str(getattr(metadata, "license_expression", None) or metadata.license or ""),
            "packages": list(distribution.packages or ()),
            "package_dir": dict(distribution.package_dir or {}),
        }
    except BaseException as error:
        ended = isinstance(error, SystemExit)
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).name == SETUP_PY
        ]
        answer_data = {
            "error": f"{'it exits with' if ended else type(error).__name__ + ':'} "
            f"{str(error)[:300]}",
            "line": lines[-1] if lines else getattr(error, "lineno", 0) or 0,
        }
    Path(answer).write_text(json.dumps(answer_data, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()

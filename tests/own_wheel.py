"""kci as others get it: a wheel of this checkout, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from checkout import copy_checkout
from conftest import ran
from kci.builders.toolchains.downloads import install, pip_install, run_uv, uv
from kci.utils.atomic import locked


def installed_from_a_wheel(shared: Path) -> Path:
    """The `kci` of a wheel that was built from a clean checkout and installed into an empty
    environment: made once a test run, in a folder that its workers share; tests only run it.
    """
    place = shared / "kci-from-a-wheel"
    with locked(place):
        if not (place / "complete").exists():
            clone = copy_checkout(place / "clone")
            run_uv(uv("build", "--quiet", "--wheel", "--out-dir", str(place), str(clone)), print)
            shutil.rmtree(clone)
            (wheel,) = place.glob("kci-*.whl")
            run_uv(uv("venv", "--quiet", "--python", sys.executable, str(place / "empty")), print)
            pip = pip_install(place / "empty" / "bin" / "python")
            install([*pip, str(wheel)], "kci", print, place)
            (place / "complete").touch()
    return place / "empty" / "bin" / "kci"


def outside(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command says that knows nothing of this checkout."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = ran(*command, cwd=cwd, env=clean | environment)
    assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout

"""Makes the environment of the actions: the locked dependencies, and kci itself as it lies in this
checkout.

    python -I install.py DIRECTORY
    python -I install.py DIRECTORY publish    adds what only that action needs

With Python's own library only. kci is not built: a file of paths leads to `src`, and a few lines of
metadata say what is installed, which `kci build --container` takes into its images.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

LOCK = Path(__file__).resolve().with_name("requirements.txt")
SOURCES = LOCK.parents[1] / "src"

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+==[^\s\\]+(?: *;[^\\]+)?)", re.MULTILINE)
_UV = re.compile(r"^uv==.*\n(?:[ #].*\n)*", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)

_ABOUT_INDEX = re.compile(
    "INDEX|FIND_LINKS|CERT|TLS|PROXY|HOST|TIMEOUT|RETRIES|KEYRING|CACHE|OFFLINE|LINK_MODE|CONFIG"
)
"""The variables of pip and uv that say where packages come from. Others would send them elsewhere,
or add more."""


def main(directory: str, action: str = "") -> int:
    """Make the environment, or add to it what one action needs besides; 3 if that cannot
    be done.
    """
    place = Path(directory)
    lock = LOCK.with_name(f"requirements-{action}.txt") if action else LOCK
    if not action:
        shutil.rmtree(place, ignore_errors=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(interpreter(place)).parent))
    bare = uv is None and importlib.util.find_spec("pip") is None
    try:
        # Beside uv or a pip that is there already no other pip is needed, and installing one takes
        # seconds.
        if not action:
            venv.EnvBuilder(symlinks=os.name != "nt", with_pip=bare).create(place)
        packages = site_packages(place)
        pip = pip_command(interpreter(place) if bare else sys.executable, packages)
        if uv is None:
            # The lock has it; with it the rest takes a tenth of pip's time.
            uv_only = place / "uv.txt"
            uv_only.write_text(
                "".join(_UV.findall(LOCK.read_text(encoding="utf-8"))), encoding="utf-8"
            )
            uv = install([*pip, str(uv_only)], place)
        try:
            install([*uv_command(uv, place), str(lock)], place)
        except subprocess.CalledProcessError:
            # uv reads no pip.conf, which may name the only index that this runner reaches.
            install([*pip, str(lock)], place)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"::error::what kci depends on cannot be installed: {error}", flush=True)
        print(
            "A runner without the package index needs a mirror: PIP_INDEX_URL for pip, "
            "UV_DEFAULT_INDEX for uv. A"
        )
        print(
            "Python without pip and venv lacks a package: on Debian and Ubuntu, apt-get install "
            "python3-venv"
        )
        return 3
    if not action:
        add_kci(packages)
    (place / (f"complete-{action}" if action else "complete")).touch()
    return 0


def install(command: list[str], place: Path) -> str:
    """Run a command that installs into the environment; the place of uv's program there."""
    # In a directory of kci's own: uv reads the pyproject.toml of the one it is started in.
    subprocess.run(command, check=True, cwd=place, env=surroundings())
    programs = Path(interpreter(place)).parent
    # With --target pip puts programs, ccache is one, where nobody looks for them.
    for program in (site_packages(place) / "bin").glob("*"):
        program.replace(programs / program.name)
    return str(programs / ("uv.exe" if os.name == "nt" else "uv"))


def site_packages(place: Path) -> Path:
    """Where the environment has its packages."""
    if os.name == "nt":
        return place / "Lib" / "site-packages"
    return (
        place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )


def interpreter(place: Path) -> str:
    """The Python of the environment."""
    return str(place / "Scripts" / "python.exe" if os.name == "nt" else place / "bin" / "python")


_LOCKED = ["--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement"]
"""Nothing but what the lock names, byte for byte: no resolution, and no code of a package runs."""


def uv_command(uv: str, place: Path) -> list[str]:
    """How uv installs the lock."""
    return [uv, "pip", "install", "--quiet", "--python", interpreter(place), *_LOCKED]


def pip_command(python: str, packages: Path) -> list[str]:
    """How pip installs the lock; it may be the pip of another Python."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    return [
        python,
        "-I",
        "-m",
        "pip",
        "install",
        *quiet,
        "--no-user",
        "--target",
        str(packages),
        *_LOCKED,
    ]


def surroundings() -> dict[str, str]:
    """The environment variables without those that change what the command does."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("PIP_", "UV_")) or _ABOUT_INDEX.search(name.upper())
    }
    return {**kept, "PIP_ROOT_USER_ACTION": "ignore"}


def add_kci(packages: Path) -> None:
    """Let the environment find kci in the checkout, and know that it is there."""
    (version,) = _VERSION.findall((SOURCES / "kci" / "version.py").read_text(encoding="utf-8"))
    locked = [match.strip() for match in _REQUIREMENT.findall(LOCK.read_text(encoding="utf-8"))]
    info = packages / f"kci-{version}.dist-info"
    info.mkdir()
    head = ["Metadata-Version: 2.1", "Name: kci", f"Version: {version}", "Requires-Python: >=3.11"]
    text = "\n".join([*head, *(f"Requires-Dist: {requirement}" for requirement in locked)]) + "\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nkci = kci.__main__:start\n", encoding="utf-8"
    )
    # The encoding in which Python itself reads such a file.
    (packages / "kci.pth").write_text(f"{SOURCES}\n", encoding="locale")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("install.py takes a directory, and perhaps the name of an action")
    sys.exit(main(*sys.argv[1:]))

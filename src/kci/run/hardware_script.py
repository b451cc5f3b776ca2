"""What runs on a machine with the hardware, out of an unpacked archive of `kci test --pack`, without a network.

    python3 run.py [OPTIONS OF kci test]

It needs Python 3.11 or newer with the venv module, and a torch that the variants are for. kci, the loader and pytest
come out of the archive, into an environment of its own beside this file; the Python that runs this stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

_LACKING = 3
_REFUSED = 5


def main(arguments: list[str]) -> int:
    """Test what the archive holds; the exit code of `kci test`."""
    here = pathlib.Path(__file__).resolve().parent
    record = here / "record.json"
    if record.exists():
        record.unlink()  # of an earlier run: if this one fails, it must not be taken for its record
    if sys.version_info < (3, 11):  # noqa: UP036  - nothing has asked it before
        return _failed("Python %d.%d is too old: kci needs 3.11" % sys.version_info[:2], _LACKING)  # noqa: UP031
    pack = json.loads((here / "pack.json").read_text(encoding="utf-8"))  # noqa: TID251  - kci is not there yet
    for name, digest in pack["files"].items():
        path = here / name
        if not path.is_file() or _hash(path) != digest:
            return _failed(f"{name} is not what was packed: unpack the archive again", _REFUSED)
    for name, needs in pack["needs"].items():
        print(f"{name}: {needs}", flush=True)
    try:
        python = _environment(here, pack["packages"])
    except (OSError, subprocess.CalledProcessError) as error:
        return _failed(f"cannot make an environment in {here}: {error}", _LACKING)
    words = [str(python), "-m", "kci", "test", str(here / "kernel"), "--tree", str(here / "tree"), "--no-isolation"]
    words += ["--benchmark", "--record", str(record), "--cache", str(here / "cache")]
    words += [word for name in pack["needs"] for word in ("--variant", name)]
    done = subprocess.run([*words, *arguments], env=_own(os.environ), check=False)
    if record.is_file():
        print(f"bring back {record}: `kci test KERNEL --check {record.name}` checks it there")
        return done.returncode
    return _failed("no record was made", done.returncode or 1)


def _failed(what: str, code: int) -> int:
    print(f"error: {what}", file=sys.stderr)
    return code


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _own(variables: os._Environ[str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(("PIP_", "PYTHONPATH"))}


def _environment(here: pathlib.Path, packages: list[str]) -> pathlib.Path:
    """A Python that has all that this one has, and in front of that the packages of the archive."""
    import venv

    room, wheels = here / "environment", here / "wheels"
    python = room / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    complete = room / f"complete-for-{hashlib.sha256(sys.executable.encode()).hexdigest()[:16]}"
    if complete.is_file():
        return python
    shutil.rmtree(room, ignore_errors=True)
    venv.create(room, symlinks=os.name != "nt")
    # A virtual environment knows its base alone, and this Python may be one that has torch itself.
    outer = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    own = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    lines = [f"import site; site.addsitedir({path!r})\n" for path in outer]
    pathlib.Path(own, "kci-outer.pth").write_text("".join(lines), encoding="utf-8")
    (pip,) = wheels.glob("pip-*.whl")
    command = [str(python), f"{pip}/pip", "--isolated", "install", "--quiet", "--no-index", "--no-warn-script-location"]
    command += ["--disable-pip-version-check", "--no-cache-dir", f"--find-links={wheels}", *packages]
    subprocess.run(command, env=_own(os.environ), check=True)
    complete.touch()
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A Python with torch of another system, which qemu's user mode runs here; for tests where there is no such machine.

Its root is made of Debian's packages: apt fetches them and checks their signatures, with lists of its own and without
root rights, and dpkg unpacks them; none of their scripts runs. PyPI has no whole Python for another system.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from kci.errors import MissingToolError
from kci.files.cache import CACHE_OPTION, made_once
from kci.files.dated_data import Dated, shipped
from kci.files.full_disk import program_hint
from kci.matrix.names import this_system
from kci.processes.process import Log, guarded, run, said, shown, silent
from kci.toolchains.downloads import install, is_reachable, newer_pip, pip_install
from kci.toolchains.environment import base_python, make_venv
from kci.toolchains.toolchain_data import toolchains

DEBIAN_MIRROR = "KCI_DEBIAN_MIRROR"
"""In place of http://deb.debian.org/debian."""

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PYTHON = """\
#!/bin/sh
# Made by kci: a Python of {system}, run by qemu. What the loader of this machine is told is not for that one.
unset LD_LIBRARY_PATH LD_PRELOAD
for qemu in {programs}; do
    if command -v "$qemu" > /dev/null; then exec "$qemu" -0 "$0" -L {root} {root}/usr/bin/python{python} "$@"; fi
done
echo 'kci: there is no {programs}' >&2
exit 127
"""
_APT = """\
APT {{ Architecture "{architecture}"; Architectures {{ "{architecture}"; }}; Sandbox::User "{user}"; }};
Acquire::Languages "none";
Dir::State "{place}";
Dir::State::status "{place}/status";
Dir::State::lists "{place}/lists";
Dir::Cache "{place}";
Dir::Cache::archives "{place}/archives";
Dir::Log "{place}";
Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "-";
"""
_CUDA_VERSION = re.compile(r"^(cuda\b.*= ).*$", re.MULTILINE)
# What the machine's own apt does before and after is not for these packages.
_CLEARED = "APT::Architectures", "APT::Update", "DPkg::Pre-Install-Pkgs", "DPkg::Pre-Invoke", "DPkg::Post-Invoke"


class Emulation(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How a system is run on another."""

    hosts: tuple[str, ...]
    programs: tuple[str, ...]
    """The names of qemu."""
    package: str
    suite: str
    architecture: str
    """Debian's name of the CPU."""
    python: str
    packages: tuple[str, ...]
    platforms: str
    """The tag of a wheel, with `{minor}` for that of glibc 2."""
    glibc: tuple[int, int]
    """The first and the last minor version that wheels may be for."""
    legacy_platform: str
    files: dict[str, str]
    """What programs read of the machine and qemu does not make up; once for each `{cpu}`."""


class EmulationData(Dated, frozen=True):
    """The data file, as it is."""

    systems: dict[str, Emulation]


emulation_data = shipped("toolchains/data/emulation.toml", EmulationData)


class Emulated(msgspec.Struct, frozen=True):
    """A Python of another system."""

    python: Path
    """A program of this machine that behaves as that Python; so does `sys.executable` in it."""
    pip: tuple[str, ...]
    """The start of a pip command of this machine that installs for it."""
    by: str
    """What runs it, `qemu-aarch64 version 7.2.22`."""


def emulated_system() -> str | None:
    """The system whose CPU variants can be tested here without its machine; None if kci knows of none."""
    return next((name for name, how in sorted(emulation_data().systems.items()) if this_system() in how.hosts), None)


def require_emulated() -> str:
    """The same. Raises MissingToolError: there is none, or no qemu that runs it."""
    system = emulated_system()
    if system is None:
        known = ", ".join(f"{name} on {' or '.join(how.hosts)}" for name, how in emulation_data().systems.items())
        hint = f"kci emulates {known}; on a machine of the variant's own system leave out --emulate"
        raise MissingToolError(f"kci emulates no other system on {this_system()}", hint=hint)
    find_qemu(system)
    return system


def require_root_tools(how: Emulation) -> None:
    """Make sure that a root can be made.

    Raises:
        MissingToolError: a program or the keyring for it is missing.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            hint = "run this on Debian or Ubuntu, or in an image of them"
            raise MissingToolError(f"there is no {program}, which makes a Debian for {how.architecture}", hint=hint)
    if not _KEYRING.is_file():
        hint = "apt-get install debian-archive-keyring"
        raise MissingToolError(f"{_KEYRING} is missing, with which apt checks Debian's packages", hint=hint)


def find_qemu(system: str) -> str:
    """The version of the qemu that runs programs of a system.

    Raises:
        MissingToolError: it is not installed.
    """
    how = emulation_data().systems[system]
    version = next((text for name in how.programs if shutil.which(name) and (text := said(name, "--version"))), "")
    if not version:
        hint = f"install it, for example: apt-get install {how.package}"
        raise MissingToolError(f"there is no {' or '.join(how.programs)}, which runs {system} here", hint=hint)
    return version.splitlines()[0].partition(" (")[0]


def emulated_python(system: str, torch: str, *, cache: Path, log: Log) -> Emulated:
    """The Python of a system that has a torch and loads kernels; made if it is not there, and kept in the cache.

    Args:
        system: one that `emulated_system` names.
        torch: the minor version, `2.13`.
        cache: the cache directory.
        log: takes lines of progress.

    Raises:
        MissingToolError: something is missing for it; the message names it.
    """
    how = emulation_data().systems[system]
    version = find_qemu(system)
    root = _root(how, cache, log)
    release, packages = toolchains().torch_release(torch), toolchains().runtime["packages"]
    key = _digest(str(root), sys.base_prefix, *packages, *_files(how), _PYTHON)
    folder = cache / "envs" / f"torch-{release}-cpu-{system}-{key}"
    made_once(folder, folder.is_dir, partial(_make, system, how, root, release, log), log)
    return Emulated(folder / "bin" / "python", tuple(_pip(folder, how)), version)


def _root(how: Emulation, cache: Path, log: Log) -> Path:
    mirror = os.environ.get(DEBIAN_MIRROR) or "http://deb.debian.org/debian"
    # an environment names its root, and a cache may be a folder of links
    root = (cache / "roots").resolve() / f"{how.suite}-{how.architecture}-{_digest(*how.packages)}"

    def make(place: Path) -> None:
        require_root_tools(how)
        log(f"fetching {', '.join(how.packages)} of Debian {how.suite} for {how.architecture} into {root}")
        apt = place / "apt"
        for folder in ("lists/partial", "archives/partial"):
            (apt / folder).mkdir(parents=True)
        (apt / "status").touch()
        (apt / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {how.suite} main\n", encoding="utf-8")
        cleared = "".join(f"#clear {name};\n" for name in _CLEARED)
        user = "root" if sys.platform != "win32" and os.geteuid() == 0 else ""  # as _apt it could not write here
        text = cleared + _APT.format(architecture=how.architecture, place=apt, user=user)
        (apt / "apt.conf").write_text(text, encoding="utf-8")
        start = ["apt-get", f"--config-file={apt / 'apt.conf'}", "--quiet"]
        _require([*start, "update"], mirror, place)
        wanted = ["--yes", "--download-only", "--no-install-recommends", "install", "--", *how.packages]
        _require([*start, *wanted], mirror, place)
        packages = sorted((apt / "archives").glob("*.deb"))
        for package in packages:
            _require(["dpkg-deb", "--extract", str(package), str(place)], mirror, place)
        names = "".join(f"{package.name}\n" for package in packages)
        (place / "kci-packages.txt").write_text(names, encoding="utf-8")
        shutil.rmtree(apt)
        for name, content in _files(how):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(content, encoding="utf-8")

    made_once(root, root.is_dir, make, log)
    return root


def _files(how: Emulation) -> Iterator[tuple[str, str]]:
    for name, content in how.files.items():
        cpus = range(os.cpu_count() or 1)
        if "{" in name:
            yield from ((name.format(cpu=cpu), content) for cpu in cpus)
        else:
            yield name, "".join(content.format(cpu=cpu) for cpu in cpus)


def _make(system: str, how: Emulation, root: Path, release: str, log: Log, place: Path) -> None:
    packages = place / "lib" / f"python{how.python}" / "site-packages"
    for folder in (place / "bin", packages):
        folder.mkdir(parents=True)
    (place / "pyvenv.cfg").write_text(f"home = {root}/usr/bin\n", encoding="utf-8")
    python = place / "bin" / "python"
    names, quoted = " ".join(how.programs), shlex.quote(str(root))
    text = _PYTHON.format(system=system, programs=names, root=quoted, python=how.python)
    python.write_text(text, encoding="utf-8")
    python.chmod(0o755)
    make_venv([base_python(), "-m", "venv", str(place / "pip")], place)
    newer_pip(place / "pip" / "bin" / "python")
    pip = [*_pip(place, how), "--target", str(packages)]
    index = toolchains().index_url("cpu")
    there = is_reachable(index)
    torch = ["--index-url", index, f"torch=={release}+cpu"] if there else [f"torch=={release}"]
    log(f"installing torch {release} for {system}")
    if not there:
        log(f"{index} cannot be reached: taking torch {release} from pip's default index")
    install([*pip, "--no-deps", *torch], f"torch {release} for {system}", log, place)
    if cuda := _libraries(packages, how):
        log("that torch is for CUDA, and does not start without its libraries: installing them too, some 2 GB")
        install([*pip, *cuda], "the libraries of CUDA", log, place)
        # The loader takes a torch that names a version of CUDA for one that wants variants for CUDA.
        said = packages / "torch" / "version.py"
        text = _CUDA_VERSION.sub(r"\1None", said.read_text(encoding="utf-8"))
        said.write_text(text, encoding="utf-8")
    log("installing the packages that load kernels")
    install([*pip, *toolchains().runtime["packages"]], "the runtime packages", log, place)
    by = find_qemu(system)
    log(f"starting torch {release} under {by}, which takes a minute")
    check = run([str(python), "-c", "import torch, kernels, pytest"])
    if check.code != 0:
        raise MissingToolError(f"torch {release} for {system} does not start under {by}:\n{check.tail()}")


def _libraries(packages: Path, how: Emulation) -> list[str]:
    """What a torch for CUDA is linked with, by its own requirements; nothing for one for the CPU."""
    (found,) = importlib.metadata.distributions(name="torch", path=[str(packages)])
    wanted = [Requirement(text) for text in found.requires or ()]
    there = {"platform_machine": how.platforms.rpartition("}_")[2], "python_version": how.python, "extra": ""}
    chosen = [item for item in wanted if item.name.startswith(("nvidia-", "cuda-toolkit"))]
    kept = [item for item in chosen if item.marker is None or item.marker.evaluate(there)]
    return [str(item).partition(";")[0].strip() for item in kept]


def _pip(folder: Path, how: Emulation) -> list[str]:
    minors = range(how.glibc[1], how.glibc[0] - 1, -1)
    tags = [*(how.platforms.format(minor=minor) for minor in minors), how.legacy_platform]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    return [*pip_install(folder / "pip" / "bin" / "python"), "--python-version", how.python, *platforms]


_UNFETCHED = re.compile(
    "failed to fetch|unable to fetch|unable to connect|could not (?:resolve|connect)", re.IGNORECASE
)


def _require(command: list[str], mirror: str, place: Path) -> None:
    done = guarded(command, silent)
    if done.code != 0:
        hint = program_hint(done.output, place, CACHE_OPTION)
        if not hint and _UNFETCHED.search(done.output):
            hint = f"make {mirror} reachable, or name a mirror with {DEBIAN_MIRROR}"
        raise MissingToolError(f"{shown(command)} failed:\n{done.tail()}", hint=hint)


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]

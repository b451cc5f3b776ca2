"""One archive with all that tests variants on another machine: the variants, the kernel's tests, kci, the loader.

That machine needs no network: `run.py` of the archive (`hardware_script.py`) brings the rest together there. torch is
not in it, because it is there already, and large; it says which torch it expects.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from kci.config.depends_table import depends_table
from kci.errors import FindingsError, MissingToolError, UnsafeError, UsageError
from kci.files.archive import plain_member, written_archive
from kci.files.cache import made_once
from kci.files.full_disk import writing
from kci.files.replace import replacing
from kci.files.walk import is_own, walk
from kci.matrix.names import parse_variant_name, this_system
from kci.plurals import count
from kci.processes.process import Log
from kci.processes.running_wheel import running_wheel
from kci.toolchains.downloads import install
from kci.toolchains.toolchain_data import toolchains
from kci.tree.metadata import FILE_NAME, read_metadata
from kci.verify.load_rules import LoaderEnvironment, unfit
from kci.version import __version__

TOP = "kci-hardware"
"""The folder that the archive unpacks to."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The Pythons that the machine may have: those that kci runs on."""
_TAGS = ("2_28", "2_26", "2_24", "2_17", "2014", "2_12", "2010", "2_5", "1")
_SCRIPT = Path(__file__).with_name("hardware_script.py")


class HardwarePack(msgspec.Struct, frozen=True):
    """What was packed."""

    archive: Path
    size: int
    """Bytes of its files."""
    needs: dict[str, str]
    """What each variant needs there, for people."""


def pack_for_hardware(
    kernel_dir: Path,
    variants: Sequence[Path],
    archive: Path,
    *,
    pythons: Sequence[str] = PYTHONS,
    extra: Sequence[str] = (),
    cache: Path,
    log: Log,
) -> HardwarePack:
    """Write the archive, whole or not at all; its size is told first.

    Args:
        kernel_dir: the kernel, whose own files come along.
        variants: directories of sealed variants, all for one system.
        archive: the file to write.
        pythons: for which versions of Python.
        extra: packages that the tests import; torch too, where it is not there already.
        cache: where wheels are kept.
        log: takes lines of progress.

    Raises:
        UsageError: the variants are for several systems, or for one that is not Linux.
        MissingToolError: kci is not installed, or a wheel cannot be had.
        UnsafeError: a file of the kernel lies outside of it.
        ClientError: the archive cannot be written.
    """
    system = _system(variants)
    packages = _packages(variants, extra)
    files: dict[str, Path | bytes] = {}
    for path in _wheels([*_requirements(), *packages, "pip"], system, pythons, cache, log):
        files[f"wheels/{path.name}"] = path
    wheel = running_wheel()
    if wheel is None:
        raise MissingToolError("this kci is not installed, so its wheel cannot be packed", hint="pip install kci")
    files[f"wheels/{wheel.place(cache).name}"] = wheel.data
    for directory in variants:
        files |= {f"tree/{directory.name}/{item.name}": item.path for item in walk(directory)}
    files |= {f"kernel/{name}": path for name, path in own_files(kernel_dir).items()}
    needs = {path.name: _needs(path.name) for path in variants}
    hashes = {name: _hash(source) for name, source in sorted(files.items())}
    contents = {"needs": needs, "packages": [f"kci=={__version__}", *packages], "files": hashes}
    files |= {"run.py": _SCRIPT, "pack.json": msgspec.json.format(msgspec.json.encode(contents), indent=1)}
    sizes = {name: source.stat().st_size if isinstance(source, Path) else len(source) for name, source in files.items()}
    wheels, tree = (sum(sizes[name] for name in files if name.startswith(part)) for part in ("wheels/", "tree/"))
    log(
        f"{archive} will have {sum(sizes.values()) / 1e6:.1f} MB: {wheels / 1e6:.1f} MB of wheels for Python "
        f"{', '.join(pythons)}, {tree / 1e6:.1f} MB of {count(len(variants), 'variant')}"
    )
    with replacing(archive, log) as replacement, writing(archive):
        with written_archive(replacement.staging, zstd=False) as tar:
            for name, source in sorted(files.items()):
                with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as content:
                    tar.addfile(plain_member(f"{TOP}/{name}", sizes[name]), content)
        replacement.commit()
    return HardwarePack(archive, sum(sizes.values()), needs)


def own_files(kernel_dir: Path) -> dict[str, Path]:
    """The files of a kernel by name; a link counts as what it leads to.

    Raises:
        UnsafeError: one leads out of the kernel.
        FindingsError: one leads nowhere.
    """
    root, found = kernel_dir.resolve(), {}
    for item in walk(kernel_dir):
        if not is_own(item.name):
            continue
        if item.link and not item.path.resolve().is_relative_to(root):
            raise UnsafeError(f"{item.path} leads out of the kernel", hint="put a copy of the file into its place")
        if not item.regular:
            raise FindingsError(f"{item.path} is not a file", hint="remove it, or put a file into its place")
        found[item.name] = item.path
    return found


def _system(variants: Sequence[Path]) -> str:
    """The one system that they are for; this machine's for variants that are for any."""
    systems = {system for path in variants if (system := parse_variant_name(path.name).system)}
    if len(systems) > 1:
        told = f"the variants are for {' and '.join(sorted(systems))}, and one machine tests them"
        raise UsageError(told, hint="name those for one machine with --variant")
    system = next(iter(systems), this_system())
    if not system.endswith("linux"):
        raise UsageError(f"kci packs for Linux, not for {system}", hint="install kci there, and run kci test --record")
    return system


def _packages(variants: Sequence[Path], extra: Sequence[str]) -> list[str]:
    """What loads and tests them, beside torch and kci."""
    tvm_ffi = ("apache-tvm-ffi",) if any(path.name.startswith("tvm-ffi") for path in variants) else ()
    runtime = [item for item in toolchains().runtime["packages"] if item.startswith(("kernels", "pytest", *tvm_ffi))]
    declared = [
        known.package
        for path in variants
        for package in read_metadata(path / FILE_NAME).python_depends
        if (known := depends_table().lookup(package, parse_variant_name(path.name).backend)) is not None
    ]
    return [*runtime, "tabulate", *dict.fromkeys(declared), *extra]


def _requirements() -> list[str]:
    """What kci itself needs."""
    return [item for item in metadata.requires("kci") or () if "extra ==" not in item]


def _needs(variant: str) -> str:
    """What a variant needs, in the loader's words."""
    return unfit(parse_variant_name(variant), LoaderEnvironment(backend="")).partition(";")[0] or "it needs any torch"


def _hash(source: Path | bytes) -> str:
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _wheels(wanted: Sequence[str], system: str, pythons: Sequence[str], cache: Path, log: Log) -> list[Path]:
    """The wheels of some packages and of all that they need, for each of some Pythons on a system."""
    key = hashlib.sha256("\n".join([system, *pythons, *sorted(wanted)]).encode()).hexdigest()[:16]
    folder = cache / "wheels" / f"hardware-{key}"
    cpu = system.partition("-")[0]
    platforms = [f"--platform=manylinux{'' if tag.startswith('20') or tag == '1' else '_'}{tag}_{cpu}" for tag in _TAGS]

    def make(place: Path) -> None:
        for version in pythons:
            log(f"fetching wheels for Python {version}")
            command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--only-binary=:all:"]
            command += [f"--python-version={version}", "--implementation=cp", *platforms, f"--dest={place}", "--"]
            install([*command, *wanted], f"wheels for Python {version}", log, folder.parent)

    made_once(folder, folder.is_dir, make, log)
    return sorted(folder.glob("*.whl"))

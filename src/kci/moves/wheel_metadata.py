"""For which CUDA an index's own build of torch is: PyPI's wheels do not have it in their names, their metadata do."""

from __future__ import annotations

import tempfile
from pathlib import Path

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement

from kci.config.values import Backend, Version
from kci.errors import FindingsError, MissingToolError
from kci.files.bounded_json import read_bounded
from kci.files.small_fetch import refuse_address
from kci.matrix.names import cpu_of
from kci.toolchains.wheel_ranges import extract, find_wheel

_MOST = 1 << 20
_TOOLKITS = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
"""What a wheel for CUDA depends on, in the version of the toolkit."""


def own_build(root: Path, place: str, release: str, system: str) -> tuple[Backend, Version | None]:
    """What an index's own build of a release is for; some CUDA where its metadata cannot be looked at.

    A page that is a file may have the metadata beside it, each in a file as an index serves them, `<wheel>.metadata`.

    Args:
        root: what names of files are relative to.
        place: the index's page of torch: an address, or a file.
        release: the release, such as `2.15.0`.
        system: a Linux system.

    Raises:
        FindingsError: the index does not let its wheel be looked at, so that nothing is known about it.
    """
    cpu = cpu_of(system)
    if "://" in place:
        text = _read_from_index(place, release, cpu)
    else:
        saved = sorted((root / place).parent.glob(f"torch-{release}-*_{cpu}.whl.metadata"))
        if not saved:
            return Backend.CUDA, None
        text = read_bounded(saved[0], _MOST)
    return built_for(text)


def built_for(metadata: bytes) -> tuple[Backend, Version | None]:
    """What a wheel's metadata say that it is for: CUDA of the toolkit that it depends on, or the CPU."""
    for line in parse_email(metadata)[0].get("requires_dist", []):
        try:
            needed = Requirement(line)
            pins = [pin.version for pin in needed.specifier if pin.operator == "=="]
            if needed.name in _TOOLKITS and pins:
                return Backend.CUDA, Version.parse(Version.parse(pins[0]).minor_text)
        except (InvalidRequirement, ValueError):
            continue
    return Backend.CPU, None


def _read_from_index(place: str, release: str, cpu: str) -> bytes:
    try:
        wheel = find_wheel("torch", release, cpu, place.rstrip("/").rpartition("/")[0])
        refuse_address(wheel.url)
        with tempfile.TemporaryDirectory(prefix="kci-metadata-") as folder:
            into = Path(folder)
            extract(wheel, lambda name: "METADATA" if name.endswith(".dist-info/METADATA") else None, into)
            return read_bounded(into / "METADATA", _MOST)
    except (MissingToolError, OSError, ValueError) as error:
        raise FindingsError(f"{place}: what its wheel of torch {release} is for cannot be read: {error}") from None

"""Write the list of what torch's libraries export, by torch version, from wheels of the package
registry.

    python bin/update_torch_exports.py WHEEL...

Each WHEEL is a torch wheel for Linux on x86-64 (`pip download --no-deps torch===2.13.0`). The names
are those that a kernel can link to: C++ names of torch's own namespaces, the C functions of its
shims, and names of `std::`. Only a hash of each name is kept, with one bit for each version that
has it. Every version has what manylinux_2_28's libstdc++ has; that is looked up in the libstdc++ of
this machine, which has to be as new, with nm of binutils.
"""

import datetime
import hashlib
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from kci.tree.elf import read_elf
from kci.tree.verify.abi import DATA, exceeded_cap, is_std_name, is_torch_name, name_hash

LIBRARIES = frozenset(
    ("libc10.so", "libc10_cuda.so", "libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so",
        "libtorch_cuda_linalg.so",
     "libtorch_python.so")
)  # fmt: skip
"""The libraries of a torch wheel that a kernel for CPU or CUDA can link to."""

VERSION = re.compile(r"torch-(\d+\.\d+)\.")


def exported(wheel: Path) -> set[str]:
    """The names that the wheel's libraries define."""
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as place:
        for name in archive.namelist():
            if name.startswith("torch/lib/") and Path(name).name in LIBRARIES:
                defined = read_elf(Path(archive.extract(name, place))).defined
                every = "cuda" not in name  # what only some builds of torch have explains nothing
                found |= {
                    symbol
                    for symbol in defined
                    if is_torch_name(symbol) or (every and is_std_name(symbol))
                }
    return found


def of_libstdcpp() -> set[str]:
    """The names of `std::` that manylinux_2_28 has."""
    library = subprocess.run(
        ["g++", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=True
    )
    command = ["nm", "-D", "--defined-only", "--with-symbol-versions", library.stdout.strip()]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    named = [line.split()[-1].replace("@@", "@").partition("@") for line in lines]
    return {
        name
        for name, _, version in named
        if is_std_name(name) and not exceeded_cap(version, "x86_64")
    }


def encode(masks: Mapping[int, int]) -> bytes:
    """The table before compression: a count, the steps between the sorted hashes, then
    the masks.
    """
    ordered = sorted(masks)
    steps = [number - before for before, number in zip([0, *ordered], ordered, strict=False)]
    # Bytes of equal weight lie together: the upper ones are mostly zero and compress to nothing.
    planes = b"".join(bytes(step >> shift & 0xFF for step in steps) for shift in (24, 16, 8, 0))
    return struct.pack("<I", len(ordered)) + planes + bytes(masks[number] for number in ordered)


def write(name: str, about: str, files: Iterable[str], by_version: Mapping[str, set[str]]) -> None:
    """Write a table and its record."""
    versions = sorted(by_version, key=lambda text: tuple(map(int, text.split("."))))
    masks: dict[int, int] = defaultdict(int)
    for bit, version in enumerate(versions):
        for symbol in by_version[version]:
            masks[name_hash(symbol)] |= 1 << bit
    packed = zlib.compress(encode(masks), 9)
    (DATA / f"{name}.bin").write_bytes(packed)
    listed = ", ".join(f'"{version}"' for version in versions)
    (DATA / f"{name}.toml").write_text(
        f"# {about}; the names' hashes are in {name}.bin.\n"
        f"# Written by bin/{Path(sys.argv[0]).name}.\n"
        f"as-of = {datetime.datetime.now(tz=datetime.UTC).date()}\n"
        f'source = "PyPI: {", ".join(sorted(files))}"\n'
        f"versions = [{listed}]\n"
        f'sha256 = "{hashlib.sha256(packed).hexdigest()}"\n',
        encoding="utf-8",
    )


def main() -> None:
    """Write the table of torch."""
    by_version = {}
    files = []
    for wheel in map(Path, sys.argv[1:]):
        version = VERSION.match(wheel.name)[1]
        by_version[version] = exported(wheel)
        files.append(wheel.name)
        print(version, len(by_version[version]), file=sys.stderr)
    libstdcpp = of_libstdcpp() & set().union(*by_version.values())
    with_std = {version: names | libstdcpp for version, names in by_version.items()}
    write("torch-exports", "Which names torch's libraries export, by version", files, with_std)


if __name__ == "__main__":
    main()

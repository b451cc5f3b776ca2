"""Write the lists of what CUDA's libraries and tvm-ffi export, by version, from wheels of the
package registry.

    python bin/update_exports.py 12.6.3 12.8.1 12.9.1 13.0.2 13.1.1 13.2.1

The arguments are releases of CUDA: which wheels belong to one is what the package cuda-toolkit
pins. Of a wheel only the headers are fetched, by ranges, and the library where it is small
(libcudart). Of the driver cuda.h tells. cuDNN and NCCL have versions of their own: their newest for
each major version of CUDA counts. Of tvm-ffi every minor release is read.
"""

import datetime
import io
import json
import re
import sys
import textwrap
import urllib.request
import zipfile
from collections import defaultdict
from email import message_from_bytes

from elftools.elf.elffile import ELFFile
from packaging.requirements import Requirement
from packaging.version import Version

from kci.tree.verify.abi import DATA, cpp_namespace, is_toolkit_name
from update_torch_exports import write

LIBRARIES = {
    "cublas": "cublas",
    "cuda-runtime": "cu",
    "cufft": "cufft",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparse": "cusparse",
    "cuda-nvrtc": "nvrtc",
    "cudnn": "cudnn",
    "nccl": "p?nccl",
}
"""How the names of each library's functions begin, by its package."""

TVM_FFI_OLDEST, TVM_FFI_SAYS_SO = "0.1.9", "Requires-Dist of kernels 0.17.2"


class Remote(io.RawIOBase):
    """A file of the registry, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.place = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self.size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer: memoryview) -> int:
        last = min(self.place + len(buffer), self.size) - 1
        if last < self.place:
            return 0
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={self.place}-{last}"})
        with urllib.request.urlopen(request) as answer:
            data = answer.read()
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)


def releases(package: str) -> dict[Version, str]:
    """The addresses of a package's wheels for Linux on x86-64, by release."""
    wanted = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"https://pypi.org/simple/{package}/", headers=wanted)
    ) as answer:
        files = json.load(answer)["files"]
    fitting = [
        item for item in files if re.search(r"linux\w*_x86_64\.whl$|-any\.whl$", item["filename"])
    ]
    return {
        Version(item["filename"].split("-")[1]): item["url"]
        for item in fitting
        if not item.get("yanked")
    }


def opened(url: str) -> zipfile.ZipFile:
    """A wheel, without fetching all of it."""
    return zipfile.ZipFile(io.BufferedReader(Remote(url), 1 << 18))


def newest(package: str, wanted: str) -> str:
    """The address of the newest release that a version specifier takes."""
    there = releases(package)
    return there[max(Requirement(package + wanted).specifier.filter(there))]


def pins(release: str) -> dict[str, str]:
    """The packages of a release of CUDA, with their version specifiers."""
    with opened(newest("cuda-toolkit", f"=={release}")) as toolkit:
        name = next(name for name in toolkit.namelist() if name.endswith("/METADATA"))
        required = map(Requirement, message_from_bytes(toolkit.read(name)).get_all("Requires-Dist"))
    return {item.name: str(item.specifier) for item in required if str(item.specifier)}


def exported(library: bytes) -> set[str]:
    """What a library defines."""
    table = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym")
    return {item.name for item in table.iter_symbols() if item["st_shndx"] != "SHN_UNDEF"}


def declared(text: str, start: str) -> set[str]:
    """The functions in a header whose names begin so, with what macros make of them."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    found = set(re.findall(rf"\b({start}[A-Z]\w*)\s*\(", text))
    found |= set(re.findall(rf"#\s*define\s+\w+\s+({start}[A-Z]\w*)", text))
    for how, name in re.findall(r"__CUDA_API_(PTDS|PTSZ)\((\w+)\)", text):
        found |= {name, f"{name}_{how.lower()}"}
    return found


def of_wheel(package: str, archive: zipfile.ZipFile) -> set[str]:
    """The names that the libraries of a wheel export, as far as they are CUDA's."""
    start = LIBRARIES[package]
    found: set[str] = set()
    for name in archive.namelist():
        if "/libcudart.so" in name:
            found |= exported(archive.read(name))
        elif name.endswith("/cuda.h" if package == "cuda-runtime" else ".h"):
            found |= declared(archive.read(name).decode("utf-8", "replace"), start)
    return {name for name in found if is_toolkit_name(name, "cuda") or name.startswith("pnccl")}


def cuda(wanted: list[str]) -> None:
    """Write what each release of CUDA exports."""
    by_version: dict[str, set[str]] = {}
    files: set[str] = set()
    for release in wanted:
        major, minor = release.split(".")[:2]
        names = by_version[f"{major}.{minor}"] = set()
        for package, pin in {
            **pins(release),
            f"nvidia-cudnn-cu{major}": "",
            f"nvidia-nccl-cu{major}": "",
        }.items():
            library = re.sub(r"^nvidia-|-cu\d+$", "", package)
            if library in LIBRARIES:
                url = newest(package, pin)
                with opened(url) as archive:
                    names |= of_wheel(library, archive)
                files.add("-".join(url.rpartition("/")[2].split("-")[:2]))
        print(release, len(names), file=sys.stderr)
    write("cuda-exports", "Which names the libraries of CUDA export, by version", files, by_version)


def tvm_ffi() -> None:
    """Write what tvm-ffi exports, by the release that added it; what the newest no longer has is
    left out.
    """
    found = {}
    for release, url in sorted(releases("apache-tvm-ffi").items()):
        if release.release not in {version.release for version in found}:
            with opened(url) as archive:
                name = next(name for name in archive.namelist() if name.endswith("/libtvm_ffi.so"))
                names = exported(archive.read(name))
            found[release] = {
                one for one in names if one.startswith("TVMFFI") or cpp_namespace(one) == "tvm"
            }
    added: dict[str, set[str]] = defaultdict(set)
    for name in found[max(found)]:
        before = max(
            (release for release, names in found.items() if name not in names), default=None
        )
        added[
            min(release for release in found if before is None or release > before).base_version
        ].add(name)
    lines = [
        "# What libtvm_ffi.so exports, by the release of apache-tvm-ffi that added it.",
        "# Written by bin/update_exports.py.",
        f"as-of = {datetime.datetime.now(tz=datetime.UTC).date()}",
        f'source = "PyPI: apache-tvm-ffi {min(found)} to {max(found)}, Linux on x86-64; oldest: '
        f'{TVM_FFI_SAYS_SO}"',
        "",
        "# The release that users have at least.",
        f'oldest = "{TVM_FFI_OLDEST}"',
        "",
        "[added]",
    ]
    for version in sorted(added, key=Version):
        names = textwrap.wrap(
            ", ".join(f'"{name}"' for name in sorted(added[version])), 114, break_long_words=False
        )
        lines += [f'"{version}" = [', *(f"    {line}" for line in names), "]"]
    (DATA / "tvm-ffi-exports.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    tvm_ffi()
    cuda(sys.argv[1:])

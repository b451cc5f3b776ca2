"""What a build read, compared with what the plan's fingerprint covers: the compiler is the witness.

A file of the repository that was compiled in and that no fingerprint counts would make the next plan skip a variant
that has changed. So such a build fails, whatever the reading of the sources missed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from kci.builders.commands import Toolchain, host_compiler
from kci.builders.hipify import FOLDER, hip_path
from kci.builders.kernel_files import refused
from kci.builders.request import Request
from kci.errors import BuildFailedError
from kci.inputs.kernel_inputs import KernelInputs, RecordedInputs
from kci.inputs.source_tree import SourceTree

_SHOWN = 5
# A word of a rule of make, in which spaces, `#` and tabs are escaped.
_WORD = re.compile(r"(?:\\[\\ #\t]|\S)+")
_ESCAPED = re.compile(r"\\([ #\t])")


class Watch:
    """The inputs of one build: looked at before it, and again after it."""

    def __init__(self, request: Request) -> None:
        """Look at the files before anything reads them.

        Raises:
            FindingsError: an include leads out of the kernel (KCI145), or a file cannot be read.
        """
        self.inputs = inputs = request.files()
        self.variant = request.variant
        self.paths = {f"{inputs.tree.root}/{path}" for path, _ in inputs.of(request.variant)}
        """Where the files lie that may be read; links are not followed."""
        self.covered = {real for _, real in inputs.of(request.variant) if real}
        self._before = {real: inputs.tree.digest(real) for real in self.covered}

    def before(self, real: str) -> str | None:
        """The SHA-256 that one of the files had, by its absolute path; None for any other."""
        root = f"{self.inputs.tree.root}/"
        return self._before.get(real.removeprefix(root)) if real.startswith(root) else None

    def copied(self) -> RecordedInputs:
        """The record of a variant that is copied and not compiled.

        Raises:
            BuildFailedError: a file changed meanwhile (KCI511).
        """
        return self._record(self.inputs.installed(self.variant), "")

    def compiled(self, read: Iterable[str], toolchain: str) -> RecordedInputs:
        """The record of a variant whose compilers read these real paths, wherever they lie.

        Raises:
            BuildFailedError: one of them is in the repository and not among the variant's inputs (KCI510), or a file
                changed meanwhile (KCI511).
        """
        root = self.inputs.tree.root
        own = {path[len(root) + 1 :] for path in read if path.startswith(f"{root}/")}
        self._refuse(own - self.covered)
        always = self.inputs.installed(self.variant) | self.inputs.unlisted(self.variant)
        return self._record(own | always, toolchain)

    def _refuse(self, missed: set[str]) -> None:
        if not missed:
            return
        shown = [self.inputs.shown(path) for path in sorted(missed)]
        names = ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more files" if len(shown) > _SHOWN else "")
        message = f"compiling {self.variant.name} read {names}, which its fingerprint does not cover"
        raise refused("KCI510", message, self.inputs.shown_build_toml, BuildFailedError)

    def _record(self, read: Iterable[str], toolchain: str) -> RecordedInputs:
        now = SourceTree(Path(self.inputs.tree.root))
        for real in sorted(read):
            if now.file(real) is None or now.digest(real) != self._before[real]:
                message = f"{self.inputs.shown(real)} changed while {self.variant.name} was built from it"
                raise refused("KCI511", message, self.inputs.shown(real), BuildFailedError)
        files = {self.inputs.shown(real): self._before[real] for real in sorted(read)}
        return RecordedInputs(files, toolchain)


def read_by_compilers(
    work: Path, named: Iterable[str], chain: Toolchain, covered: Iterable[str], inputs: KernelInputs
) -> set[str]:
    """The real paths of the files that compilers named, without those of tools inside of the repository.

    What lies in the directories of `chain` is known by its version. Files that hipify renamed are looked up among those
    that the fingerprint covers.
    """
    directories: dict[str, str] = {}
    tools = tuple(f"{place}/" for place in _tool_places(work, chain, inputs))
    renamed = {_as_hip(inputs.shown(real)): real for real in covered}
    found = set()
    translated = f"{os.path.realpath(work / FOLDER)}/"
    for name in named:
        # The links in the work directory are followed, as the compiler followed them: `kernel/..` is not here.
        folder, _, last = (name if name.startswith("/") else f"{work}/{name}").rpartition("/")
        if folder not in directories:
            directories[folder] = os.path.realpath(folder)
        real = os.path.realpath(f"{directories[folder]}/{last}")
        if real.startswith(translated):
            real = _before_hipify(real.removeprefix(translated), inputs, renamed)
        if not real.startswith(tools):
            found.add(real)
    return found


def dependencies(depfile: Path) -> list[str]:
    """What a dependency file names behind its target; it is a rule of make.

    Raises:
        BuildFailedError: it cannot be read.
    """
    try:
        text = os.fsdecode(depfile.read_bytes())
    except OSError as error:
        raise BuildFailedError(f"the compiler did not say what it read: {depfile}: {error.strerror}") from error
    _, _, rule = text.replace("\\\n", " ").replace("\\\r\n", " ").partition(": ")
    rule = rule.partition("\n")[0]
    if "\\" not in rule and "$" not in rule:
        return rule.split()
    words = _WORD.findall(rule)
    return [_ESCAPED.sub(r"\1", word).replace("$$", "$") for word in words]


def _tool_places(work: Path, chain: Toolchain, inputs: KernelInputs) -> Iterator[str]:
    """Directories of tools that lie inside of the repository, such as its virtual environment."""
    places: list[Path | None] = [work, chain.environment.torch, chain.python_include]
    places += [Path(sys.prefix), Path(sys.base_prefix), *(headers.folder for headers in chain.headers)]
    places.append(chain.cuda_headers.folder if chain.cuda_headers else None)
    places += [chain.cuda.root if chain.cuda else None, chain.rocm.root if chain.rocm else None]
    compiler = shutil.which(host_compiler(chain.cxx))
    places.append(Path(os.path.realpath(compiler)).parent.parent if compiler else None)
    for place in places:
        real = os.path.realpath(place) if place is not None else ""
        if real.startswith(f"{inputs.tree.root}/"):
            yield real


def _before_hipify(name: str, inputs: KernelInputs, renamed: dict[str, str]) -> str:
    """The file of the kernel that a file of the translated copy comes from."""
    same = inputs.tree.file(inputs.in_tree(name))
    found = same if same is not None else renamed.get(_as_hip(name), inputs.in_tree(name))
    return f"{inputs.tree.root}/{found}"


def _as_hip(name: str) -> str:
    """What hipify may call a file, without the ending that it puts behind a name that would stay the same."""
    path = PurePosixPath(hip_path(name) if name.endswith(".cu") else hip_path(f"{name}.cu").removesuffix(".hip"))
    return str(path.with_name(path.stem.removesuffix("_hip") + path.suffix))

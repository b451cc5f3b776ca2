"""The compiler as witness of what a variant is made from: the native builder's own commands, run without ninja.

No torch is needed: nothing here includes it, and nothing is linked. What a variant holds is its objects and the files
of its Python package.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kci.builders import native, noarch
from kci.builders.read_files import Watch, dependencies, read_by_compilers
from kci.builders.recipe import Recipe, checked_sources, make_recipe
from kci.builders.request import BuildOptions, Request
from kci.config.reader import read_kernel
from kci.config.settings import Settings
from kci.errors import KciError
from kci.inputs.kernel_inputs import KernelInputs
from kci.inputs.source_tree import SourceTree
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.plan.fingerprint import Fingerprints
from kci.processes.process import silent
from kci.tree.identity import kernel_id


def request_for(root: Path, kernel: Path, variant: Variant, cache: Path) -> Request:
    """The request to build a variant."""
    build = read_kernel(kernel).build
    name = kernel_id(build.name, variant.backend, "1a2b3c4")
    return Request(kernel, build, variant, name, root / "out", BuildOptions(cache))


def uncertain(inputs: KernelInputs, variant: Variant) -> list[str]:
    """The includes of a variant that cannot be followed, because of which every file of the kernel counts."""
    reached = inputs._reached
    return sorted({reached[label].unknown for label in inputs._labels(variant) if label in reached} - {""})


def planned(root: Path, kernel: Path, variant: Variant, settings: Settings) -> tuple[str, str]:
    """The fingerprint, and why every file counts if so."""
    try:
        read = read_kernel(kernel)
        prints = Fingerprints(read, SourceTree(root), settings.inputs_of(read.build.name))
        return prints.fingerprint(variant, "image"), "; ".join(uncertain(prints.inputs, variant))
    except KciError as error:
        return f"refused: {error.message}", ""


class Compiler:
    """The compilers' word about what a variant would hold. What this machine has is looked for once."""

    def __init__(self, request: Request, *, objects: bool = False) -> None:
        """Find the compilers.

        Args:
            request: the variant.
            objects: compile each time. Otherwise the text decides that a C++ compiler gets to see after preprocessing,
                of which, with its command, the object is a function.
        """
        self._request = request
        self._objects = objects
        self._chain = None if request.variant.kind is Kind.NOARCH else native.plan(request, silent).chain

    def content(self) -> str:
        """A hash of everything that the variant would hold now; the first error where it cannot be built."""
        request, total = self._request, hashlib.sha256()
        try:
            if self._chain is None:
                return copied(request)
            recipe = make_recipe(request, checked_sources(request, silent), self._chain)
        except KciError as error:
            return f"refused: {error.message}"
        prepare(recipe)
        for step in recipe.steps:
            if step.depfile:
                try:
                    total.update(self._compiled(recipe.work, step.command, step.output))
                except subprocess.CalledProcessError as error:
                    return f"failed: {error.stderr.decode(errors='replace')[:200]}"
        for name, path in recipe.package.items():
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()

    def _compiled(self, work: Path, command: tuple[str, ...], output: str) -> bytes:
        """A hash of what comes of a source.

        Raises:
            CalledProcessError: nothing comes of it.
        """
        total = hashlib.sha256("\0".join(command).encode())
        if self._objects:
            (work / output).unlink(missing_ok=True)
            subprocess.run(repeatable(work, command), cwd=work, capture_output=True, check=True)
            total.update((work / output).read_bytes())
        else:
            for words in preprocessors(work, command):
                total.update(subprocess.run(words, cwd=work, capture_output=True, check=True).stdout)
        return total.digest()


def copied(request: Request) -> str:
    """A hash of a variant that nothing compiles."""
    shutil.rmtree(request.output, ignore_errors=True)
    noarch.build(request, silent)
    total = hashlib.sha256()
    for path in sorted(path for path in request.output.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(request.output)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def preprocessors(work: Path, command: tuple[str, ...]) -> Iterator[list[str]]:
    """The commands that show what compilers get to see, without the places of its lines; nvcc has one for each pass."""
    output = command.index("-o")
    shown = [*command[:output], *command[output + 2 :]]
    if Path(command[0]).name != "nvcc":
        yield ["-E" if word == "-c" else word for word in shown] + ["-P"]
        return
    listed = subprocess.run([*command, "--dryrun"], cwd=work, capture_output=True, text=True, check=True).stderr
    passes = [words for line in listed.splitlines() if "-E" in (words := shlex.split(line.removeprefix("#$ ")))]
    assert len(passes) > 1, "one for the host, and one for each arch"
    for words in passes:
        yield [*words[: words.index("-o")], *words[words.index("-o") + 2 :], "-P"]


def repeatable(work: Path, command: tuple[str, ...]) -> list[str]:
    """A command whose object depends on its inputs alone: nvcc makes names of temporary files a part of it."""
    if Path(command[0]).name != "nvcc":
        return list(command)
    shutil.rmtree(work / "keep", ignore_errors=True)
    (work / "keep").mkdir()
    return [*command, "--keep", "--keep-dir", "keep"]


def prepare(recipe: Recipe) -> None:
    """The work directory, with the places for the objects, which ninja would make."""
    native._prepare(recipe)
    for step in recipe.steps:
        (recipe.work / step.output).parent.mkdir(parents=True, exist_ok=True)


def confirm(request: Request, watch: Watch) -> dict[str, str]:
    """What the compilers say that they read, by their dependency files; see `Watch.compiled`."""
    recipe = native.plan(request, lambda _line: None)
    prepare(recipe)
    objects = []
    for step in recipe.steps:
        if step.depfile:
            subprocess.run(step.command, cwd=recipe.work, capture_output=True, check=True)
            objects.append(step.output)
    named = sorted({name for file in objects for name in dependencies(recipe.work / f"{file}.d")})
    read = read_by_compilers(recipe.work, named, recipe.chain, watch.covered, watch.inputs)
    return watch.compiled(read, "").files


# --- every file of a repository in turn ---


def changed(path: Path) -> None:
    """Other content of the same meaning, as far as one is known for the kind of file."""
    name = f"kci_{abs(hash(path.name)) % 10**6}"
    old = path.read_bytes()
    if path.suffix == ".bin":
        path.write_bytes(old + b"5")
    elif path.suffix == ".toml":
        path.write_bytes(old + b"\n# a comment\n")
    elif path.name == "flags.txt":
        path.write_text("-DM=2\n")
    elif path.name == "m.h" and b"define M 1" in old:
        path.write_text("#define M 2\n")
    elif path.name == "bound.h":
        path.write_text("#define BOUND 2\n")
    elif path.name == "maybe.h":
        path.write_text("// its content is not read\n")
    else:
        path.write_bytes(old + f"\nstatic int {name} __attribute__((used)) = 1;\n".encode())


def removed(path: Path) -> None:
    path.unlink()


def files_of(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() or path.is_symlink():
            yield path


def put_back(path: Path) -> Callable[[], None]:
    """What undoes a change of a file."""
    link = path.readlink() if path.is_symlink() else None
    content = b"" if link is not None else path.read_bytes()

    def back() -> None:
        path.unlink(missing_ok=True)
        if link is not None:
            path.symlink_to(link)
        else:
            path.write_bytes(content)

    return back


class Judged(NamedTuple):
    """What changes of files did."""

    changes: int
    stale: list[str]
    needless: list[str]


def judge(
    files: Iterable[Path], fingerprint: Callable[[], str], content: Callable[[], str], told: Callable[[str], object]
) -> Judged:
    """Change, and then remove, each file in turn, and hold the fingerprint against the compiler.

    What moves no fingerprint is compiled together: if nothing differs with all of those changes, none of them matters.

    Args:
        files: which ones; `build.toml` and `kci.toml` get a comment and are not removed, links are only removed.
        fingerprint: the fingerprint now.
        content: a hash of the variant's objects and package now.
        told: takes a line for each file that moved the fingerprint.
    """
    print_before, content_before = fingerprint(), content()
    assert not content_before.startswith(("refused", "failed")), content_before
    files = list(files)
    count, stale, needless = 0, [], []
    for change in (changed, removed):
        unmoved = []
        for path in files:
            if path.suffix == ".toml" if change is removed else path.is_symlink():
                continue
            count += 1
            back = put_back(path)
            change(path)
            moved = fingerprint() != print_before
            differs = moved and content() != content_before
            back()
            if not moved:
                unmoved.append(path)
                continue
            told(f"{path} {change.__name__}: {'differs' if differs else 'needless'}")
            needless += [] if differs else [f"{path} {change.__name__}"]
        undo = [put_back(path) for path in unmoved]
        for path in unmoved:
            change(path)
        assert fingerprint() == print_before
        stale += [f"one of {unmoved} {change.__name__}"] if content() != content_before else []
        for back in undo:
            back()
    assert (fingerprint(), content()) == (print_before, content_before), "the changes were undone"
    return Judged(count, stale, needless)

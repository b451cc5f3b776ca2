"""The compiler as witness of what a variant is made from: the native builder's own commands, run without ninja.

No torch is needed: nothing here includes it, and nothing is linked. What a variant holds is its objects and the files
of its Python package.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kci.builders import native, noarch
from kci.builders.package import installed_files, package_dir
from kci.builders.read_files import Watch, named_by_compilers, read_by_compilers
from kci.builders.request import Request, silent
from kci.config.reader import read_kernel
from kci.config.settings import Settings
from kci.errors import KciError
from kci.files.source_tree import SourceTree
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.plan.fingerprint import Fingerprints
from kci.tree.identity import kernel_id


class Seen(NamedTuple):
    """A variant of a kernel as it lies on the disk."""

    fingerprint: str
    """The fingerprint, or the rule that refused the kernel."""
    content: str
    """A hash of its objects and of its package; the first error where it cannot be built."""
    uncertain: str
    """Why every file counts; empty if not."""


def request_for(root: Path, kernel: Path, variant: Variant, cache: Path) -> Request:
    """The request to build a variant."""
    build = read_kernel(kernel).build
    return Request(kernel, build, variant, kernel_id(build.name, variant.backend, "1a2b3c4"), root / "out", cache)


def look(root: Path, kernel: Path, variant: Variant, cache: Path, settings: Settings) -> Seen:
    """What plan and compiler say of a variant, each by itself."""
    fingerprint, uncertain = planned(root, kernel, variant, settings)
    return Seen(fingerprint, compiled(request_for(root, kernel, variant, cache)), uncertain)


def planned(root: Path, kernel: Path, variant: Variant, settings: Settings) -> tuple[str, str]:
    """The fingerprint, and why every file counts if so."""
    try:
        read = read_kernel(kernel)
        prints = Fingerprints(read, SourceTree(root), settings.inputs_of(read.build.name))
        return prints.fingerprint(variant, "image"), "; ".join(prints.inputs.uncertain(variant))
    except KciError as error:
        return f"refused: {error.message}", ""


def compiled(request: Request, known: dict[bytes, bytes] | None = None) -> str:
    """A hash of everything that the variant would hold.

    Args:
        request: the variant.
        known: what preprocessed text became; what is there already is not compiled again.
    """
    total = hashlib.sha256()
    try:
        if request.variant.kind is Kind.NOARCH:
            return copied(request)
        recipe = native.plan(request, lambda _line: None)
        package = installed_files(request.kernel_dir, package_dir(request.kernel_dir, request.build), request.build)
    except KciError as error:
        return f"refused: {error.message}"
    prepare(recipe)
    for step in recipe.steps:
        if step.depfile:
            text = preprocessed(recipe.work, step.command) if known is not None else b""
            if known is not None and text in known:
                total.update(known[text])
                continue
            (recipe.work / step.output).unlink(missing_ok=True)
            done = subprocess.run(
                repeatable(recipe.work, step.command), cwd=recipe.work, capture_output=True, check=False
            )
            if done.returncode:
                return f"failed: {done.stderr.decode(errors='replace')[:200]}"
            held = hashlib.sha256((recipe.work / step.output).read_bytes()).digest()
            total.update(held)
            if known is not None and text:
                known[text] = held
    for name, path in package.items():
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def copied(request: Request) -> str:
    """A hash of a variant that nothing compiles."""
    shutil.rmtree(request.output, ignore_errors=True)
    noarch.build(request, silent)
    total = hashlib.sha256()
    for path in sorted(path for path in request.output.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(request.output)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def preprocessed(work: Path, command: tuple[str, ...]) -> bytes:
    """A hash of a command and of what a C++ compiler gets to see; nothing for nvcc, which has a pass for each arch."""
    if Path(command[0]).name == "nvcc":
        return b""
    output = command.index("-o")
    words = ["-E" if word == "-c" else word for word in (*command[:output], *command[output + 2 :])]
    done = subprocess.run(words, cwd=work, capture_output=True, check=False)
    shown = "\0".join(command).encode()
    return b"" if done.returncode else hashlib.sha256(shown + b"\0" + done.stdout).digest()


def repeatable(work: Path, command: tuple[str, ...]) -> list[str]:
    """A command whose object depends on its inputs alone: nvcc makes names of temporary files a part of it."""
    if Path(command[0]).name != "nvcc":
        return list(command)
    shutil.rmtree(work / "keep", ignore_errors=True)
    (work / "keep").mkdir()
    return [*command, "--keep", "--keep-dir", "keep"]


def prepare(recipe: native.Recipe) -> None:
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
    read = read_by_compilers(
        recipe.work, named_by_compilers(recipe.work, objects), recipe.chain, watch.covered, watch.inputs
    )
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
        files: which ones; `build.toml` and `kci.toml` get a comment and are not removed.
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
            if change is removed and path.suffix == ".toml":
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

"""The compiler as witness of what a variant is made from: the native builder's own commands, run without ninja.

No torch is needed: nothing here includes it, and nothing is linked. What a variant holds is its objects and the files
of its Python package.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from kci.builders import native
from kci.builders.package import installed_files, package_dir
from kci.builders.read_files import Watch, read_by_compilers
from kci.builders.request import Request
from kci.config.reader import read_kernel
from kci.config.settings import Settings
from kci.errors import KciError
from kci.files.source_tree import SourceTree
from kci.matrix.variants import Variant
from kci.plan.fingerprint import Fingerprints


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
    return Request(kernel, read_kernel(kernel).build, variant, f"_k_{variant.backend}_1a2b3c4", root / "out", cache)


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


def compiled(request: Request) -> str:
    """A hash of everything that the variant would hold."""
    total = hashlib.sha256()
    try:
        recipe = native.plan(request, lambda _line: None)
        package = installed_files(request.kernel_dir, package_dir(request.kernel_dir, request.build), request.build)
    except KciError as error:
        return f"refused: {error.message}"
    prepare(recipe)
    for step in recipe.steps:
        if step.depfile:
            (recipe.work / step.output).unlink(missing_ok=True)
            done = subprocess.run(
                repeatable(recipe.work, step.command), cwd=recipe.work, capture_output=True, check=False
            )
            if done.returncode:
                return f"failed: {done.stderr.decode(errors='replace')[:200]}"
            total.update(hashlib.sha256((recipe.work / step.output).read_bytes()).digest())
    for name, path in package.items():
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


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
    read = read_by_compilers(recipe.work, objects, recipe.chain, watch.covered, watch.inputs)
    return watch.compiled(read, "").files

"""The builds that `kci run` keeps: each in a place of the cache that is named after its fingerprint."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from threading import Lock

import msgspec

from kci.builders.request import BuildOptions
from kci.config.reader import Kernel
from kci.errors import KciError
from kci.files.cache import place_digest
from kci.files.full_disk import writing
from kci.files.lock import locked
from kci.inputs.source_tree import SourceTrees
from kci.matrix.variants import Variant
from kci.plan.fingerprint import Fingerprints
from kci.processes.process import Log
from kci.run.one_variant import make_variant_dir
from kci.toolchains.compiler_cache import ObjectUse
from kci.toolchains.compilers import toolchain_identity
from kci.tree.leg_record import read_sealed
from kci.workspace.workspace import Workspace

KEPT_BUILDS = 3
"""How many builds of one variant stay in the cache; older ones go when a new one is made."""


class KeptVariant(msgspec.Struct, frozen=True):
    """A variant that a run takes."""

    directory: Path
    seconds: float | None = None
    """How long its build took; None for one that was there."""
    objects: ObjectUse | None = None
    """What its build had to compile."""


class KeptBuilds:
    """The kept builds of a workspace; a kernel's files are read when it is first asked for, by one thread at a time."""

    def __init__(self, workspace: Workspace, options: BuildOptions) -> None:
        self._settings = workspace.settings.settings
        self._options = options.under(self._settings)
        self._sources = SourceTrees()
        self._prints: dict[str, Fingerprints] = {}
        self._guard = Lock()

    def fingerprint(self, kernel: Kernel, variant: Variant) -> str:
        """What a build now would be made from; this machine's compilers stand in place of a leg's image.

        Raises:
            MissingToolError: this machine has no compiler, torch or toolkit for the variant.
            FindingsError: a file cannot be read.
        """
        how, name = self._options, kernel.build.name
        compilers = toolchain_identity(variant, how.cache, builder=how.builder, isolation=how.isolation)
        toolchain = f"{compilers}\n{how.builder} {how.unique_id or ''}"
        with self._guard:
            if name not in self._prints:
                tree = self._sources.of(kernel.directory)
                self._prints[name] = Fingerprints(kernel, tree, self._settings.inputs_of(name))
            return self._prints[name].fingerprint(variant, toolchain, everything=how.builder == "nix")

    def find(self, kernel: Kernel, variant: Variant, made_from: str) -> KeptVariant | None:
        """A kept build that is what a build would give now."""
        same = self._output(kernel, made_from) / variant.name
        return KeptVariant(same) if _digest(same) else None

    def make(self, kernel: Kernel, variant: Variant, made_from: str, log: Log, builds: int = 1) -> KeptVariant:
        """Build a variant and keep it; the oldest of its builds goes. What another run makes meanwhile is taken.

        Raises:
            KciError: as `make_variant_dir`.
        """
        output = self._output(kernel, made_from)
        with writing(output), locked(output, log):
            # A build that another run has finished may be read by it now, and is not replaced.
            if kept := self.find(kernel, variant, made_from):
                return kept
            leg = make_variant_dir(kernel, variant, output, self._options, log, builds)
        self._forget_old(kernel, variant.name, output)
        return KeptVariant(output / variant.name, seconds=leg.seconds or 0.0, objects=leg.objects)

    def _place(self, kernel: Kernel) -> Path:
        return self._options.cache / "run" / f"{kernel.build.name}-{place_digest(Path(kernel.directory))}"

    def _output(self, kernel: Kernel, made_from: str) -> Path:
        return self._place(kernel) / f"{made_from[:16]}-{sha256(made_from.encode()).hexdigest()[:16]}"

    def _forget_old(self, kernel: Kernel, variant: str, keep: Path) -> None:
        """Remove all but the newest builds of a variant. Another run may be taking one that is among the newest."""
        made = [entry for entry in self._place(kernel).glob(f"*/{variant}") if entry.parent != keep]
        made.sort(key=_changed, reverse=True)
        for old in made[KEPT_BUILDS - 1 :]:
            with locked(old):
                shutil.rmtree(old, ignore_errors=True)


def _changed(path: Path) -> float:
    """When a file was changed last; 0 if another run has removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _digest(directory: Path) -> str:
    """The digest of a variant whose files are as its metadata says; empty for another directory."""
    try:
        return read_sealed(directory).digest
    except (OSError, KciError):
        return ""

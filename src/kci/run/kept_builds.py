"""The builds that `kci run` keeps: each in a place of the cache that is named after its fingerprint, with its record.

A build is taken again if its fingerprint is the one of now, or if nothing changed that it really read: its record says
what that was, as the compilers listed it. Builds without a record, whose builder cannot tell, go by the fingerprint.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.builders.request import BuildOptions
from kci.config.reader import Kernel
from kci.errors import KciError
from kci.files.bounded_json import read_json, require_schema
from kci.files.cache import place_digest
from kci.files.full_disk import writing
from kci.files.lock import beside, locked
from kci.files.replace import recover, write_atomic
from kci.inputs.kernel_inputs import RecordedInputs
from kci.inputs.source_tree import SourceTrees
from kci.matrix.variants import Variant
from kci.plan.fingerprint import Fingerprints
from kci.plurals import count
from kci.processes.process import Log, silent
from kci.run.one_variant import make_variant_dir
from kci.toolchains.compilers import toolchain_identity
from kci.toolchains.launcher import ObjectUse
from kci.tree.leg_record import read_sealed
from kci.workspace.workspace import Workspace

KEPT_BUILDS = 3
"""How many builds of one variant stay in the cache; older ones go when a new one is made."""

RECORD = "kept-build.json"
SCHEMA = 1


class KeptBuild(msgspec.Struct, frozen=True):
    """What is known of a kept build."""

    fingerprint: Annotated[str, Meta(pattern=r"^[0-9a-f]{96}\Z")]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """Of the variant's directory: a record says nothing about other files than those that were built with it."""
    inputs: RecordedInputs
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class KeptVariant(msgspec.Struct, frozen=True):
    """A variant that a run takes."""

    directory: Path
    why: str = ""
    """Why it is what a build would give now, where its fingerprint is another."""
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
            FindingsError: a file cannot be read, or an include leads out of the kernel (KCI145).
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
        if _digest(same):
            _finish_record(same.parent / RECORD)
            return KeptVariant(same)
        for output in sorted(self._place(kernel).glob(f"{made_from[:16]}-*")):
            directory = output / variant.name
            kept = _read(output / RECORD)
            if kept is None or not self._holds(kernel, made_from, kept):
                continue
            if _digest(directory) == kept.digest:
                with suppress(OSError):
                    os.utime(directory)  # it is in use: not the next one to go
                read = count(len(kept.inputs.files), "file")
                return KeptVariant(directory, f"nothing changed in the {read} that its build read")
        return None

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
            if leg.inputs is not None:
                write_atomic(output / RECORD, msgspec.json.encode(KeptBuild(made_from, leg.digest, leg.inputs)))
        self._forget_old(kernel, variant.name, output)
        return KeptVariant(output / variant.name, seconds=leg.seconds or 0.0, objects=leg.objects)

    def _holds(self, kernel: Kernel, made_from: str, kept: KeptBuild) -> bool:
        with self._guard:
            return self._prints[kernel.build.name].still_holds(made_from, kept.fingerprint, kept.inputs.files)

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
                (old.parent / RECORD).unlink(missing_ok=True)
                shutil.rmtree(old, ignore_errors=True)


def _changed(path: Path) -> float:
    """When a file was changed last; 0 if another run has removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _finish_record(record: Path) -> None:
    """Remove what a kci left that was killed while it wrote the record; the build itself is whole."""
    if any(os.path.lexists(beside(record, purpose)) for purpose in ("lock", "new", "old")):
        with suppress(OSError), locked(record):
            recover(record, silent)


def _digest(directory: Path) -> str:
    """The digest of a variant whose files are as its metadata says; empty for another directory."""
    try:
        return read_sealed(directory).digest
    except (OSError, KciError):
        return ""


def _read(record: Path) -> KeptBuild | None:
    try:
        return read_json(record, KeptBuild)
    except (OSError, ValueError):
        return None

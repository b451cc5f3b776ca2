"""The builds that `kci run` keeps: each in a place of the cache that is named after its fingerprint, with its record.

A build is taken again if its fingerprint is the one of now, or if nothing changed that it really read: its record says
what that was, as the compilers listed it. Builds without a record, whose builder cannot tell, go by the fingerprint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
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
from kci.files.lock import beside, locked
from kci.files.replace import recover, write_atomic
from kci.inputs.kernel_inputs import RecordedInputs, SourceTrees
from kci.matrix.variants import Variant
from kci.plan.fingerprint import Fingerprints
from kci.plurals import count
from kci.processes.job_budget import JobBudget
from kci.processes.process import silent
from kci.run.one_variant import BuiltVariant, make_variant_dir
from kci.toolchains.compilers import toolchain_identity
from kci.tree.leg_record import read_sealed
from kci.workspace.workspace import Workspace

KEPT_BUILDS = 3
"""How many builds of one variant stay in the cache; older ones go when a new one is made."""

RECORD = "kept-build.json"
SCHEMA = 1

_Digits = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class KeptBuild(msgspec.Struct, frozen=True):
    """What is known of a kept build."""

    fingerprint: _Digits
    digest: _Digits
    """Of the variant's directory: a record says nothing about other files than those that were built with it."""
    inputs: RecordedInputs
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class KeptBuilds:
    """The kept builds of one kernel directory on this machine."""

    def __init__(self, kernel: Kernel, prints: Fingerprints, options: BuildOptions) -> None:
        """Nothing is read yet."""
        self.kernel = kernel
        self.prints = prints
        self.options = options
        self._place = options.cache / "run" / f"{kernel.build.name}-{place_digest(Path(kernel.directory))}"

    def fingerprint(self, variant: Variant, toolchain: str) -> str:
        """What a build now would be made from.

        Raises:
            FindingsError: a file cannot be read, or an include leads out of the kernel (KCI145).
        """
        return self.prints.fingerprint(variant, toolchain, everything=self.options.builder == "nix")

    def find(self, variant: Variant, made_from: str) -> tuple[Path, str] | None:
        """The directory of a kept build that is what a build would give now, and why it is; None if there is none."""
        same = self._output(made_from) / variant.name
        if _digest(same):
            _finish_record(same.parent / RECORD)
            return same, ""
        for output in sorted(self._place.glob(f"{made_from[:16]}-*")):
            directory = output / variant.name
            kept = _read(output / RECORD)
            if kept is None or not self.prints.still_holds(made_from, kept.fingerprint, kept.inputs.files):
                continue
            if _digest(directory) == kept.digest:
                with suppress(OSError):
                    os.utime(directory)  # it is in use: not the next one to go
                return directory, f"nothing changed in the {count(len(kept.inputs.files), 'file')} that its build read"
        return None

    def make(
        self, variant: Variant, made_from: str, log: Callable[[str], None], budget: JobBudget | None = None
    ) -> BuiltVariant:
        """Build a variant and keep it; the oldest of its builds goes.

        Raises:
            KciError: as `make_variant_dir`.
        """
        output = self._output(made_from)
        built = make_variant_dir(self.kernel, variant, output, self.options, log, budget)
        if built.leg.inputs is not None:
            kept = KeptBuild(made_from, built.leg.digest, built.leg.inputs)
            write_atomic(output / RECORD, msgspec.json.encode(kept))
        self._forget_old(variant.name, output)
        return built

    def _output(self, made_from: str) -> Path:
        return self._place / f"{made_from[:16]}-{made_from[-16:]}"  # of each half: what it is made with, and from

    def _forget_old(self, variant: str, keep: Path) -> None:
        """Remove all but the newest builds of a variant. Another run may be taking one that is among the newest."""
        made = [entry for entry in self._place.glob(f"*/{variant}") if entry.parent != keep]
        made.sort(key=_changed, reverse=True)
        for old in made[KEPT_BUILDS - 1 :]:
            with locked(old):
                (old.parent / RECORD).unlink(missing_ok=True)
                shutil.rmtree(old, ignore_errors=True)


class KeptBuildsOf:
    """The kept builds of each kernel; its files are read when they are first asked for, by one thread at a time."""

    def __init__(self, workspace: Workspace, options: BuildOptions) -> None:
        self._settings = workspace.settings.settings
        self._options = msgspec.structs.replace(options, mirrors=self._settings.mirrors.addresses())
        self._sources = SourceTrees()
        self._made: dict[str, KeptBuilds] = {}
        self._guard = Lock()

    def look(self, kernel: Kernel, variant: Variant) -> tuple[KeptBuilds, str, tuple[Path, str] | None]:
        """A kernel's builds, the fingerprint that one variant has now, and a kept build of it with the reason."""
        name = kernel.build.name
        toolchain = _toolchain(variant, self._options)
        with self._guard:
            if name not in self._made:
                tree = self._sources.of(kernel.directory)
                prints = Fingerprints(kernel, tree, self._settings.inputs_of(name))
                self._made[name] = KeptBuilds(kernel, prints, self._options)
            kept = self._made[name]
            made_from = kept.fingerprint(variant, toolchain)
            return kept, made_from, kept.find(variant, made_from)


def _toolchain(variant: Variant, options: BuildOptions) -> str:
    """What this machine adds to the inputs, in place of a leg's image.

    Raises:
        MissingToolError: it has no compiler, torch or toolkit for the variant.
    """
    compilers = toolchain_identity(variant, options.cache, builder=options.builder, isolation=options.isolation)
    return f"{compilers}\n{options.builder} {options.unique_id or ''}"


def _changed(path: Path) -> float:
    """When something was changed last; 0 if another run has removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _finish_record(record: Path) -> None:
    """Remove what a kci left that was killed while it wrote the record; what it was about is taken all the same."""
    if any(os.path.lexists(beside(record, purpose)) for purpose in ("lock", "new", "old")):
        with suppress(OSError), locked(record):
            recover(record, silent)


def _digest(directory: Path) -> str:
    """The digest of a variant whose files are as its metadata says; empty if there is none."""
    try:
        return read_sealed(directory).digest
    except (OSError, KciError):
        return ""


def _read(record: Path) -> KeptBuild | None:
    try:
        return read_json(record, KeptBuild)
    except (OSError, ValueError):
        return None

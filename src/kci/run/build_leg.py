"""Builds and packs the variant of a leg, in an image or on this machine."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from kci.builders.dispatch import build_variant, choose_builder, plan_commands
from kci.builders.process.container import (
    ContainerBuild,
    build_command,
    choose_image,
    named_image,
    run_in_container,
)
from kci.builders.process.run import Log
from kci.builders.request import BuildOptions, Request
from kci.config.facts import BACKENDS
from kci.config.reader import Kernel
from kci.config.sources.card import render_card
from kci.config.sources.package_rules import source_findings
from kci.diagnostics import Diagnostic, errors_in, printable
from kci.errors import (
    FindingsError,
    KciError,
    UnfinishedBuildError,
    UnsafeError,
    UsageError,
    first_error,
)
from kci.matrix.variants import ObjectUse, Variant
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTrees
from kci.plan.legs import image_of
from kci.plan.workspace import Workspace
from kci.run.load_built import fetching, load_built
from kci.run.records import VariantFailure
from kci.tree import identity
from kci.tree.manifest import LegRecord, leg_for
from kci.tree.metadata import FILE_NAME, mark_partial, metadata_for, read_metadata, seal
from kci.tree.pack import pack, read_leg
from kci.tree.verify import verify
from kci.utils.archive import SUFFIXES, zstandard
from kci.utils.atomic import locked, replacing
from kci.utils.frozen import Frozen
from kci.utils.suggest import command_line


class LegRequest(Frozen, kw_only=True):
    """One variant to build."""

    kernel: Kernel
    variant: Variant
    output: Path
    """Parent of `<variant name>/`."""
    options: BuildOptions
    artifact: Path | None = None
    """Also pack to this file."""

    @property
    def directory(self) -> Path:
        return self.output / self.variant.name

    def replay(self, *more: str) -> str:
        """The command that builds the variant elsewhere, whole."""
        whole = replace(
            self.options, part=None, link=False, objects_from=(), objects_to=None, stop_after=None
        )
        options = [f"--variant={self.variant.name}", *whole.arguments(), *more]
        return printable(command_line("build", *options, place=self.kernel.directory))

    def failure(self, error: KciError, leg: str, replay: str, more: str = "") -> VariantFailure:
        """The record of a failed build; `more` is appended to its reason."""
        reason, unfinished = first_error(error) + more, isinstance(error, UnfinishedBuildError)
        name, attempt = self.kernel.build.name, self.options.attempt
        return VariantFailure(
            name, leg, self.variant.name, attempt, reason, replay[:4000], unfinished
        )

    def record(self, builder: str, seconds: float, objects: ObjectUse | None = None) -> LegRecord:
        """The record of the directory that was built."""
        return replace(
            leg_for(self.directory, system=self.variant.system, builder=builder),
            attempt=self.options.attempt,
            run=self.options.run,
            seconds=round(seconds, 1),
            objects=objects,
        )

    def for_builder(
        self, output: Path | None = None, builds: int = 1, inputs: KernelInputs | None = None
    ) -> Request:
        """The request for a builder, which writes into `output`, by default the directory."""
        directory, options = Path(self.kernel.directory), self.options
        name, unique = self.kernel.build.name, options.unique_id or identity.unique_id(directory)
        return Request(
            kernel_dir=directory,
            build=self.kernel.build,
            variant=self.variant,
            kernel_id=identity.kernel_id(name, self.variant.backend, unique),
            output=output or self.directory,
            options=replace(options, cache=options.cache.absolute()),
            builds=builds,
            inputs=inputs,
        )


def make_variant_dir(
    request: LegRequest, log: Log, builds: int = 1, inputs: KernelInputs | None = None
) -> LegRecord:
    """Build and seal one variant, replacing the old directory last.

    Raises MissingToolError or BuildFailedError.

    `inputs` are those of its fingerprint: a file that is another one since then ends the build.
    """
    kernel, variant, final = request.kernel, request.variant, request.directory
    kernel_dir = Path(kernel.directory)
    unique = request.options.unique_id or identity.unique_id(kernel_dir)
    options = replace(request.options, unique_id=unique)
    request = replace(request, options=options)
    with replacing(final, log) as replacement:
        check_replaceable(final, kernel.build.name)
        built = build_variant(request.for_builder(replacement.staging, builds, inputs), log)
        if options.archs:
            mark_partial(replacement.staging, options.archs)
        if not built.sealed:
            metadata = metadata_for(
                kernel.build,
                variant.backend,
                unique,
                archs=built.archs,
                provenance=identity.provenance(kernel_dir),
                variant=variant.name,
                committed=identity.commit_time(kernel_dir),
            )
            seal(replacement.staging, metadata)
        for directory, _, _ in os.walk(replacement.staging):
            Path(directory).chmod(0o755)
        replacement.commit()
        # still locked: a waiting build would replace what is read here
        return request.record(built.builder, built.seconds, built.objects)


def check_replaceable(place: Path, kernel: str) -> None:
    """Raise UnsafeError unless a directory is absent, empty, or a variant of the same kernel."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UnsafeError(f"{place} is in the way: it is not a directory", "name another --output")
    if not place.is_dir() or not any(place.iterdir()):
        return
    try:
        owner = read_metadata(place / FILE_NAME).name
    except FindingsError:
        owner = None
    if owner != kernel:
        what = f"a variant of {owner}" if owner else "no variant directory"
        hint = "name another --output, or remove the directory"
        raise UnsafeError(f"{place} is in the way: it has files and is {what}", hint)


_ABOUT_BINARIES = ("KCI74", "KCI75", "KCI76")


class BuiltLeg(Frozen):
    """The results of a leg."""

    directory: Path
    record: LegRecord
    artifact: Path | None
    findings: tuple[Diagnostic, ...] = ()
    """Verify findings about the binaries."""


def build_leg(workspace: Workspace, request: LegRequest, log: Log) -> BuiltLeg:
    """Build a variant, in its image or here, load it, and pack it.

    What fails verification or does not load stays unpacked and raises FindingsError. Other errors:
    UsageError, UnsafeError, MissingToolError, BuildFailedError.
    """
    kernel, variant, options = request.kernel, request.variant, request.options
    artifact, directory = request.artifact, request.directory
    if options.archs and not BACKENDS[variant.backend].archs:
        raise UsageError(f"{variant.name} has no archs to choose from", "leave out --arch")
    check_replaceable(directory, kernel.build.name)
    image = _checked_image(workspace, request, log)
    if image is None:
        # before the build: its files may change meanwhile
        card = render_card(kernel).text if artifact else None
        with fetching(variant, options, log):
            record = make_variant_dir(request, log)
        with locked(directory, log):  # another build of the variant may replace it
            findings = verify(directory, select=_ABOUT_BINARIES, kernel=Path(kernel.directory))
            if artifact:
                what = f"{directory} was built and is not packed: it does not meet"
                other = "the leg's image (--container auto), which meets those about older systems"
                _refuse_errors(findings, what, f"build in {other}")
            chosen = workspace.settings.settings.plan.load
            loaded = load_built(directory, variant, chosen, options, log)
            record = replace(record, loaded=loaded)
            if artifact:
                artifact.parent.mkdir(parents=True, exist_ok=True)
                pack(directory, artifact, replace(record, card=card))
        return BuiltLeg(directory, record, artifact, tuple(findings))
    began = time.monotonic()
    run_in_container(_in_container(request, image), log)
    if artifact:
        return BuiltLeg(directory, read_leg(artifact), artifact)
    builder = choose_builder(options.builder, variant)
    return BuiltLeg(directory, request.record(builder, time.monotonic() - began), None)


def build_part(workspace: Workspace, request: LegRequest, log: Log) -> Path:
    """Compile one part of a variant's objects and return their pack.

    Raises KciError as `build_leg`.
    """
    out_file = request.options.objects_to
    if not out_file:
        message = "nothing says where to put the objects of a part"
        raise UsageError(message, "give --objects-to FILE, or --pack")
    image = _checked_image(workspace, request, log)
    if image is None:
        build_variant(request.for_builder(), log)
    else:
        run_in_container(_in_container(request, image), log)
    return out_file


def _checked_image(workspace: Workspace, request: LegRequest, log: Log) -> str | None:
    # the image to build in, after what can be refused before that
    trees = SourceTrees(request.options.cache / "inputs")
    remembered = trees.of(request.kernel.directory).remembered
    findings = source_findings(request.kernel, workspace.settings, remembered)
    trees.save()
    what = f"{request.variant.name} is not built: the kernel's sources do not meet"
    _refuse_errors(findings, what, "`kci check` lists all findings")
    own = image_of(request.variant, workspace.runners)
    image = choose_image(request.options.container, own, log)
    packed = (request.artifact, request.options.objects_to) if image is None else ()
    if any(path and path.name.endswith(".zst") for path in packed):
        zstandard()
    return image


def _refuse_errors(findings: Sequence[Diagnostic], subject: str, hint: str) -> None:
    if errors := errors_in(findings):
        message = f"{subject} {len(errors)} of the requirements"
        raise FindingsError(message, hint, diagnostics=findings)


def leg_commands(workspace: Workspace, request: LegRequest) -> list[str]:
    """List the shell lines of `build_leg` without running them."""
    own = image_of(request.variant, workspace.runners)
    if image := named_image(request.options.container, own):
        return [shlex.join(build_command(_in_container(request, image)))]
    return plan_commands(request.for_builder())


def _in_container(request: LegRequest, image: str) -> ContainerBuild:
    # the same `kci build` with absolute paths
    directory, output = Path(request.kernel.directory).resolve(), request.output.resolve()
    artifact = request.artifact.resolve() if request.artifact else None
    arguments = ["build", str(directory), "--variant", request.variant.name]
    arguments += ["--output", str(output)]
    arguments += ["--pack", str(artifact)] if artifact else []
    objects_from = tuple(path.resolve() for path in request.options.objects_from)
    objects_to = request.options.objects_to and request.options.objects_to.resolve()
    options = replace(
        request.options, container="none", objects_from=objects_from, objects_to=objects_to
    )
    return ContainerBuild(
        image,
        directory,
        [*arguments, *options.arguments()],
        writable=[output, *(path.parent for path in (artifact, objects_to) if path)],
        cache=request.options.cache,
        readable=objects_from,
    )


def artifact_path(target: Path | None, name: str, *, several: bool) -> Path | None:
    """The path of an artifact of this name: the named file, or in a named folder, as `several`
    need.

    Raises UsageError if it does not fit.
    """
    if not target:
        return None
    if target.is_dir() or (several and not target.exists()):
        return target / name
    if several:
        raise UsageError(f"{target} is a file", "with several variants, --pack names a folder")
    if not target.name.endswith(SUFFIXES):
        hint = f"end it with {' or '.join(SUFFIXES)}, or name a folder that exists"
        raise UsageError(f"--pack {target}: an artifact has another name", hint)
    return target

"""Compiles without CMake or Nix: `plan` decides everything, `build` runs it, and `--dry-run` prints
it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kci.builders.kernel_files import (
    COMPILED_OPS,
    TVM_FFI_OPS,
    VisibleFiles,
    kernel_error,
    package_files,
    require_id,
    write_package,
)
from kci.builders.native import hipify
from kci.builders.native.failures import build_error, show_kernel_paths
from kci.builders.native.ninja import (
    NINJA_LOG,
    deadline,
    is_failure_output,
    ninja_status,
    ninja_text,
    run_ninja,
)
from kci.builders.native.objects import Objects, missing_parts
from kci.builders.native.recipe import Recipe, make_recipe
from kci.builders.native.units import collect_units
from kci.builders.process.machine import read_progress
from kci.builders.process.run import Log
from kci.builders.request import BuildResult, Request
from kci.builders.toolchains.compilers import Toolchain, find_toolchain
from kci.builders.toolchains.downloads import ensure_all
from kci.builders.toolchains.environment import (
    Environment,
    base_python,
    read_torch_version,
    same_version,
)
from kci.config.facts import BACKENDS
from kci.config.values import Version, text_of
from kci.errors import BuildFailedError, KciError, MissingToolError, UnfinishedBuildError
from kci.matrix.variants import Kind, this_system
from kci.utils.atomic import failed_path, full_disk_hint, locked
from kci.utils.cache import CACHE_VARIABLE


def plan(request: Request, log: Log) -> Recipe:
    """Plan the build of a variant.

    Raises FindingsError, UnsafeError, MissingToolError or BuildFailedError.
    """
    _require_buildable(request)
    require_id(request.kernel_id)
    package = package_files(request, compiled=True)
    sources = collect_units(request, log)
    files = [request.kernel_dir / unit.source for unit in sources.units]
    return make_recipe(
        request, sources, find_toolchain(request, sources.depends, files, log), package
    )


def build(request: Request, log: Log) -> BuildResult:
    """Build a variant into an empty directory.

    Raises BuildFailedError with the command, or KciError as `plan`.
    """
    ends_at = deadline(request.options.stop_after)
    recipe = plan(request, log)
    visible = VisibleFiles(request)
    environment = recipe.chain.environment
    ensure_all(recipe.chain.downloads(), Path(base_python()), log)
    if not recipe.chain.tvm_ffi:
        _check_torch(request, environment)
    work = recipe.work
    with locked(work, log) as lock:
        try:
            _prepare(recipe, visible)
            if recipe.translation:
                hipify.translate(recipe.translation, log)
            objects = Objects(recipe, log)
            parts = [step.output for step in recipe.compiled]
            outputs = parts if request.part else [recipe.chain.module]
            _write(work, {"build.ninja": ninja_text(recipe.steps, *outputs, pools=recipe.pools)})
        except OSError as error:
            raise BuildFailedError(
                f"cannot write {failed_path(error, work)}: {error.strerror or error}",
                full_disk_hint(error, CACHE_VARIABLE) or f"{CACHE_VARIABLE} names another place",
            ) from error
        if request.options.link:
            for line in missing_parts(objects.heads, request.variant.name):
                log(f"{line}: what is missing is compiled here")
        with _packing_objects(objects, log):
            if outputs:
                _compile(recipe, lock, log, objects, ends_at)
            if (use := objects.use()).found:
                log(str(use))
        if request.part:
            return BuildResult("native", None, objects=use)
        module = request.output / recipe.chain.module
        ops = TVM_FFI_OPS if recipe.chain.tvm_ffi else COMPILED_OPS
        ops = ops.format(id=request.kernel_id)
        write_package(request.output, recipe.package, ops, visible)
        shutil.copyfile(work / module.name, module)
        module.chmod(0o755)
    archs = recipe.sources.archs if BACKENDS[request.variant.backend].archs else None
    return BuildResult("native", archs, objects=use)


@contextmanager
def _packing_objects(objects: Objects, log: Log) -> Iterator[None]:
    # objects are packed even if the build fails
    try:
        yield
    except BaseException:
        try:
            objects.finish()
        except KciError as error:
            log(error.message)
        raise
    objects.finish()


def _compile(recipe: Recipe, lock: int, log: Log, objects: Objects, ends_at: float) -> None:
    tools = _compile_environment(recipe.chain) | objects.environment()
    tools["NINJA_STATUS"] = ninja_status(recipe.chain.environment.ninja)
    names = {step.output: step.label.partition(" ")[2] for step in recipe.compiled}
    shown = _display_log(log, recipe)
    try:
        done = run_ninja(recipe.ninja(), names, shown, env=tools, lock=lock, ends_at=ends_at)
    except KeyboardInterrupt:
        done = None
    if not done:
        hint = "" if objects.use().made else "no object was finished in this time; allow more"
        raise UnfinishedBuildError(recipe.request.variant.name, objects.count(), len(names), hint)
    if done.code != 0:
        raise build_error(recipe, done, log)


def _display_log(log: Log, recipe: Recipe) -> Log:
    # failures are left to `build_error`; estimates start with the first kernel source: ninja has no
    # times before
    units = {step.label for step in recipe.compiled}
    timed, failing = (recipe.work / NINJA_LOG).exists(), False

    def show(line: str) -> None:
        nonlocal timed, failing
        failing = is_failure_output(line, begun=failing)
        if failing:
            return
        progress = read_progress(line)
        if progress and not timed:
            timed = progress.command in units
            line = line if timed else f"[{progress.done}/{progress.total}] {progress.command}"
        log(show_kernel_paths(line, recipe.request.kernel_dir))

    return show


def _require_buildable(request: Request) -> None:
    variant = request.variant
    if variant.kind is Kind.NOARCH:
        raise kernel_error(
            "KCI507",
            f"{variant.name} is planned as Python only, because no component has the backend "
            f"{variant.backend}",
            kind=BuildFailedError,
        )
    facts = BACKENDS[variant.backend]
    compiled = facts.tvm_ffi if variant.kind is Kind.TVM_FFI else facts.compiled
    if not compiled or not variant.system.endswith("-linux"):
        raise MissingToolError(
            f"the native builder does not compile {variant.name}",
            "build it with --builder nix, or pack what another builder made (kci pack) and merge "
            "it",
        )
    here = this_system()
    if here != variant.system:
        raise MissingToolError(
            f"{variant.name} needs a machine of {variant.system}, and this is {here}",
            f"run this on a {variant.system} machine; kci plan says which runner has one",
        )


def _check_torch(request: Request, environment: Environment) -> None:
    # a torch of another version would mislabel the binary
    variant, torch = request.variant, read_torch_version(environment.torch)
    hint = "" if environment.root else "leave out --no-isolation, and kci installs the right one"
    if variant.kind is Kind.STABLE_ABI:
        # any torch with the stable ABI version will do
        if variant.stable_abi and Version.parse(torch.minor) < variant.stable_abi:
            raise MissingToolError(
                f"torch {torch.release} is older than the stable ABI {variant.stable_abi} of "
                f"{variant.name}",
                hint,
            )
        return
    if not same_version(torch.minor, text_of(variant.torch)):
        raise MissingToolError(
            f"{variant.name} needs torch {variant.torch}, and this is {torch.release}", hint
        )
    facts = BACKENDS[variant.backend]
    if facts.torch_version and not same_version(
        torch.toolkits.get(variant.backend), text_of(variant.compute)
    ):
        needs = f"{variant.name} needs a torch for {facts.title} {variant.compute}"
        raise MissingToolError(f"{needs}, and {torch.release} is for {torch.device}", hint)


def _prepare(recipe: Recipe, visible: VisibleFiles) -> None:
    # unchanged files are not written, or ninja would rebuild
    visible.lay_out(recipe.work)
    for name, target in recipe.links.items():
        link = recipe.work / name
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    _write(recipe.work, recipe.files)


def _write(work: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _compile_environment(chain: Toolchain) -> dict[str, str]:
    # compilers must speak English, and variables must not lead hipcc to another ROCm or the linker
    # to an RPATH
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("LD_RUN_PATH", None)
    for tool in chain.downloads():
        environment |= tool.variables()
    return environment

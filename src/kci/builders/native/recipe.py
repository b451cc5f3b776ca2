"""The plan of a native build, which `--dry-run` prints."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kci.builders.kernel_files import EXPORTS_MAP, KERNEL, REGISTRATION_H, STUB_CPP
from kci.builders.native import hipify
from kci.builders.native.command_lines import (
    COMPAT_OBJECT,
    EXPORTS,
    GENERATED,
    OLDER,
    compile_command,
    cxx_standard_flag,
    link_command,
    stub_command,
    stub_libraries,
    stub_path,
    work_links,
    work_path,
)
from kci.builders.native.ninja import Step
from kci.builders.native.units import CXX, Sources, Unit
from kci.builders.process.machine import job_count, pool_depth
from kci.builders.process.run import shell_line
from kci.builders.request import BuildPart, Request
from kci.builders.toolchains.compilers import Toolchain
from kci.builders.toolchains.glibc import FOLDER, old_libraries
from kci.builders.toolchains.rocm import Rocm
from kci.config.facts import BACKENDS, HOST
from kci.matrix.variants import Kind
from kci.utils.cache import work_dir
from kci.utils.frozen import Frozen
from kci.utils.suggest import count


def part_objects(units: tuple[Unit, ...], part: BuildPart) -> frozenset[str]:
    """Objects of a part: the sources by name, dealt out in turn."""
    ordered = sorted(units, key=lambda unit: unit.shown)
    return frozenset(unit.object for unit in ordered[part.number - 1 :: part.of])


COMPAT_SOURCE = "compat.cpp"

_STAND_INS = Path(__file__).parent / "stand_ins"
"""Headers before the system's, a source in every kernel, and functions that the linker
picks from."""


@cache
def stand_ins() -> dict[str, str]:
    """Stand-in files by path in the work directory."""
    files = (path for path in sorted(_STAND_INS.rglob("*")) if path.is_file())
    return {
        path.relative_to(_STAND_INS).as_posix(): path.read_text(encoding="utf-8") for path in files
    }


def compat_files(chain: Toolchain) -> dict[str, str]:
    """Files for older systems by path in the work directory; empty on a machine that is old
    enough.
    """
    if not chain.glibc_compat:
        return {}
    files = dict(stand_ins())
    for library in old_libraries(chain.variant.system):
        files |= library.files()
    return files


def compat_steps(chain: Toolchain, generated: tuple[str, ...]) -> Iterator[Step]:
    """Compile the sources of `compat_files`."""
    if not chain.glibc_compat:
        return

    def compiled(source: str, object_path: str, what: str, *flags: str) -> Step:
        command = (*chain.cxx, *flags, "-O3", "-fPIC", "-c", source, "-o", object_path)
        return Step(object_path, (source,), command, f"c++ {what}", generated)

    yield compiled(COMPAT_SOURCE, COMPAT_OBJECT, "compat", *cxx_standard_flag(chain, gnu=True))
    for library in old_libraries(chain.variant.system):
        command, what = library.command(chain.cxx), f"link {library.path}"
        yield Step(library.path, (library.source,), command, what, generated)
    archived: tuple[str, ...] = ()
    for source in (
        name for name in stand_ins() if name.startswith(f"{FOLDER}/") and name.endswith(".cpp")
    ):
        object_path = f"{source}.o"
        archived = (*archived, object_path)
        yield compiled(source, object_path, source)
    inputs, parts = archived, chain.newer_parts
    if parts:
        first = parts.unpacked[0]
        inputs, archived = (*inputs, first), (*archived, *parts.unpacked)
        yield Step(first, (parts.library,), parts.unpack(chain.ar), "ar newer", generated)
    yield Step(OLDER, inputs, (chain.ar, "rcsD", OLDER, *archived), f"ar {OLDER}", generated)


_CUTLASS = "-cutlass"


class Recipe(Frozen):
    """A planned build."""

    request: Request
    work: Path
    chain: Toolchain
    sources: Sources
    translation: hipify.Translation | None
    """None except for ROCm."""
    steps: tuple[Step, ...]
    links: dict[str, Path]
    files: dict[str, str]
    """By path in the work directory."""
    package: dict[str, Path]
    jobs: int
    pools: dict[str, int]
    """Parallel compilers that fit into memory, by pool."""

    @property
    def compiled(self) -> list[Step]:
        """The steps that make objects of sources."""
        return [step for step in self.steps if step.depfile]

    def ninja(self) -> list[str]:
        """The ninja command."""
        return [str(self.chain.environment.ninja), "-C", str(self.work), "-j", str(self.jobs)]


def make_recipe(
    request: Request, sources: Sources, chain: Toolchain, package: dict[str, Path]
) -> Recipe:
    """Plan the build of a package with a toolchain."""
    options = request.options
    work = work_dir(options.cache, request.kernel_dir, request.variant.name).absolute()
    files = {
        f"{GENERATED}/registration.h": REGISTRATION_H,
        "stub.cpp": STUB_CPP,
        # every command depends on the versions of the tools
        "tools.txt": "\n".join([*chain.versions, ""]),
        EXPORTS: EXPORTS_MAP,
        **compat_files(chain),
    }
    translation, units = _translation(request, work, chain, sources)
    steps = tuple(_steps(chain, units, tuple(sorted(files))))
    if request.part:
        share = part_objects(units, request.part)
        steps = tuple(step for step in steps if step.output in share)
    # by a compiler's peak memory, which CUTLASS raises
    pools = {
        name: pool_depth(
            options.jobs,
            name.removesuffix(_CUTLASS),
            cutlass=name.endswith(_CUTLASS),
            builds=request.builds,
        )
        for name in {step.pool for step in steps if step.pool}
    }
    return Recipe(
        request=request,
        work=work,
        chain=chain,
        links=work_links(chain),
        sources=sources,
        translation=translation,
        steps=steps,
        files=files,
        package=package,
        jobs=job_count(options.jobs, request.builds),
        pools=pools,
    )


def recipe_commands(recipe: Recipe) -> list[str]:
    """The shell lines of a build, for `--dry-run`."""
    request, python = recipe.request, recipe.chain.environment.python
    lines = [line for part in recipe.chain.downloads() for line in part.planned(python)]
    lines += [shell_line(["mkdir", "-p", str(recipe.work)]), shell_line(["cd", str(recipe.work)])]
    links = sorted(recipe.links.items())
    lines += [shell_line(["ln", "-sfn", str(target), name]) for name, target in links]
    listed = count(len(request.files().of(request.variant)), "file")
    lines.append(
        f"# kci makes {KERNEL}, a folder with copies of the {listed} of "
        f"{request.kernel_dir.resolve()} that build.toml lists"
    )
    lines += [f"# kci writes {name}" for name in sorted([*recipe.files, "build.ninja"])]
    if recipe.translation:
        lines += [
            f"# kci copies the kernel to {hipify.FOLDER}/ and writes hipify.json",
            shell_line(recipe.translation.command()),
        ]
    if request.part:
        made, objects = len(recipe.compiled), count(len(recipe.sources.units), "object")
        lines.append(f"# part {request.part}: {made} of {objects}, and no link")
    if (minutes := request.options.stop_after) is not None:
        lines.append(f"# it ends itself after {minutes:g} minutes")
    lines += [f"# {shell_line(recipe.ninja())} runs:"]
    lines += [shell_line(step.command) for step in recipe.steps]
    return lines


def _steps(
    chain: Toolchain,
    units: tuple[Unit, ...],
    generated: tuple[str, ...],
) -> Iterator[Step]:
    # every command depends on the generated files
    for unit in units:
        tool = "c++" if unit.language == CXX else BACKENDS[chain.variant.backend].compiler
        command = compile_command(chain, unit)
        sources, what = (work_path(unit, unit.source),), f"{tool} {unit.shown}"
        own = unit.language != CXX or BACKENDS[chain.variant.backend].compiler_id[0] == CXX
        cutlass = any(depend.startswith("cutlass") for depend in unit.depends)
        pool = f"{chain.variant.backend if own else HOST}{_CUTLASS if cutlass else ''}"
        yield Step(unit.object, sources, command, what, generated, depfile=True, pool=pool)
    libraries = []
    for library in stub_libraries(chain):
        stub, command = stub_path(library), stub_command(chain, library)
        libraries.append(Step(stub, ("stub.cpp",), command, f"link {stub}", generated))
    libraries += compat_steps(chain, generated)
    yield from libraries
    objects = [unit.object for unit in units]
    link = link_command(chain, objects, openmp=any(unit.openmp for unit in units))
    inputs = (*objects, *(step.output for step in libraries))
    yield Step(chain.module, inputs, link, f"link {chain.module}", generated)


def _translation(
    request: Request, work: Path, chain: Toolchain, sources: Sources
) -> tuple[hipify.Translation | None, tuple[Unit, ...]]:
    # a kernel of HIP only still needs torch's stable headers
    if not isinstance(chain.device, Rocm):
        return None, sources.units
    units, names = hipify.translate_units(sources.units)
    include = dict.fromkeys(
        ["csrc", *(path.as_posix() for unit in sources.units for path in unit.include)]
    )
    stable = request.variant.kind is Kind.STABLE_ABI
    if not names and not stable:
        return None, units
    return hipify.Translation(work, chain.environment, names, tuple(include), stable), units

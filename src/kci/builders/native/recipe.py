"""The plan of a native build, which `--dry-run` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from kci.builders.kernel_files import EXPORTS_MAP, KERNEL, REGISTRATION_H, STUB_CPP, package_files
from kci.builders.native import hipify
from kci.builders.native.command_lines import (
    COMPAT_OBJECT,
    EXPORTS,
    GENERATED,
    OLDER,
    Toolchain,
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
from kci.builders.toolchains.compilers import environment_flags
from kci.builders.toolchains.glibc import FOLDER, old_libraries
from kci.builders.toolchains.rocm import Rocm
from kci.config.facts import BACKENDS, HOST
from kci.matrix.variants import Kind, Variant
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

    work: Path
    chain: Toolchain
    sources: Sources
    translation: hipify.Translation | None
    """None except for ROCm."""
    steps: tuple[Step, ...]
    links: dict[str, Path]
    kernel: str
    """Description of the linked files."""
    files: dict[str, str]
    """By path in the work directory."""
    package: dict[str, Path]
    jobs: int
    pools: dict[str, int]
    """Parallel compilers that fit into memory, by pool."""
    limits: tuple[str, ...]
    """Messages about limits of parallelism and time."""

    @property
    def compiled(self) -> list[Step]:
        """The steps that make objects of sources."""
        return [step for step in self.steps if step.depfile]

    def ninja(self) -> list[str]:
        """The ninja command."""
        return [str(self.chain.environment.ninja), "-C", str(self.work), "-j", str(self.jobs)]


def make_recipe(request: Request, sources: Sources, chain: Toolchain) -> Recipe:
    """Plan the build with a toolchain."""
    work = work_dir(request.options.cache, request.kernel_dir, request.variant.name).absolute()
    generated = _generated(chain)
    translation, units = _translation(request, work, chain, sources)
    pools = _pools(request, units)
    steps = tuple(_steps(chain, units, tuple(sorted(generated)), pools))
    files = f"the {count(len(request.files().of(request.variant)), 'file')}"
    share, limits = None, []
    if part := request.part:
        share = part_objects(sources.units, part)
        limits = [f"part {part}: {len(share)} of {count(len(units), 'object')}, and no link"]
    if (minutes := request.options.stop_after) is not None:
        limits.append(f"it ends itself after {minutes:g} minutes")
    return Recipe(
        work=work,
        chain=chain,
        links=work_links(chain),
        sources=sources,
        translation=translation,
        steps=steps if share is None else tuple(step for step in steps if step.output in share),
        files=generated,
        kernel=f"{files} of {request.kernel_dir.resolve()} that build.toml lists",
        package=package_files(request.kernel_dir, request.build, compiled=True),
        jobs=job_count(request.options.jobs, request.builds),
        pools=pools,
        limits=tuple(limits),
    )


def recipe_commands(recipe: Recipe) -> list[str]:
    """The shell lines of a build, for `--dry-run`."""
    python = recipe.chain.environment.python
    lines = [line for part in recipe.chain.downloads() for line in part.planned(python)]
    lines += [shell_line(["mkdir", "-p", str(recipe.work)]), shell_line(["cd", str(recipe.work)])]
    links = sorted(recipe.links.items())
    lines += [shell_line(["ln", "-sfn", str(target), name]) for name, target in links]
    lines.append(f"# kci makes {KERNEL}, a folder with copies of what is listed of {recipe.kernel}")
    lines += [f"# kci writes {name}" for name in sorted([*recipe.files, "build.ninja"])]
    if recipe.translation:
        lines += [
            f"# kci copies the kernel to {hipify.FOLDER}/ and writes hipify.json",
            shell_line(recipe.translation.command()),
        ]
    lines += [f"# {limit}" for limit in recipe.limits]
    lines += [f"# {shell_line(recipe.ninja())} runs:"]
    lines += [shell_line(step.command) for step in recipe.steps]
    return lines


def _steps(
    chain: Toolchain,
    units: tuple[Unit, ...],
    generated: tuple[str, ...],
    pools: Collection[str],
) -> Iterator[Step]:
    # every command depends on the generated files
    for unit in units:
        tool = "c++" if unit.language == CXX else BACKENDS[chain.variant.backend].compiler
        command = compile_command(chain, unit)
        sources, what = (work_path(unit, unit.source),), f"{tool} {unit.shown}"
        pool = name if (name := _pool(chain.variant, unit)) in pools else ""
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


def _pool(variant: Variant, unit: Unit) -> str:
    own = unit.language != CXX or BACKENDS[variant.backend].compiler_id[0] == CXX
    backend = variant.backend if own else HOST
    cutlass = any(depend.startswith("cutlass") for depend in unit.depends)
    return f"{backend}{_CUTLASS}" if cutlass else backend


def _pools(request: Request, units: Iterable[Unit]) -> dict[str, int]:
    # by a compiler's peak memory, which CUTLASS raises
    depths: dict[str, int] = {}
    for name in {_pool(request.variant, unit) for unit in units}:
        backend, cutlass = name.removesuffix(_CUTLASS), name.endswith(_CUTLASS)
        depth = pool_depth(request.options.jobs, backend, cutlass=cutlass, builds=request.builds)
        depths |= {} if depth is None else {name: depth}
    return depths


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


def _generated(chain: Toolchain) -> dict[str, str]:
    return {
        f"{GENERATED}/registration.h": REGISTRATION_H,
        "stub.cpp": STUB_CPP,
        # every command depends on the versions of the tools
        "tools.txt": "\n".join([*chain.versions, *environment_flags(), ""]),
        EXPORTS: EXPORTS_MAP,
        **compat_files(chain),
    }

"""`kci test --pack` and `--check`: variants to a machine with the hardware, and the record that comes back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from kci.ci.hardware_records import BuiltHere, digest_of_tests, judge_record, read_test_record, without_record
from kci.ci.run_records import ci_run, write_record
from kci.cli._output import Layout, print_diagnostics, progress_log, table
from kci.diagnostics import finding, printable
from kci.errors import FindingsError, UsageError
from kci.files.cache import default_cache
from kci.matrix.names import parse_variant_name
from kci.plan.hardware_tests import tree_under_test
from kci.run.hardware_pack import pack_for_hardware
from kci.suggest import containing, suggestion
from kci.tree.artifacts import Source, find_sources, newest
from kci.tree.leg_record import read_sealed
from kci.tree.unpack import unpack
from kci.workspace.workspace import Workspace


class BuiltPlace(msgspec.Struct, frozen=True):
    """What was built anywhere: a tree, a folder, or an artifact."""

    place: Path
    """A path; one that does not exist is the id of a run."""
    names: tuple[str, ...]
    """Which variants; all by default."""
    cache: Path
    """Where runs are."""


@contextmanager
def built_anywhere(built: BuiltPlace, kernel: str) -> Iterator[list[Path]]:
    """Directories of a kernel's variants; those of other kernels are passed over.

    Raises:
        UsageError: there is no such place, or no such variant in it.
        FindingsError: there is no variant of the kernel, or one is damaged.
    """
    place, names = built.place, built.names
    by_name: dict[str, list[Source]] = {}
    for source in find_sources([place]):
        if source.leg.kernel == kernel:
            by_name.setdefault(source.leg.variant, []).append(source)
    if not by_name:
        raise FindingsError(f"there is no variant of {kernel} in {place}", hint="build one: kci build --variant NAME")
    for name in names:
        if name not in by_name:
            hint = (
                suggestion(name, list(by_name))
                or containing(name, by_name)
                or f"it has {', '.join(sorted(by_name)[:5])}"
            )
            raise UsageError(f"{place} has no variant {name!r}", hint=hint)
    with tempfile.TemporaryDirectory(prefix="kci-built-") as folder:
        chosen = [newest(by_name[name]) for name in dict.fromkeys(names) or sorted(by_name)]
        yield [unpack(item.path, Path(folder)).directory if item.artifact else item.path for item in chosen]


def elsewhere(
    workspace: Workspace,
    built: BuiltPlace,
    archive: Path | None,
    pythons: Sequence[str],
    extra: Sequence[str],
    check: Path | None,
    record: Path | None,
) -> int:
    """Pack, or check a record; the exit code. UsageError if both are asked for."""
    if check is None:
        assert archive is not None  # noqa: S101  - one of the two was given
        return _pack(workspace, built, archive, pythons, extra)
    if archive is not None:
        raise UsageError("--pack and --check are two steps", hint="the record that --check reads is made in between")
    return _check(workspace, built, check, record)


def _pack(workspace: Workspace, built: BuiltPlace, archive: Path, pythons: Sequence[str], extra: Sequence[str]) -> int:
    """Write the archive, and print what to do with it."""
    kernel = workspace.only_kernel()
    if not archive.name.endswith(".tar"):
        raise UsageError(f"--pack {archive}: the archive is a tar", hint="end its name with .tar")
    directory = Path(kernel.directory)
    with built_anywhere(built, kernel.build.name) as variants:
        made = pack_for_hardware(
            directory, variants, archive, pythons=pythons, extra=extra, cache=built.cache, log=progress_log()
        )
    for name, needs in made.needs.items():
        click.echo(f"{name}: {needs}")
    click.echo(f"there: tar -xf {archive.name} && python3 kci-hardware/run.py")
    click.echo(f"here, with its record.json: kci test {directory} --check record.json")
    return 0


def require_tested(workspace: Workspace | None, tree: Path, records: Sequence[Path]) -> None:
    """Refuse a tree unless records say that its variants passed; of each kind that one is about, all have to.

    Raises:
        UsageError: it is not known which kernel the tree is of.
        FindingsError: a record is about something else, contradicts itself, did not pass, or leaves out a variant.
    """
    if workspace is None:
        raise UsageError("--tested needs the kernel's tests", hint="name its directory with --kernel")
    here = _here(workspace, BuiltPlace(tree, (), default_cache()))
    told = {path: read_test_record(path) for path in records}
    found = [item for path, record in told.items() for item in judge_record(record, here, path)]
    tested = {item.variant for record in told.values() for item in record.variants}
    left = sorted({name for record in told.values() for name in without_record(record, here)} - tested)
    found += [finding("KCI789", f"{name}: no record says that it was tested", path=str(tree)) for name in left]
    if found:
        raise FindingsError(f"{tree} is not published: not all of it was tested", diagnostics=found)


def _here(workspace: Workspace, built: BuiltPlace) -> BuiltHere:
    kernel = workspace.only_kernel()
    with built_anywhere(built, kernel.build.name) as variants:
        sealed = {directory.name: read_sealed(directory) for directory in variants}
    return BuiltHere(kernel.build.name, sealed, digest_of_tests(Path(kernel.directory)))


def _check(workspace: Workspace, built: BuiltPlace, path: Path, record: Path | None) -> int:
    """Print what a record that came back says, and what is wrong with it; the exit code.

    `record` takes it in the form in which a job of `[test]` leaves one, which the gate reads.
    """
    told, here = read_test_record(path), _here(workspace, built)
    found = judge_record(told, here, path)
    wrong = found[0].message if found else ""
    left = [] if found else without_record(told, here)
    found += [finding("KCI789", f"{name}: no record says that it was tested", path=str(path)) for name in left]
    print_diagnostics(found)
    machine = told.machine
    if machine is not None and not wrong:
        driver = machine.driver and f"driver {machine.driver}"
        parts = (machine.device, machine.arch, driver, f"torch {machine.torch}", told.at)
        click.echo(printable(", ".join(part for part in parts if part)))
        rows = [
            (
                item.variant,
                item.state.value,
                str(item.passed),
                str(sum(work.verified is True for work in item.workloads)),
            )
            for item in told.variants
        ]
        click.echo(table(("variant", "state", "passed", "numbers as torch's"), rows, Layout(cut=("variant",))))
    if record is not None:
        first = parse_variant_name(told.variants[0].variant) if told.variants and not wrong else None
        counted = msgspec.structs.replace(
            told,
            leg=f"{first.backend}-{first.system}" if first else told.leg,
            attempt=ci_run().attempt or 1,
            passed=not wrong,
            error=wrong,
            tree=tree_under_test({name: item.digest for name, item in here.variants.items()}, told.tested),
        )
        write_record(record, counted)
    return 1 if wrong else 0

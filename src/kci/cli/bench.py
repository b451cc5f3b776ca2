"""`kci bench`: a kernel's own benchmarks on built or published variants, compared with another build of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from kci.cli import PATH, Command, answer_forms, completed
from kci.cli._output import Layout, print_json, progress_log, table
from kci.cli._workspace import CACHE, CATALOG, PLACE, opened
from kci.config.reader import BUILD_TOML
from kci.files.full_disk import writing
from kci.files.replace import write_atomic
from kci.run.bench_numbers import LEAST_ROUNDS, NOTABLE
from kci.run.benchmarks import BenchOutcome, Effort, bench_record, run_benchmarks, torch_device
from kci.run.kernel_tests import lacking, loader_for, nothing_run, variants_of
from kci.run.published_builds import HUB, other_build, published_tree
from kci.tree.metadata import FILE_NAME, read_metadata
from kci.verify.load_rules import probe
from kci.watch.bench_history import BenchRecord, Verdict, bench_file
from kci.watch.history import BENCH_SUFFIX, add_files


@click.command("bench", cls=Command)
@PLACE
@click.option("--kernel", type=PATH, help="The kernel whose benchmarks run on a TREE (default: those in the TREE).")
@click.option(
    "--tree",
    metavar="TREE",
    help="The tree to take variants from, or hub:[OWNER/NAME][@REVISION] (default: KERNEL/build).",
)
@click.option(
    "--variant",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=completed("built_variants"),
    help="Only this variant; repeat for more.",
)
@click.option(
    "--against",
    metavar="TREE",
    help="Compare with the same variant of this tree, of hub:[OWNER/NAME]@REVISION, or of the last release: hub:",
)
@click.option(
    "--torch",
    metavar="MINOR",
    help="The torch to load variants with, such as 2.13 (default: that of the name, else the newest that kci knows).",
)
@click.option(
    "--with",
    "extra",
    multiple=True,
    metavar="PACKAGE",
    help="Install this package for the benchmarks; repeat for more.",
)
@click.option("--no-isolation", is_flag=True, help="Use this Python's torch and kernels. GPUs need this or --python.")
@click.option("--python", type=PATH, help="Use this Python's torch and kernels.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 50),
    default=6,
    show_default=True,
    help="Fresh processes for each build; up to three times as many for what has no verdict.",
)
@click.option(
    "--iterations", type=click.IntRange(5, 1000), default=100, show_default=True, help="Calls of a workload in a round."
)
@click.option(
    "--time-limit", type=click.IntRange(1), default=1800, show_default=True, metavar="SECONDS", help="For each variant."
)
@click.option("--record", type=PATH, metavar="DIR", help="Write the record of each variant into this folder, as JSON.")
@click.option("--history", type=PATH, metavar="DIR", help="Add the records to this history, for `kci compat report`.")
@answer_forms("table", "json")
@CACHE
@CATALOG
def command(
    place: Path,
    kernel: Path | None,
    tree: str | None,
    names: tuple[str, ...],
    against: str | None,
    torch: str | None,
    extra: tuple[str, ...],
    no_isolation: bool,
    python: Path | None,
    rounds: int,
    iterations: int,
    time_limit: int,
    record: Path | None,
    history: Path | None,
    output: str,
    cache: Path,
    catalog: str | None,
) -> int:
    """Run a kernel's benchmarks/benchmark*.py on built variants, each in fresh processes with the kernels library.

    With --against, calls of both builds alternate. Exit 1 if a workload is slower by more than 5 %, or fails.

    Examples:
        # measure what this machine built
        kci bench
        # compare it with the last release on the Hub
        kci bench --against hub:
        # compare two trees on this machine's GPU, and keep the numbers
        kci bench --tree new --against old --no-isolation --history history
    """
    sources = place if (place / BUILD_TOML).is_file() else kernel
    workspace = opened([str(sources)], catalog) if sources is not None else None
    isolation, effort, log = not no_isolation and python is None, Effort(rounds, iterations, time_limit), progress_log()
    records: list[BenchRecord] = []
    wrong = False
    with tempfile.TemporaryDirectory(prefix="kci-bench-") as folder:
        if tree is not None and tree.startswith(HUB):
            root = published_tree(tree, names, workspace, Path(folder, "published"))
        else:
            root = Path(tree) if tree is not None else place / "build" if sources == place else place
        found = variants_of(root, names, isolation=isolation)
        environment = None if isolation else probe(python or Path(sys.executable))
        reasons = {path: lacking(path.name, environment) for path in found}
        if (names and any(reasons.values())) or all(reasons.values()):
            raise nothing_run({path.name: why for path, why in reasons.items() if why})
        for path, why in reasons.items():
            if why:
                click.echo(f"{path.name}: not measured, it {why.removeprefix('it ')}", err=True)
        for number, directory in enumerate(path for path in found if not reasons[path]):
            sides, label = [directory], ""
            if against is not None:
                label, other = other_build(against, directory, workspace, Path(folder, "against", str(number)))
                sides.append(other)
            loader = loader_for(
                directory, read_metadata(directory / FILE_NAME), log,
                cache=cache, isolation=isolation, torch=torch, python=python,
            )  # fmt: skip
            machine = probe(loader.python)
            measured = run_benchmarks(
                sides, sources or root, loader, torch_device(directory.name, machine), log,
                cache=cache, effort=effort, extra=extra,
            )  # fmt: skip
            wrong |= _tell(directory.name, measured)
            if measured.workloads:
                records.append(bench_record(measured, directory, machine, [*sides, None][1], label))
    _keep(records, record, history)
    if output == "json":
        print_json(benchmarks=records)
    else:
        _show(records)
    failed = [made for made in records if _is_wrong(made)]
    return 1 if wrong or failed else 0


def _keep(records: Sequence[BenchRecord], folder: Path | None, history: Path | None) -> None:
    if folder is not None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for made in records:
                write_atomic(folder / f"{made.kci.kernel}.{made.kci.variant}{BENCH_SUFFIX}", bench_file(made)[1])
    if history is not None:
        with writing(history):
            add_files(history, map(bench_file, records))


def _tell(variant: str, measured: BenchOutcome) -> bool:
    """Say which workloads have no time; whether there are some."""
    for error in measured.errors:
        click.echo(f"{variant}: {error}", err=True)
    for name, error in measured.alone.items():
        click.echo(f"{variant}: {name} is not compared, it fails with the other build: {error}", err=True)
    return bool(measured.errors)


def _is_wrong(made: BenchRecord) -> bool:
    """Whether a workload is slower, or the comparison that was asked for says nothing at all; which is told."""
    verdicts = {item.kci.change.verdict if item.kci.change else Verdict.UNCLEAR for item in made.results}
    nothing = bool(made.kci.against) and verdicts == {Verdict.UNCLEAR}
    if nothing:
        few = f"--rounds {LEAST_ROUNDS} or more" if made.kci.rounds < LEAST_ROUNDS else "more --rounds"
        click.echo(f"{made.kci.variant}: no workload has a verdict; {few}, or a quieter machine, can tell", err=True)
    return nothing or Verdict.SLOWER in verdicts


def _show(records: Sequence[BenchRecord]) -> None:
    headers: tuple[str, ...] = (
        "variant",
        "workload",
        "median",
        "middle half",
        "cold",
        "against",
        "99 % between",
        "verdict",
    )
    rows: list[tuple[str, ...]] = []
    for made in records:
        for item in made.results:
            change = item.kci.change
            said = (
                (f"{change.ratio:.3f}", f"{change.low:.3f} to {change.high:.3f}", change.verdict)
                if change
                else ("",) * 3
            )
            between = f"{_short(item.timing.q1_ms)} to {_short(item.timing.q3_ms)}"
            times = (f"{_short(item.kci.median_ms)} ms", between, f"{_short(item.kci.cold_ms)} ms")
            rows.append((made.kci.variant, item.workload, *times, *said))
    if not any(made.kci.against for made in records):
        headers, rows = headers[:5], [row[:5] for row in rows]
    click.echo(table(headers, rows, Layout(drop=("middle half", "cold", "variant"), cut=("variant", "workload"))))
    for made in records:
        if made.kci.against:
            click.echo(
                f"{made.kci.variant}: time against {made.kci.against}; a change of {NOTABLE:.0%} or less is none"
            )
        click.echo(
            f"{made.kci.variant}: on {made.device}, {made.machine_info.backend}, torch {made.machine_info.torch}"
        )


def _short(value: float) -> str:
    return f"{value:.4g}"

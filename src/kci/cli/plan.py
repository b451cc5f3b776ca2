"""`kci plan`: the jobs of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, Options
from kci.cli._kernels import Selection, read_selection, runners_for, selection_options
from kci.cli._output import print_diagnostics, table, to_json
from kci.config.settings import KCI_TOML
from kci.diagnostics import Severity
from kci.errors import UsageError
from kci.matrix.variants import Tier
from kci.plan.budget import Alternative, Estimate, check_budget, estimate, money
from kci.plan.durations import NO_DURATIONS, Durations, read_durations
from kci.plan.github import as_json, check_limits, github_matrix, refuse_over_limit
from kci.plan.legs import Wishes, make_plan
from kci.plan.plan import Grouping, Leg, Plan
from kci.plan.work import works

if TYPE_CHECKING:
    from kci.catalog.runners import Runners
    from kci.matrix.variants import KernelMatrix, Matrix
    from kci.plan.affected import Touch


@click.command("plan", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option("--affected", metavar="BASE", help="Only what changed since this branch or commit touches.")
@click.option(
    "--published",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="MANIFEST",
    help="Skip what this tree has, made from the same inputs.",
)
@click.option("--fingerprints", is_flag=True, help="Say what each variant is made from, for a later --published.")
@click.option(
    "--group",
    type=click.Choice([str(item) for item in Grouping]),
    default="variant",
    show_default=True,
    help="What one leg builds.",
)
@click.option("--durations", type=click.Path(path_type=Path), metavar="FILE", help="What variants took before.")
@click.option("--max-jobs", type=click.IntRange(0), help="Fail if there are more legs.")
@click.option("--max-cost", type=click.FloatRange(0), help="Fail if the estimate is higher.")
@click.option("--shards", type=click.IntRange(1, 64), help="The number of matrices that the workflow has.")
@click.option("--shard", type=click.IntRange(0), help="Which of them --format github prints.")
@click.option("--container", type=click.Choice(["auto", "none"]), default="auto", help="Build in images, or without.")
@click.option("--format", "output", type=click.Choice(["table", "json", "github"]), default="table")
@click.pass_obj
def command(
    state: Options,
    /,
    *,
    kernels: tuple[str, ...],
    affected: str | None,
    published: tuple[Path, ...],
    fingerprints: bool,
    group: str,
    durations: Path | None,
    max_jobs: int | None,
    max_cost: float | None,
    shards: int | None,
    shard: int | None,
    container: str,
    output: str,
    **selection: Any,
) -> int:
    """The legs of a run over each KERNEL: runner, image, timeout, what they take; and what no job can build.

    Exit 1 if the plan breaks a limit of GitHub's, or is more than --max-jobs and --max-cost allow.
    """
    if shard is not None and output != "github":
        raise UsageError("--shard is about --format github", hint="--format json has every leg with its shard")
    asked = read_selection(state, kernels, **selection)
    runners = runners_for(asked.kernels)
    matrix, decisions = _narrowed(asked, affected, container == "auto")
    work = {key: item.seconds for key, item in works(asked.kernels, asked.matrix()).items()}
    wishes = Wishes(container=container == "auto", grouping=Grouping(group), shards=shards, seconds=work)
    if fingerprints or published:
        wishes = _with_fingerprints(wishes, asked, matrix, runners, published, state)
    elif affected is None:
        _refuse_escapes(asked)
    took = Durations(read_durations(durations)) if durations else NO_DURATIONS
    plan = make_plan(matrix, runners, wishes, durations=took)
    made = estimate(plan.legs)
    others = _other_plans(asked, runners, wishes, took) if affected is None else iter(())
    said = check_budget(plan, made, max_jobs=max_jobs, max_cost=max_cost, others=others)
    said += refuse_over_limit(plan) if output == "github" else check_limits(plan)
    print_diagnostics(said, quiet=state.quiet)
    match output:
        case "json":
            answer = as_json(plan, made)
            click.echo(to_json(answer | ({"affected": decisions} if decisions is not None else {})))
        case "github":
            _tell(decisions, state)
            click.echo(github_matrix(plan, shard))
        case _:
            click.echo(_table(plan, made, decisions))
    return int(any(item.severity is Severity.ERROR for item in said))


def _narrowed(asked: Selection, base: str | None, container: bool) -> tuple[Matrix, list[Touch] | None]:
    """The matrix, with --affected the part of it that a change touches."""
    matrix = asked.matrix()
    if base is None:
        return matrix, None
    from kci.plan.changes import Base, Terms, only_affected
    from kci.plan.machines import runners_from

    def terms(chosen: Selection) -> Terms:
        def select(kernel: Any) -> KernelMatrix:
            return chosen._replace(kernels=[kernel]).matrix().kernels[0]

        return Terms(select, runners_from(chosen.settings.settings), chosen.settings.settings, container)

    def then(origin: Base) -> Terms:
        return terms(asked.at(origin.read))

    files = [asked.settings.root / KCI_TOML, *([asked.catalog_file] if asked.catalog_file else [])]
    return only_affected(matrix, asked.kernels, base, terms(asked), then, files)


def _refuse_escapes(asked: Selection) -> None:
    """Stop at an include that leads out of its kernel, as a build of it would (KCI145)."""
    from kci.plan.inputs import KernelInputs, SourceTrees

    trees = SourceTrees()
    for kernel in asked.kernels:
        extra = asked.settings.settings.inputs_of(kernel.build.name)
        KernelInputs(kernel.build, Path(kernel.directory), trees.of(kernel.directory), extra).refuse_escapes()


def _with_fingerprints(
    wishes: Wishes, asked: Selection, matrix: Matrix, runners: Runners, trees: Sequence[Path], state: Options
) -> Wishes:
    import msgspec

    from kci.builders.cache import default_cache
    from kci.plan.changed_files import clean_commit
    from kci.plan.fingerprint import Fingerprints, fingerprints
    from kci.plan.inputs import SourceTrees
    from kci.plan.published import already
    from kci.tree.published_tree import read_published

    known, problems = read_published(trees)
    print_diagnostics(problems, quiet=state.quiet)
    sources = SourceTrees(default_cache() / "inputs")
    made: dict[str, Fingerprints] = {}

    def source(kernel: Any) -> Fingerprints:
        found = Fingerprints(kernel, sources.of(kernel.directory), asked.settings.settings.inputs_of(kernel.build.name))
        made[kernel.build.name] = found
        return found

    prints = fingerprints(asked.kernels, matrix, runners, container=wishes.container, source=source)
    found = already(prints, known, made.__getitem__)
    sources.save()
    commit = clean_commit(Path(asked.kernels[0].directory)) if asked.kernels else None
    return msgspec.structs.replace(wishes, fingerprints=found.fingerprints, skip=found.reasons, commit=commit)


def _other_plans(asked: Selection, runners: Runners, wishes: Wishes, took: Durations) -> Iterator[Alternative]:
    """Smaller plans for the same kernels, computed only if somebody looks at them."""
    if asked.tier is not Tier.PR:
        plan = make_plan(asked._replace(tier=Tier.PR).matrix(), runners, wishes, durations=took)
        yield Alternative("--tier pr", plan.legs)
    for grouping in (Grouping.IMAGE, Grouping.BACKEND):
        if wishes.grouping is Grouping.VARIANT:
            import msgspec

            grouped = msgspec.structs.replace(wishes, grouping=grouping)
            plan = make_plan(asked.matrix(), runners, grouped, durations=took)
            yield Alternative(f"--group {grouping}", plan.legs)


def _tell(decisions: Sequence[Touch] | None, state: Options) -> None:
    if decisions is not None and state.verbose:
        for line in _decision_lines(decisions):
            click.echo(line, err=True)


def _decision_lines(decisions: Sequence[Touch]) -> list[str]:
    rows = [(item.path, item.kernel, str(len(item.touches)), item.reason) for item in decisions if item.kernel]
    lines = table(("changed file", "kernel", "touches", "because"), rows).splitlines()
    outside = sum(not item.kernel for item in decisions)
    return [*lines, *([f"and {outside} files outside of every kernel that is planned"] if outside else [])]


def _table(plan: Plan, made: Estimate, decisions: Sequence[Touch] | None) -> str:
    legs = [
        (leg.kernel, leg.name, _runner(leg), leg.image or "-", f"{leg.timeout} min", _takes(leg)) for leg in plan.legs
    ]
    parts = [] if decisions is None else [*_decision_lines(decisions), ""]
    parts += [table(("kernel", "leg", "runner", "image", "timeout", "takes"), legs), _summary(plan, made)]
    if plan.skipped:
        rows = [(item.kernel, item.variant, item.reason) for item in plan.skipped]
        parts += ["", table(("skipped", "variant", "reason"), rows)]
    if plan.left_out:
        left = [(item.kernel, item.variant, item.rule, item.reason) for item in plan.left_out]
        parts += ["", table(("left out", "variant", "rule", "reason"), left)]
    return "\n".join(parts)


def _takes(leg: Leg) -> str:
    return f"{'' if leg.measured else '~'}{leg.minutes} min"


def _summary(plan: Plan, made: Estimate) -> str:
    if not plan.legs:
        return "nothing to build"
    matrices = f" in {len(plan.shards)} matrices" if len(plan.shards) > 1 else ""
    free = f", {made.unpriced} legs without a known price" if made.unpriced else ""
    return (
        f"{made.legs} legs{matrices}, about {made.minutes} machine minutes; {money(made.costs)} at the prices of "
        f"{made.prices_as_of}{free}; {made.wall_minutes} minutes on the clock in {made.waves} waves"
    )


def _runner(leg: Leg) -> str:
    if isinstance(leg.runner, tuple):
        return " ".join(leg.runner)
    return " ".join((f"group:{leg.runner.group}", *leg.runner.labels))

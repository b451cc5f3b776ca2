"""Tables and findings that several commands show, in text and in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kci.cli._output import (
    AnswerTable,
    Layout,
    answer,
    one_per_cause,
    options,
    print_diagnostics,
    print_json,
    say,
)
from kci.config.discovery import SuppressedFinding
from kci.config.values import StaleVariants
from kci.diagnostics import Diagnostic, Severity, errors_in, printable, render_github
from kci.matrix.variants import parse_variant_name
from kci.plan.affected import Touch
from kci.plan.budget import Estimate, cost_sentence, estimate, money
from kci.plan.github_limits import MAX_JOBS, run_jobs
from kci.plan.plan import Plan, UnplannedVariant
from kci.utils.suggest import about, count

if TYPE_CHECKING:
    from kci.plan.planning import PlannedRun
    from kci.tree.manifest import Manifest
    from kci.tree.verify.subject import VerifiedPlace


def legs_table(plan: Plan, forecast: Estimate) -> AnswerTable:
    rows = []
    for leg in plan.legs:
        image, timeout = leg.image or "-", f"{leg.timeout} min"
        rows.append((leg.kernel, leg.name, leg.runner_text, image, timeout, leg.takes_text))
    one = ("kernel",) if len({leg.kernel for leg in plan.legs}) == 1 else ()
    drop = ("image", "timeout", *one, "runner")
    layout = Layout(drop=drop, cut=("kernel", "leg", "image", "runner"))
    headers = ("kernel", "leg", "runner", "image", "timeout", "takes")
    title, below = f"Plan ({plan.tier})", plan_sentence(plan, forecast)
    return AnswerTable(title, headers, rows, layout, below)


def plan_sentence(plan: Plan, forecast: Estimate) -> str:
    if not plan.legs:
        return "nothing to build"
    jobs = f"{run_jobs(plan)} of at most {MAX_JOBS} jobs in a run"
    minutes = about(forecast.minutes, forecast.at_least, forecast.at_most, "runner minute")
    least, most = forecast.wall_at_least, forecast.wall_at_most
    wall = about(forecast.wall_minutes, least, most, "wall-clock minute")
    legs, waves = count(forecast.legs, "leg"), count(forecast.waves, "wave")
    unsure = forecast.at_least != forecast.at_most
    sure = "; measured times make it sure: --durations FILE" if unsure else ""
    return f"{legs}, {jobs}; {minutes}; {cost_sentence(forecast)}; {wall} in {waves}{sure}"


def backends_table(plan: Plan) -> AnswerTable:
    """Built, skipped and left-out variants by backend, with time and costs."""
    built = Counter(leg.backend for leg in plan.legs for _ in leg.variants)
    skipped = Counter(parse_variant_name(item.variant).backend for item in plan.skipped)
    left_out = Counter(item.backend for item in plan.left_out)
    rows = []
    for backend in sorted(built | skipped | left_out):
        legs = [leg for leg in plan.legs if leg.backend == backend]
        counts = (built[backend], skipped[backend], left_out[backend], len(legs))
        costs = estimate(legs).costs_at_most
        least, most = (sum(leg.ends[end] for leg in legs) for end in (0, 1))
        takes = f"{most} min" if least == most else f"{least} to {most} min"
        rows.append((backend, *counts, takes, money(costs) if costs else "-"))
    headers = ("backend", "variants", "skipped", "left out", "legs", "takes", "costs")
    return AnswerTable("Backends", headers, rows)


def left_out_table(plan: Plan) -> AnswerTable:
    """The variants of the tier without a job, by reason."""
    by_reason: dict[tuple[str, str], list[UnplannedVariant]] = {}
    for item in plan.left_out:
        by_reason.setdefault((item.rule, item.why), []).append(item)
    rows = []
    for (rule, reason), same in sorted(by_reason.items()):
        kernels = ", ".join(sorted({item.kernel for item in same}))
        variants = ", ".join(sorted({item.variant for item in same}))
        rows.append((len(same), rule, reason, kernels, variants))
    headers = ("left out", "rule", "reason", "kernels", "variants")
    return AnswerTable("Left out", headers, rows, _LEFT_OUT, left_out_sentence(plan))


def left_out_sentence(plan: Plan) -> str:
    """The share of its tier that a plan leaves out, and the effect on a release; empty if there is
    none.
    """
    if not plan.left_out:
        return ""
    every = sum(len(leg.variants) for leg in plan.legs) + len(plan.skipped) + len(plan.left_out)
    then = "" if plan.leave_out is None else _THEN[plan.leave_out]
    verb = "is" if len(plan.left_out) == 1 else "are"
    part = f"{len(plan.left_out)} of {count(every, 'variant')} of the tier {plan.tier}"
    return f"{part} {verb} left out{then}"


_THEN = {
    StaleVariants.ASK: "; kci publishes no kernel with older builds of them on the Hub before "
    "`leave-out` in [publish] "
    'of kci.toml keeps ("allow") or removes ("remove") those',
    StaleVariants.ALLOW: "; older builds of them stay on the Hub, as `leave-out` in kci.toml says",
    StaleVariants.REMOVE: "; a release removes older builds of them from the Hub, as `leave-out` "
    "in kci.toml says",
}
_LEFT_OUT = Layout(drop=("rule", "variants"), cut=("kernels", "variants"), wrap="reason")


def touches_table(touches: Sequence[Touch]) -> AnswerTable:
    rows = [
        (item.path, item.kernel, len(item.touches), item.reason) for item in touches if item.kernel
    ]
    outside = sum(not item.kernel for item in touches)
    below = f"and {count(outside, 'file')} outside of the planned kernels" if outside else ""
    layout = Layout(drop=("touches",), cut=("changed file", "kernel"), wrap="because")
    headers = ("changed file", "kernel", "touches", "because")
    return AnswerTable("Changes", headers, rows, layout, below)


def plan_tables(planned: PlannedRun, *, short: bool = False) -> list[AnswerTable]:
    """The tables of a plan that say something; `short` omits the sums of the backends."""
    plan = planned.plan
    tests = []
    for test in plan.tests:
        tree = f"of run {test.run}" if test.run else "of this run"
        tests.append((test.kernel, test.name, test.runner_text, tree, len(test.variants)))
    headers = ("kernel", "test", "runner", "tree", "variants")
    layout = Layout(drop=("variants", "runner"), cut=("kernel", "runner"))
    skipped = [(item.kernel, item.variant, item.reason) for item in plan.skipped]
    faulty = [(item.kernel or "-", item.path, item.message) for item in plan.faulty]
    cut = ("skipped", "faulty", "variant", "directory")
    reasons = Layout(drop=("skipped",), cut=cut, wrap="reason")
    tables = [
        legs_table(plan, planned.estimate),
        *([] if short else [backends_table(plan)]),
        AnswerTable("Tests", headers, tests, layout, plan.untested_sentence),
        AnswerTable("Skipped", ("skipped", "variant", "reason"), skipped, reasons),
        AnswerTable("Kernels with errors", ("faulty", "directory", "reason"), faulty, reasons),
        left_out_table(plan),
        touches_table(planned.touches or ()),
    ]
    return [table for table in tables if table.rows or table.below]


def tree_table(manifest: Manifest) -> AnswerTable:
    rows: list[tuple[object, ...]] = [(name, "missing", "", "") for name in manifest.missing]
    for entry in manifest.present:
        state = "kept from the earlier tree" if entry.origin.carried else "present"
        rows.append((entry.variant, state, entry.loaded or "not known", entry.digest))
    whole = manifest.planned is not None and not manifest.missing
    below = "all planned variants are there" if whole else ""
    variants = count(len(manifest.present), "variant")
    title = f"{manifest.kernel} version {manifest.version}: {variants}"
    headers = ("variant", "state", "loaded", "digest")
    layout = Layout(drop=("digest",), cut=("variant",), wrap="loaded")
    return AnswerTable(title, headers, rows, layout, below)


FORMATS = ("text", "json", "github")


def show_findings(
    findings: Sequence[Diagnostic],
    output: str,
    *,
    what: str,
    suppressed: Sequence[SuppressedFinding] = (),
    looked_at: Sequence[str] = (),
    places: Sequence[VerifiedPlace] = (),
) -> int:
    """Print diagnostics and return the exit code: 1 for an error.

    `output` is one of `FORMATS`: `text` has a summary of `what` on stdout and findings on stderr,
    others the reverse. Text shows info and repeated findings only with -v. `looked_at` and `places`
    describe the arguments.
    """
    verbose = options().verbose
    summary = "\n".join([*map(printable, looked_at), count_findings(findings, what, suppressed)])
    match output:
        case "json":
            extra: dict[str, object] = {"looked_at": places, "suppressed": suppressed}
            given = {name: items for name, items in extra.items() if items}
            print_json(diagnostics=findings, **given)
        case "github":
            answer("".join(render_github(item) + "\n" for item in findings), nl=False)
        case _:
            told = [item for item in findings if item.severity is not Severity.INFO]
            shown = findings if verbose else one_per_cause(told)
            print_diagnostics(shown)
            print_suppressed(suppressed if verbose else ())
            answer(summary + (" (-v shows all)" if len(shown) < len(findings) else ""))
    if output in ("json", "github") and not options().quiet:
        say(summary)
    return int(bool(errors_in(findings)))


def count_findings(
    findings: Sequence[Diagnostic], what: str, suppressed: Sequence[SuppressedFinding]
) -> str:
    """A summary line: `what`, and the number of findings by severity."""
    counts = Counter(item.severity for item in findings)
    parts = ", ".join(count(counts[severity], severity) for severity in Severity)
    return f"{what}: {parts}" + (f" ({len(suppressed)} suppressed)" if suppressed else "")


def print_suppressed(suppressed: Iterable[SuppressedFinding]) -> None:
    """Print suppressed findings and their reasons to stderr."""
    for item in suppressed:
        one = item.diagnostic
        say(f"suppressed: {printable(one.place)} {one.rule} because: {printable(item.reason)}")


def findings_table(
    findings: Sequence[Diagnostic], suppressed: Sequence[SuppressedFinding]
) -> AnswerTable:
    rows = [
        (item.severity, item.rule, item.place if item.path else "", item.message)
        for item in findings
    ]
    below = count_findings(findings, "Verified", suppressed)
    return AnswerTable("Verification", ("", "rule", "where", "finding"), rows, below=below)

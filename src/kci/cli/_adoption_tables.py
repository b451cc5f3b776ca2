"""What `kci adopt` answers: a report for people, and for the text of a pull request."""

from __future__ import annotations

from kci.cli import options
from kci.cli._output import Layout
from kci.cli._tables import AnswerTable, left_out_table
from kci.config.settings import KCI_TOML
from kci.plan.budget import money
from kci.plurals import count, first_of
from kci.starter.adoption import Adoption, Fate
from kci.starter.known_ci import Becomes, known_ci


def adoption_tables(adoption: Adoption) -> list[AnswerTable]:
    """The report; a table without rows is left out, unless it says something."""
    tables = [
        _kernels(adoption),
        left_out_table(adoption.plan),
        _workflows(adoption),
        _parts(adoption),
        _unrecognised(adoption),
        _inputs(adoption),
        _files(adoption),
        _flakes(adoption),
        _docs(adoption),
        _settings(adoption),
        _not_taken(adoption),
        _by_hand(adoption),
        *([_steps(adoption)] if options().verbose else []),
    ]
    return [table for table in tables if table.rows]


def _range(low: object, high: object) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _kernels(adoption: Adoption) -> AnswerTable:
    rows = tuple(
        (item.name, str(item.before), str(item.after), str(item.left_out), str(item.legs), _range(*item.minutes))
        for item in adoption.kernels
    )
    plan, kernels = adoption.plan, adoption.kernels
    unpriced = sum(leg.rate is None for leg in plan.legs)
    low, high = (sum(item.minutes[end] for item in kernels) for end in (0, 1))
    cost = f"{money(adoption.costs[0])} to {money(adoption.costs[1])}" if plan.legs else "nothing"
    free = f", and {count(unpriced, 'leg')} on machines whose price {KCI_TOML} does not say" if unpriced else ""
    below = (
        f"A release of everything has {sum(item.after for item in kernels)} variants of "
        f"{count(len(kernels), 'kernel')} in {count(len(plan.legs), 'leg')}, by the catalog of {plan.catalog_as_of}; "
        f"before: what the workflows that were recognised build of them. It takes {_range(low, high)} runner minutes: "
        "nobody has measured it here, so each figure is a range. For GitHub's own machines it is half to twice the "
        "estimate, for others what they take with 32 CPUs and 256 GB, and with 4 CPUs and 16 GB, where "
        f"{KCI_TOML} does not say their size. GitHub's machines cost {cost}{free}."
    )
    headers = ("kernel", "variants before", "after", "left out", "legs", "minutes")
    return AnswerTable("Kernels", headers, rows, below=below)


def _workflows(adoption: Adoption) -> AnswerTable:
    rows = tuple(
        (
            fate.workflow.path,
            ", ".join([*fate.workflow.triggers, *fate.workflow.crons]) or "-",
            "; ".join(part.does for part in fate.workflow.does) or "-",
            _fate(fate),
        )
        for fate in adoption.fates
    )
    layout = Layout(drop=("when",), cut=("workflow", "when"), wrap="what becomes of it")
    below = "`kci adopt --remove` removes those that can go. -v lists what each step was taken for."
    if adoption.unused:
        below += f" Nothing else uses {', '.join(adoption.unused)} then."
    return AnswerTable("Workflows", ("workflow", "when", "does", "what becomes of it"), rows, layout, below)


def _fate(fate: Fate) -> str:
    workflow = fate.workflow
    if workflow.by_kci:
        return "kci wrote it"
    if workflow.problem:
        return f"not read, and stays: {workflow.problem}"
    others = f"; it also starts {', '.join(fate.starts)}, to be started by hand then" if fate.starts else ""
    if fate.may_go:
        return f"can go: kci does all of it{others}"
    if workflow.may_go:
        return f"kci does all of it; it can go with {', '.join(fate.used_by)}, which starts it{others}"
    if workflow.unrecognised:
        return f"stays: kci does not recognise {count(len(workflow.unrecognised), 'step')}"
    left = [part.does for part in workflow.does if part.becomes is not Becomes.KCI]
    return f"stays: {'; '.join(left)}" if left else "stays: it does nothing that kci knows"


def _parts(adoption: Adoption) -> AnswerTable:
    """What the workflows do, once each, and what does it now."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for workflow in adoption.ci.workflows:
        for part in workflow.does:
            said.setdefault((part.does, _BECOMES[part.becomes], part.now), []).append(workflow.path.rpartition("/")[2])
    rows = tuple((does, becomes, now, ", ".join(files)) for (does, becomes, now), files in said.items())
    layout = Layout(drop=("in",), cut=("in",), wrap="now")
    return AnswerTable("What they do, and what does it now", ("does", "by", "now", "in"), rows, layout)


_BECOMES = {Becomes.KCI: "kci", Becomes.STAYS: "as before", Becomes.NOTHING: "nothing", Becomes.GOES_ALONG: "-"}


def _unrecognised(adoption: Adoption) -> AnswerTable:
    rows = tuple(
        (workflow.path, step.job, step.place) for workflow in adoption.ci.workflows for step in workflow.unrecognised
    )
    rows += tuple((path, "-", problem) for path, problem in adoption.ci.problems)
    below = "kci does not know what these do. Their workflows stay; look at each before you remove one."
    return AnswerTable("Not recognised", ("file", "job", "step"), rows, below=below)


def _inputs(adoption: Adoption) -> AnswerTable:
    named: dict[str, list[str]] = {}
    for workflow in adoption.ci.workflows:
        for name in workflow.inputs:
            named.setdefault(name, []).append(workflow.path.rpartition("/")[2])
    known = known_ci().inputs
    rows = tuple((name, known.get(name, "not recognised"), ", ".join(files)) for name, files in sorted(named.items()))
    return AnswerTable("Inputs of dispatches", ("input", "now", "in"), rows, Layout(wrap="now", cut=("in",)))


def _files(adoption: Adoption) -> AnswerTable:
    same: dict[tuple[str, str, str], list[str]] = {}
    for path, row in adoption.ci.files:
        same.setdefault((row.does, _BECOMES[row.becomes], row.now), []).append(path)
    rows = tuple((first_of(paths, 3), does, by, now) for (does, by, now), paths in same.items())
    return AnswerTable("Files", ("file", "does", "by", "now"), rows, Layout(wrap="now", cut=("file",)))


def _flakes(adoption: Adoption) -> AnswerTable:
    same: dict[tuple[str, str, str, str], list[str]] = {}
    for path, argument in adoption.ci.flakes:
        row = argument.known
        said = (row.does, _BECOMES[row.becomes], row.now) if row else ("not recognised", "-", _NARROW)
        same.setdefault((argument.argument, *said), []).append(path)
    rows = tuple((", ".join(paths), *cells) for cells, paths in same.items())
    below = "What flakes say beside the place of their kernel; kci reads their text, and does not evaluate Nix."
    layout = Layout(drop=("argument",), cut=("flake",), wrap="now")
    return AnswerTable("Flakes", ("flake", "argument", "does", "by", "now"), rows, layout, below)


_NARROW = "read it: variants that it leaves out are left out by [[overlay]] of kci.toml"


def _docs(adoption: Adoption) -> AnswerTable:
    rows = tuple((f"{item.path}:{item.line}", item.text, item.now) for item in adoption.ci.mentions)
    below = "These lines speak of CI that changes; kci does not touch them."
    return AnswerTable("Documentation", ("place", "says", "now"), rows, Layout(wrap="now", cut=("says",)), below)


def _settings(adoption: Adoption) -> AnswerTable:
    shown = adoption.missing if adoption.has_settings else (*adoption.found.values, *adoption.accepted)
    rows = tuple((value.shown, value.text, value.place) for value in shown)
    below = (
        f"{KCI_TOML} is there and stays as it is. It says nothing of these, which the CI does:"
        if adoption.has_settings
        else f"{KCI_TOML} gets these."
    )
    if adoption.accepted:
        below += (
            f" `kci check` finds errors in {count(len(adoption.accepted), 'kernel')} that are built and published as "
            "they are: [[lint.ignore]] takes them as they are until somebody fixes them."
        )
    return AnswerTable(KCI_TOML, ("key", "value", "from"), rows, Layout(wrap="from", cut=("value",)), below)


def _not_taken(adoption: Adoption) -> AnswerTable:
    return AnswerTable("Not taken over", ("what", "why"), adoption.found.not_taken, Layout(wrap="why", cut=("what",)))


def _by_hand(adoption: Adoption) -> AnswerTable:
    """What no file can do; where a kernel is published, its repository has to trust the workflow first."""
    told = [f"{item.message}: {item.hint}" for item in adoption.rendered.told]
    publishes = [_TRUST] if ".github/workflows/kci-publish.yml" in adoption.files else []
    rows = tuple((line,) for line in (*told, *publishes, *adoption.by_hand))
    return AnswerTable("By hand, before the first run", ("do",), rows, Layout(wrap="do"))


_TRUST = (
    "On the Hub: name .github/workflows/kci-publish.yml and its environment as a trusted publisher of each kernel's "
    "repository. On GitHub: make the environment that [publish] of kci.toml names, with reviewers."
)


def _steps(adoption: Adoption) -> AnswerTable:
    """What kci took each step for."""
    rows = tuple(
        (workflow.path, step.job, step.place, "; ".join(part.does for part in parts) or "not recognised")
        for workflow in adoption.ci.workflows
        for step, parts in workflow.steps
    )
    layout = Layout(drop=("job",), cut=("workflow", "step"), wrap="taken for")
    return AnswerTable("Steps", ("workflow", "job", "step", "taken for"), rows, layout)

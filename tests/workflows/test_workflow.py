from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest

from buildkit import program
from conftest import ROOT, ran, read_yaml
from kci.config.settings import Publish
from kci.errors import UnsafeError
from kci.utils import shipped
from kci.workflows.render import (
    COMMENT_FILE,
    COMPAT_FILE,
    KERNEL_FILE,
    OWN_MACHINES_FILE,
    PUBLISH_FILE,
    RELEASE_FILE,
    Inputs,
    cron,
    render,
    render_reusable,
)
from kci.workflows.rendered_files import shipped_pins
from workflows.cases import CASES, GOLDEN, OTHERS, VERSION, Case

ALL = [*CASES, *OTHERS]
LONG = [case for case in ALL if not case.inputs.short]
REUSABLE = render_reusable(shipped_pins())
CALLED, LEGS = REUSABLE


def case_of(name: str) -> Case:
    return next(case for case in ALL if case.name == name)


def inputs_of_plan(jobs: dict[str, Any]) -> dict[str, Any]:
    return next(step["with"] for step in jobs["plan"]["steps"] if step.get("id") == "plan")


def parsed(text: str) -> dict[Any, Any]:
    return read_yaml(text)


def jobs_of(text: str) -> dict[str, Any]:
    return parsed(text)["jobs"]


def made(**inputs: Any) -> dict[str, str]:
    """The files of a repository with the kernel `a`."""
    return render(Inputs(**({"names": ("a",)} | inputs)), shipped_pins(), VERSION)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden_files(case: Case, request: pytest.FixtureRequest) -> None:
    for path, text in case.files().items():
        golden = GOLDEN / case.name / Path(path).name
        if request.config.getoption("--update-golden"):
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text, encoding="utf-8")
        assert golden.read_text(encoding="utf-8") == text, f"{golden} differs; see --update-golden"


def test_every_golden_file_belongs_to_a_case() -> None:
    there = {folder.parent.name for folder in GOLDEN.glob("*/kci.yml")}
    assert there == {case.name for case in CASES}


def test_every_template_branch_is_rendered_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template's broken branch stays unseen until somebody needs it, so no branch is without a
    case.
    """
    seen: dict[str, set[bool]] = {}

    def probe(place: str, value: object) -> bool:
        seen.setdefault(place, set()).add(bool(value))
        return bool(value)

    folder = shipped.template_folder()
    sources = {}
    for file in sorted(folder.rglob("*.j2")):
        name = file.relative_to(folder).as_posix()
        counter = iter(range(1000))
        sources[name] = re.sub(
            r"\[% if (.+?) %\]",
            lambda match, name=name, counter=counter: (
                f"[% if probe('{name} {next(counter)}', {match[1]}) %]"
            ),
            file.read_text(encoding="utf-8"),
        )
    probing = shipped.template_environment().overlay(loader=jinja2.DictLoader(sources))
    probing.globals = {**probing.globals, "probe": probe}
    monkeypatch.setattr(shipped, "template_environment", lambda: probing)
    for case in ALL:
        case.files()
    render_reusable(shipped_pins())
    assert len(seen) >= 5
    assert [place for place, values in seen.items() if values != {True, False}] == []


def test_the_same_bytes_under_every_hash_seed() -> None:
    code = (
        "import hashlib; from workflows.cases import CASES; "
        "print(hashlib.sha256(repr([case.files() for case in CASES]).encode()).hexdigest())"
    )
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT / 'src'}"}
    seeds = [env | {"PYTHONHASHSEED": seed} for seed in ("0", "1", "42")]
    assert len({ran(sys.executable, "-c", code, env=one).stdout for one in seeds} - {""}) == 1


MAY_WRITE = {
    "record": {"contents"}, "report": {"issues"}, "keep-schedule-enabled": {"actions"},
}  # fmt: skip
"""The jobs of the scheduled workflow that may write, and what; they run no code of a kernel."""
TALKING = {"comment": {"pull-requests"}}
"""The same of the file that pull requests are talked about in."""


@pytest.mark.parametrize("case", [*ALL, None], ids=lambda case: case.name if case else "reusable")
def test_security_baseline(case: Case | None) -> None:
    for path, text in (case.files() if case else REUSABLE).items():
        assert parsed(text)["permissions"] == {}
        for name, job in jobs_of(text).items():
            written = {right for right, how in job["permissions"].items() if how != "read"}
            # A commit status, by jobs that check out nothing of what they judge, or before they do.
            # Only the job that publishes proves who it is, and it builds nothing.
            allowed = {"attestations", "id-token"} if "environment" in job else set()
            allowed |= {"statuses"} if case and case.inputs.forks == "dispatch" else set()
            for file, rights in {COMPAT_FILE: MAY_WRITE, COMMENT_FILE: TALKING}.items():
                allowed = rights.get(name, set()) if path == file else allowed
            if path == PUBLISH_FILE and name == "record":
                allowed = {"contents"}  # the branch with the history
            assert written <= allowed
            named = set(re.findall(r"secrets\b\W*(\w*)", json.dumps(job)))
            assert named <= ({case.inputs.token} if case else set()), "only that of checkouts"
            used = [step.get("uses", "").partition("@")[0] for step in job.get("steps", [])]
            if case and path == COMPAT_FILE and name in MAY_WRITE:
                own = case.pins["kci/build"].repository or "kci/build"
                assert {*used} <= {"actions/checkout", f"{own}/actions/schedule", ""}
            for step, action in zip(job.get("steps", []), used, strict=True):
                assert "${{" not in step.get("run", "")
                assert action != "actions/checkout" or step["with"]["persist-credentials"] is False
                kept_apart = "merge-multiple" not in step.get("with", {})
                assert action != "actions/download-artifact" or kept_apart
                assert "cache" not in action


def test_no_job_is_skipped_because_one_far_before_it_is() -> None:
    """GitHub skips a job without a status function when any of its ancestors was skipped, and the
    run is green.
    """
    for file in sorted(GOLDEN.glob("*/*.yml")):
        jobs = jobs_of(file.read_text(encoding="utf-8"))
        needs = {name: job.get("needs", []) for name, job in jobs.items()}
        needs = {name: [need] if isinstance(need, str) else need for name, need in needs.items()}
        for name, job in jobs.items():
            far = {before for need in needs[name] for before in needs[need]} - {*needs[name]}
            skipped = [one for one in far if "always()" not in jobs[one].get("if", "always()")]
            always = re.search(r"\b(always|cancelled)\(", str(job.get("if")))
            assert not skipped or always, (file.name, name)


def test_the_gate_needs_every_job_and_always_runs() -> None:
    for text in (*(case.files()[RELEASE_FILE] for case in LONG), REUSABLE[CALLED]):
        jobs = jobs_of(text)
        assert sorted(jobs["kci"]["needs"]) == sorted(set(jobs) - {"kci"})
        assert jobs["kci"]["if"] == "${{ always() }}"
        assert jobs["kci"]["name"].startswith("${{ (github.event_name == 'pull_request' || ")


def test_the_short_file_calls_one_workflow_that_gets_no_more_than_it_has() -> None:
    files = case_of("short").files()
    assert set(files) == {RELEASE_FILE, COMPAT_FILE}
    assert sum(len(text.splitlines()) for text in files.values()) <= 45
    started = {path: set(parsed(text)[True]) for path, text in files.items()}
    # GitHub disables a file with a schedule after 60 quiet days.
    assert "schedule" not in started[RELEASE_FILE]
    assert started[COMPAT_FILE] == {"schedule"}
    reusable = parsed(REUSABLE[CALLED])
    assert "concurrency" not in reusable, "two calls of one run would cancel each other"
    assert jobs_of(files[COMPAT_FILE]) == jobs_of(files[RELEASE_FILE])
    (caller,) = jobs_of(files[RELEASE_FILE]).values()
    rights = {"actions": "read", "contents": "read"}
    assert caller["permissions"] == rights
    assert caller["uses"] == f"kci/build/{CALLED}@v1"
    assert len(reusable[True]["workflow_call"]["inputs"]) == 7
    for text in REUSABLE.values():
        assert "kci/build@" not in text, "its actions are those of its own commit"
        for job in jobs_of(text).values():
            assert job["permissions"].items() <= rights.items()
    assert reusable["jobs"]["kernels"]["uses"] == f"$/{LEGS}"
    published = case_of("short-and-published").files()
    assert set(published) == {RELEASE_FILE, COMPAT_FILE, PUBLISH_FILE}
    called, publish = jobs_of(published[PUBLISH_FILE]).values()
    assert called["permissions"] == rights, "nothing that runs code of a kernel has an identity"
    assert (publish["environment"], publish["permissions"]["id-token"]) == ("hub", "write")


@pytest.mark.parametrize("case", ["published-alone", "short-and-pushed"])
def test_where_each_push_publishes_one_file_builds_it_and_others_go_on_from_there(
    case: str,
) -> None:
    files = case_of(case).files()
    kci, publishing = (parsed(files[file]) for file in (RELEASE_FILE, PUBLISH_FILE))
    assert "push" not in kci[True]
    assert publishing[True]["push"] == {"branches": ["main"]}
    for text in (str(kci["jobs"]), str(publishing["jobs"])):
        assert "kci-publish.yml" in text
        assert "kci.yml" not in text
    if case == "short-and-pushed":
        assert kci["jobs"]["kci"]["with"] == {"trees": "kci-publish.yml"}


def test_every_kernel_is_called_on_its_own() -> None:
    files = case_of("many").files()
    assert set(files) == {RELEASE_FILE, COMPAT_FILE, KERNEL_FILE, OWN_MACHINES_FILE, COMMENT_FILE}
    called = parsed(files[KERNEL_FILE])
    for path in (RELEASE_FILE, COMPAT_FILE):
        jobs = jobs_of(files[path])
        last = {"kci", "lint"} if path == RELEASE_FILE else {*MAY_WRITE, "plan-retry", "retry"}
        assert set(jobs) == {"plan", "kernels-1", "kernels-2", *last}
        first, second = jobs["kernels-1"], jobs["kernels-2"]
        assert second["uses"] == f"./{KERNEL_FILE}"
        matrix = "${{ fromJSON(needs.plan.outputs.callers)[1] }}"
        assert second["strategy"]["matrix"] == matrix
        assert inputs_of_plan(jobs)["callers"] == "2"
        taken = set(called[True]["workflow_call"]["inputs"])
        assert set(first["with"]) | {"watch", "retry", "ref"} == taken
        # A called workflow gets no more than its caller has.
        for job in called["jobs"].values():
            assert job["permissions"].items() <= first["permissions"].items()
    assert "concurrency" not in called, "the caller's group would be taken for the same one"
    assert set(jobs_of(case_of("one").files()[RELEASE_FILE])) == {"plan", "kernels", "kci"}


def test_schedule_is_off_peak_spread_and_depends_on_names_only() -> None:
    moments = {cron((f"kernel-{number}",)) for number in range(500)}
    assert len(moments) > 350
    for moment in moments:
        minute, hour, *days, weekday = moment.split()
        assert (5 <= int(minute) <= 54, 1 <= int(hour) <= 5, days) == (True, True, ["*", "*"])
        assert 0 <= int(weekday) <= 6
    assert cron(("b", "a")) == cron(("a", "b"))


@pytest.mark.parametrize("text", ["${{ secrets.TOKEN }}", "a\nb", "a\x1b[0m", "a\u2028b", "a\x85b"])
def test_hostile_values_are_refused(text: str) -> None:
    for hostile in ({"kernels": (text,)}, {"branch": text}, {"names": (text,)}):
        with pytest.raises(UnsafeError):
            made(**hostile)


@pytest.mark.parametrize(
    ("branch", "filtered"),
    [("main", "main"), ("release/1.0+lts", r"release/1.0\+lts"), ("!a!b", r"\!a!b")],
)
def test_a_push_to_the_branch_itself_builds_whatever_its_name_means_in_a_filter(
    branch: str, filtered: str
) -> None:
    files = made(branch=branch, publish=Publish(attest=False))
    assert parsed(files[RELEASE_FILE])[True]["push"]["branches"] == [filtered]
    steps = jobs_of(files[PUBLISH_FILE])["plan"]["steps"]
    (find,) = (step for step in steps if step.get("id") == "newest")
    assert find["env"]["BRANCH"] == branch


def test_quotes_and_yaml_signs_in_values_stay_values() -> None:
    odd = "a\"b'c: [d] # e & *f"
    release = parsed(made(kernels=(odd,), branch=odd)[RELEASE_FILE])
    assert release[True]["push"]["branches"] == [odd]
    assert inputs_of_plan(release["jobs"])["kernels"] == odd


def test_what_a_fork_needs_machines_for_is_built_at_the_full_commit_that_was_reviewed(
    tmp_path: Path,
) -> None:
    files = case_of("many").files()
    own = parsed(files[OWN_MACHINES_FILE])
    assert set(own[True]) == {"workflow_dispatch"}
    jobs = own["jobs"]
    assert jobs["plan"]["environment"] == "kci-own-machines"
    program(tmp_path, "gh", "touch asked")
    script = jobs["plan"]["steps"][0]["run"]
    known = dict.fromkeys(("GITHUB_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_RUN_ID"), "x")
    for commit, code in {"main": 1, "a" * 39: 1, "a" * 40: 0}.items():
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "COMMIT": commit, **known}
        assert ran("bash", "-c", script, cwd=tmp_path, env=env).returncode == code
        assert (tmp_path / "asked").exists() is (code == 0)
    refs = [
        step["with"].get("ref")
        for job in (jobs["plan"], jobs_of(files[KERNEL_FILE])["build"])
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert refs == ["${{ inputs.commit }}", "${{ inputs.ref }}"]
    assert jobs["kernels-1"]["with"]["ref"] == "${{ inputs.commit }}"

"""GitLab's file, and the child pipeline of a plan: a job for each leg, and for each kernel those
that follow.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildkit import program
from cli.runner import ended, kci
from conftest import read_yaml, write_noarch
from kci.config.settings import Publish
from kci.errors import UnsafeError
from kci.matrix.variants import Kind
from kci.plan.plan import KernelPlan, Leg, Plan, RunnerGroup, SkippedVariant, TestLeg
from kci.workflows.gitlab import GITLAB_FILE, Purpose, child_pipeline, gitlab_data, render_gitlab
from kci.workflows.render import Inputs
from outside_tools import schema_errors
from planning import leg, whole_plan

HUB = Publish()


@pytest.mark.parametrize(
    ("variables", "base"),
    [
        ({}, None),
        ({"KCI_BASE": "begun"}, "begun"),
        ({"KCI_BASE": "begun", "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": "newest"}, "newest"),
    ],
)
def test_a_merge_request_is_compared_with_what_it_is_merged_with(
    tmp_path: Path, variables: dict[str, str], base: str | None
) -> None:
    """GitLab tells the target's newest commit where the pipeline is of the merged result, which has
    all of it.
    """
    program(tmp_path, "kci", 'echo "$@" >> "$(dirname "$0")/calls"\necho "{}"')
    script = read_yaml(render_gitlab(Inputs(()))[GITLAB_FILE])["kci-plan"]["script"][-1]
    assert shell("-eu", script, tmp_path, KCI_TIER="pr", **variables).returncode == 0
    plan = (tmp_path / "calls").read_text().splitlines()[0].split()
    assert (plan[plan.index("--affected") + 1] if "--affected" in plan else None) == base


def document(legs: list[Any], **more: Any) -> Plan:
    """A plan of some legs, of which every kernel is at a directory of its name."""
    made = whole_plan(legs)
    kernels = sorted(made.kernels, key=lambda kernel: kernel.name)
    placed = tuple(msgspec.structs.replace(kernel, path=kernel.name) for kernel in kernels)
    return msgspec.structs.replace(made, kernels=placed, commit="0" * 40, **more)


def pipeline(*legs: Any, purpose: Purpose | None = None, **more: Any) -> dict[str, Any]:
    """The jobs of the pipeline of such a plan."""
    publish = HUB if purpose else None
    return jobs(child_pipeline(document([*legs], **more), publish, purpose))


def jobs(text: str) -> dict[str, Any]:
    """The jobs of a pipeline; valid by GitLab's schema."""
    require_valid(text)
    return named(text)


def require_valid(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipeline.json"
        file.write_text(json.dumps(read_yaml(text)))
        assert schema_errors("gitlab-ci", [file]) == ""


def named(text: str) -> dict[str, Any]:
    found = read_yaml(text)
    no_jobs = ("variables", "gate") if "variables" in found else ()
    return {
        name: job
        for name, job in found.items()
        if isinstance(job, dict) and name not in no_jobs and not re.search(r"^\.|: record$", name)
    }


def gate_of(text: str) -> dict[str, Any]:
    job: dict[str, Any] = read_yaml(text)["gate"]
    return job


def written(job: dict[str, Any], file: str) -> dict[str, Any]:
    """The JSON that a job's script writes to a file."""
    (line,) = (line for line in job["script"] if line.endswith(f"> {file}"))
    found: dict[str, Any] = json.loads(shlex.split(line)[2])
    return found


def build_of(job: dict[str, Any]) -> str:
    """The command that builds, without what looks at how it ends."""
    (line,) = (str(line) for line in job["script"] if "kci build" in line)
    return line.removeprefix("{ ").removesuffix(" || echo $? > kci-failed; } 2>&1 | tee kci-log")


def planned(job: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The variants of each kernel in the plan that a job merges."""
    kernels = written(job, "kci-planned.json")["kernels"]
    return [(item["name"], item["planned"]) for item in kernels]


def recorded(job: dict[str, Any]) -> list[str]:
    """The kernels of the legs in the plan that a gate judges."""
    return [item["kernel"] for item in written(job, "kci-records/kci-plan.json")["legs"]]


def shell(how: str, script: str, place: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, with what programs are there."""
    env = {"PATH": f"{place}:/usr/bin:/bin", **env}
    command = ["sh", how, "-c", script]
    return subprocess.run(command, cwd=place, env=env, check=False, capture_output=True, text=True)


def variants(count: int) -> list[str]:
    return [f"torch2{index // 90}-cxx11-cu1{index % 90:02d}-x86_64-linux" for index in range(count)]


def test_each_leg_is_a_job_and_each_kernel_is_merged_on_its_own() -> None:
    found = pipeline(leg("torch-cpu", "a"), leg("torch-cuda", "a"), leg("torch-cpu", "b"))
    assert set(found) == {"a: torch-cpu", "a: torch-cuda", "b: torch-cpu", "a: merge", "b: merge"}
    assert [item["job"] for item in found["a: merge"]["needs"]] == ["a: torch-cpu", "a: torch-cuda"]
    assert found["b: merge"]["when"] == "always", "a failed leg must not leave out what says so"
    assert planned(found["a: merge"]) == [("a", ["torch-cpu", "torch-cuda"])]
    assert build_of(found["a: torch-cpu"]) == (
        "kci build --variant=torch-cpu --tier release --container none --pack kci-artifacts "
        "--output kci-build --failures kci-artifacts --objects-from kci-objects --objects-to "
        "kci-objects/objects.a.torch-cpu.tar --stop-after 57 -- a"
    )


def test_images_limits_and_tags_are_the_plans() -> None:
    arm = "torch213-cxx11-cpu-aarch64-linux"
    found = pipeline(
        leg("torch-cpu", image="docker.io/x:1", timeout=77, max_jobs=3, cores=2),
        leg("torch-cuda", runner=("self-hosted", "big")),
        leg("torch-rocm", runner=RunnerGroup("amd", ("gpu",))),
        leg("torch-xpu", runner=RunnerGroup("intel")),
        leg(arm, system="aarch64-linux", runner=("ubuntu-24.04-arm",)),
    )
    cpu = found["k: torch-cpu"]
    assert (cpu["image"], cpu["timeout"], "tags" in cpu) == ("docker.io/x:1", "77 minutes", False)
    assert build_of(cpu).startswith("NVCC_THREADS=2 kci build ")
    assert " --jobs 3 " in build_of(cpu)
    for name, tags in (
        ("torch-cuda", ["self-hosted", "big"]),
        ("torch-rocm", ["gpu"]),
        ("torch-xpu", ["intel"]),
        (arm, ["saas-linux-small-arm64"]),
    ):
        assert found[f"k: {name}"]["tags"] == tags


def split_legs(parts: int) -> list[Leg]:
    name = "torch213-cxx11-cpu-x86_64-linux"
    shares = [(f"{name}.part{number}of{parts}", number) for number in range(1, parts + 1)]
    legs = [
        leg(share, "a", variant=name, variants=(), part=number, parts=parts)
        for share, number in shares
    ]
    return [*legs, leg(name, "a", parts=parts, takes=tuple(share for share, _ in shares))]


def test_parts_are_a_stage_before_the_link_that_takes_their_objects() -> None:
    found = pipeline(*split_legs(2), leg("torch-cpu", "b", kind=Kind.NOARCH))
    *parts, link = (job for name, job in found.items() if "cpu-x86_64" in name)
    assert [job["stage"] for job in (*parts, link)] == ["parts", "parts", "build"]
    names = [f"a: {item.name}" for item in split_legs(2)]
    assert link["needs"] == names[:2]
    assert found["a: merge"]["needs"] == [{"job": names[2], "artifacts": True}]
    assert link["when"] == "always", "a part that failed is compiled by the link"
    for job in parts:
        assert job["artifacts"]["paths"] == job["cache"]["paths"]
        assert job["artifacts"]["when"] == "always", "a part that ended itself hands its objects on"
        assert "--pack" not in build_of(job)
    assert " --part 2/2 " in build_of(parts[1])
    assert " --link " in build_of(link)
    assert "cache" not in found["b: torch-cpu"]


def test_more_parts_than_needs_may_list_are_waited_for_as_a_stage() -> None:
    link = list(pipeline(*split_legs(51)).values())[-2]
    assert "--link" in build_of(link)
    assert "needs" not in link


def test_objects_are_kept_by_branch_and_a_tag_that_anybody_can_push_takes_none() -> None:
    job = pipeline(leg("torch-cpu", "a"), purpose=Purpose.PUBLISH)["a: torch-cpu"]
    assert job["cache"] == {
        "key": "objects.a.torch-cpu-$CI_COMMIT_REF_SLUG",
        "fallback_keys": ["objects.a.torch-cpu-$CI_DEFAULT_BRANCH"],
        "paths": ["kci-objects/objects.a.torch-cpu.tar"],
        "when": "always",
    }
    for variables, there in (({}, True), ({"CI_COMMIT_TAG": "v1"}, False)):
        assert _after_first_line(job, variables) is there
    assert _after_first_line(job, {"CI_COMMIT_TAG": "v1", "CI_COMMIT_REF_PROTECTED": "true"})


def _after_first_line(job: dict[str, Any], variables: dict[str, str]) -> bool:
    """Whether the objects of the cache are there when the build begins."""
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / job["cache"]["paths"][0]
        pack.parent.mkdir()
        pack.touch()
        env = {"CI_COMMIT_REF_NAME": "x", "CI_DEFAULT_BRANCH": "main", **variables}
        done = shell("-eu", job["script"][0], Path(folder), **env)
        assert (done.returncode, "taking objects of x or main" in done.stdout) == (0, pack.exists())
        return pack.exists()


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        ("all is well", 0, 0),
        ("warning: this header is not finished: take care", 0, 0),
        ("error: a compiler failed", 4, 4),
        ("error: v is not finished: 3 of 9 objects are done", 4, 75),
    ],
)
def test_a_job_that_ended_itself_is_started_again_and_one_that_failed_is_not(
    tmp_path: Path, said: str, code: int, expected: int
) -> None:
    job = pipeline(leg("torch-cpu", "a"))["a: torch-cpu"]
    assert job["retry"] == {"max": 2, "when": "runner_system_failure", "exit_codes": 75}
    program(tmp_path, "kci", f"echo '{said}' >&2\nexit {code}")
    assert shell("-e", "\n".join(job["script"]), tmp_path).returncode == expected


@pytest.mark.parametrize(("count", "listed"), [(50, True), (51, False)])
def test_beyond_what_needs_may_list_the_whole_stage_is_waited_for(count: int, listed: bool) -> None:
    found = pipeline(*map(leg, variants(count)))
    assert ("needs" in found["k: merge"]) is listed
    assert gitlab_data().max_needs == 50


def test_a_kernel_that_cannot_be_planned_is_a_job_that_fails(tmp_path: Path) -> None:
    add_kernel(tmp_path / "good")
    (add_kernel(tmp_path / "bad") / "build.toml").write_text("[general]\nnme = 1\n")
    done = kci("plan", tmp_path, "--format", "json")
    assert done.code == 1
    (tmp_path / "plan.json").write_text(done.stdout)
    plan = ("--from-plan", tmp_path / "plan.json")
    found = jobs(ended(kci("render", "--ci", "gitlab", *plan, "--output", tmp_path), 0))
    (bad,) = [name for name in found if name.endswith(": check")]
    assert found[bad]["script"][-1] == "false"
    assert "good: merge" in found


ON_GPU = TestLeg(
    "k", "dir/k", "cuda-x86_64-linux", "cuda", "x86_64-linux", ("torch-cuda",), ("gpu",), 30
)


def test_trees_are_tested_on_declared_machines_and_published_for_tags() -> None:
    built = leg("torch-cuda")
    found = pipeline(built, tests=(ON_GPU,), purpose=Purpose.PUBLISH)
    tested, published = found["k: test cuda-x86_64-linux"], found["k: publish"]
    assert (tested["tags"], tested["needs"]) == (["gpu"], ["k: merge"])
    assert tested["timeout"] == "30 minutes"
    assert ("--python" in tested["script"][-1], "image" in tested) == (True, False)
    there = {"name": "cpu-x86_64-linux", "backend": "cpu", "runner": ("ubuntu-24.04",)}
    hosted = msgspec.structs.replace(ON_GPU, **there)
    on_cpu = pipeline(built, tests=(hosted,))["k: test cpu-x86_64-linux"]
    assert (on_cpu["image"], "tags" in on_cpu) == (gitlab_data().image, False)
    assert "--python" not in on_cpu["script"][-1]
    assert published["script"][-1] == "kci publish kci-tree --kernel k"
    assert published["needs"] == ["k: merge", "k: test cuda-x86_64-linux"]
    assert "k: publish" not in pipeline(built, purpose=Purpose.KEEP)
    assert published["id_tokens"]["HF_OIDC_ID_TOKEN"]["aud"] == "https://huggingface.co"
    assert published["environment"] == "hub"
    assert not any("id_tokens" in job for name, job in found.items() if name != "k: publish")


def test_where_nothing_is_to_do_the_gate_says_so() -> None:
    text = child_pipeline(document([]))
    assert jobs(text) == {}
    assert gate_of(text)["dependencies"] == []


SKIPPED = tuple(SkippedVariant("k", name, "the same") for name in ("torch-cpu", "torch-cuda"))


def test_a_push_keeps_trees_and_goes_on_from_those_that_are_kept() -> None:
    def kept(purpose: Purpose | None, *skipped: SkippedVariant) -> dict[str, Any]:
        plan = msgspec.structs.replace(document([leg("torch-rocm")]), skipped=skipped)
        text = child_pipeline(plan, HUB, purpose)
        gate = gate_of(text).get("cache", {}).get("policy")
        return {"tree": jobs(text)["k: merge"].get("cache", {}).get("policy"), "list": gate}

    assert kept(None) == {"tree": None, "list": None}, "a merge request"
    assert kept(Purpose.KEEP) == {"tree": "push", "list": "pull-push"}
    assert kept(Purpose.KEEP, *SKIPPED) == {"tree": "pull-push", "list": "pull-push"}
    pulled = {"tree": "pull", "list": "pull"}
    assert kept(Purpose.PUBLISH, *SKIPPED) == pulled, "a tag leaves what branches keep"


def test_a_kernel_that_has_not_changed_has_jobs_only_where_it_is_published_or_tested() -> None:
    kernel = KernelPlan("k", "k", 1, ("torch-cpu", "torch-cuda"))
    plan = msgspec.structs.replace(document([]), kernels=(kernel,), skipped=SKIPPED)
    assert jobs(child_pipeline(plan, HUB, Purpose.KEEP)) == {}
    assert jobs(child_pipeline(plan, HUB, Purpose.PUBLISH)).keys() == {"k: merge", "k: publish"}
    test = msgspec.structs.replace(ON_GPU, path="k", run="7")
    tested = jobs(child_pipeline(msgspec.structs.replace(plan, tests=(test,)), HUB, Purpose.KEEP))
    assert tested.keys() == {"k: merge", "k: test cuda-x86_64-linux"}
    assert tested["k: merge"]["needs"] == []
    assert planned(tested["k: merge"]) == [("k", ["torch-cpu", "torch-cuda"])]


def test_the_gate_has_the_whole_plan_and_a_publisher_that_of_its_kernel() -> None:
    plan = document([leg("torch-cpu", "a"), leg("torch-cpu", "b")])
    text = child_pipeline(plan, HUB, Purpose.PUBLISH)
    assert gate_of(text)["dependencies"] == ["a: record", "b: record"]
    assert gate_of(text)["when"] == "always"
    publisher = jobs(text)["b: publish"]
    assert (recorded(gate_of(text)), recorded(publisher)) == (["a", "b"], ["b"])
    words = ("tar -xf", "kci gate kci-records --kernel b --tree kci-tree ", "kci publish kci-tree")
    script = [*enumerate(publisher["script"])]
    places = [next(place for place, line in script if word in line) for word in words]
    assert places == sorted(places), "what is published is what the gate has seen"


@pytest.mark.parametrize("path", ["a b", "$(touch x)", "a'b", 'a"b', "-rf", "`x`", "$HOME"])
def test_a_hostile_directory_is_one_word_of_the_shell(path: str) -> None:
    found = named(child_pipeline(document([leg("torch-cpu", path=path)])))
    script = build_of(found["k: torch-cpu"]).replace("kci build", 'printf "%s\\n"')
    shown = shell("-e", script, Path("/"))
    assert shown.stdout.splitlines()[-2:] == ["--", path]


@pytest.mark.parametrize("value", ["${{ github.token }}", "$[[ inputs.x ]]", "a\nb"])
def test_what_a_service_would_evaluate_is_refused(value: str) -> None:
    with pytest.raises(UnsafeError):
        child_pipeline(document([leg("torch-cpu", path=value)]))
    with pytest.raises(UnsafeError):
        child_pipeline(msgspec.structs.replace(document([leg("torch-cpu")]), tier=value))
    with pytest.raises(UnsafeError):
        render_gitlab(Inputs((), kernels=(value,)))


def test_the_same_plan_gives_the_same_bytes() -> None:
    plan = document([leg("torch-cpu", "aa"), leg("torch-cuda", "bb")])
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert child_pipeline(plan) == child_pipeline(again)


# --- the file ---


def add_kernel(place: Path) -> Path:
    return write_noarch(place, place.name, ("cpu", "cuda"))


def test_the_file_is_written_checked_and_regenerated_from_its_own_header(tmp_path: Path) -> None:
    add_kernel(tmp_path / "kernels" / "one")
    (tmp_path / ".git").mkdir()
    render = ("render", "--ci", "gitlab", "--output", tmp_path)
    ended(kci(*render, tmp_path / "kernels"), 0)
    text = (tmp_path / GITLAB_FILE).read_text()
    assert "#   kci render kernels --ci gitlab\n" in text
    assert jobs(text).keys() == {"kci-plan", "kci"}
    ended(kci(*render, "--check"), 0)
    (tmp_path / "kci.toml").write_text('[pull-request]\ntier = "all"\n')
    checked = ended(kci(*render, "--check"), 1, "KCI401")
    assert '+      variables: { KCI_TIER: "all"' in checked
    (tmp_path / GITLAB_FILE).write_text(text + "# mine\n")
    ended(kci(*render), 1)


@pytest.mark.rule("KCI454", triggers=True)
def test_what_no_job_of_gitlab_does_is_told(tmp_path: Path) -> None:
    add_kernel(tmp_path / "one")
    (tmp_path / "kci.toml").write_text('[pull-request]\ncomment = true\n[publish]\non = "push"\n')
    keys = ("pull-request.comment", "publish.on")
    told = (f"GitLab's file has nothing for `{key}` of kci.toml" for key in keys)
    ended(kci("render", "--ci", "gitlab", "--output", tmp_path), 0, *told)


@pytest.mark.rule("KCI454", triggers=False)
def test_what_gitlab_has_jobs_for_is_not_told(tmp_path: Path) -> None:
    add_kernel(tmp_path / "one")
    (tmp_path / "kci.toml").write_text('[pull-request]\ntier = "pr"\n')
    assert "KCI454" not in kci("render", "--ci", "gitlab", "--output", tmp_path).stderr


def test_tags_start_a_pipeline_only_where_something_is_published() -> None:
    without = render_gitlab(Inputs(()))[GITLAB_FILE]
    with_hub = render_gitlab(Inputs((), publish=HUB))[GITLAB_FILE]
    assert "CI_COMMIT_TAG" not in without
    assert with_hub.count("if: $CI_COMMIT_TAG") == 2
    assert "--purpose" in without


def test_a_plan_belongs_to_gitlab(tmp_path: Path) -> None:
    plan = ("--from-plan", tmp_path / "x")
    ended(kci("render", *plan), 2)
    ended(kci("render", "--ci", "gitlab", *plan), 1)
    (tmp_path / "x").write_text("{}")
    ended(kci("render", "--ci", "gitlab", *plan), 1, "kci plan --format json")

"""What a repository adds to its workflows: where it goes, what it survives, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from buildkit import write_tree
from cli.runner import ended, kci
from conftest import read_yaml, write_noarch

RELEASE, COMPAT, KERNEL = (
    f".github/workflows/kci{name}.yml" for name in ("", "-compat", "-kernel")
)
UNCHANGED = f"{COMPAT}: unchanged\n{KERNEL}: unchanged\n{RELEASE}: unchanged\n"
STEP = '- name: Mine\n  shell: bash\n  run: |\n    echo "one\n\n\n    two"\n'
JOBS = (
    "lint:\n  runs-on: ubuntu-24.04\n  timeout-minutes: 5\n  permissions: {}\n  steps:\n"
    "    - run: make lint\n"
)


@pytest.fixture
def repository(here: Path) -> Path:
    write_noarch(here / "first", "first")
    return here


def own(root: Path, name: str, text: str) -> None:
    write_tree(root, {f".github/kci/{name}": text})


def jobs(root: Path, path: str = RELEASE) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml((root / path).read_text())["jobs"]
    return found


def results(root: Path) -> str:
    """What the gate is told of the jobs."""
    return str(jobs(root)["kci"]["steps"][0]["with"]["results"])


@pytest.mark.rule("KCI423", triggers=False)
def test_steps_and_jobs_go_where_their_file_says(repository: Path) -> None:
    for point in ("before-build", "after-build", "before-merge", "after-merge"):
        own(repository, f"{point}.yml", STEP.replace("Mine", point))
    own(repository, "jobs.yml", JOBS)
    own(repository, "README.md", "# What these are\n")
    ended(kci("render"), 0)
    kernel, made = jobs(repository, KERNEL), jobs(repository)
    steps = {job: [step["name"] for step in kernel[job]["steps"]] for job in ("build", "merge")}
    assert steps["build"] == ["Check out", "before-build", "Build", "after-build"]
    assert steps["merge"][-3:] == ["before-merge", "Merge", "after-merge"]
    assert "before-build" not in (repository / RELEASE).read_text()
    assert made["lint"] == read_yaml(JOBS)["lint"]
    assert made["kci"]["needs"] == ["plan", "kernels", "lint"]
    assert results(repository).endswith(" lint=${{ needs.lint.result }}")
    assert "lint" not in jobs(repository, COMPAT)


def test_they_survive_rendering_again_and_a_change_is_drift(repository: Path) -> None:
    own(repository, "before-build.yml", STEP)
    ended(kci("render"), 0)
    before = (repository / KERNEL).read_bytes()
    own(repository, "before-build.yml", STEP.replace("\n", "\r\n"))
    assert ended(kci("render"), 0) == UNCHANGED, "line ends of Windows change nothing"
    assert (repository / KERNEL).read_bytes() == before
    assert kci("render", "--check").code == 0
    own(repository, "before-build.yml", STEP.replace("two", "three"))
    # No edit of the file, so `kci render` writes it.
    assert '+          three"' in ended(kci("render", "--check"), 1, "KCI401")
    assert kci("render").code == 0


@pytest.mark.rule("KCI423", triggers=True)
def test_a_job_whose_need_is_gone_is_an_error(repository: Path) -> None:
    needs = "needs: [{}]\n  if: ${{{{ !cancelled() && needs.{}.result == 'success' }}}}\n  runs-on"
    own(repository, "jobs.yml", JOBS.replace("runs-on", needs.format("kernels", "kernels")))
    ended(kci("render"), 0)
    before = (repository / RELEASE).read_text()
    # The gate knows that nothing else decides of it.
    assert results(repository).endswith(" lint/kernels=${{ needs.lint.result }}")
    own(repository, "jobs.yml", JOBS.replace("runs-on", needs.format("merge", "merge")))
    ended(kci("render"), 1, "job `lint` needs `merge`, which does not exist")
    assert (repository / RELEASE).read_text() == before
    own(repository, "before-biuld.yml", STEP)
    ended(kci("render"), 1, "KCI423", "did you mean `before-build.yml`?")


BOMB = "- run: &a0 [a, b]\n" + "".join(
    f"  x{number}: &a{number + 1} [*a{number}, *a{number}]\n" for number in range(40)
)
SKIPPED = {
    "no condition": "needs: [plan, kernels]",
    "a need that is a word": "needs: kernels",
    "a condition of its own": "needs: [kernels]\n  if: github.event_name == 'push'",
    "the condition that every job has": "needs: [kernels]\n"
    "  if: ${{ success() && needs.kernels.result == 'success' }}",
    "another job of the repository's": "needs: [first]",
}


@pytest.mark.rule("KCI424", triggers=True)
@pytest.mark.parametrize("how", SKIPPED)
def test_a_job_that_is_skipped_with_any_job_before_it_is_refused(
    repository: Path, how: str
) -> None:
    first = JOBS.replace("lint:", "first:").replace("runs-on", "needs: plan\n  runs-on")
    own(repository, "jobs.yml", first + JOBS.replace("runs-on", f"{SKIPPED[how]}\n  runs-on"))
    refused = kci("render")
    ended(refused, 1, "`lint`", "write `if: ${{ !cancelled() && needs.")
    assert refused.stderr.count("error[KCI424]") == 1
    assert not (repository / RELEASE).exists()


RUNS = {
    "needs: [plan]": "lint/plan",
    "needs: [plan, kernels]\n  if: ${{ always() && needs.kernels.result == 'success' }}":
        "lint/plan,kernels",
    "needs: [kernels]\n  if: ${{ !cancelled() && github.event_name == 'push' }}": "lint",
    "needs: [kernels]\n  if: failure()": "lint",
}  # fmt: skip


@pytest.mark.rule("KCI424", triggers=False)
@pytest.mark.parametrize("how", RUNS)
def test_a_job_that_runs_behind_skipped_ones_is_taken(repository: Path, how: str) -> None:
    own(repository, "jobs.yml", JOBS.replace("runs-on", f"{how}\n  runs-on"))
    ended(kci("render"), 0)
    assert results(repository).endswith(f" {RUNS[how]}=${{{{ needs.lint.result }}}}")


@pytest.mark.parametrize("taken", ["plan", "kci", "kernels"])
def test_a_job_with_the_id_of_one_of_kcis_is_an_error(repository: Path, taken: str) -> None:
    own(repository, "jobs.yml", JOBS.replace("lint:", f"{taken}:"))
    ended(kci("render"), 1, f"kci has a job with the id `{taken}`")


@pytest.mark.rule("KCI422", triggers=True)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("before-build.yml", "name: no list\n"),
        ("before-build.yml", "[]\n"),
        ("before-build.yml", "- name: neither\n"),
        ("before-build.yml", "- {run: a, uses: b}\n"),
        ("before-build.yml", "- {run: a\n"),
        ("before-build.yml", "---\n- run: a\n"),
        ("before-build.yml", "- run: a\n...\n"),
        ("before-build.yml", "- run: |\n    a\n@@jobs@@\n"),
        ("jobs.yml", "- run: a\n"),
        ("jobs.yml", "lint: 1\n"),
        ("before-build.yml", "- run: a\n  run: b\n"),
        ("before-build.yml", "- <<: {}\n  run: b\n"),
        ("before-build.yml", f"- {'[' * 5000}{']' * 5000}\n"),
        ("before-build.yml", BOMB),
    ],
)
def test_what_cannot_be_put_into_a_file(repository: Path, name: str, text: str) -> None:
    own(repository, name, text)
    ended(kci("render"), 1, "KCI422")
    assert not (repository / RELEASE).exists()


@pytest.mark.rule("KCI422", triggers=False)
def test_steps_without_names_and_comments_are_fine(repository: Path) -> None:
    own(repository, "before-build.yml", "# why\n- run: true\n- uses: ./.github/actions/login\n")
    assert kci("render").code == 0


def test_links_are_not_followed(repository: Path) -> None:
    own(repository, "README.md", STEP)
    parts = repository / ".github" / "kci"
    (parts / "before-build.yml").symlink_to(parts / "README.md")
    assert kci("render").code == 5


def test_pins_of_actions_of_kci_are_kcis_and_newer_ones_of_others_stay(repository: Path) -> None:
    old = f"- uses: acme/login@{'1' * 40} # v1.0.0\n- uses: actions/checkout@{'2' * 40} # v1.0.0\n"
    own(repository, "before-build.yml", old)
    kci("render")
    text = (repository / KERNEL).read_text()
    assert "2" * 40 not in text
    assert text.count("actions/checkout@") == 4
    (repository / KERNEL).write_text(text.replace(f"{'1' * 40} # v1.0.0", f"{'3' * 40} # v1.2.0"))
    assert kci("render", "--check").code == 0
    own(repository, "after-build.yml", STEP)
    assert kci("render").code == 0
    moved_by_a_bot = f"acme/login@{'3' * 40} # v1.2.0\n"
    assert moved_by_a_bot in (repository / KERNEL).read_text()

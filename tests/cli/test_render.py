from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cli.runner import kci, kci_process

RELEASE, COMPAT = ".github/workflows/kci.yml", ".github/workflows/kci-compat.yml"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kernel = tmp_path / "kernels" / "some"
    kernel.mkdir(parents=True)
    (kernel / "build.toml").write_text(
        '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        'backends = ["cpu", "cuda"]\n[torch-noarch]\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_writes_both_files_then_has_nothing_to_say(repository: Path) -> None:
    first = kci("render")
    assert (first.code, first.stdout) == (0, f"{COMPAT}: written\n{RELEASE}: written\n")
    assert kci("render").stdout == f"{COMPAT}: unchanged\n{RELEASE}: unchanged\n"
    check = kci("render", "--check")
    assert (check.code, check.stdout, check.stderr) == (0, "", "")


def test_check_shows_drift_and_writes_nothing(repository: Path) -> None:
    kci("render")
    file = repository / RELEASE
    edited = file.read_text().replace("timeout-minutes: 15", "timeout-minutes: 99")
    file.write_text(edited)
    found = kci("render", "--check")
    assert found.code == 1
    assert "+    timeout-minutes: 15" in found.stdout
    assert "KCI401" in found.stderr
    assert f"{COMPAT}" not in found.stdout
    assert file.read_text() == edited
    shown = kci("render", "--diff")
    assert (shown.code, shown.stdout, shown.stderr) == (0, found.stdout, "")
    assert file.read_text() == edited


def test_check_without_files_fails_and_makes_none(repository: Path) -> None:
    found = kci("render", "--check")
    assert found.code == 1
    assert found.stderr.count("KCI401") == 2
    assert not (repository / ".github").exists()


def test_a_newer_pin_survives_rendering(repository: Path) -> None:
    kci("render")
    for path in (RELEASE, COMPAT):
        file = repository / path
        lines = file.read_text().splitlines()
        bumped = [
            line.split("actions/checkout@")[0] + f"actions/checkout@{'d' * 40} # v99.0.0"
            if "checkout@" in line
            else line
            for line in lines
        ]
        file.write_text("\n".join(bumped) + "\n")
    before = (repository / RELEASE).read_text()
    assert kci("render", "--check").code == 0
    assert kci("render").code == 0
    assert (repository / RELEASE).read_text() == before
    assert "d" * 40 in before


def test_two_pins_are_an_error_with_both_places(repository: Path) -> None:
    kci("render")
    file = repository / RELEASE
    text = file.read_text()
    at = text.index("actions/checkout@") + len("actions/checkout@")
    end = text.index("\n", at)
    file.write_text(text[:at] + "d" * 40 + " # v99.0.0" + text[end:])
    found = kci("render")
    assert found.code == 1
    assert "KCI403" in found.stderr
    assert f"({COMPAT}:" in found.stderr
    assert f"({RELEASE}:" in found.stderr


def test_a_file_by_somebody_else_is_left_alone(repository: Path) -> None:
    file = repository / RELEASE
    file.parent.mkdir(parents=True)
    file.write_text("name: mine\n")
    found = kci("render")
    assert found.code == 1
    assert "KCI402" in found.stderr
    assert file.read_text() == "name: mine\n"
    assert not (repository / COMPAT).exists()


def test_static_legs_are_those_of_the_plan(repository: Path) -> None:
    """One plan, two ways to hand it to GitHub: both give the same legs."""
    kci("render", "--mode", "static")
    jobs = yaml.safe_load((repository / RELEASE).read_text())["jobs"]
    for job, tier in (("build", "release"), ("build-pr", "pr")):
        planned = json.loads(kci("plan", "--tier", tier, "--format", "github").stdout)
        assert jobs[job]["strategy"]["matrix"] == planned


def test_output_names_the_root_and_paths_are_relative_to_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "kernels")
    assert kci("render", "some", "--output", "..", "--mode", "static").code == 0
    text = (repository / RELEASE).read_text()
    assert 'kernels: "kernels/some"' in text
    assert '"path": "kernels/some"' in text
    assert "kci render kernels/some --mode static" in text
    monkeypatch.chdir(repository)
    assert kci("render", "kernels/some", "--mode", "static", "--check").code == 0


def test_wrong_usage(repository: Path) -> None:
    (repository / "other").mkdir()
    assert kci("render", "--output", "nowhere").code == 2
    outside = kci("render", "kernels/some", "--output", "other")
    assert outside.code == 2
    assert "not below" in outside.stderr
    assert kci("render", "--mode", "sometimes").code == 2


def test_hostile_directory_name(repository: Path) -> None:
    (repository / "kernels" / "some").rename(repository / "kernels" / "${{ secrets.X }}")
    found = kci("render", "kernels/${{ secrets.X }}")
    assert found.code == 5
    assert not (repository / ".github").exists()


def test_no_traceback_in_a_process_of_its_own(repository: Path) -> None:
    (repository / "kernels" / "some" / "build.toml").write_text("[general\n")
    found = kci_process("render", cwd=repository)
    assert found.code == 1
    assert "Traceback" not in found.stderr
    assert found.stdout == ""

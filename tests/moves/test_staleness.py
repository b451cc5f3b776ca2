"""What is behind the world, and what cannot be told is said as that."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci
from kci.hub.held import Held, Holding
from kci.moves import staleness
from kci.moves.staleness import Behind, BehindKind, Newest, behind, newest_commit
from kci.workspace.workspace import open_workspace

KERNEL = """
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cpu"]
upstream = "https://example.invalid/there.git"

[torch-noarch]
"""
OLD, FRESH = date(2027, 9, 1), date(2026, 9, 18)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A committed kernel."""
    place = write_tree(
        tmp_path / "repository", {"some-kernel/build.toml": KERNEL, "kci.toml": 'catalog = "2026-09-17"\n'}
    )
    commit(place, "2026-06-01T00:00:00+00:00")
    return place


def commit(place: Path, day: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    surroundings = {**os.environ, "GIT_COMMITTER_DATE": day, "GIT_AUTHOR_DATE": day}
    for words in (["init", "--quiet"], ["add", "--all"], [*who, "commit", "--quiet", "--message=x"]):
        subprocess.run(["git", "-C", str(place), *words], check=True, env=surroundings)


def found(repository: Path, today: date = FRESH, newest: Newest | None = None, *held: Held) -> list[Behind]:
    workspace = open_workspace([repository / "some-kernel"])
    holdings = [(workspace.only_kernel(), Holding("here", held))] if held else []
    return behind(workspace, holdings, today, newest)


def test_nothing_is_behind(repository: Path) -> None:
    assert found(repository, FRESH, lambda _: datetime(2026, 5, 31, tzinfo=UTC)) == []


def test_an_old_catalog(repository: Path) -> None:
    (item,) = found(repository, OLD)
    assert (item.kind, item.subject) == (BehindKind.CATALOG, "2026-09-17")
    assert item.message.startswith("349 days old")


def test_an_upstream_that_is_newer_than_the_sources(repository: Path) -> None:
    (item,) = found(repository, FRESH, lambda _: datetime(2026, 6, 2, tzinfo=UTC))
    assert item.kind is BehindKind.UPSTREAM
    assert "commit of 2026-06-02, the kernel's sources are of 2026-06-01" in item.message
    assert found(repository, FRESH, lambda _: datetime(2026, 6, 1, tzinfo=UTC)) == []


def test_what_cannot_be_told_is_unknown(repository: Path, tmp_path: Path) -> None:
    (item,) = found(repository, FRESH, lambda _: "it does not answer")
    assert (item.kind, item.message) == (BehindKind.UNKNOWN, "https://example.invalid/there.git: it does not answer")
    elsewhere = write_tree(
        tmp_path / "plain", {"some-kernel/build.toml": KERNEL, "kci.toml": 'catalog = "2026-09-17"\n'}
    )
    (item,) = found(elsewhere, FRESH, lambda _: datetime(2026, 6, 2, tzinfo=UTC))
    assert "no commit says" in item.message


def test_a_variant_without_a_signature(repository: Path) -> None:
    held = [Held("torch-cpu"), Held("torch-cuda", signer="https://x"), Held("torch-rocm", problem="it is broken")]
    (item,) = found(repository, FRESH, None, *held)
    assert (item.kind, item.subject) == (BehindKind.SIGNATURE, "some-kernel torch-cpu")


def test_the_newest_commit_of_an_upstream(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not allowed" in str(newest_commit(repository.as_uri()))
    ask = staleness.remote_git

    def with_files(place: Path, *words: str, **_: object) -> subprocess.CompletedProcess[str]:
        return ask(place, *words)

    monkeypatch.setattr(staleness, "remote_git", with_files)
    assert newest_commit(repository.as_uri()) == datetime(2026, 6, 1, tzinfo=UTC)
    assert isinstance(newest_commit((repository / "nothing").as_uri()), str)


def test_the_command_says_what_is_behind(repository: Path) -> None:
    kernel = repository / "some-kernel"
    fine = kci("compat", "freshness", kernel, "--today", str(FRESH))
    assert (fine.code, fine.stdout) == (0, "nothing is outdated\n")
    late = kci("compat", "freshness", kernel, "--today", str(OLD), "--format", "json")
    assert late.code == 1
    assert [item["kind"] for item in json.loads(late.stdout)["behind"]] == ["catalog"]
    assert kci("compat", "freshness", kernel, "--today", "soon").code == 2

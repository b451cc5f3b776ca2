"""Is what is published signed, and is it what was signed: with a Hub of the tests, and an outage of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actions.test_common import load
from cli.runner import Result, kci
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, hub, make_tree, token
from tree.test_signing import pem_key

__all__ = ["hub", "token"]

BUILD = """[general]
name = "some-kernel"
version = {version}
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
hub = {{ repo-id = "{repo}" }}

[torch-noarch]
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    private, public = pem_key(tmp_path / "keys")
    (tmp_path / "kci.toml").write_text(f'[signing]\nkeys = ["{public.relative_to(tmp_path)}"]\n')
    return private


@pytest.fixture
def published(hub: FakeHub, token: None, key: Path, tmp_path: Path) -> dict[str, bytes]:
    """A signed tree on the branch of its version: its files there."""
    kernel = tmp_path / "some-kernel"
    (kernel / "torch-ext/some_kernel").mkdir(parents=True)
    (kernel / "torch-ext/some_kernel/__init__.py").write_text("")
    (kernel / "build.toml").write_text(BUILD.format(version=1, repo=REPO))
    tree = make_tree(tmp_path)
    assert kci("sign", tree, "--key", key).code == 0
    files = {f"build/{path.relative_to(tree)}": path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    hub[REPO].write("v1", files, "published")
    return files


def check(tmp_path: Path) -> Result:
    return kci("compat", "signatures", tmp_path / "some-kernel")


def test_what_is_published_is_what_was_signed(hub: FakeHub, published: dict[str, bytes], tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    assert done.stdout.split()[-2:] == [f"{REPO}@v1", "signed"]


@pytest.mark.parametrize("what", ["added", "changed", "removed", "unsigned"])
def test_what_is_not_what_was_signed_is_a_finding(
    hub: FakeHub, published: dict[str, bytes], tmp_path: Path, what: str
) -> None:
    files = dict(published)
    name = next(path for path in sorted(files) if path.endswith("metadata.json"))
    match what:
        case "added":
            files["build/torch-cpu/added.py"] = b""
        case "changed":
            files[name] += b" "
        case "removed":
            del files[name]
        case _:
            del files["build/kci-attestation.dsse.json"]
    hub[REPO].write("v1", files, what)
    done = check(tmp_path)
    assert done.code == 1, done.stdout
    assert ("KCI790" if what == "unsigned" else "KCI792") in done.stderr


def test_every_version_is_checked(hub: FakeHub, published: dict[str, bytes], tmp_path: Path) -> None:
    hub[REPO].write("v2", {"build/torch-cpu/metadata.json": b"{}"}, "by hand")
    done = check(tmp_path)
    assert done.code == 1
    assert f"{REPO}@v2" in done.stdout
    assert "KCI790" in done.stderr


@pytest.mark.parametrize("path", ["refs", "tree", "resolve"])
def test_an_outage_proves_nothing_and_is_not_green(
    hub: FakeHub, published: dict[str, bytes], tmp_path: Path, path: str
) -> None:
    hub.fail(rf"/{path}", 503, times=1000)
    done = check(tmp_path)
    assert done.code == 3, done.stdout + done.stderr
    assert "KCI79" not in done.stderr
    assert "not known" in done.stdout


def test_nothing_published_is_not_green(hub: FakeHub, token: None, key: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "some-kernel"
    kernel.mkdir()
    (kernel / "build.toml").write_text(BUILD.format(version=1, repo=REPO))
    done = check(tmp_path)
    assert done.code == 3, done.stdout + done.stderr
    assert "no branch of a version" in done.stderr


def test_the_job_of_each_day_says_the_same(
    hub: FakeHub, published: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCI_INPUT_SIGNATURES", "true")
    monkeypatch.setenv("KCI_INPUT_KERNEL", f"{tmp_path}\n")
    action = load("publish")
    for unsigned, code in ((False, 0), (True, 1)):
        if unsigned:
            files = {path: data for path, data in published.items() if "attestation" not in path}
            hub[REPO].write("v1", files, "unsigned")
        with pytest.raises(SystemExit) as ended:
            action.main()
        assert ended.value.code == code


def test_it_is_rendered_where_kci_toml_says_who_may_sign(
    hub: FakeHub, published: dict[str, bytes], tmp_path: Path
) -> None:
    policy = (tmp_path / "kci.toml").read_text()
    compat = tmp_path / ".github/workflows/kci-compat.yml"
    for text, there in ((policy, False), ("[publish]\n", False), (f"[publish]\n{policy}", True)):
        (tmp_path / "kci.toml").write_text(text)
        done = kci("render", "--output", tmp_path, tmp_path)
        assert done.code == 0, done.stderr
        assert ("  signatures:\n" in compat.read_text()) is there
        assert compat.read_text().count("- cron:") == 1 + there
    (other,) = re.findall(r"schedule == '(.*?)'", compat.read_text())
    (tmp_path / "kci.toml").write_text(f'[schedule]\ncron = "{other}"\n[publish]\n{policy}')
    assert kci("render", "--output", tmp_path, tmp_path).code == 0
    assert len(set(re.findall(r'- cron: "(.*?)"', compat.read_text()))) == 2, "a job must know which schedule it is"

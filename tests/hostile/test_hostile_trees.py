"""Trees and archives that lie or attack: each is refused by name or contained, and nothing is
written elsewhere.

A tree goes through `kci verify`, which names the rule, and through `kci publish`, which writes
nothing to the Hub. An archive or a folder goes through `kci merge`. What an archive's headers and
random changes can do is in tests/tree/test_tree_unpack.py, and what artifacts say of their runs in
tests/tree/test_binding.py.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tarfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.runner import Result, kci
from publish.fake_hub import FakeHub
from publish.test_publish import hub, make_tree, publish
from variants import make_artifact, make_variant

__all__ = ["hub"]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SECRET = "root:x:0:0\n"
CPU, CUDA, MANIFEST = "torch-cpu", "torch-cuda", "kci-manifest.json"
Change = Callable[[Path], object]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What nobody may read from or write to."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    return tmp_path / "outside"


def contained(done: Result, outside: Path) -> None:
    """No traceback, nothing that drives a terminal, and nothing elsewhere."""
    for text in (done.stdout, done.stderr):
        assert "Traceback" not in text
        assert SECRET.strip() not in text
        # JSON is for programs: there a mark of direction is one more character.
        kinds = ("Cc", "Cs") if text.startswith("{") else ("Cc", "Cf", "Cs")
        assert not [char for char in text if unicodedata.category(char) in kinds and char != "\n"]
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": SECRET}


# --- trees ---


def writes(name: str, content: str | bytes = "") -> Change:
    def change(tree: Path) -> None:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def links(name: str, target: str) -> Change:
    """A link; `outside` is the folder of the secret."""

    def change(tree: Path) -> None:
        path = tree / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(target.replace("outside", str(tree.parent / "outside")))

    return change


def special(name: str, kind: int) -> Change:
    def change(tree: Path) -> None:
        (tree / name).unlink(missing_ok=True)
        os.mknod(tree / name, 0o644 | kind)

    return change


def modes(name: str, mode: int) -> Change:
    return lambda tree: (tree / name).chmod(mode)


def says(name: str, /, **changes: Any) -> Change:
    """A record that says something else."""

    def change(tree: Path) -> None:
        data = json.loads((tree / name).read_text())
        (tree / name).write_text(json.dumps(data | changes))

    return change


def twice(tree: Path) -> None:
    path = tree / CPU / "metadata.json"
    path.write_text(path.read_text().replace("{", '{"name": "other-kernel", ', 1))


TREES: dict[str, tuple[Change, str]] = {
    # links, pipes, devices
    "a link to a file outside": (links(f"{CPU}/_ops.py", "outside/secret"), "KCI706"),
    "a link in place of a variant": (links(CPU, "outside"), "KCI706"),
    "a link among the benchmarks": (
        lambda tree: [writes("benchmarks/x.py")(tree),
            links("benchmarks/x.py", "outside/secret")(tree)], "KCI706",
    ),
    "metadata that are a link to a device": (links(f"{CPU}/metadata.json", "/dev/zero"), "KCI710"),
    "a pipe in place of the checksums": (special("SHA256SUMS", stat.S_IFIFO), "KCI726"),
    "a pipe in place of the card": (special("CARD.md", stat.S_IFIFO), "KCI706"),
    "a pipe in place of an attestation": (special("kci-attestation.sigstore.json", stat.S_IFIFO),
        "KCI791"),
    "a hard link to a file outside": (
        lambda tree: (tree / CPU / "x").hardlink_to(tree.parent / "outside/secret"), "KCI731",
    ),
    # names
    "a name that is not text": (writes(os.fsdecode(f"{CPU}/".encode() + b"\xff.py")), "KCI700"),
    "a name that is not text at the top": (writes(os.fsdecode(b"\xff\x1b[31m")), "KCI707"),
    # records that lie
    "metadata with a name twice": (twice, "KCI710"),
    "a manifest that drives a terminal": (says(MANIFEST, kernel="\x1b]0;owned\x07"), "KCI718"),
}  # fmt: skip
"""What is done to a good tree, and the rule that says so."""


@pytest.mark.parametrize("case", TREES)
def test_a_hostile_tree_is_named_and_not_published(
    case: str, hub: FakeHub, tmp_path: Path, outside: Path
) -> None:
    change, rule = TREES[case]
    tree = make_tree(tmp_path)
    change(tree)
    done = kci("verify", tree, "--format", "json")
    contained(done, outside)
    assert rule in {item["rule"] for item in json.loads(done.stdout)["diagnostics"]}
    contained(kci("verify", tree), outside)
    refused = publish(tree)
    contained(refused, outside)
    assert refused.code in (1, 5), refused.stderr
    assert hub.asked("^(POST|PUT) ") == []


def test_the_good_tree_is_published(hub: FakeHub, tmp_path: Path, outside: Path) -> None:
    tree = make_tree(tmp_path)
    done = kci("verify", tree)
    contained(done, outside)
    assert (done.code, publish(tree).code) == (0, 0)


# --- archives, and what is merged into ---


ARTIFACT = f"kci-gated-norm-{CPU}.tar"


def member(place: Path, name: str) -> Path:
    """An artifact with one member more."""
    made = make_artifact(place, make_variant(place / "parts", CPU))
    with tarfile.open(made, "a") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return made


def pipe(place: Path) -> Path:
    os.mkfifo(place / ARTIFACT)
    return place / ARTIFACT


def linked_folder(place: Path) -> Path:
    """Whoever made the folder chooses no artifact elsewhere."""
    made = make_artifact(place.parent / "elsewhere", make_variant(place.parent / "elsewhere", CPU))
    (place / made.name).symlink_to(made)
    return place


def changed(change: Change) -> Callable[[Path], Path]:
    """A directory of a variant, to which this is done."""

    def made(place: Path) -> Path:
        directory = make_variant(place / "parts", CPU)
        change(directory.parent)
        return directory

    return made


ARCHIVES: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    "a member that leads out": (lambda place: member(place, f"{CPU}/../../outside/x"), 5, "KCI605"),
    "a pipe in place of an artifact": (pipe, 2, ""),
    "a pipe in a folder": (lambda place: pipe(place).parent, 1, "KCI606"),
    "a link in a folder": (linked_folder, 1, "KCI606"),
    "a directory with a link out": (changed(links(f"{CPU}/x", "/etc/passwd")), 1, "KCI603"),
    "a directory with a setuid bit": (changed(modes(f"{CPU}/_ops.py", 0o4755)), 5, "setuid"),
    "a directory with a pipe": (changed(special(f"{CPU}/x", stat.S_IFIFO)), 5, "neither a file"),
}
"""What is merged, the exit code, and the rule or what is said."""


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_hostile_archive_is_refused(case: str, tmp_path: Path, outside: Path) -> None:
    make, code, word = ARCHIVES[case]
    (tmp_path / "in").mkdir()
    path = make(tmp_path / "in")
    before = sorted(tmp_path.rglob("*"))
    done = kci("merge", path, "--into", tmp_path / "build")
    contained(done, outside)
    assert (done.code, word in done.stderr) == (code, True), done.stderr
    assert sorted(tmp_path.rglob("*")) == before


OLD: dict[str, Change] = {
    "a card that is a link": links("CARD.md", "outside/secret"),
    "benchmarks that are a link": links("benchmarks", "outside"),
    "a link among the benchmarks": TREES["a link among the benchmarks"][0],
    "a pipe in place of the manifest": special(MANIFEST, stat.S_IFIFO),
    "a variant that is a link": links(CUDA, "outside"),
}
"""What is done to a tree that something is merged into."""


@pytest.mark.parametrize("case", OLD)
def test_a_hostile_tree_is_not_added_to(case: str, tmp_path: Path, outside: Path) -> None:
    tree = make_tree(tmp_path)
    OLD[case](tree)
    before = sorted(tmp_path.rglob("*"))
    done = kci("merge", tmp_path / "artifacts-1a2b3c4" / CPU, "--into", tree)
    contained(done, outside)
    assert (done.code, "KCI6" in done.stderr) == (1, True), done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_the_modes_of_an_archive_do_not_count(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "in").mkdir()
    made = make_artifact(tmp_path / "in", make_variant(tmp_path / "in" / "parts", CPU))
    with tarfile.open(made) as old, tarfile.open(tmp_path / made.name, "w") as new:
        for info in old:
            info.mode, info.uid, info.uname = 0o6777, 0, "root"
            new.addfile(info, old.extractfile(info))
    contained(kci("merge", tmp_path / made.name, "--into", tmp_path / "build"), outside)
    done = kci("verify", tmp_path / "build")
    assert done.code == 0, done.stderr
    files = (tmp_path / "build" / CPU).iterdir()
    assert {path.stat().st_mode & 0o7777 for path in files} == {0o755}

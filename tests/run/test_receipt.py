"""A `kci build` that has nothing to do answers at once, and never when anything that decides about it changed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from buildkit import STABLE_CPU, copy_kernel, noarch_kernel, program, write_tree
from cli.runner import Result, kci, kci_process
from kci.run.receipt import FOLDER, KEPT, ChangedMeanwhileError, keep, recall

SAID = "nothing has changed since it was built"
WORDS = ("build", ".", "--cache", "cache")
LONG_AGO = 1_600_000_000 * 10**9


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with something that decides and something that was made, all of it at rest."""
    write_tree(tmp_path, {"in/source": "one", "in/include/header.h": "two", "made/variant/module.so": "three"})
    (tmp_path / "in/compiler").symlink_to("source")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept(place: Path, began_ns: int | None = None) -> None:
    decided = [f"{place}/in/{name}" for name in ("source", "include", "include/header.h", "compiler", "not-there")]
    keep(WORDS, decided, [f"{place}/made/variant"], began_ns or time.time_ns() + 3_600 * 10**9)


def all_kept(place: Path) -> None:
    """A receipt as it is when everything has been at rest for long: without digests."""
    (receipt,) = (place / "cache" / FOLDER).iterdir()
    lines = [line.split(" ") for line in receipt.read_text().split("\n")]
    for words in lines:
        if len(words) == 4:
            words[2] = "-"
    receipt.write_text("\n".join(" ".join(words) for words in lines))


def same_size(path: Path) -> None:
    path.write_text(path.read_text()[::-1])


CHANGES: dict[str, Callable[[Path], object]] = {
    "a source": lambda place: same_size(place / "in/source"),
    "a header": lambda place: same_size(place / "in/include/header.h"),
    "a header that comes": lambda place: (place / "in/include/other.h").touch(),
    "a header that goes": lambda place: (place / "in/include/header.h").unlink(),
    "a file that was looked for": lambda place: (place / "in/not-there").touch(),
    "a link": lambda place: ((place / "in/compiler").unlink(), (place / "in/compiler").symlink_to("include/header.h")),
    "mode": lambda place: (place / "in/source").chmod(0o755),
    "a damaged output": lambda place: same_size(place / "made/variant/module.so"),
    "an output that is gone": lambda place: (place / "made/variant/module.so").unlink(),
    "a file more in the output": lambda place: (place / "made/variant/other.py").touch(),
    "a variable": lambda _place: os.environ.update(CXXFLAGS="-O1"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("settled", [True, False], ids=["at rest", "just written"])
def test_any_change_makes_it_worthless(
    place: Path, change: str, settled: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-O3")
    kept(place)
    if settled:
        all_kept(place)
    assert recall(WORDS)
    assert capfd.readouterr() == (f"{place}/made/variant\n", f"{SAID}\n")
    CHANGES[change](place)
    assert not recall(WORDS)
    assert capfd.readouterr() == ("", "")


def test_what_was_just_written_is_known_by_its_content(place: Path) -> None:
    """Written again within one tick of the clock, a file has the times that it had."""
    header, output = place / "in/include/header.h", place / "made/variant/module.so"
    kept(place)
    for path in (header, output):
        receipt = next((place / "cache" / FOLDER).iterdir())
        (line,) = (line for line in receipt.read_text().split("\n") if line.endswith(f" {path}") and line[0] == "f")
        was = path.read_bytes()
        path.write_bytes(was[::-1])
        now = path.stat()
        words = line.split(" ")
        words[1] = f"{now.st_mode},{now.st_size},{now.st_mtime_ns},{now.st_ctime_ns},{now.st_ino},{now.st_dev}"
        assert words[2] != "-"
        receipt.write_text(receipt.read_text().replace(line, " ".join(words)))
        assert not recall(WORDS)
        receipt.write_text(receipt.read_text().replace(words[2], "-"))  # without the digest it would not be seen
        assert recall(WORDS)


def test_other_words_and_another_directory_have_no_receipt(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(place)
    assert not recall((*WORDS, "--jobs", "2"))
    monkeypatch.setenv("SHLVL", "7")
    assert recall(WORDS)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert not recall(("build", ".", "--cache", "../cache"))


def test_of_a_directory_that_outputs_go_into_only_the_other_names_decide(place: Path) -> None:
    keep(WORDS, [], [f"{place}/made/variant"], 0, {f"{place}/in": ["build", "dist"]})
    (place / "in" / "build").mkdir()
    assert recall(WORDS)
    (place / "in" / "new.cpp").touch()
    assert not recall(WORDS)


def test_a_change_while_it_is_built_leaves_no_receipt(place: Path) -> None:
    began = time.time_ns() - 10**9
    os.utime(place / "in/source", ns=(began - 3600 * 10**9,) * 2)  # the other time says when that was done
    with pytest.raises(ChangedMeanwhileError, match="in/"):
        kept(place, began)
    assert not recall(WORDS)


@pytest.mark.parametrize("text", ["", "kci receipt 1", "kci receipt 9\nx\n", "kci receipt 1\nx\ny", "\0\n" * 9])
def test_a_broken_receipt_says_nothing(place: Path, text: str) -> None:
    kept(place)
    next((place / "cache" / FOLDER).iterdir()).write_text(text)
    assert not recall(WORDS)


def test_old_receipts_go(place: Path) -> None:
    (place / "cache" / FOLDER).mkdir(parents=True)
    for number in range(KEPT + 5):
        os.utime(
            write_tree(place / "cache" / FOLDER, {str(number): ""}) / str(number),
            ns=(LONG_AGO, LONG_AGO + number * 10**9),
        )
    kept(place)
    left = {path.name for path in (place / "cache" / FOLDER).iterdir()}
    assert len(left) == KEPT
    assert {"0", str(KEPT + 4)} & left == {str(KEPT + 4)}


def remembered(build: Callable[[], bool]) -> bool:
    """Whether there is a receipt in the end: none is left while something else changes the machine's programs."""
    return any(build() for _ in range(6))


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(directory), "-c", "user.name=x", "-c", "user.email=x@y.z", *words], check=True)


@pytest.mark.programs
@pytest.mark.usefixtures("no_git_environment")
def test_what_git_says_decides_too(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    kernel = noarch_kernel(repository / "kernel")
    write_tree(repository, {"README.md": "one\n"})
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "first")

    def build() -> Result:
        words = ("build", kernel, "--variant", "torch-cpu", "--cache", tmp_path / "cache", "--output", tmp_path / "out")
        done = kci_process(*words)
        assert done.code == 0, done.stderr
        return done

    def dirty() -> None:
        (repository / "README.md").write_text("two\n")

    def commit() -> None:
        git(repository, "commit", "-qam", "second")

    def settings() -> None:
        (repository / "kci.toml").write_text("")

    def nearer() -> None:
        git(kernel, "init", "-q")

    for change in (dirty, commit, settings, nearer):
        assert remembered(lambda: SAID in build().stderr)
        change()
        assert SAID not in build().stderr, change


@pytest.mark.torch
@pytest.mark.usefixtures("no_git_environment")
def test_a_compiled_variant_is_made_again_after_every_kind_of_change(
    tmp_path: Path, torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = copy_kernel("bare", tmp_path)
    source = kernel / "csrc" / "bare.cpp"
    outside = tmp_path / "outside"
    write_tree(outside, {"outside.h": "#define OUTSIDE 1\n"})
    source.write_text(f"#include <cstdint>\n#include <outside.h>\n{source.read_text()}")
    compiler = program(tmp_path, "compiler", 'exec g++ "$@"\n')
    monkeypatch.setenv("CPATH", str(outside))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")

    def build() -> bool:
        """Whether it was answered by the receipt."""
        words = ("build", kernel, "--variant", STABLE_CPU, "--tier", "all", "--catalog", "2026-08-20")
        done = kci_process(*words, "--cache", torch_cache)
        assert done.code == 0, done.stderr
        made = kernel / "build" / STABLE_CPU
        assert done.stdout == f"{made}\n"
        assert (made / "metadata.json").is_file()
        return SAID in done.stderr

    def rename() -> None:
        (kernel / "build.toml").write_text((kernel / "build.toml").read_text().replace("version = 1", "version = 2"))

    changes: dict[str, Callable[[], object]] = {
        "source": lambda: source.write_text(source.read_text() + "// more\n"),
        "header outside": lambda: (outside / "outside.h").write_text("#define OUTSIDE 2\n"),
        "header that comes before": lambda: (outside / "cstdint").write_text("#include_next <cstdint>\n"),
        "flag": lambda: monkeypatch.setenv("CXXFLAGS", "-g0"),
        "build.toml": rename,
        "compiler": lambda: compiler.write_text(compiler.read_text() + "# another\n"),
        "another compiler on the path": lambda: monkeypatch.setenv("PATH", f"{outside}:{os.environ['PATH']}"),
        "output damaged": lambda: next((kernel / "build" / STABLE_CPU).glob("*.so")).write_bytes(b""),
    }
    for name, change in changes.items():
        assert remembered(build), f"before {name}"
        change()
        assert not build(), name
    assert next((kernel / "build" / STABLE_CPU).glob("*.so")).stat().st_size > 0


def test_only_the_program_itself_keeps_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that uses kci has words of its own, which say nothing of what it builds."""
    monkeypatch.setattr(sys, "argv", ["pytest", "tests"])
    kernel = noarch_kernel(tmp_path / "kernel")
    assert kci("build", kernel, "--variant", "torch-cpu", "--cache", tmp_path / "cache").code == 0
    assert not (tmp_path / "cache" / FOLDER).exists()

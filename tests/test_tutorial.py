"""The tutorial and the questions, run from their own text: both say what kci does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.runner import ended, kci, kci_process
from config.mistakes import KERNEL
from conftest import ROOT
from own_wheel import installed_from_a_wheel, outside
from test_readme import session

DOCS = ROOT / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(?:<!-- (?P<what>file|edit): (?P<path>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```",
    re.DOTALL,
)


def steps(page: str) -> list[tuple[str, str, str]]:
    """What the page has its reader do: `run`, `file` or `edit`, a path, and a text."""
    found = []
    for block in _BLOCK.finditer(page):
        if block["what"]:
            found.append((block["what"], block["path"], block["text"]))
        elif block["language"] == "bash":
            found += [("run", "", line) for line in block["text"].splitlines()]
    return found


def follow(page: str, place: Path, run: Callable[[list[str], Path], None]) -> None:
    for what, path, text in steps(page):
        file = place / path
        if what == "file":
            file.write_text(text)
        elif what == "edit":  # a diff without line numbers
            lines = text.splitlines()
            before = "\n".join(line[1:] for line in lines if line[:1] in (" ", "-")) + "\n"
            after = "\n".join(line[1:] for line in lines if line[:1] in (" ", "+")) + "\n"
            assert file.read_text().count(before) == 1, before
            file.write_text(file.read_text().replace(before, after))
        elif text.startswith("cd "):
            place = place / text[3:]
        else:
            run(shlex.split(text), place)


def test_the_tutorial_without_building(tmp_path: Path) -> None:
    """Everything but compiling: the changes apply, and what they make has no finding."""
    commands = []

    def run(command: list[str], place: Path) -> None:
        assert command[0] == "kci"
        commands.append(command[1])
        if command[1] not in ("run", "test"):
            done = kci_process(*command[1:], cwd=place)
            assert done.code == 0, (command, done)

    follow(TUTORIAL, tmp_path, run)
    assert {"init", "check", "matrix", "run", "test", "render", "plan"} <= {*commands}
    assert sum(what == "edit" for what, *_ in steps(TUTORIAL)) >= 5
    texts = [file.read_text() for file in (tmp_path / "softcap").rglob("*") if file.is_file()]
    said = [text for text in texts if "SiLU" in text or "silu" in text]
    assert said == [], "every file speaks of the new kernel"
    checked = ended(kci("check", tmp_path / "softcap", "-v"), 0)
    assert checked.startswith("2 files checked: 0 errors, 0 warnings")


@pytest.mark.network
@pytest.mark.torch
def test_a_newcomer_follows_it_with_nothing_but_the_wheel(
    tmp_path: Path, torch_cache: Path, shared_by_workers: Path
) -> None:
    """A new kernel, built, loaded by the kernels library, and tested; the README shows how that
    begins.
    """
    program = installed_from_a_wheel(shared_by_workers)
    said: list[tuple[list[str], str]] = []

    def run(command: list[str], place: Path) -> None:
        output = outside(program, *command[1:], cwd=place, KCI_CACHE=str(torch_cache))
        said.append((command, as_on_any_machine(output)))

    follow(TUTORIAL, tmp_path, run)
    kernel = tmp_path / "softcap"
    assert (kernel / "build" / "torch213-cxx11-cpu-x86_64-linux").is_dir()
    for command, output in session():
        assert (command, as_on_any_machine(output)) in said
    outside(program, "verify", "build", cwd=kernel)
    assert "This machine" in outside(program, "doctor", cwd=kernel, KCI_CACHE=str(torch_cache))


def as_on_any_machine(output: str) -> str:
    """Without seconds, and without what an earlier run of the tests has compiled."""
    return re.sub(
        r"\d+ s(, \d+ of \d+ objects are as they were)?$", "N s", output, flags=re.MULTILINE
    )


# --- the questions --------------------------------------------------------------------------------

QUESTIONS = re.findall("(?m)^### `(.+)`$", (DOCS / "rules.md").read_text(encoding="utf-8"))
MADE_BY = {
    "KCI103": KERNEL + "\n[general.cuda]\nminver = 2.10\n",
    "KCI104": KERNEL.replace('"relu"', '"silu_and_mul"', 1),
    "KCI136": KERNEL,
    "KCI155": KERNEL + 'cuda-capabilities = ["5.0"]\n',
    "KCI107": KERNEL.replace("edition = 5\n", ""),
}
"""Files that make messages of the page."""


@pytest.mark.parametrize("rule", MADE_BY)
def test_the_message_is_still_the_one_of_the_page(rule: str, tmp_path: Path) -> None:
    (question,) = [text for text in QUESTIONS if f"[{rule}]" in text]
    (tmp_path / "build.toml").write_text(MADE_BY[rule])
    said = kci("check", tmp_path).stderr
    pattern = ".*".join(re.escape(part.strip()) for part in question.split("..."))
    assert re.search(pattern, said), said

"""Completion as the shells do it: bash, zsh and fish themselves, on terminals and by their own means."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from buildkit import CPU, write_tree
from cli.runner import kci_on_path, kci_process
from cli.terminal import Terminal
from conftest import ROOT
from kci.cli import COMMANDS, COMPLETE
from variants import make_variant

EXECUTE = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
KCI_TOML = """
    [tiers.nightly]
    base = "release"

    [engines.cluster]
    type = "slurm"
"""

LINES = [
    ("kci ma", {"matrix"}, {"plan"}),
    ("kci matrix --ba", {"--backend"}, {"--system"}),
    ("kci matrix --backend c", {"cann", "cpu", "cuda"}, {"rocm"}),
    ("kci matrix --backend=c", {"--backend=cann", "--backend=cpu", "--backend=cuda"}, {"--backend=rocm", "cpu"}),
    ("kci matrix --tier=pr --format j", {"json"}, {"names"}),
    ("kci matrix --catalog 2026-08", {"2026-08-20"}, {"2026-09-01"}),
    ("kci compat re", {"record", "report"}, {"decide"}),
    ("kci build relu --variant torch213-cxx11-cp", {CPU}, {"torch214-cxx11-cpu-x86_64-linux"}),
    ("kci plan relu --only torch214", {"torch214-cxx11-cpu-x86_64-linux"}, {CPU}),
    ("kci explain kci11", {"KCI110", "KCI114"}, {"KCI101"}),
    ("kci verify relu --select=KCI70", {"--select=KCI701"}, {"--select=KCI720"}),
    ("kci completion z", {"zsh"}, {"bash"}),
]
"""What is typed, what has to be offered, and what must not be."""
SHELLS_DIFFER = [line for line in LINES if re.search(r"--ba$|=|compat|--variant|kci11", line[0])]
"""Whatever a shell makes of words by itself; what kci answers to the others is the same for all of them."""


NEXT = "<next>"
"""Stands after what is offered for a line."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a kernel, and `kci` on the PATH."""
    kci_on_path(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OFFERED", str(tmp_path / "offered"))
    for name in ("COMP_WORDS", "COMP_CWORD", COMPLETE, "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "kernels"
    folder.mkdir()
    shutil.copytree(ROOT / "examples" / "relu", folder / "relu", ignore=shutil.ignore_patterns("build"))
    return folder


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def offered_by_bash(lines: list[str], folder: Path) -> list[set[str]]:
    """Calls the function as bash does, with the words that it makes of a line; it takes `=` for a word of its own."""
    script = 'eval "$(kci completion bash)"\n'
    for line in lines:
        words = [part for word in line.split(" ") for part in word.replace("=", " = ").split(" ")]
        script += f"COMP_WORDS=({' '.join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1} COMPREPLY=()\n"
        script += f"_kci_completion kci && printf '%s\\n' \"${{COMPREPLY[@]}}\"; echo '{NEXT}'\n"
    found = apart(answer([shell("bash"), "--norc", "-c", script], folder))
    lasts = [line.rpartition(" ")[2] for line in lines]
    prefixes = [last.partition("=")[0] + "=" if "=" in last else "" for last in lasts]
    return [{prefix + name for name in names} for prefix, names in zip(prefixes, found, strict=True)]


def offered_by_fish(lines: list[str], folder: Path) -> list[set[str]]:
    asked = "; ".join(f"complete -C {shlex.quote(line)}; echo '{NEXT}'" for line in lines)
    found = apart(answer([shell("fish"), "--no-config", "-c", f"kci completion fish | source; {asked}"], folder))
    return [{name.partition("\t")[0] for name in names} for names in found]


OFFERS_OF_ZSH = f"""
    PS1=
    autoload -Uz compinit && compinit -u -D
    eval "$(kci completion zsh)"
    # The two builtins that take what is offered, as the script calls them.
    compadd() {{ local name=$@[-1]; print -rl -- ${{(P)name}} >> $OFFERED }}
    _describe() {{ local name=$@[3]; print -rl -- ${{${{(P)name}}%%:*}} >> $OFFERED }}
    _listed() {{ _kci_completion; print '{NEXT}' >> $OFFERED; print '<done>' }}
    zle -C listed complete-word _listed
    bindkey '^T' listed
    _emptied() {{ BUFFER= }}
    zle -N _emptied
    bindkey '^G' _emptied
    print '<ready>'
"""
ZSH_ON_A_TERMINAL = """
    zmodload zsh/zpty
    until_seen() { while zpty -r shell part; do [[ $part == *$1* ]] && return; done; exit 1 }
    zpty shell zsh -f -i
    zpty -w shell "source $1"
    until_seen '<ready>'
    for line in "$@[2,-1]"; do
        zpty -w -n shell $'\\C-G'"$line"$'\\C-T'
        until_seen '<done>'
    done
"""


def offered_by_zsh(lines: list[str], folder: Path) -> list[set[str]]:
    """zsh itself, on a terminal of its own (zpty): its completion works nowhere else."""
    offers = write_tree(folder.parent, {"offers.zsh": OFFERS_OF_ZSH, "offered": ""}) / "offers.zsh"
    answer([shell("zsh"), "-f", "-c", ZSH_ON_A_TERMINAL, "zsh", str(offers), *lines], folder)
    return apart((folder.parent / "offered").read_text().splitlines())


OFFERED: dict[str, Callable[[list[str], Path], list[set[str]]]] = {
    "bash": offered_by_bash,
    "fish": offered_by_fish,
    "zsh": offered_by_zsh,
}


def apart(answers: list[str]) -> list[set[str]]:
    """What was offered for each line."""
    *found, rest = "\n".join(["", *answers, ""]).split(f"\n{NEXT}")
    assert not rest.strip()
    return [set(names.split("\n")) - {""} for names in found]


def answer(command: list[str], folder: Path) -> list[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()]


@pytest.mark.programs
@pytest.mark.parametrize("name", OFFERED)
def test_what_a_shell_offers(name: str, here: Path) -> None:
    answers = OFFERED[name]([line for line, _, _ in SHELLS_DIFFER], here)
    for (line, offered, not_offered), found in zip(SHELLS_DIFFER, answers, strict=True):
        assert offered <= found, line
        assert not not_offered & found, line


@pytest.mark.programs
@pytest.mark.parametrize(
    ("command", "prompt"),
    [
        (("bash", "--norc", "--noprofile", "-i"), 'PS1=; bind "set bell-style none"'),
        (("zsh", "-f", "-i"), "PS1=; autoload -Uz compinit && compinit -u -D"),
        (("fish", "--no-config", "-i"), "function fish_prompt; end"),
    ],
    ids=["bash", "zsh", "fish"],
)
def test_the_tab_key(command: tuple[str, ...], prompt: str, here: Path) -> None:
    shell(command[0])
    source = "kci completion fish | source" if command[0] == "fish" else f'eval "$(kci completion {command[0]})"'
    terminal = Terminal(*command, cwd=here, columns=120, program=("-c", EXECUTE))
    terminal.type(f"{prompt}; {source}; echo '<'ready'>'\n")
    terminal.read_until(b"<ready>")
    terminal.type("kci plan relu --only torch214-cxx11-cpu-x86\t")
    terminal.read_until(b"_64-linux")
    terminal.kill()


def offered(line: str, folder: Path) -> dict[str, str]:
    """What kci answers to fish, with the explanations."""
    words = {"COMP_WORDS": line, "COMP_CWORD": line.rpartition(" ")[2]}
    done = kci_process(cwd=folder, **{COMPLETE: "fish_complete"}, **words)
    assert (done.code, done.stderr) == (0, "")
    plain = [text.removeprefix("plain,") for text in done.stdout.splitlines() if text.startswith("plain,")]
    return {name: told for name, _, told in (text.partition("\t") for text in plain)}


@pytest.mark.parametrize(("line", "wanted", "unwanted"), [item for item in LINES if item not in SHELLS_DIFFER])
def test_what_kci_answers_to_any_shell(line: str, wanted: set[str], unwanted: set[str], here: Path) -> None:
    found = set(offered(line, here))
    assert wanted <= found
    assert not unwanted & found


def test_every_command_has_its_line_of_the_help_page(tmp_path: Path) -> None:
    assert offered("kci ", tmp_path) == COMMANDS
    assert "--version" in offered("kci --", tmp_path)


def test_what_kci_toml_names_is_offered(tmp_path: Path) -> None:
    write_tree(tmp_path, {"kci.toml": KCI_TOML})
    assert list(offered("kci plan --tier n", tmp_path)) == ["nightly"]
    assert list(offered("kci run --engine c", tmp_path)) == ["cluster"]
    assert "slurm" in offered("kci run --engine ", tmp_path)
    assert offered("kci explain KCI101", tmp_path)["KCI101"]


def test_the_variants_of_a_tree_are_offered_for_a_test(tmp_path: Path) -> None:
    make_variant(tmp_path / "relu" / "build")
    assert list(offered("kci test relu --variant ", tmp_path)) == [CPU]
    assert list(offered("kci test --tree relu/build --variant ", tmp_path)) == [CPU]


@pytest.mark.parametrize("line", ["kci build relu --variant ", "kci plan --only ", "kci run relu --engine x"])
def test_what_cannot_be_read_completes_to_nothing(line: str, tmp_path: Path) -> None:
    write_tree(tmp_path, {"relu/build.toml": "[general\n", "kci.toml": "tiers = 1\n"})
    assert offered(line, tmp_path) == {}

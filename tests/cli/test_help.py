"""Every page of help has examples, and the examples are commands that exist."""

from __future__ import annotations

import click
import pytest

from cli.runner import kci as call
from conftest import ROOT
from kci.cli import COMMANDS, kci

GROUPS = {name: kci.get_command(click.Context(kci), name) for name in COMMANDS}
PAGES = {"": kci, **GROUPS} | {
    f"{name} {below}": inner
    for name, command in GROUPS.items()
    for below, inner in getattr(command, "commands", {}).items()
}
"""Every command that has a page, by what is typed after `kci`."""


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_examples(name: str) -> None:
    page, command = call(*name.split(), "--help").stdout, PAGES[name]
    assert page.count("Examples:\n  # ") == 1
    examples = "\n".join(map(str.strip, command.examples.split("\n")))
    assert examples in page.replace("\n  ", "\n")
    if "COMMAND [ARGS]" not in page:
        assert all(option in page for option in ("-q, --quiet", "-v, --verbose", "--color"))
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [option.opts for option in options if not option.help or "\n" in option.help] == []
    made = command.make_context(name, [], resilient_parsing=True)
    assert made.help_option_names == ["-h", "--help"]


@pytest.mark.parametrize(("words", "idle"), [
    ("render --ci snakemake --branch x", "--branch"), ("render --ci gitlab --pin sha", "--pin"),
    ("render --ci gitlab --no-short", "--short"), ("render --purpose keep", "--purpose"),
    ("render --ci gitlab --from-plan p.json --check", "--check"),
    ("render --check --force", "--force"),
    ("matrix --format names --explain", "--explain"), ("plan --fingerprints", "--fingerprints"),
    ("build --variant v --part 1/2 --output o", "--output"),
    ("build --variant v --dry-run --failures f", "--failures"),
    ("merge a --into t --allow-partial", "--allow-partial"), ("init a --run", "--run"),
    ("publish --dry-run --create-repo", "--create-repo"),
])  # fmt: skip
def test_an_option_without_effect_is_refused(words: str, idle: str) -> None:
    done = call(*words.split())
    assert (done.code, f"{idle} has no effect with" in done.stderr) == (2, True), done


def test_only_commands_that_accept_an_empty_selection_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT / "examples" / "relu")
    said = {name: call(name, "--only", "nothing").stderr for name in ("matrix", "plan", "run")}
    assert all("KCI217" in text for text in said.values())
    assert ["--allow-empty" in text for text in said.values()] == [True, True, False]

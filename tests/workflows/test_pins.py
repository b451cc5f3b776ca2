from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.runner import ended, kci
from conftest import write_noarch
from kci.workflows.render import KERNEL_FILE, RELEASE_FILE, Inputs, render
from kci.workflows.rendered_files import (
    Pin,
    choose_pins,
    find_pins,
    shipped_pins,
    without_pins,
)

NEWER = "b" * 40
CHECKOUT = shipped_pins()["actions/checkout"]


def uses(reference: str) -> str:
    return f"jobs:\n  a:\n    steps:\n      - uses: {reference}\n"


def test_shipped_pins_are_well_formed() -> None:
    pins = shipped_pins()
    assert list(pins) == sorted(pins)
    for name, pin in pins.items():
        assert re.fullmatch(r"[0-9a-f]{40}", pin.sha) or (name == "kci/build" and not pin.sha)
        assert re.fullmatch(r"v\d+(\.\d+\.\d+)?", pin.version)


def test_a_pin_of_our_own_action_survives_for_all_its_folders() -> None:
    text = uses(f"kci/build/plan@{NEWER} # v1.2.0")
    rendered = render(Inputs(names=("a",)), choose_pins({"kci.yml": text}), "1.0")
    rendered = rendered[RELEASE_FILE] + rendered[KERNEL_FILE]
    for action in ("kci/build", "kci/build/plan", "kci/build/merge"):
        assert f"uses: {action}@{NEWER} # v1.2.0\n" in rendered
    assert "zizmor: ignore[unpinned-uses]" not in rendered


def test_the_newest_of_two_pins_is_taken_as_numbers_compare() -> None:
    one = uses(f"actions/checkout@{NEWER} # v100.0.0")
    two = uses(f"actions/checkout@{'c' * 40} # v98.0.0")
    for files in ({"a.yml": one, "b.yml": two}, {"a.yml": two, "b.yml": one}):
        assert choose_pins(files)["actions/checkout"] == Pin(NEWER, "v100.0.0")


WRONG = {
    "older": f"{NEWER} # v1.0.0",
    "no version": NEWER,
    "no number": f"{NEWER} # latest",
    "endless": f"{NEWER} # v{'9' * 5000}",
    "not hex": f"{'z' * 40} # v99.0.0",
    "upper case": f"{'B' * 40} # v99.0.0",
    "version bumped alone": f"{CHECKOUT.sha} # v99.0.0",
    "commit bumped alone": f"{NEWER} # {CHECKOUT.version}",
}


@pytest.mark.parametrize("pin", WRONG)
def test_a_pin_that_is_older_or_contradicts_itself_is_replaced(pin: str) -> None:
    assert choose_pins({"kci.yml": uses(f"actions/checkout@{WRONG[pin]}")}) == shipped_pins()


def test_pins_of_other_actions_and_tags_are_nobodys_business() -> None:
    others = ("somebody/else@deadbeef", "actions/checkout@v7", f"other/action@{NEWER}")
    assert choose_pins({"kci.yml": "".join(map(uses, others))}) == shipped_pins()


def test_forms_of_uses() -> None:
    text = f'  uses: "actions/checkout@{NEWER}"  #   v9.9.9  \n'
    text += f"- uses: a/b/c@{NEWER} # v1 zizmor: ignore[x]\n# uses: x/y@{NEWER} # v1\n"
    found = [(action, pin.version) for action, pin in find_pins(text)]
    assert found == [("actions/checkout", "v9.9.9"), ("a/b", "v1")]


def test_only_well_formed_pins_are_taken_out_for_comparison() -> None:
    good = f"uses: actions/checkout@{NEWER} # v1.2.3"
    assert without_pins(good) == "uses: actions/checkout"
    assert without_pins("uses: kci/build@v1") == "uses: kci/build"
    for bad in (f"uses: actions/checkout@{NEWER}", "uses: actions/checkout@v7", "run: uses x@y"):
        assert without_pins(bad) == bad


@pytest.mark.rule("KCI450", triggers=True)
def test_actions_that_do_not_exist_yet_are_told_of(here: Path) -> None:
    write_noarch(here / "kernel")
    told = "warning[KCI450]: these workflows use kci/build@v1, which does not exist before"
    ended(kci("render"), 0, told)
    text = (here / RELEASE_FILE).read_text()
    assert text.count("does not exist before the first release of kci") == 1


@pytest.mark.rule("KCI450", triggers=False)
@pytest.mark.parametrize("where", ['repository = "acme/kci"', 'ref = "main"', f'ref = "{NEWER}"'])
def test_actions_that_somebody_names_exist(here: Path, where: str) -> None:
    write_noarch(here / "kernel")
    (here / "kci.toml").write_text(f"[actions]\n{where}\n")
    assert kci("render").stderr == ""
    assert "does not exist" not in (here / RELEASE_FILE).read_text()
    assert kci("render", "--check").code == 0

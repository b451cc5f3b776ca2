from __future__ import annotations

import re

import pytest

from kci.workflows.render import KERNEL_FILE, RELEASE_FILE, Inputs, render
from kci.workflows.rendered_files import (
    Drift,
    choose_pins,
    compare,
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


def test_an_older_pin_is_replaced() -> None:
    assert choose_pins({"kci.yml": uses(f"actions/checkout@{NEWER} # v1.0.0")}) == shipped_pins()


def test_versions_compare_as_numbers() -> None:
    text = uses(f"actions/checkout@{NEWER} # v10.0.0")
    assert choose_pins({"kci.yml": text})["actions/checkout"].sha == NEWER


def test_a_pin_of_our_own_action_survives_for_all_its_folders() -> None:
    text = uses(f"kci/build/plan@{NEWER} # v1.2.0")
    rendered = render(Inputs(names=("a",)), choose_pins({"kci.yml": text}), "1.0")
    rendered = rendered[RELEASE_FILE] + rendered[KERNEL_FILE]
    for action in ("kci/build", "kci/build/plan", "kci/build/merge"):
        assert f"uses: {action}@{NEWER} # v1.2.0\n" in rendered
    assert "zizmor: ignore[unpinned-uses]" not in rendered


def test_the_newest_of_two_pins_is_taken() -> None:
    one = uses(f"actions/checkout@{NEWER} # v99.0.0")
    two = uses(f"actions/checkout@{'c' * 40} # v98.0.0")
    for files in ({"a.yml": one, "b.yml": two}, {"a.yml": two, "b.yml": one}):
        assert choose_pins(files)["actions/checkout"].version == "v99.0.0"


WRONG = {
    "no version": NEWER,
    "no number": f"{NEWER} # latest",
    "endless": f"{NEWER} # v{'9' * 5000}",
    "not hex": f"{'z' * 40} # v99.0.0",
    "upper case": f"{'B' * 40} # v99.0.0",
    "version bumped alone": f"{CHECKOUT.sha} # v99.0.0",
    "commit bumped alone": f"{NEWER} # {CHECKOUT.version}",
}


@pytest.mark.parametrize("pin", WRONG)
def test_a_pin_that_contradicts_itself_is_replaced(pin: str) -> None:
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


def test_pin_differences_are_no_drift_but_an_unpinned_action_is() -> None:
    files = render(Inputs(names=("a",)), shipped_pins(), "1.0")
    pinned = f"{CHECKOUT.sha} # {CHECKOUT.version}"
    bumped = {path: text.replace(pinned, f"{NEWER} # v6.0.0") for path, text in files.items()}
    assert {item.state for item in compare(files, bumped)} == {Drift.SAME}
    unpinned = {path: text.replace(pinned, "v7") for path, text in files.items()}
    assert {item.state for item in compare(files, unpinned)} == {Drift.EDITED}

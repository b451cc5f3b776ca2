from __future__ import annotations

import re

import pytest

from conftest import read_yaml
from kci.errors import FindingsError
from kci.render.committed import Drift, compare
from kci.render.pins import action_of, choose_pins, find_pins, known_outputs, shipped_pins, without_pins
from kci.render.workflow import RELEASE_FILE, Inputs, render

NEWER = "b" * 40
CHECKOUT = shipped_pins()["actions/checkout"]


def uses(reference: str) -> str:
    return f"jobs:\n  a:\n    steps:\n      - uses: {reference}\n"


def rules(text: str, other: str = "") -> list[str]:
    with pytest.raises(FindingsError) as caught:
        choose_pins({"a.yml": text, "b.yml": other})
    return [diagnostic.rule for diagnostic in caught.value.diagnostics]


def test_shipped_pins_are_well_formed() -> None:
    pins = shipped_pins()
    assert list(pins) == sorted(pins)
    for name, pin in pins.items():
        assert re.fullmatch(r"[0-9a-f]{40}", pin.sha) or (name == "kci/build" and not pin.sha)
        assert re.fullmatch(r"v\d+(\.\d+\.\d+)?", pin.version)
        assert list(pin.outputs) == sorted(pin.outputs)


def test_a_newer_pin_in_a_committed_file_survives() -> None:
    chosen = choose_pins({"kci.yml": uses(f"actions/checkout@{NEWER} # v99.0.0")})
    assert chosen["actions/checkout"].sha == NEWER
    assert chosen["actions/checkout"].version == "v99.0.0"
    assert chosen["actions/checkout"].outputs == CHECKOUT.outputs
    assert chosen["actions/upload-artifact"] == shipped_pins()["actions/upload-artifact"]


def test_an_older_pin_is_replaced() -> None:
    assert choose_pins({"kci.yml": uses(f"actions/checkout@{NEWER} # v1.0.0")}) == shipped_pins()


def test_versions_compare_as_numbers() -> None:
    text = uses(f"actions/checkout@{NEWER} # v10.0.0")
    assert choose_pins({"kci.yml": text})["actions/checkout"].sha == NEWER


def test_a_pin_of_our_own_action_survives_for_all_its_folders() -> None:
    text = uses(f"kci/build/plan@{NEWER} # v1.2.0")
    rendered = render(Inputs(names=("a",)), choose_pins({"kci.yml": text}), "1.0")[RELEASE_FILE]
    for action in ("kci/build", "kci/build/plan", "kci/build/merge"):
        assert f"uses: {action}@{NEWER} # v1.2.0\n" in rendered
    assert "zizmor: ignore[unpinned-uses]" not in rendered


@pytest.mark.rule("KCI403", "KCI404", triggers=False)
def test_rendering_over_a_bumped_file_changes_nothing() -> None:
    inputs = Inputs(names=("a",))
    files = render(inputs, shipped_pins(), "1.0")
    bumped = {
        path: text.replace(f"{CHECKOUT.sha} # {CHECKOUT.version}", f"{NEWER} # v99.1.0") for path, text in files.items()
    }
    assert bumped != files
    assert render(inputs, choose_pins(bumped), "1.0") == bumped


@pytest.mark.rule("KCI403", triggers=True)
def test_two_pins_of_one_action_name_both_places() -> None:
    one, two = uses(f"actions/checkout@{NEWER} # v98.0.0"), uses(f"actions/checkout@{'c' * 40} # v99.0.0")
    with pytest.raises(FindingsError) as caught:
        choose_pins({"a.yml": one, "b.yml": "\n" + two})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.rule == "KCI403"
    assert "v98.0.0 (a.yml:4)" in diagnostic.message
    assert "v99.0.0 (b.yml:5)" in diagnostic.message
    assert diagnostic.place == "b.yml:5:15"


@pytest.mark.rule("KCI404", triggers=True)
@pytest.mark.parametrize(
    "reference",
    [
        f"actions/checkout@{NEWER}",
        f"actions/checkout@{NEWER} # latest",
        f"actions/checkout@{NEWER} # v{'9' * 5000}",
        f"actions/checkout@{'z' * 40} # v99.0.0",
        f"actions/checkout@{'B' * 40} # v99.0.0",
        f"actions/checkout@{CHECKOUT.sha} # v99.0.0",
        f"actions/checkout@{NEWER} # {CHECKOUT.version}",
    ],
    ids=["no version", "no number", "endless", "not hex", "upper case", "version bumped alone", "commit bumped alone"],
)
def test_bad_pins(reference: str) -> None:
    assert rules(uses(reference)) == ["KCI404"]


@pytest.mark.rule("KCI404", triggers=False)
def test_pins_of_other_actions_and_tags_are_nobodys_business() -> None:
    text = uses("somebody/else@deadbeef") + uses("actions/checkout@v7") + uses(f"other/action@{NEWER}")
    assert choose_pins({"kci.yml": text}) == shipped_pins()


def test_forms_of_uses() -> None:
    text = f'  uses: "actions/checkout@{NEWER}"  #   v9.9.9  \n- uses: a/b/c@{NEWER} # v1 zizmor: ignore[x]\n'
    text += f"# uses: x/y@{NEWER} # v1\n"
    found = list(find_pins(text, "f"))
    assert [(pin.action, pin.version) for pin in found] == [("actions/checkout", "v9.9.9"), ("a/b", "v1")]


def test_action_of_folders() -> None:
    assert action_of("kci/build/plan") == "kci/build"


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


def test_known_outputs_are_those_of_our_action_files() -> None:
    from pathlib import Path

    root = Path(__file__).parents[2]
    own = {name: outputs for name, outputs in known_outputs().items() if action_of(name) == "kci/build"}
    assert len(own) == 10
    for name, outputs in own.items():
        folder = name.removeprefix("kci/build").strip("/")
        action = read_yaml((root / folder / "action.yml").read_text(encoding="utf-8"))
        assert tuple(sorted(action.get("outputs", ()))) == outputs
        for step in action["runs"]["steps"]:
            if "actions/upload-artifact@" in step.get("uses", ""):
                assert step["uses"].endswith(shipped_pins()["actions/upload-artifact"].sha)

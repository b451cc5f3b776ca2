"""kci.toml: where it is found, what it says, and how well it says what is wrong."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import jsonschema
import msgspec
import pytest

from conftest import ROOT, refusal
from kci.config.discovery import RepositorySettings, find_root, find_settings
from kci.config.document import parse_document
from kci.config.reader import read_as
from kci.config.schema import schema_text, settings_schema
from kci.config.settings import Settings, System
from kci.config.values import Backend
from kci.plan.settings_lints import lint_settings
from planning import parse_settings

DOC = (ROOT / "docs" / "kci-toml.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"A test reads this block.*?```toml\n(.*?)```", DOC, re.DOTALL)


def test_nothing_is_mandatory_and_all_errors_are_told_at_once() -> None:
    assert parse_settings(b"") == Settings()
    text = """\
catalogue = "x"
[runners.cuda.x86_64-linux]
labels = "big"
cpus = -1
price = "2"
[[limits]]
backend = "cdua"
timeout-minutes = 1.5
[tiers.mine]
base = "relase"
[lint]
ignore = [{ rule = "KCI130", path = "*" }]
"""
    assert [(item.rule, item.line, item.column) for item in refusal(parse_settings,
        text.encode())] == [
        ("KCI101", 1, 1), ("KCI103", 3, 10), ("KCI104", 4, 8), ("KCI103", 5, 9), ("KCI104", 7, 11),
        ("KCI103", 8, 19),
        ("KCI104", 10, 8), ("KCI102", 12, 11),
    ]  # fmt: skip


CASES = [
    # a table in place of an array of tables
    ("KCI103", "1:2", "begin each with `[[limits]]`", "[limits]\nbackend = 'cuda'\n"),
    ("KCI103", "2:2", "begin each with `[[overlay.row]]`",
        "[[overlay]]\n[overlay.row]\ntorch = '2.13'\n"),
    ("KCI103", "1:2", "", "[publish.tags]\n"),
    ("KCI103", "1:2", "", "[publish.pull-request]\n"),
    ("KCI103", "2:25", 'such as "rms-norm"', '[publish]\npull-request = ["relu", 1]\n'),
    # a runner for an unknown place, and one without a place: the key's place, not the value's
    ("KCI320", "1:10", "did you mean `cuda`?", "[runners.cdua.x86_64-linux]\n"),
    ("KCI320", "1:15", "did you mean `x86_64-linux`?", "[runners.cuda.x86-64-linux]\n"),
    ("KCI320", "2:1", "one of: aarch64-darwin", '[test.rocm]\nlinux.labels = ["a"]\n'),
    ("KCI321", "1:9", "write `[runners.any.x86_64-linux]`", 'runners.labels = ["a"]\n'),
    ("KCI321", "1:10", "write `[runners.any.x86_64-linux]`", "[runners.x86_64-linux]\n"),
    ("KCI321", "2:1", "write it in `[runners.cuda.x86_64-linux]`",
        '[runners.cuda]\nlabels = ["a"]\n'),
    ("KCI321", "2:1", "write `[test.any.x86_64-linux]`", "[test]\nprice = 1\n"),
    # runners of the right shape that are wrong in another way
    ("KCI103", "2:10", "", "[runners.cuda.x86_64-linux]\nlabels = 1\n"),
    ("KCI103", "1:11", "", "runners = 1\n"),
    ("KCI103", "2:8", "", "[runners]\ncuda = 1\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "place", "hint", "text"),
    [
        pytest.param(
            *case,
            marks=[
                pytest.mark.rule(rule, triggers=case[0] == rule) for rule in ("KCI320", "KCI321")
            ],
        )
        for case in CASES
    ],
)
def test_a_mistake_is_told_once_at_its_place(rule: str, place: str, hint: str, text: str) -> None:
    (found,) = refusal(parse_settings, text.encode())
    assert (found.rule, f"{found.line}:{found.column}") == (rule, place)
    assert found.hint.startswith(hint)
    assert hint or not found.hint


def test_the_documented_example_is_valid_and_has_every_key() -> None:
    assert EXAMPLE is not None
    document = parse_document(EXAMPLE[1].encode(), "kci.toml")
    settings = read_as(document, Settings)
    assert lint_settings(RepositorySettings(settings, Path(), document), {"flash-attn"}) == []
    for struct in (Settings, *_structs(Settings)):
        for key in struct.__struct_encode_fields__:
            if key not in {*map(str, Backend), *map(str, System), "any", "noarch"}:
                assert re.search(rf"(^|[\[.]){re.escape(key)}\b", EXAMPLE[1], re.MULTILINE), key


def _structs(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    names = {
        "Machine", "Limit", "UserTier", "PullRequest", "Schedule", "Publish", "Signing",
        "ActionPin", "Ignore", "KernelOverlay", "LintSettings",
    }  # fmt: skip
    module = vars(__import__("kci.config.settings", fromlist=["x"]))
    return [module[name] for name in sorted(names)]


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    checked_in = (ROOT / "docs" / "schemas" / "kci.schema.json").read_text(encoding="utf-8")
    assert checked_in == schema_text(settings_schema()), (
        "run `kci schema kci.toml > docs/schemas/kci.schema.json`"
    )
    validator = jsonschema.Draft202012Validator(settings_schema())
    assert EXAMPLE is not None
    assert list(validator.iter_errors(tomllib.loads(EXAMPLE[1]))) == []
    base = "[tiers.x]\nbase = 'y'"
    for wrong in ("catalogue = 1", "[runners.cdua]", "limits = 1", base, "[runners.cuda.linux]"):
        assert list(validator.iter_errors(tomllib.loads(wrong))), wrong


# --- where it is found ----------------------------------------------------------------------------


def tree(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")


def test_it_lies_at_the_root_of_the_repository(tmp_path: Path) -> None:
    place = tmp_path / "repo/kernels/a"
    tree(tmp_path, "kci.toml", "repo/.git/HEAD", "repo/kernels/kci.toml", f"{place}/build.toml")
    assert find_root(place) == (tmp_path / "repo", None), "neither a deeper nor an outer one counts"
    tree(tmp_path, "repo/kci.toml")
    assert find_root(place) == (tmp_path / "repo", tmp_path / "repo/kci.toml")
    # outside of a repository the nearest one counts
    tree(tmp_path, "x/kci.toml", "x/y/build.toml", "z/build.toml")
    assert find_root(tmp_path / "x/y")[1] == tmp_path / "x/kci.toml"
    assert find_root(tmp_path / "z")[1] == tmp_path / "kci.toml"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_that_somebody_else_left_there_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "shared/kci.toml", "shared/mine/build.toml")
    os.chown(tmp_path / "shared/kci.toml", 12345, 12345)
    assert find_root(tmp_path / "shared/mine")[1] is None


def test_a_link_to_nowhere_is_an_error_and_not_the_defaults(tmp_path: Path) -> None:
    tree(tmp_path, ".git/HEAD", "a/build.toml")
    (tmp_path / "kci.toml").symlink_to("nowhere")
    assert refusal(find_settings, tmp_path / "a")

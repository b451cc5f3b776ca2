"""Versions, names, URLs, the stable ABI, and hints that quote what to write in their place."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import failure, many
from kci.config.reader import parse_kernel
from kci.config.urls import GitUrl
from kci.config.values import KernelName, StableAbi, Version, python_name, toml_string
from kci.diagnostics import Diagnostic, Severity
from kci.errors import FindingsError
from kci.matrix.catalog.loading import load_catalog
from kci.plan.check import lint_kernel

PLACES = {
    "name": '"some-kernel"', "version": "1", "edition": "5", "license": '"MIT"',
    "backends": '["cuda", "cpu"]',
    "upstream": '"https://github.com/a/b"', "cuda-minver": '"12.6"', "minver": '"2.12"',
    "stable": '"2.11"',
    "src": "[]", "backend": '"cuda"', "depends": '["torch"]', "capabilities": '["9.0"]',
    "flags": '["-O3"]',
    "repo-id": '"owner/some-kernel"', "branch-key": "branch", "src-key": "src",
}  # fmt: skip
TEXT = """[general]
name = {name}
version = {version}
edition = {edition}
license = {license}
backends = {backends}
upstream = {upstream}
[general.hub]
repo-id = {repo-id}
{branch-key} = "main"
[general.cuda]
minver = {cuda-minver}
[torch]
minver = {minver}
stable-abi = {stable}
{src-key} = {src}
[kernel.on_cpu]
backend = "cpu"
depends = []
src = []
[kernel.one]
backend = {backend}
depends = {depends}
src = []
cuda-capabilities = {capabilities}
cuda-flags = {flags}
"""
VALUES = [
    '"2.x"', '"v2.11"', '">=12.6"', '"2"', '"3"', '"3.0"', '"12.6.1"', '">= 13"', "2.12", "12",
    "3", "1e3", "true", "false", '"true"', '"1"', '"1.0"', "1.0", "-1", "[]", "{}", '"A_b C"',
    '"9kernel"', '"cudaa"', '"nvidia"', '["cuda", "nvidia"]', '["CUDA"]', '"cuda, cpu"',
    '"cuda cpu"', "'a\"b'", '"cutlass-3-9"', '["cutlass-3-9"]', '"github.com/a/b"', '"apache 2"',
    '"Apache-2"', '"huggingface.co/owner/name"', '"name"', '["9.0", "sm_90"]', "90", "9.0",
    '"9.0"', "inf", "nan", "0x10", "2024-01-01", '"torch==2.11"', '"\\u001b[31m"', '"it\'s"',
    "brach", "srcs", "repo_id", "includ",
]  # fmt: skip


def found_in(text: str) -> list[Diagnostic]:
    try:
        return lint_kernel(parse_kernel(text.encode()), load_catalog("2026-09-17"), None)
    except FindingsError as error:
        return list(error.diagnostics)


def replacement(hint: str, written: str) -> str | None:
    """What a hint says to write in the place of something."""
    if found := re.fullmatch(r"""write (?:it as )?("[^<>]*"|\[.*\]|-?[0-9]+|true|false)""", hint):
        return found[1]
    if found := re.fullmatch(r"did you mean `(.+)`\?", hint):
        return f'"{found[1]}"' if written[:1] in "\"'" else found[1]
    return None


@settings(max_examples=many(400))
@given(
    st.sampled_from(sorted(PLACES)),
    st.one_of(st.sampled_from(VALUES), st.text(max_size=8).map(toml_string)),
)
@example("edition", "true")
@example("stable", '"2.x"')
@example("stable", "12")
@example("minver", '"2.x"')
@example("cuda-minver", "12")
def test_what_a_hint_says_to_write_is_right(place: str, value: str) -> None:
    text = TEXT.format(**(PLACES | {place: value}))
    for found in found_in(text):
        message = found.message
        assert not re.search(r"\b(True|False|None)\b", message) or re.search(
            r"True|False|None", value
        ), message
        lines = text.split("\n")
        if not found.line or found.line != found.end_line:
            continue
        line = lines[found.line - 1]
        written = line[found.column - 1 : found.end_column - 1]
        instead = replacement(found.hint, written)
        if instead is None:
            continue
        lines[found.line - 1] = line[: found.column - 1] + instead + line[found.end_column - 1 :]
        place_of = (found.line, found.column)
        after = [
            item for item in found_in("\n".join(lines)) if (item.line, item.column) == place_of
        ]
        # Whether a catalog has a version (KCI150 and up) is no matter of how it is written.
        wrong = [item for item in after if item.severity is Severity.ERROR and item.rule < "KCI150"]
        assert not wrong, (found, instead, wrong)
        assert not {item.rule for item in after} & {"KCI135", found.rule}, (found, instead)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.12", (2, 12)), ("12.0.0", (12,)), ("0", ()), ("0.0", ()),
        (" \u00a02.12\u2009\n", (2, 12)), ("+1.+2", (1, 2)), ("00.010", (0, 10)),
        ("18446744073709551615", (2**64 - 1,)), ("0" * 9000 + "7", (7,)),
    ],
)  # fmt: skip
def test_versions(text: str, numbers: tuple[int, ...]) -> None:
    assert tuple(Version.parse(text)) == numbers


NO_VERSIONS = ". 12. .12 1..2 1e3 -1 ++1 + １２ 1.2-rc v1 1_0 18446744073709551616".split()  # noqa: SIM905
NO_VERSIONS += ["", " ", "1 .2", "\x1c1", "\u200b1", "9" * 5000]


@pytest.mark.parametrize("text", NO_VERSIONS)
def test_what_is_no_version(text: str) -> None:
    assert len(str(failure(ValueError, "version|too large", Version.parse, text))) < 200


def test_versions_compare_by_number_whatever_their_spelling() -> None:
    """The reference's other reader compares texts, so that 13 excludes 13.0
    (docs/format.md#version-bounds).
    """
    assert Version.parse("13") == Version.parse("13.0") == Version.parse("13.0.0")
    assert Version.parse("2.10") > Version.parse("2.9")
    assert str(Version.parse(" 13.0 ")) == "13.0"
    assert Version.parse("13").minor_text == "13.0"
    assert python_name("a-b--c") == "a_b__c"


GOOD_URLS = """https://github.com/a/b HTTPS://h git://h git+ssh://h/x git+https://h git+http://h
http://h https:h git:x
ssh://git@h:22/x git@github.com:a/b.git h_1:x ssh://h:/x https://[::1]:80/x https://256/
https://ü.de a/b:c"""
BAD_URLS = """github.com/a/b host:path host:/path ftp://h/x file:///x https:// ssh://h:99999/x
https://[::1 git@h:
git@h:/x git@[::1]:x https://1.2.3.4.5/ https://1.2.3.4.0/
https://999.1.1.1/ https://xn--a/ https://a|b/ ssh://u@/x C:\\x mailto:a@b ://"""


@pytest.mark.parametrize(
    ("parse", "good", "bad", "says"),
    [
        (KernelName.parse, ["ab", "a1", "a--b", "gated-norm2"],
         ["a", "1a", "a-", "-a", "a_b", "aB", "ab\n", "", "é1", "a1٣"], "not a kernel name"),
        (GitUrl.parse, GOOD_URLS.split(), [*BAD_URLS.split(), "", "https://a b/", "a b:c"],
         "git URL"),
    ],
)  # fmt: skip
def test_names_and_git_urls(
    parse: Callable[[str], str], good: list[str], bad: list[str], says: str
) -> None:
    assert [parse(text) for text in good] == good
    for text in bad:
        failure(ValueError, says, parse, text)


def test_stable_abi() -> None:
    every = StableAbi.parse("2.11")
    assert str(every.version_for("cuda")) == str(every.version_for("tpu")) == "2.11"
    some = StableAbi.parse({"cuda": "2.11", "xpu": "2.10"})
    assert str(some.version_for("xpu")) == "2.10"
    assert some.version_for("rocm") is None
    assert StableAbi.parse({}).version_for("cuda") is None
    assert StableAbi.parse("0.0").version_for("cuda") == ()  # a version, though an odd one
    assert StableAbi.parse("2.11") == StableAbi.parse("2.11.0") != some
    for value in ({"npu": "2.11"}, {"cuda": 2.11}, [], 2.11, "", {"cuda": ""}):
        failure(ValueError, ".", StableAbi.parse, value)

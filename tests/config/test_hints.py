"""A hint that quotes what to write in a value's place is right: written there, the finding
is gone.
"""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import many
from kci.config.reader import parse_kernel
from kci.config.values import toml_string
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

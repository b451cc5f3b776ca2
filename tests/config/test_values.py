"""Versions, names, URLs and the stable ABI (docs/format.md#values)."""

from __future__ import annotations

import pytest

from kci.config.urls import GitUrl
from kci.config.values import KernelName, StableAbi, Version, python_name


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
    with pytest.raises(ValueError, match=r"version|too large") as caught:
        Version.parse(text)
    assert len(str(caught.value)) < 200


def test_versions_compare_by_number_whatever_their_spelling() -> None:
    """The reference's other reader compares texts, so that 13 excludes 13.0
    (docs/format.md#version-bounds).
    """
    assert Version.parse("13") == Version.parse("13.0") == Version.parse("13.0.0")
    assert Version.parse("2.10") > Version.parse("2.9")
    assert str(Version.parse(" 13.0 ")) == "13.0"
    assert Version.parse("13").minor_text == "13.0"


def test_kernel_names() -> None:
    for name in ("ab", "a1", "a--b", "gated-norm2"):
        assert KernelName.parse(name) == name
    for name in ("a", "1a", "a-", "-a", "a_b", "aB", "ab\n", "", "é1", "a1٣"):
        with pytest.raises(ValueError, match="not a kernel name"):
            KernelName.parse(name)
    assert python_name("a-b--c") == "a_b__c"


GOOD_URLS = """https://github.com/a/b HTTPS://h git://h git+ssh://h/x git+https://h git+http://h
http://h https:h git:x
ssh://git@h:22/x git@github.com:a/b.git h_1:x ssh://h:/x https://[::1]:80/x https://256/
https://ü.de a/b:c"""
BAD_URLS = """github.com/a/b host:path host:/path ftp://h/x file:///x https:// ssh://h:99999/x
https://[::1 git@h:
git@h:/x git@[::1]:x https://1.2.3.4.5/ https://1.2.3.4.0/
https://999.1.1.1/ https://xn--a/ https://a|b/ ssh://u@/x C:\\x mailto:a@b ://"""


def test_git_urls() -> None:
    for url in GOOD_URLS.split():
        assert GitUrl.parse(url) == url
    for url in [*BAD_URLS.split(), "", "https://a b/", "a b:c"]:
        with pytest.raises(ValueError, match="git URL"):
            GitUrl.parse(url)


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
        with pytest.raises(ValueError, match=r"."):
            StableAbi.parse(value)

"""Cards: CARD.md becomes what the reference makes of it, and no template does harm or goes on for
ever.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildkit import write_tree
from conftest import ROOT, add_package, only
from kci.config.reader import read_kernel
from kci.config.sources import card
from kci.config.sources.card import Card, render_card
from kci.config.sources.card_child import render
from kci.plan.check import check_kernels

TOML = """[general]
name = "some-kernel"
version = 3
edition = 5
license = "Apache-2.0"
backends = ["cpu"]
upstream = "https://github.com/acme/up"
hub.repo-id = "acme/some-kernel"
[torch-noarch]
"""
EXPORTS = '__all__ = []\n__all__ = ["layers", name, "relu", "gelu"]\n'


def of(place: Path, template: str | bytes, toml: str = TOML) -> Card:
    place.mkdir(exist_ok=True)
    (place / "build.toml").write_text(toml)
    (add_package(place) / "torch-ext" / "some_kernel" / "__init__.py").write_text(EXPORTS)
    (place / "CARD.md").write_bytes(template if isinstance(template, bytes) else template.encode())
    return render_card(read_kernel(place))


def test_a_card_has_its_kernel_s_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rendered(place: Path = tmp_path) -> str:
        return render_card(read_kernel(place)).text

    template = (
        "{{ license }} {{ repo_id }} v{{ version }}{% for f in functions %} {{ f }}{% endfor %}, "
        "{{ layers }}, {{ has_benchmark }}, {{ upstream }}, {{ source }}\n"
    )
    text = "apache-2.0 acme/some-kernel v3 relu gelu, {}, {}, https://github.com/acme/up, none"
    assert of(tmp_path, template) == Card(text.format("none", "false"))
    package, layers = "torch-ext/some_kernel", "class A: pass\nclass B(A): pass\ndef c(): ...\n"
    write_tree(tmp_path, {f"{package}/layers.py": layers, "benchmarks/benchmark.py": ""})
    assert rendered() == text.format('["A", "B"]', "true")
    write_tree(tmp_path, {f"{package}/__init__.py": "raise SystemExit(1)\n)"})
    assert rendered().startswith("apache-2.0 acme/some-kernel v3, none")
    bare = TOML.replace("hub.repo-id", "#")
    assert of(tmp_path, template, bare) == Card(), "the reference has none for it"
    write_tree(tmp_path, {"src/build.toml": TOML})
    (tmp_path / "build.toml").unlink()
    assert rendered(tmp_path / "src").startswith("apache-2.0"), "a ported kernel"
    monkeypatch.chdir(tmp_path / "src")
    assert rendered(Path()).startswith("apache-2.0")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a\n{% if x %}\nb\n{% endif %}\n\n{# c #}\nd\n", "a\n\nd"),
        ("a\r\n{% if l %}\r\nb\r\n{% endif %}\r\n", "a\r\nb\r\n"),
        ("{% for i in n %}x{% endfor %}{% if n is none %}{{ n }}{% endif %}{{ n ~ '' }}{{ x }}",
            "nonenone"),
        ("{{ 1 == 1 }} {{ l }} {{ range(2) }} {{ none }} '<' {{ '<' }}",
            'true ["a", "b"] [0, 1] none \'<\' <'),
        (
            "{{ s | split('/') | last | upper }} {% for i in l %}{{ loop.index }}{{ i }}{% endfor "
            "%}",
            "K 1a2b",
        ),
        (
            "{% set ns = namespace(i=0) %}{% for i in l %}{% set ns.i = ns.i + 1 %}{% endfor %}{{ "
            "ns.i }}",
            "2",
        ),
        ("{% raw %}{{ x }}{% endraw %}{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(s) }}",
            "{{ x }}[acme/k]"),
    ],
)  # fmt: skip
def test_a_template_means_what_it_means_to_minijinja(template: str, text: str) -> None:
    assert render(template, {"l": ["a", "b"], "n": None, "s": "acme/k"}, 1000)["text"] == text


@pytest.mark.rule("KCI775", triggers=True)
@pytest.mark.parametrize(
    ("template", "line", "says"),
    [
        ("# a\n{% for f in functions %}\n", 2, "end of template"),
        ("a\n\n{{ repo_id | shout }}", 3, "No filter named 'shout'"),
        ("a\n{{ repo_id | center(9) }}", 2, "No filter named 'center'"),
        ("a\n{{ shout(repo_id) }}", 2, "'shout' is undefined"),
        ("a\n{{ repo-id }}", 2, "'repo' is undefined"),
        ("{{ repo_id.upper() }}", 1, "'upper' of 'str'"),
        ("{{ ''.__class__.__mro__ }}", 1, "unsafe"),
        ("{% include '/etc/passwd' %}", 1, "no loader"),
        ("{% for i in range(10**9) %}{% endfor %}", 1, "Range too big"),
        ("{% for i in range(90000) %}abcdef{% endfor %}", 0, "larger than 128 KiB"),
        ("{{ 'a' * 10**10 }}", 1, "MemoryError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 1, "recursion"),
        (b"\xff", 0, "cannot read it: "),
        (b"a" * 200_000, 0, "larger than 128 KiB"),
    ],
)  # fmt: skip
def test_a_template_that_the_reference_refuses_is_an_error_with_its_line(
    tmp_path: Path, template: str | bytes, line: int, says: str
) -> None:
    made = of(tmp_path, template)
    found = only(made.findings, "KCI775", says)
    assert (made.text, found.path, found.line) == ("", str(tmp_path / "CARD.md"), line)


def test_an_endless_template_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "SECONDS", 1)
    nested = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
    (item,) = of(tmp_path, nested).findings
    assert "does not end within 1 seconds" in item.message


def test_a_card_is_no_way_to_a_file_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "k" / "CARD.md"
    (tmp_path / "secret").write_text("secret")
    of(file.parent, "x")
    file.unlink()
    file.symlink_to("../secret")
    (item,) = render_card(read_kernel(file.parent)).findings
    assert item.message == "cannot read it: it is a link that leads out of the kernel"
    file.unlink()
    os.mkfifo(file)
    found = check_kernels([str(file.parent)]).diagnostics
    (item,) = (item for item in found if item.path.endswith("CARD.md"))
    assert "it is not a plain file" in item.message


@pytest.mark.rule("KCI777", triggers=True)
def test_check_names_the_line_and_remembers_it(tmp_path: Path) -> None:
    def says() -> list[tuple[str, int]]:
        found = check_kernels([str(tmp_path)], None, tmp_path / "cache").diagnostics
        return [(item.rule, item.line) for item in found if item.path.endswith("CARD.md")]

    of(tmp_path, "a\n{{ repo_id }}\n{{ repoid }}\n")
    assert says() == says() == [("KCI777", 3)]
    of(tmp_path, "a\n{{ repo_id }\n")
    assert says() == [("KCI775", 2)]


@pytest.mark.rule("KCI775", "KCI777", triggers=False)
@pytest.mark.parametrize("name", ["relu", "rms-norm", "swiglu"])
def test_the_cards_of_the_examples_are_filled(name: str) -> None:
    made = render_card(read_kernel(ROOT / "examples" / name))
    assert made.findings == ()
    assert made.text.startswith("---\nlibrary_name: kernels\nlicense: apache-2.0\n")
    assert "```\n\n## Functions\n\n- `" in made.text
    assert not {"{{", "{%"} & set(made.text.split())

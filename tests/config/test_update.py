"""`kci update`: lossless, idempotent, the same meaning, whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

import mutations
from cli.runner import kci_process
from conftest import failure, many, refusal
from kci.config import update as update_module
from kci.config.model import Build
from kci.config.reader import parse_kernel
from kci.config.update import Update, plan_update, write_update
from kci.errors import FindingsError

V4 = """\
# top

[general]
  name = 'ab'  # a name
  version=1 # api
  license = "MIT"
backends = [
  "cuda",
  # "rocm",
  "xpu",
]

[torch]
src = []
stable-abi = "2.9"   # since 2.9
"""


def updated(text: str) -> str:
    """The text after an update, read back, which a second update leaves alone."""
    after = plan_update(text.encode()).after
    assert plan_update(after).changes == ()
    assert parse_kernel(after).edition == 5
    return after.decode()


def test_only_what_must_change_changes() -> None:
    expected = V4.replace("  version=1 # api\n", "  version=1 # api\n  edition=5\n")
    expected = expected.replace('stable-abi = "2.9"', 'stable-abi = { cuda = "2.9", xpu = "2.9" }')
    assert updated(V4) == expected
    keys = '[torch-noarch]\n"cuda-capabilities" = [ "9.0" ] # fast\nrocm-archs=[]\n'
    for edition in ("edition = 5\n", ""):
        head = f'[general]\nname = "ab"\nversion = 1\n{edition}license = "x"\nbackends = ["cuda"]\n'
        after = keys.replace("a-c", "a_c").replace("m-a", "m_a")
        assert updated(head + keys).endswith(after), "in every edition"


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ('general = { name = "ab", version = 1@, license = "x", backends = [] }\n'
         '[torch-noarch]', ", edition = 5"),
        ('general = {name="ab", license="x", backends=[], version=1@} # c\r\n'
         '[torch-noarch]\r\n', ", edition = 5"),
        ('general.name = "ab"\n"general" . version = 1@\ngeneral.license = "x"\n'
         'general.backends = []\ntorch = {}',
         '\n"general" . edition = 5'),
        ('[torch]\n[general]\nname = "ab"\nlicense = "x"\nbackends = []\nversion = 1@',
            "\nedition = 5"),
    ],
)  # fmt: skip
def test_every_way_to_write_a_table(text: str, added: str) -> None:
    assert updated(text.replace("@", "")) == text.replace("@", added)


@pytest.mark.parametrize(
    "spelt", ["'2.9'", '"2.9"', "'''2.9'''", '"""\n2.9"""', '"2\\u002e9"', '" 2.9 "']
)
def test_a_stable_abi_keeps_its_spelling(spelt: str) -> None:
    text = '[general]\nname = "ab"\nversion = 1\nlicense = "x"\nbackends = ["xpu", "cuda", "xpu"]\n'
    text += "[torch]\nstable-abi = {}\n"
    after = updated(text.format(spelt))
    assert f"stable-abi = {{ xpu = {spelt}, cuda = {spelt} }}\n" in after
    assert [
        str(parse_kernel(after.encode()).build.stable_abi(backend)) for backend in ("cuda", "xpu")
    ] == ["2.9"] * 2


def test_any_file_updates_to_one_that_reads_the_same_or_is_refused() -> None:
    """Nothing that is written fails to parse, a second update does nothing, and no line is lost
    that need not be.
    """
    made = 0
    for raw in mutations.corpus(many(1200), many(300)):
        try:
            update = plan_update(raw)
        except FindingsError:
            continue
        after = parse_kernel(update.after)
        assert plan_update(update.after).changes == ()
        assert (update.after == raw) == (update.changes == ())
        if update.changes:
            made += 1
            lost = Counter(raw.split(b"\n")) - Counter(update.after.split(b"\n"))
            assert lost.total() <= len(update.changes), raw
            before = parse_kernel(raw)
            assert without_stable_abi(before.build) == without_stable_abi(after.build)
            for backend in before.build.general.backends:
                assert before.build.stable_abi(backend) == after.build.stable_abi(backend)
    assert made > 30


def without_stable_abi(build: Build) -> str:
    """What a file says, but for the key whose form an update changes."""
    return repr(replace(build, torch=build.torch and replace(build.torch, stable_abi=None)))


def test_a_diff_can_be_applied(tmp_path: Path) -> None:
    for name, raw in mutations.seeds().items():
        if "crlf" in name or name.startswith("v3"):
            continue  # `patch` guesses about line ends
        update = plan_update(raw, shown_as="build.toml")
        if not update.changes:
            assert update.diff() == ""
            continue
        for text in (raw, raw.rstrip()):
            update = plan_update(text, shown_as="build.toml")
            file = tmp_path / "build.toml"
            file.write_bytes(text)
            subprocess.run(
                ["git", "apply", "-"], cwd=tmp_path, input=update.diff().encode(), check=True
            )
            assert file.read_bytes() == update.after


# --- writing --------------------------------------------------------------------------------------


def planned(path: Path) -> Update:
    return plan_update(path.read_bytes(), shown_as=str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file to update, with permissions of its own."""
    path = tmp_path / "build.toml"
    path.write_text(V4)
    path.chmod(0o640)
    return path


def test_writing_keeps_permissions_and_leaves_nothing_behind(file: Path) -> None:
    update = planned(file)
    write_update(file, update)
    assert file.read_bytes() == update.after
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("call", ["replace", "fsync", "chmod", ""])
def test_a_failed_write_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    update = planned(file)
    if call:
        monkeypatch.setattr(os, call, fail)
    else:
        file.write_text(V4 + "# mine\n")
    before = file.read_text()
    failure(FindingsError, "No space left" if call else "changed while", write_update, file, update)
    assert file.read_text() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.rule("KCI114", triggers=True)
def test_a_result_of_another_meaning_is_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_module, "_edits", lambda _kernel: [(0, 0, "", "nothing")])
    assert [found.rule for found in refusal(plan_update, V4.encode())] == ["KCI114"]


# --- the command ----------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    bad = V4.replace("license", "licence")
    for name, text in {"old": V4, "new": updated(V4), "bad": bad}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "build.toml").write_text(text)
    good = [str(tmp_path / name) for name in ("old", "new")]

    checked = kci_process("update", "--check", *good, cwd=tmp_path)
    assert checked.code == 1
    assert checked.stdout.count("would change") == 1
    shown = kci_process("update", "--diff", *good, cwd=tmp_path)
    assert shown.code == 0
    assert "+  edition=5\n" in shown.stdout
    assert (tmp_path / "old/build.toml").read_text() == V4

    done = kci_process(
        "update", cwd=tmp_path
    )  # every kernel below; the wrong one does not hold the others up
    assert done.code == 1
    assert "bad/build.toml:6:3: error[KCI101]" in done.stderr
    assert "old/build.toml: updated: `edition = 5`, `stable-abi` per backend\n" in done.stdout
    assert (tmp_path / "old/build.toml").read_text() == updated(V4)

    again = kci_process("update", "--check", *good, cwd=tmp_path)
    assert again.code == 0
    assert again.stdout.count("up to date") == 2

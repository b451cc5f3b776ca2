"""What holds for every command: help, exit codes, where output goes, and that start-up
stays light.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.runner import kci, kci_process
from conftest import ROOT, add_package

GOOD = (
    '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
    'backends = ["cpu"]\n[torch-noarch]\n'
)


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    (tmp_path / "build.toml").write_text(GOOD)
    return add_package(tmp_path)


def test_a_misspelt_command_is_wrong_usage_with_a_suggestion() -> None:
    result = kci("matrx")
    assert result.code == 2
    assert "did you mean `matrix`?" in result.stderr


def test_the_answer_is_on_stdout_and_findings_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(GOOD.replace("edition = 5\n", ""))
    result = kci_process("matrix", tmp_path, "--format", "names")
    assert (result.code, result.stdout) == (0, "torch-cpu\n")
    assert "warning[KCI107]" in result.stderr
    assert kci_process("matrix", tmp_path, "--format", "names", "-q").stderr == ""


def test_on_github_findings_are_annotations_too(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(GOOD.replace("version", "verison"))
    result = kci_process("matrix", tmp_path, GITHUB_ACTIONS="true")
    assert result.code == 1
    assert "::error title=KCI101,file=" in result.stderr


@pytest.mark.parametrize("command", ["explain", "matrix examples/relu"])
def test_a_reader_that_has_gone_is_no_error(command: str) -> None:
    """As in `kci explain | head`, whose pipe is closed while kci writes: here it is closed from the
    beginning.
    """
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "kci", *command.split()]
    done = subprocess.run(
        arguments, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_cannot_be_written_is_an_error_without_a_traceback() -> None:
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m kci matrix examples/relu > /dev/full",
        shell=True, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize(
    "command",
    [
        "matrix", "update --check", "verify", "matrix relu --catalog", "merge relu --into",
        "pack", "init", "render --output",
    ],
)  # fmt: skip
def test_an_empty_name_is_not_taken_for_a_directory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kci update "$KERNEL"`, where the variable is not set."""
    monkeypatch.chdir(tmp_path)
    result = kci(*command.split(), "")
    assert (result.code, result.stdout) == (2, "")
    assert "the name is empty" in result.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_has_closed_leads_nowhere(closed: str, kernel_dir: Path) -> None:
    line = f'"$0" -m kci check "$1" {closed}; echo "code $?"'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, str(kernel_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "code 0\n" in done.stdout
    assert "Traceback" not in done.stderr


def test_what_a_file_cannot_say_in_its_encoding_is_said_in_utf_8(kernel_dir: Path) -> None:
    named = kernel_dir.rename(kernel_dir.with_name("\N{CHECK MARK}"))
    result = kci_process("matrix", named, PYTHONIOENCODING="latin-1")
    assert result.code == 0, result.stderr
    assert "\N{CHECK MARK}" in result.stdout


@pytest.mark.parametrize(
    "command", ["matrix --format json", "plan", "check --format json", "doctor"]
)
def test_a_name_that_is_not_utf_8_is_refused_where_it_cannot_be_written(
    command: str, tmp_path: Path
) -> None:
    place = tmp_path / os.fsdecode(b"na\xffme")
    place.mkdir()
    (place / "build.toml").write_text(GOOD.replace("edition = 5\n", ""))
    add_package(place)
    result = kci_process(*command.split(), place)
    assert result.code == 1
    assert "na\N{REPLACEMENT CHARACTER}me" in result.stderr
    assert "a name that is not UTF-8" in result.stderr
    assert "Traceback" not in result.stderr
    assert kci_process("check", place).code == 0


def test_the_hot_path_imports_nothing_heavy() -> None:
    """`kci matrix` is typed all day."""
    code = (
        "import sys\nfrom kci.cli import main\n"
        "try: main(['matrix', 'examples/relu', '--format', 'names'])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'jinja2', 'yaml', 'tomlkit', 'tree_sitter', 'packaging', 'elftools', "
        "'abi3info',"
        " 'subprocess', 'asyncio', 'difflib', 'urllib.request', 'shutil', 'tempfile',"
        " 'kci.workflows', 'kci.builders', 'kci.tree', 'kci.tree.verify', "
        "'kci.config.type_errors'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_ctrl_c_while_modules_are_imported_is_no_traceback() -> None:
    code = (
        "import sys, kci.__main__ as program\n"
        "class Finder:\n def find_spec(self, name, *rest):\n"
        "  if name == 'kci.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\nprogram.start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


BAD = {
    "no build.toml": (None, 1, "no build.toml here or below"),
    "broken TOML": ("[general\n", 1, "build.toml:1:9: error[KCI004]"),
    "unknown key": (
        GOOD + "colour = 1\n",
        1,
        "error[KCI101]: `colour` is not a key of `[torch-noarch]`",
    ),
    "wrong type": (
        GOOD.replace('["cpu"]', '"cpu"'),
        1,
        "error[KCI103]: `general.backends` must be an array",
    ),
    "unknown edition": (
        GOOD.replace("= 5", "= 7"),
        1,
        "error[KCI105]: unsupported build edition 7",
    ),
    "no framework": (GOOD.replace("[torch-noarch]", ""), 1, "error[KCI106]"),
    "two frameworks": (GOOD + "[torch]\n", 1, "error[KCI106]"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("command", ["matrix", "plan", "render", "run"])
def test_bad_input_is_named_with_its_place_and_without_a_traceback(
    command: str, case: str, tmp_path: Path
) -> None:
    text, code, said = BAD[case]
    if text is not None:
        (tmp_path / "build.toml").write_text(text)
    result = kci(command, tmp_path)
    assert result.code == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_matrix_json_is_the_documented_form() -> None:
    answer = json.loads(
        kci("matrix", ROOT / "examples" / "relu", "--format", "json", "--explain").stdout
    )
    assert answer["schema"] == 1
    assert set(answer["catalog"]) == {"name", "as_of"}
    (kernel,) = answer["kernels"]
    assert {"name", "path", "version", "variants", "dropped"} <= set(kernel)
    keys = {
        "name",
        "kind",
        "backend",
        "system",
        "torch",
        "compute",
        "stable_abi",
        "tvm_ffi",
        "archs",
        "bundled",
    }
    assert all(set(variant) - {"loads"} == keys for variant in kernel["variants"])
    dropped = {"system", "backend", "torch", "compute", "rule", "reason", "path", "line"}
    assert all(set(entry) == dropped for entry in kernel["dropped"])
    assert (
        "dropped"
        not in json.loads(kci("matrix", ROOT / "examples" / "relu", "--format", "json").stdout)[
            "kernels"
        ][0]
    )


def test_help_and_version_in_the_ways_that_people_type() -> None:
    assert kci("help", "run").stdout == kci("run", "--help").stdout
    assert kci("help").stdout == kci("--help").stdout
    assert kci("help", "rnu").code == 2
    assert kci("-V").stdout == kci("--version").stdout

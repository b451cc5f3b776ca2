"""What holds for every command: help, exit codes, where output goes, and that start-up
stays light.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cli.runner import ended, kci, kci_process
from conftest import ROOT, ran, write_noarch
from planning import replace


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    return write_noarch(tmp_path)


def changed(kernel_dir: Path, old: str, new: str) -> Path:
    replace("build.toml", old, new)(kernel_dir)
    return kernel_dir


def test_a_misspelt_command_is_wrong_usage_with_a_suggestion() -> None:
    ended(kci("matrx"), 2, "did you mean `matrix`?")


def test_the_answer_is_on_stdout_and_findings_on_stderr(kernel_dir: Path) -> None:
    words = ("matrix", changed(kernel_dir, "edition = 5\n", ""), "--format", "names")
    result = kci_process(*words)
    assert (result.code, result.stdout) == (0, "torch-cpu\n")
    assert "warning[KCI107]" in result.stderr
    assert kci_process(*words, "-q").stderr == ""


def test_on_github_findings_are_annotations_too(kernel_dir: Path) -> None:
    misspelt = changed(kernel_dir, "version", "verison")
    result = kci_process("matrix", misspelt, GITHUB_ACTIONS="true")
    ended(result, 1, "::error title=KCI101,file=")


@pytest.mark.parametrize("command", ["explain", "matrix examples/relu"])
def test_a_reader_that_has_gone_is_no_error(command: str) -> None:
    """As in `kci explain | head`, whose pipe is closed while kci writes: here it is closed from the
    beginning.
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = ran(sys.executable, "-m", "kci", *command.split(), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_cannot_be_written_is_an_error_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = ran(sys.executable, "-m", "kci", "matrix", "examples/relu", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize(
    "command",
    [
        "matrix", "update --check", "verify", "matrix relu --catalog", "merge relu --into",
        "pack", "init", "render --output",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("here")
def test_an_empty_name_is_not_taken_for_a_directory(command: str) -> None:
    """`kci update "$KERNEL"`, where the variable is not set."""
    assert ended(kci(*command.split(), ""), 2, "the name is empty") == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_caller_has_closed_leads_nowhere(closed: str, kernel_dir: Path) -> None:
    line = f'"$0" -m kci check "$1" {closed}; echo "code $?"'
    done = ran("sh", "-c", line, sys.executable, str(kernel_dir))
    assert "code 0\n" in done.stdout
    assert "Traceback" not in done.stderr


def test_what_a_file_cannot_say_in_its_encoding_is_said_in_utf_8(kernel_dir: Path) -> None:
    named = kernel_dir.rename(kernel_dir.with_name("\N{CHECK MARK}"))
    result = kci_process("matrix", named, PYTHONIOENCODING="latin-1")
    assert "\N{CHECK MARK}" in ended(result, 0)


@pytest.mark.parametrize(
    "command", ["matrix --format json", "plan", "check --format json", "doctor"]
)
def test_a_name_that_is_not_utf_8_is_refused_where_it_cannot_be_written(
    command: str, tmp_path: Path
) -> None:
    place = changed(write_noarch(tmp_path / os.fsdecode(b"na\xffme")), "edition = 5\n", "")
    result = kci_process(*command.split(), place)
    ended(result, 1, "na\N{REPLACEMENT CHARACTER}me", "a name that is not UTF-8")
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
    assert ran(sys.executable, "-c", code).stderr.strip() == "[]"


def test_ctrl_c_while_modules_are_imported_is_no_traceback() -> None:
    code = (
        "import sys, kci.__main__ as program\n"
        "class Finder:\n def find_spec(self, name, *rest):\n"
        "  if name == 'kci.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\nprogram.start()\n"
    )
    done = ran(sys.executable, "-c", code)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


NOARCH = "[torch-noarch]"
COLOUR = "error[KCI101]: `colour` is not a key of `[torch-noarch]`"
ARRAY = "error[KCI103]: `general.backends` must be an array"
BAD = {
    "unknown key": (NOARCH, f"{NOARCH}\ncolour = 1", COLOUR),
    "wrong type": ('["cpu"]', '"cpu"', ARRAY),
    "unknown edition": ("= 5", "= 7", "error[KCI105]: `general.edition` must be 5, not 7"),
    "no framework": (NOARCH, "", "error[KCI106]"),
    "two frameworks": (NOARCH, f"{NOARCH}\n[torch]", "error[KCI106]"),
}


@pytest.mark.parametrize("case", ["no build.toml", "broken TOML", *BAD])
@pytest.mark.parametrize("command", ["matrix", "plan", "render", "run"])
def test_bad_input_is_named_with_its_place_and_without_a_traceback(
    command: str, case: str, kernel_dir: Path
) -> None:
    file = kernel_dir / "build.toml"
    if case == "no build.toml":
        said = "no build.toml here or below"
        file.unlink()
    elif case == "broken TOML":
        said = "build.toml:1:9: error[KCI004]"
        file.write_text("[general\n")
    else:
        old, new, said = BAD[case]
        changed(kernel_dir, old, new)
    result = kci(command, kernel_dir)
    assert ended(result, 1, said) == ""
    assert "Traceback" not in result.stderr


def test_matrix_json_is_the_documented_form() -> None:
    words = ("matrix", ROOT / "examples" / "relu", "--format", "json")
    answer = json.loads(kci(*words, "--explain").stdout)
    assert answer["schema"] == 1
    assert set(answer["catalog"]) == {"name", "as_of"}
    (kernel,) = answer["kernels"]
    assert {"name", "path", "version", "variants", "dropped"} <= set(kernel)
    row = {"backend", "system", "torch", "compute"}
    keys = row | {"name", "kind", "stable_abi", "tvm_ffi", "archs", "bundled"}
    assert all(set(variant) - {"loads"} == keys for variant in kernel["variants"])
    dropped = row | {"rule", "reason", "path", "line"}
    assert all(set(entry) == dropped for entry in kernel["dropped"])
    assert "dropped" not in json.loads(kci(*words).stdout)["kernels"][0]


def test_help_and_version_in_the_ways_that_people_type() -> None:
    assert kci("help", "run").stdout == kci("run", "--help").stdout
    assert kci("help").stdout == kci("--help").stdout
    assert kci("help", "rnu").code == 2
    assert kci("-V").stdout == kci("--version").stdout

"""`kci init`: every kind is right from the start, nothing is overwritten, and it is all there or
nothing is.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import ended, kci
from kci.scaffold import new_kernel
from kci.scaffold.from_setup import Component
from kci.scaffold.new_kernel import (
    FRAMEWORKS,
    OFFERED,
    built_backends,
    choose,
    new_kernel_files,
    render_templates,
)
from planning import parse_settings


def on(*backends: str, framework: str = "") -> tuple[str, ...]:
    """Options for a kernel of these backends."""
    words = [word for backend in backends for word in ("--backend", backend)]
    return (*(("--framework", framework) if framework else ()), *words)


KINDS = {
    "torch": on(framework="torch"),
    "torch-rocm": on("cuda", "rocm"),
    "torch-cpu": on("cpu"),
    "stable": ("--stable-abi", "2.11", *on("cpu", "cuda", "rocm")),
    "noarch": on(framework="torch-noarch"),
    "tvm-ffi": on(framework="tvm-ffi"),
    "tvm-ffi-cuda": on("cuda", framework="tvm-ffi"),
    "tvm-ffi-both": on("cpu", "cuda", framework="tvm-ffi"),
}
"""Every kind that `kci init` offers."""

pytestmark = pytest.mark.usefixtures("no_git_environment", "here")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_created_and_nothing_is_found_in_it(kind: str, here: Path) -> None:
    said = ended(kci("init", "my-kernel", "-y", *KINDS[kind]), 0)
    checked = ended(kci("check", "my-kernel", "-v"), 0)
    assert checked.startswith("2 files checked: 0 errors, 0 warnings")
    for command in (("matrix",), ("verify",), ("render", "--check", "--output")):
        ended(kci(*command, "my-kernel"), 0)
    files = [file for file in (here / "my-kernel").rglob("*") if file.is_file()]
    assert set(said.split()) == {str(file.relative_to(here)) for file in files}
    for file in files:
        if ".github" not in file.parts:
            text = file.read_text()
            assert not re.search(r"\[%|%\]|\[\[ | \]\]|\[#", text.replace("[[limits]]", "")), file
            assert re.search(r"[^\n]\n\Z", text), file
        if file.suffix == ".py":
            compile(text, str(file), "exec")


def test_the_settings_that_are_commented_out_are_valid(here: Path) -> None:
    for framework in FRAMEWORKS:
        chosen = choose("some-kernel", framework=framework)
        text = new_kernel_files(chosen, standalone=True)["kci.toml"]
        lines = [
            line.removeprefix("# ") if re.match(r"# (\[|[a-z-]+ = )", line) else line
            for line in text.splitlines()
        ]
        assert lines != text.splitlines()
        settings = parse_settings("\n".join(lines).encode())
        assert all((settings.limits, settings.tiers, settings.catalog))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_function_is_called_after_the_kernel_for_every_backend_that_is_offered(
    framework: str,
) -> None:
    for backend in OFFERED[framework]:
        chosen = choose("rms-norm", framework=framework, backends=[backend])
        made = new_kernel_files(chosen, standalone=False)
        assert f'backends = ["{backend}"]' in made["build.toml"]
        assert "rms_norm" in made["CARD.md"]
        assert "kernel.rms_norm(" in made["tests/test_rms_norm.py"]
        assert "silu(" not in "".join(made.values()).replace("torch.nn.functional.silu(", "")
    taken = new_kernel_files(choose("layers", framework=framework), standalone=False)
    assert "kernel.layers_op(" in taken["tests/test_layers.py"]


EITHER = '"cuda" if torch.cuda.is_available() else "cpu"'


@pytest.mark.parametrize(
    ("backends", "load", "tensor", "device"),
    [
        (("cpu",), ', backend="cpu")', '(4, 8, device="cpu")', '"cpu"'),
        (("cuda",), ")", '(4, 8, device="cuda")', '"cuda"'),
        (("cuda", "cpu"), ")", "(4, 8, device=device)", EITHER),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_card_and_tests_take_the_device_that_the_kernel_is_for(
    framework: str, backends: tuple[str, ...], load: str, tensor: str, device: str
) -> None:
    chosen = choose("some-kernel", framework=framework, backends=backends)
    made = new_kernel_files(chosen, standalone=False)
    assert f'get_kernel("{{{{ repo_id }}}}", version={{{{ version }}}}{load}\n' in made["CARD.md"]
    assert f"x = torch.randn{tensor}\n" in made["CARD.md"]
    tests = made["tests/test_some_kernel.py"]
    assert f"\nDEVICE = {device}\n" in tests
    assert f"version=1{', backend=DEVICE)' if framework == 'tvm-ffi' else load}\n" in tests


def test_inside_of_a_repository_it_is_one_of_its_directories(here: Path) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=here, check=True)
    made = kci("init", "kernels/one", "-y")
    ended(made, 0, "kci render")
    ended(kci("init", "kernels/two", "-y", "--framework", "torch-noarch"), 0)
    for name in ("kci.toml", ".github"):
        assert not (here / "kernels" / "one" / name).exists()
    signs = {line.index("#") for line in made.stderr.splitlines() if "  # " in line}
    assert len(signs) == 1, made.stderr
    assert kci("render").code == 0
    assert kci("check", "-v").stdout.startswith("2 files checked: 0 errors, 0 warnings")


def test_kernels_made_side_by_side_are_answered_about(here: Path) -> None:
    """Two kci.toml would be two repositories: the second kernel gets none, and init says how to
    make one of them.
    """
    ended(kci("init", "alpha", "-y", *on("cpu")), 0)
    made = kci("init", "beta", "-y", *on("cpu"))
    assert "move alpha/kci.toml to ., and run `git init -b main` there" in made.stderr
    assert sorted(path.parent.name for path in here.rglob("kci.toml")) == ["alpha"]
    assert kci("matrix").code == kci("plan").code == 0
    (here / "beta" / "kci.toml").touch()
    refused = kci("matrix")
    assert "move alpha/kci.toml to ., and remove beta/kci.toml" in refused.stderr
    # One that leads nowhere is left.
    (here / "kci.toml").symlink_to("nowhere/kci.toml")
    subprocess.run(["git", "init", "--quiet"], check=True)
    made = kci("init", "k1", "-y", *KINDS["tvm-ffi"])
    ended(made, 1, "kci.toml: error[")
    assert ("is ready" in made.stderr, (here / "nowhere").exists()) == (False, False)


def test_the_working_directory_is_filled_with_what_was_chosen(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "my-kernel").mkdir()
    monkeypatch.chdir(here / "my-kernel")
    words = (*on("cuda"), "--stable-abi", "2.12", "--repo-id", "acme/my-kernel")
    ended(kci("init", ".", "-y", *words), 0, "KCI450", "git init -b main")
    assert kci("check").code == 0
    texts = {file.name: file.read_text() for file in Path().rglob("*") if file.is_file()}
    assert sum("acme/my-kernel" in text for text in texts.values()) >= 4
    assert not any("your-name" in text for text in texts.values())
    data = tomllib.loads(texts["build.toml"])
    assert data["general"]["backends"] == ["cuda"]
    assert data["torch"]["stable-abi"] == {"cuda": "2.12"}
    assert "my_kernel_cpu.cpp" not in texts
    assert kci("init", "x1", "-y", "--repo-id", "acme").code == 2


def test_nothing_is_overwritten(here: Path) -> None:
    write_tree(here, {"taken/notes.txt": "mine", "file": "mine"})
    (here / "link").symlink_to(here / "elsewhere")
    for name in ("taken", "file", "link"):
        assert ended(kci("init", name, "-y"), 2, "nothing was written") == ""
    there = sorted(path.name for path in here.rglob("*"))
    assert there == ["file", "link", "notes.txt", "taken"]
    assert (here / "taken" / "notes.txt").read_text() == "mine"


def test_what_gets_there_first_stays(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = new_kernel.check_kernels

    def meanwhile(arguments: list[str]) -> object:
        (here / "raced").mkdir()
        (here / "raced" / "theirs").touch()
        return real(arguments)

    monkeypatch.setattr(new_kernel, "check_kernels", meanwhile)
    ended(kci("init", "raced", "-y"), 1, "nothing was written")
    assert [path.name for path in (here / "raced").iterdir()] == ["theirs"]
    assert [path.name for path in here.iterdir() if path.name != "raced"] == []


def test_an_empty_directory_is_filled_and_a_failure_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (here / "empty").mkdir()
    monkeypatch.setattr(new_kernel, "render_workflows", fails)
    assert kci("init", "empty", "-y").code == 130
    assert [path.name for path in here.rglob("*")] == ["empty"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert kci("init", "empty", "-y").code == 0
    assert (here / "empty" / "build.toml").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("silu_and_mul",), "such as silu-and-mul"),
        (("MyKernel",), "such as my-kernel"),
        (("x",), "such as my-kernel"),
        (("import",), "a keyword of Python"),
        (("k1", *on("rocm", framework="tvm-ffi")), "for tvm-ffi: cpu, cuda"),
        (("k1", *on("metal", framework="torch")), "for torch: cpu, cuda, rocm"),
        (("k1", "--framework", "tvm-ffi", "--stable-abi", "2.11"), "no stable ABI"),
        (("k1", "--stable-abi", "2.9"), "from 2.11 to"),
        (("k1", "--stable-abi", "99.0"), "from 2.11 to"),
        (("k1", "--stable-abi", "new"), "such as 2.11"),
        (("k1", "--from", "nowhere"), "no such directory"),
        (("k1", "--from", "."), "neither a build.toml nor a setup.py"),
    ],
)
def test_what_does_not_fit_is_wrong_usage_and_writes_nothing(
    arguments: tuple[str, ...], said: str, here: Path
) -> None:
    ended(kci("init", "-y", *arguments), 2, said)
    assert list(here.iterdir()) == []


def test_a_value_is_toml_and_registered_operators_get_no_second_library() -> None:
    """JSON is not: it escapes a slash or DEL in ways of its own, and a value of a setup.py may be
    anything.
    """
    odd = 'a"b\\c\x7f\u2028\té'
    component = Component("x", "cpu", [odd], [], [], [odd], [], [])
    values = {
        "name": "x",
        "license": odd,
        "repo_id": "a/b",
        "package": "x",
        "backends": ["cpu"],
        "left": [],
    }
    for registered in (True, False):
        values |= {"components": [component], "functions": ("add",), "registered": registered}
        made = render_templates(
            {name: f"port/{name}.j2" for name in ("build.toml", "torch_binding.cpp")}, values
        )
        read = tomllib.loads(made["build.toml"])
        assert (read["general"]["license"], read["kernel"]["x"]["src"]) == (odd, [odd])
        assert ("TORCH_LIBRARY" in made["torch_binding.cpp"]) is not registered
        assert made["torch_binding.cpp"].endswith("\nREGISTER_EXTENSION(TORCH_EXTENSION_NAME)\n")


def test_the_findings_of_a_new_kernel_name_the_place_that_it_has(here: Path) -> None:
    assert kci("init", "old", "-y").code == 0
    toml = here / "old" / "build.toml"
    toml.write_text(toml.read_text().replace('"Apache-2.0"', '"my own"'))
    result = kci("init", "k1", "--from", "old", "-y")
    ended(result, 0, "k1/build.toml:", "warning[KCI141]")
    assert ".kci-" not in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_repository_every_kind_has_variants_at_once(kind: str, here: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], check=True)
    said = ended(kci("init", "kernels/k1", "-y", *KINDS[kind]), 0)
    assert kci("matrix", "kernels/k1", "--format", "names").stdout
    assert kci("check", "kernels/k1").stdout.endswith(": 0 errors, 0 warnings, 0 infos\n")
    files = [file for file in here.rglob("*") if file.is_file() and ".git" not in file.parts]
    assert set(said.split()) == {str(file.relative_to(here)) for file in files}
    kernel = here / "kernels" / "k1"
    declared = tomllib.loads((kernel / "build.toml").read_text())["general"]["backends"]
    assert built_backends(kernel) == set(declared)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((*on("rocm"), "--stable-abi", "2.14"), 1, "First fix what `kci check` reports. Then:"),
        (on("neuron", framework="torch-noarch"), 1, "Nothing is built for neuron yet"),
        (on("cann", "tpu", framework="torch-noarch"), 1, "for cann, tpu yet"),
        (on("cpu", "cann", framework="torch-noarch"), 0, "--variant torch-cann` builds it"),
        (on("cpu"), 0, "k1 is ready. Next:"),
    ],
)
def test_only_what_is_ready_is_said_to_be(
    options: tuple[str, ...], code: int, said: str, here: Path
) -> None:
    made = kci("init", "k1", "-y", *options)
    ended(made, code, said)
    assert ("is ready" in made.stderr) == (code == 0)
    assert kci("plan", "k1").code == code, "what comes next works, or was not said to"

"""Which kept build `kci run` takes again: the one whose compilers read nothing that has changed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from buildkit import CPU, variant, write_tree
from cli.runner import kci
from conftest import ROOT
from kci.builders.request import BuildOptions
from kci.config.reader import Kernel, read_kernel
from kci.files.lock import beside
from kci.inputs.kernel_inputs import RecordedInputs
from kci.inputs.source_tree import SourceTree
from kci.matrix.variants import Variant
from kci.processes.process import Log
from kci.run import kept_builds
from kci.run.kept_builds import RECORD, KeptBuilds
from kci.tree.leg_record import LegRecord
from kci.workspace.workspace import open_workspace
from variants import leg_of, make_variant

FILES = {
    "build.toml": """
        [general]
        name = "kk"
        version = 1
        edition = 5
        license = "MIT"
        backends = ["cpu"]
        [torch]
        src = ["torch-ext/binding.cpp"]
        [kernel.one]
        backend = "cpu"
        depends = []
        src = ["csrc/a.cpp", "csrc/never.h"]
    """,
    "torch-ext/binding.cpp": "int bound;\n",
    "torch-ext/kk/__init__.py": "",
    "csrc/a.cpp": '#if 0\n#include "never.h"\n#endif\n',
    "csrc/never.h": "int never;\n",
    "README.md": "# kk\n",
}
READ = ("torch-ext/binding.cpp", "torch-ext/kk/__init__.py", "csrc/a.cpp")
"""What a compiler reads of it."""

WANTED = variant(CPU)
HERE = "the compilers of this machine"


class Builder:
    """In place of a real build: one that tells what was read, as dependency files do."""

    def __init__(self) -> None:
        self.builds = 0
        self.until: Callable[[], object] = lambda: None
        self.read: tuple[str, ...] | None = READ

    def __call__(
        self,
        kernel: Kernel,
        wanted: Variant,
        output: Path,
        _options: BuildOptions,
        _log: Callable[[str], None],
        _budget: object,
    ) -> LegRecord:
        self.until()
        self.builds += 1
        shutil.rmtree(output / wanted.name, ignore_errors=True)
        made = make_variant(output, wanted.name, name="kk", files={"__init__.py": f"NUMBER = {self.builds}\n"})
        digest = SourceTree(Path(kernel.directory)).digest
        inputs = RecordedInputs({path: digest(path) for path in self.read}, HERE) if self.read is not None else None
        return leg_of(made, inputs=inputs)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(kept_builds, "make_variant_dir", made)
    return made


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "kk", FILES)


class Kept:
    """The kept builds of a kernel, as one run sees them."""

    def __init__(self, kernel: Path, toolchain: str = HERE, builder: str = "auto") -> None:
        self.kernel = read_kernel(kernel)
        self.builds = KeptBuilds(open_workspace([kernel]), BuildOptions(kernel.parent / "cache", builder))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kept_builds, "toolchain_identity", lambda *_, **__: toolchain)
            self.now = self.builds.fingerprint(self.kernel, WANTED)

    def find(self) -> tuple[Path, str] | None:
        kept = self.builds.find(self.kernel, WANTED, self.now)
        return None if kept is None else (kept.directory, kept.why)

    def make(self, log: Log = lambda _line: None) -> Path:
        return self.builds.make(self.kernel, WANTED, self.now, log).directory


def append(path: Path) -> None:
    path.write_text(path.read_text() + "// more\n")


def test_the_same_fingerprint_is_taken_without_a_word(kernel: Path, builder: Builder) -> None:
    builder.read = None
    made = Kept(kernel).make()
    assert Kept(kernel).find() == (made, "")


def test_a_record_that_was_being_written_when_kci_was_killed_is_cleared_away(kernel: Path, builder: Builder) -> None:
    made = Kept(kernel).make()
    record = made.parent / RECORD
    beside(record, "new").write_bytes(record.read_bytes()[:10])
    beside(record, "lock").touch()
    record.unlink()
    assert Kept(kernel).find() == (made, "")
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_what_the_compilers_did_not_read_may_change(kernel: Path, builder: Builder) -> None:
    before = Kept(kernel)
    made = before.make()
    append(kernel / "csrc/never.h")
    assert Kept(kernel).now != before.now, "it is listed, so reading the sources counts it"
    assert Kept(kernel).find() == (made, "nothing changed in the 3 files that its build read")


@pytest.mark.parametrize("path", READ)
def test_what_they_read_may_not(kernel: Path, builder: Builder, path: str) -> None:
    Kept(kernel).make()
    append(kernel / path)
    assert Kept(kernel).find() is None


def test_a_new_file_or_another_compiler_makes_it_another_variant(kernel: Path, builder: Builder) -> None:
    Kept(kernel).make()
    append(kernel / "csrc/never.h")
    assert Kept(kernel, "another compiler").find() is None
    (kernel / "torch-ext/never.h").write_text("int shadow;\n")
    (kernel / "torch-ext/kk/more.py").write_text("")
    assert Kept(kernel).find() is None


def test_a_build_without_a_record_goes_by_its_fingerprint(kernel: Path, builder: Builder) -> None:
    builder.read = None
    Kept(kernel).make()
    append(kernel / "csrc/never.h")
    assert Kept(kernel).find() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"fingerprint": "x", "digest": "y", "inputs": {}}'])
def test_a_record_that_is_none_does_not_count(kernel: Path, builder: Builder, text: str) -> None:
    made = Kept(kernel).make()
    (made.parent / RECORD).write_text(text)
    assert Kept(kernel).find() == (made, "")
    append(kernel / "csrc/never.h")
    assert Kept(kernel).find() is None


def test_a_record_is_about_the_files_that_were_built_with_it(kernel: Path, builder: Builder) -> None:
    made = Kept(kernel).make()
    shutil.rmtree(made)
    make_variant(made.parent, CPU, name="kk", files={"__init__.py": "other\n"})
    append(kernel / "csrc/never.h")
    assert Kept(kernel).find() is None
    (made / "__init__.py").write_text("tampered\n")
    assert Kept(kernel).find() is None


def test_a_build_that_is_taken_again_is_not_the_next_to_go(kernel: Path, builder: Builder) -> None:
    texts = [FILES["csrc/a.cpp"] + f"int number = {number};\n" for number in range(kept_builds.KEPT_BUILDS + 1)]
    for text in texts[:-1]:
        (kernel / "csrc/a.cpp").write_text(text)
        Kept(kernel).make()
    (kernel / "csrc/a.cpp").write_text(texts[0])
    append(kernel / "csrc/never.h")
    first = Kept(kernel).find()
    assert first is not None
    (kernel / "csrc/a.cpp").write_text(texts[-1])
    Kept(kernel).make()
    (kernel / "csrc/a.cpp").write_text(texts[0])
    assert Kept(kernel).find() == first
    (kernel / "csrc/a.cpp").write_text(texts[1])
    assert Kept(kernel).find() is None, "it was the oldest"
    assert len(list(kernel.parent.glob(f"cache/run/*/*/{RECORD}"))) == kept_builds.KEPT_BUILDS


def test_of_two_runs_at_once_one_builds_and_the_other_takes_what_it_made(kernel: Path, builder: Builder) -> None:
    """The first may be copying its build into a tree while the second would replace it."""
    begun, waits = threading.Event(), threading.Event()
    builder.until = lambda: (begun.set(), waits.wait(60))
    with ThreadPoolExecutor(2) as both:
        first = both.submit(Kept(kernel).make)
        assert begun.wait(60)
        second = both.submit(Kept(kernel).make, lambda _line: waits.set())
        assert first.result() == second.result()
    assert builder.builds == 1


def test_another_run_may_remove_builds_meanwhile(
    kernel: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Path.glob
    gone = kernel / "gone" / CPU
    monkeypatch.setattr(Path, "glob", lambda path, *words, **how: [*found(path, *words, **how), gone])
    assert Kept(kernel).make().is_dir()


def test_nix_may_look_at_any_file(kernel: Path) -> None:
    before = Kept(kernel), Kept(kernel, builder="nix")
    append(kernel / "README.md")
    assert Kept(kernel).now == before[0].now
    assert Kept(kernel, builder="nix").now != before[1].now


@pytest.mark.torch
def test_the_real_compiler_s_record_is_used(torch_cache: Path, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    example = Path(shutil.copytree(ROOT / "examples" / "rms-norm", tmp_path / "rms-norm", ignore=ignored))
    source = example / "csrc" / "rms_norm_cpu.cpp"
    source.write_text('#if 0\n#include "never.h"\n#endif\n' + source.read_text())
    write_tree(example, {"csrc/never.h": "int never;\n"})
    command = ("run", example, "--only", "torch-stable-abi211-cpu-x86_64-linux", "--catalog", "2026-08-20")

    def state() -> list[str]:
        done = kci(*command, "--cache", torch_cache)
        assert done.code == 0, done.stderr
        return next(line.split()[2:] for line in done.stdout.splitlines() if line.startswith("rms-norm "))

    assert state()[0] == "built"
    append(example / "csrc" / "never.h")
    assert " ".join(state()).startswith("reused yes yes nothing changed in the")
    append(source)
    assert state()[0] == "built"

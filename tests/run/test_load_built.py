"""Variants are loaded before anybody gets them; else they are not packed, or not published."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from buildkit import files_in, quiet, write_tree
from buildkit import variant as variant_of
from cli.runner import kci
from conftest import failure, write_noarch
from kci.builders.process.run import run
from kci.builders.request import BuildOptions
from kci.errors import BuildFailedError, FindingsError, MissingToolError
from kci.plan.plan import KernelPlan, Plan
from kci.publish.branch_plan import read_release
from kci.run import kernel_tests
from kci.run import load_built as load_built_module
from kci.run.gate import RunUploads, missing_results, publishable_kernels
from kci.run.load_built import fetching, load_built
from kci.run.records import kernel_record
from kci.tree.manifest import Loading, read_manifest
from kci.tree.merge import merge
from kci.tree.pack import pack, read_leg
from planning import leg, replace
from run.cuda_python import python_that_loads
from variants import CPU, CUDA, leg_of, make_variant

pytestmark = pytest.mark.usefixtures("all_are_loaded")
OWN = "_gated_norm_cpu_1a2b3c4"
GOOD = Loading(("2.13.0+cpu",), must=True)
LAYER = (
    "from torch import nn\nclass Fine(nn.Module):\n    can_torch_compile = True\n"
    "    def forward(self, x): pass\n"
)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = python_that_loads(tmp_path)
    monkeypatch.setattr(kernel_tests, "ensure_runtime", lambda *_, **__: made)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Path:
        raise MissingToolError("the index cannot be reached")

    monkeypatch.setattr(kernel_tests, "ensure_runtime", refuse)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel of Python only, and a cache of its own."""
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    return write_noarch(tmp_path / "kernel")


def loaded(directory: Path, run: str = "", torch: str = "2.13", **changes: object) -> Loading:
    what = msgspec.structs.replace(variant_of(directory.name), loads=(torch,))
    return load_built(
        directory, what, None, BuildOptions(directory.parent, run=run, **changes), quiet
    )  # type: ignore[arg-type]


def module(folder: Path, name: str, *options: str) -> bytes:
    """A module of C that calls what it does not have."""
    text = f"int gone(void);\nvoid *PyInit_{name}(void) {{ return (void *)(long)gone(); }}\n"
    (folder / "m.c").write_text(text)
    command = ["gcc", "-shared", "-fPIC", "m.c", *options, "-o", "made.so"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "made.so").read_bytes()


@pytest.mark.usefixtures("python")
@pytest.mark.rule("KCI785", triggers=True)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("LIMIT = undefined_name", "NameError: name 'undefined_name' is not defined"),
        ("from . import symbol", "ImportError: .*undefined symbol: gone"),
        ("from . import library", "ImportError: libgone.so: cannot open shared object file"),
        ("import os; os.kill(os.getpid(), 11)", "the process ended with exit status 139"),
        ("import threading; threading.Event().wait(600)", r"Timeout \(0:00:02\)!"),
    ],
)
def test_what_does_not_load_is_an_error_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    if "wait" in code:
        monkeypatch.setattr("kci.run.loader._SECONDS", 2)
    (tmp_path / "m.c").write_text("int gone(void) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "m.c", "-o", "libgone.so"], cwd=tmp_path, check=True)
    files = {
        "symbol.abi3.so": module(tmp_path, "symbol"),
        "library.abi3.so": module(tmp_path, "library", "-L.", "-lgone"),
    }
    begins = {"__init__.py": f"print('begun', flush=True)\n{code}\n"}
    directory = make_variant(tmp_path / "tree", files={**begins, **files})
    says = f"{CPU} does not load with torch 2.13: {said}"
    assert "begun" in failure(FindingsError, says, loaded, directory).message


def test_the_bytecode_of_torch_is_written_by_the_first_load(
    tmp_path: Path, python: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python may write none, as in many images: uv does not compile what it installs."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    compiled = tmp_path / "lib" / "python3" / "site-packages" / "torch" / "__pycache__"
    waited_for = f"import pathlib\nLOCKS = [*pathlib.Path('{tmp_path.parent}').glob('.kci-*.lock')]"
    loaded(make_variant(tmp_path / "tree", files={"__init__.py": f"{waited_for}\nassert LOCKS\n"}))
    assert [*(tmp_path / "lib" / "__pycache__").glob("torch.*.pyc")]

    compiled.mkdir(parents=True)
    alone = {"__init__.py": f"{waited_for}\nassert not LOCKS\n"}
    loaded(make_variant(tmp_path / "other", files=alone))


FOREIGN = "import torch\ntorch.library.Library({!r}).define('fused(Tensor x) -> Tensor')\n"
FAULTS = [
    ("class Bad(nn.Module):\n    def __init__(self): pass\n", "layers.Bad has a constructor"),
    ("class Bad(nn.Module):\n    def other(self): pass\n",
        "layers.Bad has members that nn.Module lacks: other"),
    ("class Bad:\n    def forward(self, x): pass\n", "layers.Bad is not a torch.nn.Module"),
    ("class Bad: pass\n__all__ = ['Bad']\n", "layers.Bad is not a torch.nn.Module"),
    (FOREIGN.format("mine"), "it registers the operator mine::fused"),
]  # fmt: skip


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("layers", "said"),
    [
        pytest.param(*fault, marks=pytest.mark.rule(rule, triggers=True))
        for fault, rule in zip(FAULTS, [*["KCI788"] * 4, "KCI787"], strict=True)
    ],
)
def test_a_layer_that_kernelize_refuses_or_a_foreign_operator_is_an_error(
    tmp_path: Path, layers: str, said: str
) -> None:
    files = {"__init__.py": "from . import layers\n", "layers.py": f"{LAYER}{layers}"}
    directory = make_variant(tmp_path / "tree", files=dict(files))
    failure(FindingsError, re.escape(f"{CPU}: {said}"), loaded, directory)


@pytest.mark.usefixtures("python")
@pytest.mark.rule("KCI785", "KCI787", "KCI788", triggers=False)
def test_what_is_right_is_loaded_gets_no_secrets_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers beside the layers are no layers, and what another package registers is not the
    kernel's.
    """
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    alone = (
        "import os\nassert 'HF_TOKEN' not in os.environ\nassert os.environ['HOME'] == os.getcwd()"
    )
    write_tree(tmp_path / "lib", {"other.py": FOREIGN.format("theirs")})
    helpers = (
        "import torch\nclass Helper: pass\nclass Mine(torch.autograd.Function):\n"
        "    def forward(self, x): pass\n"
    )
    files = {
        "__init__.py": f"from . import layers\nimport other\n{alone}\n{FOREIGN.format(OWN)}",
        "layers.py": helpers + LAYER,
    }
    directory = make_variant(tmp_path / "tree", files=dict(files))
    assert loaded(directory) == GOOD
    assert files_in(directory) == ["__init__.py", "layers.py", "metadata.json"]


@pytest.mark.usefixtures("no_torch")
def test_without_a_torch_it_is_not_loaded_and_in_ci_that_is_an_error(tmp_path: Path) -> None:
    cpu = make_variant(tmp_path / "tree")
    python_only = make_variant(tmp_path / "tree", "torch-xpu", files={})
    reason = "the index cannot be reached"
    assert loaded(cpu) == Loading(reason=reason, must=True)
    assert loaded(python_only, run="7") == Loading(reason=reason), "its torch need not be had"
    says = f"{CPU} was built and is not loaded: {reason}"
    lacking = failure(MissingToolError, says, loaded, cpu, run="7")
    assert "`load` in [plan] of kci.toml" in lacking.hint


@pytest.mark.usefixtures("python")
def test_what_the_machine_or_its_torch_lacks_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    said = "libcuda.so.1: cannot open shared object file: No such file or directory"
    code = f"raise ImportError({said!r})\n"
    directory = make_variant(tmp_path / "tree", CUDA, files={"__init__.py": code}, archs=("9.0",))
    reason = "it links libcuda.so.1, which only a machine with an NVIDIA GPU has"
    assert loaded(directory, run="7") == Loading(reason=reason)
    (tmp_path / "lib" / "torch.py").write_text("raise ImportError('libcudart.so.13 is missing')\n")
    why = str(loaded(make_variant(tmp_path / "tree")))
    assert "does not import torch and kernels: ImportError: libcudart.so.13 is missing" in why


@pytest.mark.usefixtures("python")
@pytest.mark.rule("KCI786", "KCI217", triggers=False)
def test_a_kernel_that_is_loaded_says_with_what(kernel: Path, tmp_path: Path) -> None:
    for state in ("built", "reused"):
        done = kci("run", kernel)
        took = ["0", "s"] if state == "built" else []
        assert done.stdout.splitlines()[1].split()[2:] == [state, "yes", "yes", "yes", *took], done
    (entry,) = read_release(kernel / "build").manifest.present
    assert entry.loaded == GOOD

    (kernel / "kci.toml").write_text("[plan]\nload = []\n")
    (tmp_path / "cache" / "run").rename(tmp_path / "before")
    for _ in ("built", "reused"):
        row = kci("run", kernel).stdout.splitlines()[1]
    assert row.partition("reused")[2].count("not loaded: ") == 1, row


@pytest.mark.usefixtures("python")
def test_a_kernel_that_cannot_be_imported_is_red(kernel: Path, tmp_path: Path) -> None:
    (kernel / "torch-ext/some_kernel/__init__.py").write_text("LIMIT = undefined_name\n")
    done = kci("run", kernel)
    assert (done.code, done.stdout.split()[-1]) == (1, "defined"), done
    assert "KCI785" not in done.stdout
    pack = tmp_path / "x.tar"
    built = kci("build", kernel, "--variant", "torch-cpu", "--pack", pack)
    assert (built.code, pack.exists()) == (1, False)
    assert "error[KCI785]: torch-cpu does not load with torch 2.13: NameError" in built.stderr


@pytest.mark.usefixtures("no_torch")
@pytest.mark.rule("KCI786", triggers=True)
def test_without_a_network_a_run_says_so_and_publishing_and_the_gate_refuse(
    kernel: Path, tmp_path: Path
) -> None:
    done = kci("run", kernel)
    assert (done.code, done.stdout.count("not loaded")) == (0, 2), done
    tree = kernel / "build"
    manifest = read_manifest(tree)
    assert manifest is not None
    assert manifest.unloaded == {"torch-cpu": "the index cannot be reached"}
    says = r"torch-cpu in .* is not loaded: the index cannot be reached"
    failure(FindingsError, says, read_release, tree)
    part = KernelPlan("some-kernel", str(kernel), 1, ("torch-cpu",))
    plan = Plan(1, "release", (part,), (leg("torch-cpu", "some-kernel"),))
    run = RunUploads(plan, {"some-kernel": kernel_record("some-kernel", [], tree, manifest)})
    (row,) = missing_results(run)
    assert row.error == "not loaded: the index cannot be reached"
    assert publishable_kernels(run, "7") == []


def test_a_plan_knows_what_has_to_be_loaded(tmp_path: Path) -> None:
    """An artifact that does not say that it was loaded is not taken for one that was."""
    part = KernelPlan("gated-norm", "k", 1, (CPU,))
    directory = make_variant(tmp_path / "built")
    for loads, known, unloaded in (
        ((), None, []),
        (("cpu",), None, [CPU]),
        (("cpu",), GOOD, []),
    ):
        record = msgspec.structs.replace(leg_of(directory), loaded=known)
        artifact = pack(directory, tmp_path / f"kci-gated-norm-{CPU}.tar", record)
        tree = tmp_path / f"{len(loads)}{bool(known)}"
        (manifest,) = merge([artifact], tree, Plan(1, "release", (part,), loads=loads))
        assert list(manifest.unloaded) == unloaded


@pytest.mark.usefixtures("no_torch")
def test_kci_toml_leaves_backends_out(kernel: Path) -> None:
    replace("build.toml", '"cpu"', '"cpu", "metal"')(kernel)
    (kernel / "kci.toml").write_text('[plan]\nload = ["cuda"]\n')
    done = kci("run", kernel, KCI_RUN="7")
    assert done.code == 0, done
    assert "not loaded: `load` in [plan] of kci.toml leaves out cpu" in done.stdout
    present = read_release(kernel / "build").manifest.present
    assert "torch-cpu" in {item.variant for item in present}
    planned = json.loads(kci("plan", kernel, "--format", "json").stdout)
    assert (planned["loads"], {str(item["loads"]) for item in planned["legs"]}) == ([], {"[]"})


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_a_variant_for_cuda_is_loaded_with_its_torch_and_without_a_gpu(
    tmp_path: Path, torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it downloads torch for CUDA 13.0 from PyPI, six gigabytes."""
    monkeypatch.setenv("KCI_CACHE", str(torch_cache))
    assert kci("init", tmp_path / "on-gpu", "--backend", "cuda").code == 0
    variant = "torch214-cxx11-cu130-x86_64-linux"
    pack_file = tmp_path / "x.tar"
    words = ["--variant", variant, "--arch", "9.0", "--pack", pack_file]
    done = kci("build", tmp_path / "on-gpu", *words)
    assert done.code == 0, done
    loading = read_leg(pack_file).loaded
    assert loading is not None
    (torch,) = loading.torch
    assert (torch.rpartition("+")[2], loading.reason) == ("cu130", "")


@pytest.mark.parametrize(
    ("name", "how"), [(CUDA, {}), (CPU, {}), (CUDA, {"load": False}), (CUDA, {"isolation": False})]
)
def test_a_torch_for_a_gpu_is_fetched_beside_the_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: dict[str, bool]
) -> None:
    """And the program that fetches it ends with a build that fails."""
    begun, ended = threading.Event(), list[str]()

    def fetch(torch: str, *, flavour: str, **_: object) -> None:
        begun.set()
        try:
            run(["sleep", "600"])
        finally:
            ended.append(f"{torch} {flavour}")

    monkeypatch.setattr(load_built_module, "ensure_runtime", fetch)
    what = msgspec.structs.replace(variant_of(name), loads=("2.13",))
    wanted = name == CUDA and not how

    def build() -> None:
        with fetching(what, BuildOptions(tmp_path, **how), quiet):  # type: ignore[arg-type]
            assert not wanted or begun.wait(60)
            raise BuildFailedError("it does not compile")

    failure(BuildFailedError, "", build)
    assert ended == (["2.13 cu130"] if wanted else [])

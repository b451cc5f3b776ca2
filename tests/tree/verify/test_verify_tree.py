"""Layout, metadata, digests: each rule on a tree that breaks it, and every file accounted for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import ids, only
from kci.diagnostics import Diagnostic
from kci.errors import UnsafeError, UsageError
from kci.tree import pack as tree_pack
from kci.tree.merge import merge
from kci.tree.metadata import decode, seal
from kci.tree.pack import files_to_pack
from kci.tree.sigstore import SigningContext
from kci.tree.top_level import tree_differences, tree_statement
from kci.tree.verify import verify
from kci.utils.archive import ArchiveLimits
from variants import CPU, CUDA, STABLE, artifact_of, make_variant, signature, tree_plan

BINARY = ("KCI74", "KCI750", "KCI76")
"""The libraries of these variants are stand-ins; the native rules have tests of their own."""


def check(path: Path) -> list[Diagnostic]:
    return verify(path, ignore=[*BINARY, "KCI723"])


def rewritten(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the metadata of a variant and seal it again."""
    data = json.loads((directory / "metadata.json").read_text())
    change(data)
    seal(directory, decode(json.dumps(data).encode()))
    return directory


GOOD = "700 701 702 703 704 705 706 707 708 710 711 712 713 716 717 720 730 731"


@pytest.mark.rule(*(f"KCI{number}" for number in GOOD.split()), triggers=False)
def test_good_variants_and_trees_pass(tmp_path: Path) -> None:
    tree = tmp_path / "build"
    for variant in (CPU, STABLE, "torch-cpu", "torch-cuda"):
        make_variant(tree, variant)
    make_variant(tree, CUDA, archs=("8.0",))
    (tree / "CARD.md").write_text("card")
    (tree / "benchmarks").mkdir()
    assert check(tree) == check(tree / CPU) == []
    assert check(tmp_path) == []


def test_what_is_nothing_of_the_kind_is_a_usage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError):
            verify(path)
    for wrong in ("KCI999", "", "relu"):
        with pytest.raises(UsageError, match="no rule"):
            verify(make_variant(tmp_path / f"x{wrong}"), select=[wrong])


def test_what_cannot_be_read_is_reported_whatever_is_selected(tmp_path: Path) -> None:
    directory = make_variant(tmp_path, "torch-cpu")
    (directory / "gone.so").symlink_to("nowhere")
    (directory / "metadata.json").write_text("{")
    assert ids(verify(directory, select=["KCI77"])) == ["KCI700", "KCI710"]
    assert ids(verify(directory, select=["KCI77"], ignore=["KCI700", "KCI710"])) == []


@pytest.mark.rule("KCI701", triggers=True)
def test_a_directory_that_is_not_called_like_a_variant(tmp_path: Path) -> None:
    renamed = make_variant(tmp_path, built_as="torch213-cpu").rename(tmp_path / "torch213-cpu")
    only(check(renamed), "KCI701")
    assert check(tmp_path)[0].rule == "KCI701"


def of_python(place: Path, *names: str) -> Path:
    """A variant of Python only with these files, empty."""
    return make_variant(place, "torch-cpu", files=dict.fromkeys(["__init__.py", *names], ""))


@pytest.mark.rule("KCI702", triggers=True)
def test_a_missing_init(tmp_path: Path) -> None:
    only(check(make_variant(tmp_path, "torch-cpu", files={"a.py": ""})), "KCI702")


@pytest.mark.rule("KCI703", triggers=True)
@pytest.mark.parametrize("entry", ["gated_norm/__init__.py", "gated_norm/x.txt", "gated_norm"])
def test_a_nested_package_of_the_same_name(tmp_path: Path, entry: str) -> None:
    only(check(of_python(tmp_path, entry)), "KCI703")


@pytest.mark.rule("KCI703", triggers=False)
def test_a_module_of_the_same_name_is_no_nested_package(tmp_path: Path) -> None:
    files = {"__init__.py": "from .gated_norm import x\n", "gated_norm.py": "x = 1\n"}
    assert check(make_variant(tmp_path, "torch-cpu", files=files)) == []


@pytest.mark.rule("KCI704", triggers=True)
def test_an_extra_level(tmp_path: Path) -> None:
    make_variant(tmp_path / "build" / "build")
    assert only(check(tmp_path / "build"), "KCI704").path == f"{tmp_path}/build/build"
    make_variant(tmp_path / "build", STABLE)
    assert ids(check(tmp_path / "build")) == ["KCI704"]


@pytest.mark.rule("KCI700", "KCI705", "KCI706", triggers=True)
def test_bytecode_links_and_odd_things(tmp_path: Path) -> None:
    directory = of_python(tmp_path)
    (directory / "__pycache__").mkdir()
    (directory / "__pycache__" / "a.cpython-311.pyc").write_text("x")
    assert ids(check(directory)) == ["KCI705"]
    shutil.rmtree(directory / "__pycache__")
    os.mkfifo(directory / "fifo")
    assert ids(check(directory)) == ["KCI706"]
    (directory / "fifo").unlink()
    (directory / "gone").symlink_to("nowhere")
    assert set(ids(check(directory))) == {"KCI700", "KCI706"}


@pytest.mark.rule("KCI706", "KCI707", triggers=True)
def test_the_tree_s_top(tmp_path: Path) -> None:
    tree = make_variant(tmp_path / "build", "torch-cpu").parent
    (tree / ".hidden").write_text("")
    (tree / "notes.txt").write_text("")
    (tree / "torch-cuda").symlink_to("torch-cpu")
    (tree / "CARD.md").symlink_to(tmp_path)
    found = [(item.rule, item.path.removeprefix(f"{tree}/")) for item in check(tree)]
    top = [("KCI707", ".hidden"), ("KCI706", "CARD.md"), ("KCI707", "notes.txt")]
    assert [at for at in found if "torch-cuda/" not in at[1]] == [*top, ("KCI706", "torch-cuda")]


@pytest.mark.rule("KCI708", triggers=True)
def test_file_names_that_mislead(tmp_path: Path) -> None:
    directory = of_python(tmp_path, "A.py", "a.py", "x\u202eyp.")
    assert ids(check(directory)) == ["KCI708", "KCI708"]


@pytest.mark.rule("KCI710", triggers=True)
def test_metadata_that_is_missing_or_broken(tmp_path: Path) -> None:
    directory = make_variant(tmp_path, "torch-cpu")
    (directory / "metadata.json").write_text("{")
    assert only(check(directory), "KCI710").path == f"{directory}/metadata.json"
    (directory / "metadata.json").unlink()
    assert ids(check(directory)) == ["KCI710"]


@pytest.mark.rule("KCI711", triggers=True)
def test_name_type_and_id_must_agree_on_the_backend(tmp_path: Path) -> None:
    made = make_variant(tmp_path, "torch-cpu", built_as="torch-cuda")
    only(check(made.rename(tmp_path / "torch-cuda")), "KCI711")
    for wrong in ("_gated_norm_cuda_1a2b3c4", "_other_cpu_1a2b3c4", "gated_norm_cpu_1a2b3c4"):
        made = make_variant(tmp_path / wrong, "torch-cpu")
        directory = rewritten(made, lambda data, wrong=wrong: data.update(id=wrong))
        assert "_gated_norm_cpu_" in only(check(directory), "KCI711").hint


@pytest.mark.rule("KCI712", triggers=True)
def test_archs_of_compiled_gpu_variants(tmp_path: Path) -> None:
    assert ids(check(make_variant(tmp_path, CUDA))) == ["KCI712"]
    assert check(make_variant(tmp_path, "torch-cuda")) == []


@pytest.mark.rule("KCI713", triggers=True)
def test_two_versions_in_one_tree(tmp_path: Path) -> None:
    make_variant(tmp_path / "a", "torch-cpu")
    make_variant(tmp_path / "a", "torch-cuda", version=2)
    assert ids(check(tmp_path / "a")) == ["KCI713"]


@pytest.mark.rule("KCI716", triggers=True)
@pytest.mark.parametrize(
    ("variant", "module"),
    [
        (CPU, "_gated_norm_cpu_1a2b3c4.abi3.so"),
        ("torch213-cpu-aarch64-darwin", "_gated_norm_cpu_1a2b3c4.abi3.so"),
        ("torch213-cu130-x86_64-windows", "_gated_norm_cuda_1a2b3c4.pyd"),
        ("tvm-ffi01-cpu-x86_64-linux", "_gated_norm_cpu_1a2b3c4.so"),
        ("tvm-ffi01-cpu-aarch64-darwin", "_gated_norm_cpu_1a2b3c4.dylib"),
        ("tvm-ffi01-cu130-x86_64-windows", "_gated_norm_cuda_1a2b3c4.dll"),
    ],
)
def test_the_native_module_is_called_like_the_id(tmp_path: Path, variant: str, module: str) -> None:
    def judged(name: str) -> list[Diagnostic]:
        files = {"__init__.py": "", name: ""}
        return check(make_variant(tmp_path / name, variant, files=files, archs=("8.0",)))

    assert judged(module) == []
    only(judged(f"x{module}"), "KCI716", module)


@pytest.mark.rule("KCI717", triggers=True)
def test_native_code_in_a_noarch_variant(tmp_path: Path) -> None:
    only(check(of_python(tmp_path, "a/x.so.2")), "KCI717")


@pytest.mark.rule("KCI725", triggers=True)
def test_the_oldest_loader_is_the_one_that_follows_from_the_rest(tmp_path: Path) -> None:
    directory = make_variant(tmp_path, "torch-cpu")
    depends = [{"repo-id": "a/b", "version": 1}]
    for change, said in (
        ({"kernels-minver": "0.17.0"}, ["KCI725"]),
        ({"kernels-minver": "0.14.0", "kernel-depends": depends}, ["KCI725"]),
        ({"kernels-minver": "0.17.0", "kernel-depends": depends}, []),
        ({"upstream": ["https://a.org/a", "https://a.org/b"]}, ["KCI725"]),
        ({"kernels-minver": "0.18.0", "upstream": ["https://a.org/a", "https://a.org/b"]}, []),
        ({"kernels-minver": "0.18.0", "upstream": "https://a.org/a"}, ["KCI725"]),
        ({"kernels-minver": "00.14.0", "upstream": None, "kernel-depends": []}, []),
    ):
        rewritten(directory, lambda data, change=change: data.update(change))
        assert ids(check(directory)) == said, change


@pytest.mark.rule("KCI725", triggers=False)
def test_a_tree_from_before_september_names_no_loader(tmp_path: Path) -> None:
    directory = make_variant(tmp_path, "torch-cpu")
    rewritten(directory, lambda data: data.pop("kernels-minver"))
    assert check(directory) == []


@pytest.mark.rule("KCI720", triggers=True)
def test_an_unknown_dependency(tmp_path: Path) -> None:
    def judged(variant: str, *names: str) -> list[str]:
        made = make_variant(tmp_path, variant)
        return ids(check(rewritten(made, lambda data: data.update({"python-depends": names}))))

    known = ("einops", "nvidia-cutlass-dsl")
    assert judged("torch-cpu", *known, "numpy") == ["KCI720", "KCI720"]
    assert judged("torch-cuda", *known) == []


def merged(tmp_path: Path, *variants: str) -> Path:
    """A tree of these of the variants that are planned, else of all."""
    names = (CPU, STABLE)
    files = [artifact_of(tmp_path, name) for name in variants or names]
    merge(files, tmp_path / "build", tree_plan(*names), allow_partial=bool(variants))
    return tmp_path / "build"


@pytest.mark.rule("KCI718", triggers=True)
def test_a_tree_that_changed_after_the_merge(tmp_path: Path) -> None:
    tree = merged(tmp_path)
    shutil.rmtree(tree / STABLE)
    make_variant(tree, "torch-cpu")
    rewritten(tree / CPU, lambda data: data.update(license="other"))
    found = check(tree)
    assert ids(found) == ["KCI718"] * 3
    assert [item.message for item in found] == [
        "torch-cpu exists and is not in the manifest",
        f"{STABLE} is in the manifest and does not exist",
        f"{CPU} changed after it was merged",
    ]


LIES: list[Callable[[dict[str, Any]], object]] = [
    lambda data: data.clear(),
    lambda data: data.update(version=9),
    lambda data: data.update(missing=[STABLE]),
    lambda data: data.update(complete=False),
    lambda data: data["planned"].append("torch-cuda"),
    lambda data: data["planned"].append("not-a-variant"),
    lambda data: data["present"].append(data["present"][0]),
    lambda data: data["present"].reverse(),
    lambda data: data["present"][0].update(backend="cuda"),
    lambda data: data["present"][0].update(stale=True),
    lambda data: data["present"][0]["origin"].update(commit="f" * 40),
    lambda data: data.update(planned=None, missing=[CPU]),
]


@pytest.mark.rule("KCI718", triggers=True)
@pytest.mark.parametrize("lie", range(len(LIES)))
def test_a_manifest_that_contradicts_itself_or_the_tree(tmp_path: Path, lie: int) -> None:
    tree = merged(tmp_path)
    path = tree / "kci-manifest.json"
    data = json.loads(path.read_text())
    LIES[lie](data)
    path.write_text(json.dumps(data))
    assert "KCI718" in ids(check(tree))


@pytest.mark.rule("KCI721", triggers=True)
def test_a_planned_variant_that_is_missing(tmp_path: Path) -> None:
    only(check(merged(tmp_path, CPU)), "KCI721")


def test_a_tree_that_a_dead_merge_moved_aside_is_not_just_missing(tmp_path: Path) -> None:
    merged(tmp_path).rename(tmp_path / ".kci-build.old")
    with pytest.raises(UsageError, match="a killed kci had moved it"):
        check(tmp_path / "build")


@pytest.mark.rule("KCI723", triggers=True)
def test_a_tree_without_a_manifest(tmp_path: Path) -> None:
    tree = merged(tmp_path)
    (tree / "kci-manifest.json").unlink()
    assert only(verify(tree, ignore=BINARY), "KCI723").severity == "warning"
    (tmp_path / "trees").mkdir()
    tree.rename(tmp_path / "trees" / "one")
    assert ids(verify(tmp_path / "trees", ignore=BINARY)) == ["KCI723"]


@pytest.mark.rule("KCI718", "KCI721", "KCI722", "KCI723", triggers=False)
def test_a_merged_tree_has_its_names_and_its_manifest(tmp_path: Path) -> None:
    assert verify(merged(tmp_path), ignore=BINARY) == []


CANNOT_TRAVEL = [
    "NUL.py", "aux/x.py", "com1.txt", "a/LPT9", 'a"b.py', "a?.py", "a*b", "a<b", "a|b", "con",
    "x/CON .txt", "COM¹", "a:b", "a\\b", "a\nb", "x.", "x ",
]  # fmt: skip


@pytest.mark.rule("KCI708", triggers=True)
@pytest.mark.parametrize("name", CANNOT_TRAVEL)
def test_names_that_cannot_travel(tmp_path: Path, name: str) -> None:
    directory = of_python(tmp_path, "_ops.py", name)
    assert "KCI708" in ids(check(directory))
    with pytest.raises(UnsafeError, match="cannot be packed"):
        files_to_pack(directory)


@pytest.mark.rule("KCI708", "KCI709", triggers=False)
def test_names_that_look_like_devices_and_are_none(tmp_path: Path) -> None:
    names = ("_ops.py", "null.py", "com.py", "com10.py", "auxiliary/x")
    assert check(of_python(tmp_path, *names)) == []


@pytest.mark.rule("KCI709", triggers=True)
def test_a_variant_too_big_for_an_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = of_python(tmp_path, *(f"{number}.txt" for number in range(5)))
    monkeypatch.setattr(tree_pack, "LIMITS", ArchiveLimits(members=4))
    assert "KCI709" in ids(check(directory))


@pytest.mark.rule("KCI730", "KCI731", triggers=True)
def test_digests(tmp_path: Path) -> None:
    directory = make_variant(tmp_path, "torch-cpu")
    (directory / "_ops.py").write_text("x = 1\n")
    (directory / "extra.txt").write_text("")
    (directory / "__init__.py").unlink()
    found = verify(directory, select=["KCI73"])
    changed = ["__init__.py", "_ops.py", "extra.txt"]
    assert ids(found) == ["KCI731"] * 3
    assert [item.path.rpartition("/")[2] for item in found] == changed
    data = json.loads((directory / "metadata.json").read_text())
    del data["digest"]
    (directory / "metadata.json").write_text(json.dumps(data))
    only(verify(directory, select=["KCI73"]), "KCI730")


def test_paths_are_shown_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_variant(tmp_path / "build", "torch-cpu", files={"a.py": ""})
    monkeypatch.chdir(tmp_path)
    assert check(Path("build"))[0].path == "build/torch-cpu"
    assert verify("build/torch-cpu/")[0].path.rstrip("/") == "build/torch-cpu"
    assert check(Path())[0].path == "build/torch-cpu"
    monkeypatch.chdir(tmp_path / "build" / "torch-cpu")
    assert ids(verify(".")) == ["KCI702"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "benchmarks").mkdir(parents=True)
    (tree / "benchmarks" / "benchmark.py").write_text("pass\n")
    merge([artifact_of(tmp_path, name) for name in ("torch-cpu", "torch-cuda")], tree)
    return tree


def found(tree: Path) -> list[tuple[str, str]]:
    return [(item.rule, item.path.removeprefix(f"{tree}/")) for item in verify(tree)]


def attestation(tree: Path) -> str:
    statement = tree_statement(tree, SigningContext())
    payload = {
        "_type": statement.type_,
        "predicateType": statement.predicate_type,
        "predicate": statement.predicate,
        "subject": [{"name": item.name, "digest": item.digest} for item in statement.subject],
    }
    encoded = base64.b64encode(json.dumps(payload).encode()).decode()
    return json.dumps({"dsseEnvelope": {"payload": encoded}})


@pytest.mark.rule("KCI726", "KCI727", "KCI728", "KCI729", "KCI791", "KCI792", triggers=False)
@pytest.mark.parametrize(
    "card", ["", "# relu\n", "---\n---\n", "---\nlicense: mit\ntags: [a]\n---\n# é\n", "---\nx"]
)
def test_what_belongs_there_is_accounted_for(tree: Path, card: str) -> None:
    (tree / "CARD.md").write_text(card)
    metadata = tree / "torch-cpu" / "metadata.json"
    (tree / "torch-cpu" / "metadata.json.sigstore").write_text(signature(metadata.read_bytes()))
    (tree / "torch-cpu" / "_ops.py").chmod(0o755)
    (tree / "kci-attestation.sigstore.json").write_text(attestation(tree))
    assert found(tree) == []
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tree, check=True)


def without(name: str) -> Callable[[Path], None]:
    return lambda tree: (tree / name).unlink()


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(tree: Path) -> None:
        text = (tree / name).read_text()
        assert old in text
        (tree / name).write_text(text.replace(old, new, 1))

    return change


def written(name: str, text: str | bytes) -> Callable[[Path], None]:
    def change(tree: Path) -> None:
        (tree / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def stranger(tree: Path) -> None:
    line = f"{'0' * 64}  ../../etc/passwd\n"
    (tree / "SHA256SUMS").write_text(line + (tree / "SHA256SUMS").read_text())


@pytest.mark.rule("KCI726", triggers=True)
@pytest.mark.parametrize(
    ("change", "places"),
    [
        (stranger, ["SHA256SUMS"]),
        (edited("SHA256SUMS", "torch-cpu/_ops.py", "torch-cpu/_pos.py"), ["SHA256SUMS"]),
        (edited("SHA256SUMS", "\n", "\n# a note\n"), ["SHA256SUMS"]),
        (edited("SHA256SUMS", "  ", " *"), ["SHA256SUMS"]),
        (written("SHA256SUMS", ""), ["SHA256SUMS"]),
        (written("SHA256SUMS", b"\xff"), ["SHA256SUMS"]),
        (written("SHA256SUMS", b"0" * 1_000_000), ["SHA256SUMS"]),
        (without("SHA256SUMS"), [""]),
        (written("benchmarks/evil.py", "import os\n"), ["SHA256SUMS"]),
        (written("benchmarks/benchmark.py", "import os\n"), ["SHA256SUMS"]),
        (without("benchmarks/benchmark.py"), ["SHA256SUMS"]),
    ],
)
def test_checksums_that_lie(tree: Path, change: Callable[[Path], None], places: list[str]) -> None:
    change(tree)
    assert found(tree) == [("KCI726", place or str(tree)) for place in places]


def test_what_the_manifest_says_already_is_not_said_again(tree: Path) -> None:
    (tree / "torch-cpu" / "_ops.py").write_text("ops = 1\n")
    assert [rule for rule, _ in found(tree)] == ["KCI718", "KCI731"]


@pytest.mark.rule("KCI727", triggers=True)
@pytest.mark.parametrize(
    "name", ["torch-cpu/_ops.py", "kci-manifest.json", "benchmarks/benchmark.py"]
)
@pytest.mark.parametrize("bit", [0o4000, 0o2000, 0o1000])
def test_special_bits(tree: Path, name: str, bit: int) -> None:
    (tree / name).chmod(0o755 | bit)
    assert found(tree) == [("KCI727", name)]


@pytest.mark.rule("KCI728", triggers=True)
@pytest.mark.parametrize(
    ("card", "says"),
    [
        (b"# caf\xe9\n", "not UTF-8 (byte 5)"),
        (b"---\nlicense: [mit\n---\n", "not YAML"),
        (b"---\n- a\n---\n", "not a table"),
        (b"---\nx: " + b"[" * 5_000 + b"\n---\n", "not YAML"),
        (b"---\nx: !!python/object/apply:os.getcwd []\n---\n", "not YAML"),
        (b"x" * (1024 * 1024 + 1), "larger than 1024 KiB"),
    ],
)
def test_a_card_that_is_no_page(tree: Path, card: bytes, says: str) -> None:
    (tree / "CARD.md").write_bytes(card)
    only(verify(tree), "KCI728", says)


@pytest.mark.rule("KCI729", triggers=True)
@pytest.mark.parametrize("text", [
    "", "{}", "junk", "[" * 100_000, signature(b"other metadata"),
    signature(b"", messageSignature=None), signature(b"", verificationMaterial={}),
])  # fmt: skip
def test_a_signature_of_something_else(tree: Path, text: str) -> None:
    (tree / "torch-cpu" / "metadata.json.sigstore").write_text(text)
    assert found(tree) == [("KCI729", "torch-cpu/metadata.json.sigstore")]


@pytest.mark.rule("KCI791", "KCI792", triggers=True)
def test_an_attestation_of_something_else(tree: Path) -> None:
    name = "kci-attestation.sigstore.json"
    (tree / name).write_text(attestation(tree))
    assert found(tree) == []
    (tree / "CARD.md").write_text("new\n")
    assert found(tree) == [("KCI792", name)]
    (tree / name).write_text("{}")
    assert found(tree) == [("KCI791", name)]


def test_an_attestation_of_another_repository_commit_workflow_or_kernel_differs(tree: Path) -> None:
    signer = SigningContext("acme/norm", "a" * 40, "ci.yml")
    statement, nobody = tree_statement(tree, signer), SigningContext()
    for same in (signer, nobody):
        assert tree_differences(tree, statement, same) == []
    for wanted in (
        SigningContext("evil/norm"),
        SigningContext(commit="b" * 40),
        SigningContext(workflow="x.yml"),
    ):
        (difference,) = tree_differences(tree, statement, wanted)
        assert difference.startswith("it is about the ")
        # what says nothing of itself is not what is wanted
        said = tree_statement(tree, nobody).predicate
        unsaid = msgspec.structs.replace(statement, predicate=said)
        assert len(tree_differences(tree, unsaid, wanted)) == 1
    other = msgspec.structs.replace(statement, predicate=statement.predicate | {"kernel": "other"})
    assert len(tree_differences(tree, other, signer)) == 1

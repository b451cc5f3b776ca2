"""What lies at a tree's top, and what no digest covers: each is accounted for, or said to be what
it is.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from conftest import only
from kci.tree.merge import merge
from kci.tree.sigstore import SigningContext
from kci.tree.top_level import tree_differences, tree_statement
from kci.tree.verify import verify
from variants import artifact_of, signature


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

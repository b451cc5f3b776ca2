"""What changed between two matrices."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from conftest import torch_kernel
from kci.catalog.rows import Catalog
from kci.config.reader import Kernel
from kci.errors import FindingsError
from kci.matrix.diff import diff_kernels, diff_matrices, read_matrix_json
from kci.matrix.selection import compute_matrix, select
from kci.matrix.variants import KernelMatrix, matrix_json

CUDA = """
    [kernel.one]
    backend = "cuda"
    depends = []
    src = []
    cuda-capabilities = [{}]
"""


def matrix(catalog: Catalog, archs: str = '"8.0"', **parts: str) -> KernelMatrix:
    return select(torch_kernel(["cuda"], components=CUDA.format(archs), **parts), catalog)


def test_the_same_on_both_sides_is_no_difference(catalog: Catalog) -> None:
    found = diff_kernels(matrix(catalog), matrix(catalog))
    assert not found.differs
    assert found.same == 12


def test_variants_that_came_and_went(catalog: Catalog) -> None:
    narrower = matrix(catalog, torch='minver = "2.13"')
    found = diff_kernels(matrix(catalog), narrower)
    assert {variant.torch for variant in found.removed} == {"2.12"}
    assert (len(found.removed), len(found.added), found.same) == (6, 0, 6)
    back = diff_kernels(narrower, matrix(catalog))
    assert (back.added, back.removed) == (found.removed, ())


def test_archs_that_changed(catalog: Catalog) -> None:
    found = diff_kernels(matrix(catalog), matrix(catalog, '"8.0", "9.0"'))
    assert (found.added, found.removed, len(found.changed)) == ((), (), 12)
    (change,) = found.changed[0].changes
    assert (change.what, change.old, change.new) == ("archs", "8.0", "8.0 9.0")


def test_what_a_variant_is_built_against(catalog: Catalog) -> None:
    """The name of a stable ABI variant stays the same when its torch changes."""
    old = matrix(catalog, torch='stable-abi = "2.11"\nmaxver = "2.12"')
    found = diff_kernels(old, matrix(catalog, torch='stable-abi = "2.11"'))
    assert (found.added, found.removed) == ((), ())
    assert {(change.what, change.old, change.new) for item in found.changed for change in item.changes} == {
        ("torch", "2.12", "2.13")
    }


def test_kernels_are_matched_by_name_unless_they_stand_alone(catalog: Catalog) -> None:
    one = matrix(catalog)
    two = msgspec.structs.replace(one, name="two", path="two")
    assert not diff_matrices([one], [two])[0].differs, "a renamed kernel"
    found = diff_matrices([one], [one, two])
    assert [(item.name, item.differs) for item in found] == [("some-kernel", False), ("two", True)]
    assert (found[1].old_path, found[1].new_path) == (None, "two")
    assert len(found[1].added) == len(two.variants)
    gone = diff_matrices([one, two], [one])
    assert len(gone[1].removed) == len(two.variants)


def test_twins_cannot_be_compared(catalog: Catalog) -> None:
    one = matrix(catalog)
    with pytest.raises(FindingsError, match="are both named 'some-kernel'"):
        diff_matrices([one, one], [one])


def written(tmp_path: Path, made: list[Kernel], catalog: Catalog, explain: bool = False) -> Path:
    file = tmp_path / "matrix.json"
    answer = matrix_json(compute_matrix(made, catalog, explain=explain), explain=explain)
    file.write_bytes(msgspec.json.encode(answer))
    return file


@pytest.mark.rule("KCI216", triggers=False)
@pytest.mark.parametrize("explain", [False, True])
def test_a_matrix_that_was_written_reads_back(tmp_path: Path, catalog: Catalog, explain: bool) -> None:
    made = torch_kernel(["cpu", "cuda", "rocm"], torch='stable-abi = { cpu = "2.11" }')
    (read,) = read_matrix_json(written(tmp_path, [made], catalog, explain))
    assert read == select(made, catalog, explain=explain)


@pytest.mark.rule("KCI216", triggers=True)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a matrix"),
        ("{", "not a matrix"),
        ("[" * 100_000, "not a matrix"),
        ('{"kernels": []}', "not a matrix"),
        ('{"schema": 2, "kernels": []}', "this kci reads schema 1"),
        ('{"schema": 1, "kernels": [{"name": "x"}]}', "not a matrix"),
        ('{"schema": 1, "kernels": [{"name": "x\\u001b[2J", "path": ".", "version": 1, "variants": []}]}', "text"),
        ('\xff{"schema": 1}', "not a matrix"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FindingsError) as caught:
        read_matrix_json(tmp_path / "x.json")
    (problem,) = caught.value.diagnostics
    assert problem.rule == "KCI216"
    assert said in problem.message


def test_a_text_hidden_in_a_variant_is_found(tmp_path: Path, catalog: Catalog) -> None:
    file = written(tmp_path, [torch_kernel(["cuda"])], catalog)
    answer = json.loads(file.read_text())
    answer["kernels"][0]["variants"][0]["archs"] = ["8.0\n::error::"]
    file.write_text(json.dumps(answer))
    with pytest.raises(FindingsError, match="holds the text"):
        read_matrix_json(file)

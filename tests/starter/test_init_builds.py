"""What `kci init` writes is built, verified, loaded and tested, as far as this machine can."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import kci_process

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("no_git_environment")]

KINDS = {
    "stable": ("--stable-abi", "2.11", "--backend", "cpu"),
    "noarch": ("--framework", "torch-noarch"),
    "tvm-ffi": ("--framework", "tvm-ffi"),
}
"""Beside that of the tutorial, which tests/test_tutorial.py builds, loads and tests."""

EDITION = ("--catalog", "2026-08-20")
"""In which torch 2.13 is the newest: the builds then share the one that other tests have."""


def built_and_tested(name: str, place: Path, cache: Path, *, torch: bool = True) -> None:
    here = {"cwd": place, "KCI_CACHE": str(cache), "GITHUB_ACTIONS": ""}
    chosen = ("--where", "torch == 2.13") if torch else ()  # what does not compile against torch has no version of it
    built = kci_process("run", name, "--only", "*cpu*", *chosen, *EDITION, **here)  # type: ignore[arg-type]
    assert built.code == 0, built.stdout + built.stderr
    assert "1 variant in" in built.stdout
    tested = kci_process("test", name, "--torch", "2.13", *EDITION, **here)  # type: ignore[arg-type]
    assert tested.code == 0, tested.stdout + tested.stderr
    assert tested.stdout.splitlines()[-1].split()[2] == "passed"


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_kernel_is_built_verified_loaded_and_tested(kind: str, tmp_path: Path, torch_cache: Path) -> None:
    made = kci_process("init", "my-kernel", "-y", *KINDS[kind], cwd=tmp_path)
    assert made.code == 0, made.stderr
    built_and_tested("my-kernel", tmp_path, torch_cache, torch=kind == "stable")


FORMS = Path(__file__).parent / "every_form"
"""An extension with every form in which functions are bound; it compiles with pybind11 too."""

TEST = """
import torch


@pytest.fixture
def ops(kernel):
    return importlib.import_module(f"{kernel.__name__}._ops").ops


def test_tensors(ops):
    x = torch.zeros(3)
    for written in (ops.by_value_written, ops.by_reference_written, ops.pointer_written, ops.maybe_written):
        written(x)
    assert x.tolist() == [1, 2, 3], "each has written to it: (0 + 1) * 3, then 0 1 2, then + 1"
    ops.elsewhere_written(x, 4.0)
    ops.list_written([x])
    ops.item_written([x])
    assert x.tolist() == [6, 6, 6]
    assert (ops.by_value(x) + ops.by_const(x, x)).tolist() == [24, 24, 24]
    assert ops.given_back(x).data_ptr() == x.data_ptr() and not x.any()


def test_numbers_and_what_may_be_absent(ops):
    assert ops.numbers(True, 2, 3.0, 4.0, 5, 6, 7, 8, 9) and not ops.numbers(True, 2, 3.0, 4.0, 5, 6, 7, 8, 10)
    assert (ops.text("a", "b"), ops.maybe_text(), ops.maybe_text("x")) == ("ab", "none", "x")
    assert (ops.reference_to_number(1, 2), ops.number_by_reference(4), ops.half(1.5)) == (3, 4, 1.5)
    assert (ops.no_argument(), ops.void_argument(), ops.unnamed(torch.ones(1), 1, 2)) == (0.5, 3, 7)
    assert (ops.maybe_numbers(), ops.maybe_numbers(2, 20.0, 200.0, 2000, True)) == (1111, 12222)
    one = torch.ones(1)
    assert (ops.maybe(one).item(), ops.maybe(one, one, z=one).item(), ops.maybe_constant(one).item()) == (1, 3, 2)
    assert (ops.maybe_result(one, True).item(), ops.maybe_result(one, False)) == (2, None)
    assert (ops.maybe_number_by_reference(None), ops.maybe_number_by_reference(3)) == (5, 3)


def test_lists_and_several_results(ops):
    one = torch.ones(1)
    assert [x.item() for x in ops.list_of_tensors([one], [one, one + 6])] == [2, 7]
    assert (ops.list_of_ints([1], [2, 3], [4]), ops.list_by_reference([5]), ops.list_result(3)) == (8, 5, [3, 3, 3])
    assert (ops.list_of_floats([1.5], [2.5]), ops.list_of_doubles_result()) == (4.0, [1.5])
    assert ops.views([1], [2], [one], [1.0, 2.0]) == 6
    assert [x.item() for x in ops.two(one)] == [1, 2] and ops.five(one)[1:] == (1, 2.5, True, "five")
    assert len(ops.a_pair(one)[1]) == 2 and ops.one(one).item() == 1 and ops.trailing(one)[1] == 1
    assert ops.of_torch(torch.float32, 2, torch.device("cpu"), torch.float32) == 4
    assert ops.drawn(one).item() == 1 and ops.drawn(one, torch.Generator()).item() == 1


def test_enums_overloads_names_and_defaults(ops):
    x = torch.tensor([1.0, 3.0])
    assert ops.ordered(x, 1, 5).tolist() == [1.5, 0.5] and (ops.modes(5, 1), ops.back(1)) == (51, 5)
    assert (ops.over(1), ops.over(1, 2), ops.over_double(1.0), ops.over_tensor(x).tolist()) == (2, 3, 1.5, [3, 5])
    assert (ops.hidden(1), ops.delete(), ops.over_1(), ops.from_c(4), ops.taken_names(9, 3, 2)) == (2, 0.5, 3, 4, 4)
    assert ops.defaults() == "-1 0.010000 yes mean 9 2.000000 0"
    assert ops.defaults(2, 1.0, False, "sum", x, 3, 4.0, True, [1]) == "2 1.000000 no sum e 3 4.000000 h 1"
    assert ops.no_such_default(1, 2, 3) == 6 and ops.written_ways() == 0.5 + 1 + 2 + 3 - 100
    assert ops.a_conditional_lambda(1) == 2
    assert ops.a_lambda(x).tolist() == [2, 6] and ops.from_another_function(x, 1).tolist() == [1]
    assert (ops.only_without_more(), ops.in_submodule(), hasattr(ops, "only_with_more")) == (0.5, 3, False)
    assert (ops.registered(x), ops.registered_too(x)) == (2, 2)
    assert ops.in_library(x).tolist() == ops.at_once(x).tolist() == [6, 8]
"""


def test_every_form_of_a_setup_py_is_built_verified_loaded_and_tested(tmp_path: Path, torch_cache: Path) -> None:
    made = kci_process("init", "forms", "--from", str(FORMS), "--run", "-y", cwd=tmp_path)
    assert made.code == 0, made.stderr
    build = tmp_path / "forms" / "build.toml"
    build.write_text("\n".join(line for line in build.read_text().splitlines() if not line.startswith("# draft: ")))
    with (tmp_path / "forms" / "tests" / "test_forms.py").open("a") as file:
        file.write(TEST)
    built_and_tested("forms", tmp_path, torch_cache)

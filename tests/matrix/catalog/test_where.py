"""Filter expressions: what they mean, and what is said about one that cannot be read."""

from __future__ import annotations

import pytest

from kci.matrix.catalog.expressions import WhereError, parse_where

FIELDS = {"torch": (), "cuda": (), "compute": (), "backend": ("cpu", "cuda", "rocm"), "name": ()}
CPU = {"name": "c", "torch": "2.10", "backend": "cpu"}
CUDA_126 = {"name": "cu126", "torch": "2.9", "backend": "cuda", "cuda": "12.6", "compute": "12.6"}
CUDA_130 = {"name": "cu130", "torch": "2.10", "backend": "cuda", "cuda": "13.0", "compute": "13.0"}
ROCM = {"name": "rocm72", "torch": "2.10", "backend": "rocm", "compute": "7.2"}
ALL = [CPU, CUDA_126, CUDA_130, ROCM]


def chosen(text: str) -> list[str]:
    test = parse_where(text, FIELDS).over(ALL)
    return [subject["name"] for subject in ALL if test(subject)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cuda == 13", ["cu130"]),
        ("cuda==13.0.0", ["cu130"]),
        ("cuda != 13.0", ["c", "cu126", "rocm72"]),
        ("cuda < 13.0", ["cu126"]),
        ("cuda <= 13.0", ["cu126", "cu130"]),
        ("cuda > 12.6", ["cu130"]),
        ("cuda >= 12.6", ["cu126", "cu130"]),
        ("torch > 2.9", ["c", "cu130", "rocm72"]),
        ("torch == newest", ["c", "cu130", "rocm72"]),
        ("torch == oldest", ["cu126"]),
        ("torch < newest", ["cu126"]),
        ("compute == newest", ["cu130", "rocm72"]),
        ("compute == oldest", ["cu126", "rocm72"]),
        ("cuda ~ 12.*", ["cu126"]),
        ("name ~ 'cu1[23]*'", ["cu126", "cu130"]),
        ('name ~ "c?130"', ["cu130"]),
        ("backend == cpu", ["c"]),
        ("backend != cpu", ["cu126", "cu130", "rocm72"]),
        ("not backend == cpu", ["cu126", "cu130", "rocm72"]),
        ("not not backend == cpu", ["c"]),
        ("backend == cpu or backend == cuda and torch == 2.9", ["c", "cu126"]),
        ("(backend == cpu or backend == cuda) and torch == 2.9", ["cu126"]),
        ("not backend == cpu and torch == 2.10", ["cu130", "rocm72"]),
        ("not (backend == cpu or torch == 2.9)", ["cu130", "rocm72"]),
        ("cuda>=13.0 and torch==newest", ["cu130"]),
        ("name == 'and'", []),
    ],
)
def test_what_an_expression_chooses(text: str, names: list[str]) -> None:
    assert chosen(text) == names


@pytest.mark.parametrize(
    ("text", "column", "said", "hint"),
    [
        ("", 0, "expected a field, got the end", "one of: torch"),
        ("tocrh == 2", 0, "expected a field, got `tocrh`", "did you mean `torch`?"),
        ("torch", 5, "expected an operator after `torch`, got the end", "one of: =="),
        ("torch = 2", 6, "expected an operator after `torch`, got `=`", "one of: =="),
        ("torch >=", 8, "expected a value after `>=`, got the end", ""),
        ("torch >= and", 9, "expected a value after `>=`, got `and`", ""),
        ("torch == 2.x", 9, "expected a version such as '2.12', got '2.x'", "`newest`"),
        ("torch == 2.*", 9, "expected a version such as '2.12', got '2.*'", "with ~"),
        ("backend < cpu", 8, "`backend` has no order, so `<` cannot be used", "use =="),
        ("backend == cdua", 11, "'cdua' is not a backend", "did you mean `cuda`?"),
        ("(torch == 2", 11, "expected `)`, got the end", ""),
        ("torch == 2)", 10, "nothing can follow here, got `)`", ""),
        (
            "torch == 2 cuda == 3",
            11,
            "nothing can follow here, got `cuda`",
            "join comparisons with",
        ),
        ("torch == 2 &&", 11, "unexpected '&'", ""),
        ("torch == ２", 9, "unexpected '２'", ""),
        ("and torch == 2", 0, "expected a field, got `and`", ""),
        ("name == 'x", 8, 'unexpected "\'"', ""),
        ("(" * 200, 51, "the expression is nested too deeply", ""),
        ("not " * 200 + "torch == 2", 204, "the expression is nested too deeply", ""),
        (
            "torch == 2 or " * 200 + "torch == 2",
            2000,
            "the expression is longer than 2000 characters",
            "",
        ),
    ],
)
def test_a_mistake_is_told_with_its_column(text: str, column: int, said: str, hint: str) -> None:
    with pytest.raises(WhereError) as caught:
        parse_where(text, FIELDS)
    assert (caught.value.message, caught.value.column) == (said, column)
    assert hint in caught.value.hint

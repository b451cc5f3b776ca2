"""What a source includes in quotes: outside of comments and strings, and never at a cost beyond its
length.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from growth import assert_in_proportion
from kci.config.sources.op_rules import check_cpp
from kci.plan.inputs.source_lints import quoted_includes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('#include "a.h"\n// #include "b.h"\n  # include "c.h"', ["a.h", "c.h"]),
        ('if (c == \'"\') {} /*\n#include "no.h"\n*/\n#include "a.h"', ["a.h"]),
        ('x = "\\"/*";\n#include "a.h"\n', ["a.h"]),
        ('int x;\r#include "../x.h"\rint y;', ["../x.h"]),
        ('#error "not closed\n#include "a.h"\n', ["a.h"]),
    ],
)
def test_includes_in_quotes(text: str, found: list[str]) -> None:
    assert quoted_includes(text.encode()) == found


def test_a_string_without_an_end_costs_its_length() -> None:
    assert_in_proportion(lambda size: quoted_includes(b'include "' + b'"\\' * size), 8000)


def test_neither_do_registrations(tmp_path: Path) -> None:
    def check(start: str, many: str, size: int) -> None:
        (tmp_path / "k.cpp").write_text(start + many * size)
        list(check_cpp([(tmp_path / "k.cpp", "k.cpp")]))

    assert_in_proportion(lambda size: check("TORCH_LIBRARY ", '"\\', size), 8000)
    assert_in_proportion(lambda size: check("", "\nTORCH_LIBRARY(fixed", size), 8000)

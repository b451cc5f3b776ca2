"""A separate program, in the Python of a torch: pytest, which writes bytecode there alone.

uv compiles nothing, and some tests import thousands of torch's modules: they are compiled once.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

import pytest


def main() -> int:
    """Run pytest with the arguments of this program."""
    read, place = SourceFileLoader.get_code, f"{sys.prefix}{os.sep}"

    def get_code(self: Any, name: str) -> CodeType | None:
        sys.dont_write_bytecode = not self.path.startswith(place)
        try:
            return read(self, name)
        finally:
            sys.dont_write_bytecode = True

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    return pytest.console_main()


if __name__ == "__main__":
    raise SystemExit(main())

"""Data of one type by several threads at once, which msgspec alone does not survive."""

from __future__ import annotations

import re
import subprocess
import sys

from conftest import ROOT

MANY_TYPES = '''
import sys, threading, types
from kci.files.typed_data import json_to_type, to_type
sys.setswitchinterval(1e-6)
TEXT = """
from __future__ import annotations
import msgspec
class Outer(msgspec.Struct):
    one: Inner | None = None
    by_name: dict[str, Inner] = {}
    many: tuple[Inner, ...] = ()
class Inner(msgspec.Struct):
    number: int = 1
    deep: Innermost | None = None
class Innermost(msgspec.Struct):
    words: tuple[str, ...] = ()
"""
DATA = {"one": {"deep": {"words": ["a"]}}, "by_name": {"b": {"number": 2}}}
for number in range(400):
    module = types.ModuleType(f"made_{number}")
    module.__dict__["__name__"] = f"made_{number}"
    sys.modules[module.__name__] = module
    exec(TEXT, module.__dict__)
    together = threading.Barrier(4)

    def read(how):
        together.wait()
        assert how().one.deep.words == ("a",)

    text = b'{"one": {"deep": {"words": ["a"]}}, "by_name": {"b": {"number": 2}}}'
    ways = [lambda: json_to_type(text, module.Outer), lambda: to_type(DATA, module.Outer)] * 2
    threads = [threading.Thread(target=read, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
'''


def test_types_that_several_threads_ask_for_first() -> None:
    done = subprocess.run([sys.executable, "-c", MANY_TYPES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_else_gives_msgspec_a_type() -> None:
    """Diagnostics lie below the files; their rules are read before there are threads."""
    own = ROOT / "src" / "kci"
    asking = re.compile(r"msgspec\.convert\(|msgspec\.json\.decode\([^\n]*type=|\.Decoder\(")
    found = {path.relative_to(own).as_posix() for path in own.rglob("*.py") if asking.search(path.read_text())}
    assert found == {"diagnostics.py", "files/typed_data.py"}

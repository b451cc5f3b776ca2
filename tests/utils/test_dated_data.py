"""Data of one type by several threads at once, which msgspec alone does not survive."""

from __future__ import annotations

import sys

from conftest import ROOT, ran

MANY_TYPES = '''
import sys, threading, types
from kci.utils.bounded_json import decode_json
from kci.utils.shipped import to_type
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
    ways = [lambda: decode_json(text, module.Outer), lambda: to_type(DATA, module.Outer)] * 2
    threads = [threading.Thread(target=read, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
'''


def test_types_that_several_threads_ask_for_first() -> None:
    done = ran(sys.executable, "-c", MANY_TYPES)
    assert (done.returncode, done.stderr) == (0, "")


def test_where_the_linter_is_told_to_look_away() -> None:
    """The readers themselves, kci's own rules (diagnostics lie below the files), and scripts
    without kci.
    """
    away = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if "TID251" in path.read_text()
    }
    assert away == {
        "src/kci/builders/native/hipify_script.py", "src/kci/config/sources/card_child.py",
        "src/kci/diagnostics.py", "src/kci/utils/bounded_json.py", "src/kci/utils/shipped.py",
    }  # fmt: skip

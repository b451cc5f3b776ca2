"""Objects by name: what is compiled again and what is not, with real compilers and without ninja."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from buildkit import program, quiet
from kci.builders import failures, native, object_store
from kci.builders.object_store import ObjectRecord
from kci.builders.objects import Objects
from kci.config.find_settings import find_settings
from kci.errors import KciError, UnfinishedBuildError
from kci.processes.running_commands import EndedCommand
from objectkit import ALL, Kernel, put

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the variant of these tests is for x86_64")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """One that was compiled before."""
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")
    made = Kernel(tmp_path / "kernel", tmp_path / "cache")
    assert made.compile() == ALL
    return made


def test_nothing_is_compiled_where_nothing_has_changed(kernel: Kernel) -> None:
    assert kernel.compile() == set()


def test_nor_in_another_checkout_with_another_cache_at_another_time(kernel: Kernel, tmp_path: Path) -> None:
    """The objects were packed, moved and unpacked; nothing that the file system says of them is as it was."""
    elsewhere = tmp_path / "far" / "away"
    moved = Kernel(elsewhere / "deeper" / "checkout", elsewhere / "cache")
    subprocess.run(["tar", "cf", tmp_path / "objects.tar", "objects"], cwd=kernel.cache, check=True)
    moved.cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "xmf", tmp_path / "objects.tar"], cwd=moved.cache, check=True)
    for path in moved.place.rglob("*.cpp"):
        os.utime(path, (10**9, 10**9))
    assert moved.compile() == set()
    (moved.place / "include" / "a.h").write_text("#define A 2\n")
    assert moved.compile() == {"csrc/a.cpp"}


def test_nor_where_the_work_directory_is_gone_or_full_of_others(kernel: Kernel) -> None:
    for made in kernel.work.glob("obj/*/*.o"):
        made.unlink()
        made.write_text("something else")
    assert kernel.compile() == set()
    assert all(made.read_bytes()[:4] == b"\x7fELF" for made in kernel.work.glob("obj/*/*.o"))
    shutil.rmtree(kernel.work)
    assert kernel.compile() == set()


@pytest.mark.parametrize("name", ["csrc/a.cpp", "include/a.h", "one/linked.h"])
def test_a_file_that_was_put_in_place_of_one_that_was_read(kernel: Kernel, name: str) -> None:
    before = (kernel.place / name).read_text()
    put(kernel.place / name, f"{before}// changed\n")
    assert kernel.compile() == {"csrc/a.cpp"}
    put(kernel.place / name, before)
    assert kernel.compile() == set(), "the object of before is still there"


def test_a_link_that_leads_elsewhere(kernel: Kernel) -> None:
    (kernel.place / "way").unlink()
    (kernel.place / "way").symlink_to("two")
    assert kernel.compile() == {"csrc/a.cpp"}


@pytest.mark.parametrize("name", ["csrc/a.h", "other/extra.h", "include/math.h", "csrc/math.h"])
def test_a_file_that_would_be_found_now(kernel: Kernel, name: str) -> None:
    put(kernel.place / name, "#define A 1\n#define LINKED 1\n")
    build = kernel.place / "build.toml"
    build.write_text(build.read_text().replace('"way/linked.h"', f'"way/linked.h", "{name}"'))
    assert kernel.compile() == {"csrc/c.cpp" if "math" in name else "csrc/a.cpp"}


def test_a_header_of_another_torch_that_would_be_found_before_the_systems(kernel: Kernel) -> None:
    folder = (kernel.work / "torch").readlink() / "include"
    (folder / "torch").mkdir(parents=True)
    assert kernel.compile() == set()
    (folder / "math.h").write_text("")
    assert kernel.compile() == {"csrc/c.cpp"}


def test_a_file_that_only_the_assembler_reads(kernel: Kernel) -> None:
    put(kernel.place / "table.bin", "54321")
    assert kernel.compile() == {"csrc/c.cpp"}


@pytest.mark.parametrize("name", ["csrc/new.h", "other/a.cpp", "README.md"])
def test_a_file_that_no_source_asks_for(kernel: Kernel, name: str) -> None:
    put(kernel.place / name)
    assert kernel.compile() == set()


def test_a_source_that_another_one_only_mentions(kernel: Kernel) -> None:
    put(kernel.place / "csrc/b.cpp", "int bb;\n")
    assert kernel.compile() == {"csrc/b.cpp"}


def test_another_flag_and_another_compiler(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (kernel.place / "build.toml").read_text()
    (kernel.place / "build.toml").write_text(text.replace("[kernel.cpu]", '[kernel.cpu]\ncxx-flags = ["-DMORE"]'))
    assert kernel.compile() == {"csrc/a.cpp", "csrc/c.cpp"}
    (kernel.place / "build.toml").write_text(text)
    assert kernel.compile() == set()
    for number in range(2):  # programs that say the same of themselves
        compiler = program(tmp_path, "compiler", f'exec g++ "$@"  # {number}\n')
        monkeypatch.setenv("CXX", str(compiler))
        assert kernel.compile() == ALL
        assert kernel.compile() == set()


def test_a_file_that_is_replaced_while_a_compiler_reads(kernel: Kernel) -> None:
    for where, made in (("include/a.h", "csrc/a.cpp"), ("csrc/b.cpp", "csrc/b.cpp")):
        old = (kernel.place / where).read_text()
        put(kernel.place / where, f"{old}// one\n")

        def replace(source: str, where: str = where, made: str = made, old: str = old) -> None:
            if source == f"kernel/{made}":
                put(kernel.place / where, f"{old}// two\n")

        assert kernel.compile(replace) == {made}
        assert kernel.compile() == {made}, "it was made of neither"
        assert kernel.compile() == set()


def test_a_way_that_leads_elsewhere_while_a_compiler_reads(kernel: Kernel) -> None:
    put(kernel.place / "csrc" / "a.cpp", (kernel.place / "csrc" / "a.cpp").read_text() + "// changed\n")

    def turn(_source: str) -> None:
        (kernel.place / "way").unlink()
        (kernel.place / "way").symlink_to("two")

    assert kernel.compile(turn) == {"csrc/a.cpp"}
    assert kernel.compile() == {"csrc/a.cpp"}


def test_a_build_that_was_killed_keeps_what_it_made(kernel: Kernel) -> None:
    for source in ALL:
        put(kernel.place / source, (kernel.place / source).read_text() + "// changed\n")
    assert kernel.compile(finish=False) == ALL
    assert kernel.compile() == set()


def test_a_lying_object_is_compiled_again(kernel: Kernel) -> None:
    record = kernel.records()["csrc/a.cpp"]
    made = record.with_suffix(".o")
    made.unlink()
    made.write_bytes(kernel.records()["csrc/b.cpp"].with_suffix(".o").read_bytes())
    assert kernel.compile() == {"csrc/a.cpp"}
    assert kernel.compile() == set()


def test_a_record_whose_name_does_not_recompute_is_no_record(kernel: Kernel) -> None:
    """As if the object of another source were this one's."""
    records = kernel.records()
    lying = msgspec.json.decode(records["csrc/a.cpp"].read_bytes(), type=ObjectRecord)
    other = msgspec.json.decode(records["csrc/b.cpp"].read_bytes(), type=ObjectRecord)
    wrong = msgspec.structs.replace(lying, digest=other.digest, reads=other.reads)
    put(kernel.place / "include" / "a.h", "#define A 4\n")
    records["csrc/a.cpp"].write_bytes(msgspec.json.encode(wrong))
    shutil.copy(records["csrc/b.cpp"].with_suffix(".o"), records["csrc/a.cpp"].with_suffix(".o"))
    assert kernel.compile() == {"csrc/a.cpp"}


def test_the_module_goes_if_its_objects_are_others_now(kernel: Kernel) -> None:
    objects, recipe = kernel.begin()
    module = recipe.work / recipe.target.module
    assert (objects.restore(), module.exists()) == ([], True)
    text = (kernel.place / "include" / "a.h").read_text()
    put(kernel.place / "include" / "a.h", "#define A 7\n")
    assert kernel.compile() == {"csrc/a.cpp"}
    put(kernel.place / "include" / "a.h", text)
    objects, _ = kernel.begin()
    assert (objects.restore(), module.exists()) == ([], False), "found, and not those that were linked"


def test_what_kci_links_besides_is_made_anew_where_it_is_not_what_it_was(kernel: Kernel) -> None:
    _, recipe = kernel.begin()
    module = recipe.work / recipe.target.module
    helpers = [recipe.work / step.output for step in recipe.steps if not step.depfile][:-1]
    assert "compat.o" in {path.name for path in helpers}

    def left() -> set[bool]:
        objects, _ = kernel.begin()
        assert objects.restore() == []
        return {path.exists() for path in helpers}

    for path in helpers:
        assert (left(), module.exists()) == ({True}, True)
        before = path.stat()
        path.write_text("something else")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (left(), module.exists()) == ({False}, True), "ninja links where it makes these"
        kernel.compile()
    module.write_text("something else")
    assert (left(), module.exists()) == ({True}, False)


@pytest.mark.parametrize("at", range(8))
def test_a_kill_between_any_two_steps(kernel: Kernel, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written last, the next build compiles what is missing and no more."""
    for source in ALL:
        put(kernel.place / source, (kernel.place / source).read_text() + "// changed\n")
    left = [at]

    class KilledError(BaseException):
        pass

    def killed(step: Callable[..., object]) -> Callable[..., object]:
        def stop(*arguments: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            return step(*arguments)

        return stop

    with monkeypatch.context() as patched:
        for name in ("_link", "_write"):
            patched.setattr(object_store, name, killed(getattr(object_store, name)))
        patched.setattr(Path, "replace", killed(Path.replace))
        try:
            kernel.compile()
        except KilledError:
            assert left[0] < 0
    kept = len(ALL) - len(kernel.compile())
    assert kept >= at // 6, "what was whole is kept"
    assert kernel.compile() == set()


def test_a_full_disk_keeps_no_objects_and_fails_no_build(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    put(kernel.place / "csrc" / "b.cpp", "int bbb;\n")

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(object_store, "_write", full)
        assert kernel.compile() == {"csrc/b.cpp"}
    assert kernel.said == ["objects are not kept: No space left on device"]
    assert kernel.compile() == {"csrc/b.cpp"}
    assert kernel.compile() == set()


def test_two_builds_at_once(kernel: Kernel, tmp_path: Path) -> None:
    shutil.rmtree(kernel.cache / "objects")
    others = [Kernel(tmp_path / name / "kernel", kernel.cache) for name in ("one", "two")]
    threads = [threading.Thread(target=other.compile) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kernel.compile() == set()
    assert [other.compile() for other in others] == [set(), set()]
    assert len(kernel.records()) == len(ALL)


def test_of_one_command_the_newest_objects_are_kept(kernel: Kernel) -> None:
    """What one process makes counts at once, and not only for the next that reads the folder."""
    store = kernel.store
    source = next(path for name, path in kernel.records().items() if name == "csrc/b.cpp")
    record, made = msgspec.json.decode(source.read_bytes(), type=ObjectRecord), store.place.parent / "made.o"
    made.write_bytes(b"made")
    digest = hashlib.sha256(b"made").hexdigest()
    assert len(list(store.of(record.asked))) == 1
    for number in range(object_store._KEPT + 4):
        reads = dict.fromkeys(record.reads, f"{number:064x}")
        store.add(msgspec.structs.replace(record, reads=reads, digest=digest, size=4), made)
    assert len(list(store.of(record.asked))) == object_store._KEPT


def test_the_oldest_objects_go_first(kernel: Kernel) -> None:
    records = kernel.records()
    for age, source in enumerate(("csrc/b.cpp", "csrc/c.cpp", "csrc/a.cpp")):
        os.utime(records[source], (10**9 - age, 10**9 - age))
    store = kernel.store
    kept = sum(path.stat().st_size for path in store.place.rglob("*") if path.is_file())
    store._prune(kept)
    assert kernel.records().keys() == ALL
    store._prune(kept - 1)
    assert kernel.records().keys() == {"csrc/b.cpp"} or kernel.records().keys() == {"csrc/b.cpp", "csrc/c.cpp"}
    assert "csrc/a.cpp" in kernel.compile()


def test_no_more_is_kept_than_kci_toml_says(kernel: Kernel) -> None:
    (kernel.place / "kci.toml").write_text('[build]\nobjects-gb = 0\n[[inputs]]\npaths = ["table.bin"]\n')
    put(kernel.place / "csrc" / "b.cpp", "int other;\n")
    kernel.compile(finish=False)
    assert kernel.records().keys() == ALL
    what = kernel.request()
    options = what.options.under(find_settings(kernel.place).settings)
    with native._kept(kernel.objects, msgspec.structs.replace(what, options=options), kernel.work / "given", quiet):
        pass
    assert kernel.records() == {}


def test_what_an_object_took_is_known_for_the_next_one_of_its_command(kernel: Kernel) -> None:
    put(kernel.place / "csrc" / "b.cpp", "int other;\n")
    objects, _ = kernel.begin()
    (step,) = objects.restore()
    assert objects.cost(step) == (1.5, 10**6)
    assert objects.use().seconds == 3.0


def lost(kernel: Kernel, source: str, seconds: float) -> Objects:
    """A build of all that has changed, in which one compiler still ran at its end."""
    objects, _ = kernel.begin()
    step = next(step for step in objects.restore() if step.inputs[0] == f"kernel/{source}")
    objects.ended(EndedCommand(step.output, seconds, 10**6, lost=True))
    objects.finish(10**9)
    return objects


def test_what_was_lost_goes_last_and_takes_as_long_at_least(kernel: Kernel) -> None:
    for source in ALL:
        put(kernel.place / source, (kernel.place / source).read_text() + "// changed\n")
    objects = lost(kernel, "csrc/b.cpp", 470.0)
    assert sorted(objects.left().values()) == [0.0, 0.0, 470.0]
    assert objects.done() == 0
    for source in ("csrc/a.cpp", "csrc/c.cpp"):
        objects = lost(kernel, source, 30.0)
    objects, _ = kernel.begin()
    steps = objects.restore()
    assert steps[-1].inputs[0] == "kernel/csrc/b.cpp"
    assert [objects.cost(step) for step in steps] == [(30.0, 10**6), (30.0, 10**6), (470.0, 10**6)]
    assert objects.needs()[steps[-1].output].seconds == 470.0
    assert kernel.compile() == ALL
    put(kernel.place / "csrc" / "b.cpp", "int other;\n")
    objects, _ = kernel.begin()
    assert [objects.cost(step) for step in objects.restore()] == [(1.5, 10**6)], "it was compiled since"


def out_of_time(kernel: Kernel, had: float, others: float, *, made: bool = False) -> KciError:
    """Why a build of 480 seconds ended in which one object had some of them, and two others before."""
    for source in ALL:
        put(kernel.place / source, (kernel.place / source).read_text() + "// changed\n")
    for source in ("csrc/a.cpp", "csrc/c.cpp") if others else ():
        lost(kernel, source, others)
    objects = lost(kernel, "csrc/b.cpp", had)
    if made:
        objects._reads["made"] = ()
    return failures.out_of_time(kernel.request(), kernel.begin()[1], objects, 480.0)


@pytest.mark.rule("KCI515", triggers=True)
def test_an_object_that_does_not_fit_is_named(kernel: Kernel) -> None:
    error = out_of_time(kernel, 470.0, 470.0)
    assert (error.exit_code, [item.rule for item in error.diagnostics]) == (4, ["KCI515"])
    assert "csrc/b.cpp had 7.8 minutes, and was not done; 2 other objects did not fit either" in str(error)
    assert "--stop-after" in error.hint


@pytest.mark.rule("KCI515", triggers=False)
@pytest.mark.parametrize(
    ("had", "others", "made"),
    [(470.0, 0.0, False), (470.0, 470.0, True), (200.0, 470.0, False)],
    ids=["others are left", "one was made", "it began late"],
)
def test_others_go_on_as_long_as_there_is_hope(had: float, others: float, made: bool, kernel: Kernel) -> None:
    error = out_of_time(kernel, had, others, made=made)
    assert isinstance(error, UnfinishedBuildError)
    assert ("begins with others" in error.hint) is not made


def test_what_an_object_took_is_what_it_is_expected_to_take(kernel: Kernel) -> None:
    (kernel.place / "csrc" / "a.cpp").write_text("int changed;\n")
    needs = kernel.begin()[0].needs()
    assert {need.what for need in needs.values()} == ALL
    assert {(need.memory, need.seconds, need.measured) for need in needs.values()} == {(10**6, 1.5, True)}

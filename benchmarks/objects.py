"""What kci does about objects, beside what is done with them anyway, measured in the same run.

    finding an object that is kept (400, each of which read 900 files)       at most 5 ms
    keeping one that was compiled                                            at most 5 ms
    the same of objects that read 5300 files, as torch's C++ interface has   said, without a bound
    taking 400 objects of 1 MB out of a pack and putting them in place       at most 1.5 times tar -x
    a build in which one of the 400 changed, before anything is compiled     beside ninja's own no-op

No compiler runs: the objects are random bytes, and their dependency files name files that are there. With --check the
script fails when a bound is passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kci.builders import native
from kci.builders.build import Request
from kci.builders.object_packs import PackHead, pack_objects, unpack_objects
from kci.builders.object_store import ObjectStore
from kci.builders.objects import Objects
from kci.builders.recipe import Recipe
from kci.builders.request import BuildOptions
from kci.builders.visible_files import VisibleFiles
from kci.config.reader import read_kernel
from kci.inputs.stat_cache import StatCache
from kci.matrix.names import Kind, this_system
from kci.matrix.variants import Variant
from kci.processes.process import silent
from kci.processes.running_commands import EndedCommand

OBJECTS, READ, READ_OF_TORCH, MEGABYTES = 400, 900, 5300, 1
BOOKKEEPING_MS, RESTORING = 5.0, 1.5


class Work:
    """A kernel of many sources, each of which reads the same headers."""

    def __init__(self, place: Path, headers: int) -> None:
        kernel = place / "kernel"
        names = [f"csrc/{number:03}.cpp" for number in range(OBJECTS)]
        for name in (*names, "torch-ext/many/__init__.py"):
            (kernel / name).parent.mkdir(parents=True, exist_ok=True)
            (kernel / name).write_text(f"// {name}\n")
        listed = ", ".join(f'"{name}"' for name in names)
        general = '[general]\nname = "many"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
        component = '[torch]\nsrc = []\nstable-abi = "2.11"\n[kernel.cpu]\nbackend = "cpu"\ndepends = ["torch"]\n'
        (kernel / "build.toml").write_text(f"{general}{component}src = [{listed}]\n")
        include = place / "include"
        include.mkdir()
        for number in range(headers):
            (include / f"header_{number:04}.h").write_text(f"// a header {number}\n" * 40)
        self.read = " ".join(str(path) for path in sorted(include.iterdir()))
        name = f"torch-stable-abi211-cpu-{this_system()}"
        variant = Variant(
            name, Kind.STABLE_ABI, "cpu", this_system(), torch="2.13", compute=None, stable_abi="2.11", tvm_ffi=None,
            archs=None, bundled=True,
        )  # fmt: skip
        build = read_kernel(kernel).build
        self.request = Request(
            kernel, build, variant, "_many_cpu_1a2b3c4", place / "out", BuildOptions(place / "cache")
        )

    def begin(self, *stores: ObjectStore) -> tuple[Objects, Recipe]:
        """A build begins, with its work directory written."""
        recipe = native.plan(self.request, silent)
        visible = VisibleFiles(self.request)
        native._prepare(recipe, visible)
        cache = self.request.options.cache
        stores = stores or (ObjectStore(cache / native.OBJECTS),)
        remembered = StatCache(Path("/"), cache / "inputs")
        return Objects(recipe, visible, stores, remembered, silent), recipe

    def compile(self, objects: Objects, recipe: Recipe, size: int) -> float:
        """As if every compiler had run; the seconds of keeping what each made."""
        total = 0.0
        for step in objects.restore():
            made = recipe.work / step.output
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(os.urandom(size))
            made.with_name(f"{made.name}.d").write_text(f"{step.output}: {step.inputs[0]} {self.read}\n")
            total += timed(lambda output=step.output: objects.ended(EndedCommand(output, 60.0, 10**9)))
        return total + timed(objects.complete) + timed(objects.linked) + timed(lambda: objects.finish(10**10))


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def bookkeeping(place: Path, headers: int) -> tuple[float, float]:
    """Milliseconds of keeping one object and of finding it, when nothing is in memory and everything on the disk."""
    work = Work(place, headers)
    kept = work.compile(*work.begin(), size=2**14)
    objects, _ = work.begin()
    found = timed(objects.restore)
    assert len(objects.found) == OBJECTS
    return 1000 * kept / OBJECTS, 1000 * found / OBJECTS


def restoring(place: Path) -> float:
    """Seconds of unpacking and putting in place, in relation to `tar -x` of the same pack."""
    work = Work(place, READ)
    objects, recipe = work.begin()
    work.compile(objects, recipe, size=MEGABYTES * 2**20)
    head = PackHead(kernel="many", variant="v", objects=OBJECTS, wanted=OBJECTS)
    pack = pack_objects(objects.packed(), head, place / "objects.tar")
    best: dict[str, float] = {}
    for _ in range(3):
        plain, given = place / "plain", place / "given"
        for folder in (plain, given, recipe.work):
            shutil.rmtree(folder, ignore_errors=True)
        plain.mkdir()
        store = ObjectStore(given)
        os.sync()  # what others wrote before does not slow this down
        started = time.perf_counter()
        subprocess.run(["tar", "xf", pack, "-C", plain], check=True)
        tar = time.perf_counter() - started
        os.sync()
        started = time.perf_counter()
        unpack_objects(pack, store, silent)
        unpack = time.perf_counter() - started
        objects, _ = work.begin(store)
        kci = unpack + timed(objects.restore)
        assert len(objects.found) == OBJECTS
        for name, seconds in (("tar", tar), ("kci", kci)):
            best[name] = min(best.get(name, seconds), seconds)
    print(f"  tar -x {best['tar']:.2f} s, kci {best['kci']:.2f} s")
    return best["kci"] / best["tar"]


def one_changed(place: Path) -> tuple[float, float]:
    """Seconds until ninja would start with one of 400 objects to compile, and ninja's own for nothing to do."""
    work = Work(place, READ)
    objects, recipe = work.begin()
    work.compile(objects, recipe, size=2**14)
    rules = ["rule make", "  command = touch $out", "  depfile = $out.d"]
    rules += [f"build {step.output}: make {step.inputs[0]}" for step in recipe.steps if step.depfile]
    (recipe.work / "build.ninja").write_text("\n".join([*rules, ""]))
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    nothing = 0.0
    if ninja:
        for _ in range(2):
            nothing = timed(lambda: subprocess.run([ninja, "-C", recipe.work], check=True, capture_output=True))
    (work.request.kernel_dir / "csrc" / "007.cpp").write_text("// changed\n")
    objects, _ = work.begin()
    took = timed(objects.restore)
    assert len(objects.found) == OBJECTS - 1
    return took, nothing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when a bound is passed")
    parser.add_argument("--place", help="where to work; the file system matters")
    asked = parser.parse_args()
    os.environ["KCI_COMPILER_CACHE"] = "off"
    failures = []
    with tempfile.TemporaryDirectory(prefix="kci-benchmark-", dir=asked.place) as folder:
        for headers, bound in ((READ, BOOKKEEPING_MS), (READ_OF_TORCH, None)):
            (Path(folder) / str(headers)).mkdir()
            kept, found = bookkeeping(Path(folder) / str(headers), headers)
            print(f"{headers} files read: keeping {kept:.2f} ms an object, finding {found:.2f} ms")
            if bound is not None and max(kept, found) > bound:
                failures.append(f"bookkeeping takes more than {bound} ms")
        (Path(folder) / "restoring").mkdir()
        if (ratio := restoring(Path(folder) / "restoring")) > RESTORING:
            failures.append(f"restoring takes more than {RESTORING} times tar -x")
        print(f"restoring {OBJECTS} objects: {ratio:.2f} times tar -x")
        (Path(folder) / "changed").mkdir()
        took, nothing = one_changed(Path(folder) / "changed")
        print(f"one of {OBJECTS} changed: {took:.2f} s; ninja finds nothing to do in {nothing:.2f} s")
    for failure in failures:
        print(f"over the bound: {failure}")
    return 1 if failures and asked.check else 0


if __name__ == "__main__":
    sys.exit(main())

"""A record that came back: what is about these files, agrees with itself and passed counts, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from buildkit import write_tree
from cli.runner import Result, kci
from kci.ci.hardware_records import digest_of_tests, read_test_record
from kci.ci.run_records import KernelRecord, TestedVariant, TestRecord
from kci.ci.tree_index import NO_PLAN, RunUploads
from kci.files.bounded_json import read_json
from kci.plan.hardware_tests import tree_under_test
from kci.plan.plan import TestLeg
from kci.run import kernel_tests
from kci.run.kernel_tests import TestState, Workload
from kci.tree.manifest import Manifest, Origin, Present
from kci.verify.load_rules import LoaderEnvironment
from run.cuda_python import python_with_cuda
from run.test_hardware_pack import BUILD_TOML
from variants import CUDA, SOURCE, make_variant, variant_digest

ARM = "torch213-cxx11-cpu-aarch64-linux"
OTHER = "torch-stable-abi211-cu130-x86_64-linux"
H100 = LoaderEnvironment(
    torch="2.13.0", cuda="13.0", backend="cuda", system="x86_64-linux", device="NVIDIA H100", arch="9.0", driver="580.1"
)


class Day:
    """A kernel, what was built of it, and the record that a machine gave back."""

    def __init__(self, folder: Path, variant: str = CUDA) -> None:
        self.folder = folder
        self.kernel = write_tree(folder / "kernel", {"build.toml": BUILD_TOML, "tests/test_a.py": "# one\n"})
        self.variant = make_variant(folder / "tree", variant, archs=("8.0", "9.0") if variant == CUDA else None)
        self.tested = TestedVariant(
            variant=variant,
            digest=variant_digest(self.variant),
            state=TestState.PASSED,
            passed=3,
            workloads=(Workload("Norm.a", 0.1, 0.09, 50, True),),
        )
        self.record = TestRecord(
            kernel="gated-norm",
            leg="test",
            attempt=1,
            passed=True,
            tested=(variant,),
            machine=H100,
            variants=(self.tested,),
            tests=digest_of_tests(self.kernel),
            at="2026-11-20T10:00:00+00:00",
        )

    def check(self, *words: str | Path, one: dict[str, Any] | None = None, **changes: Any) -> Result:
        record = msgspec.structs.replace(self.record, **changes)
        if one is not None:
            changed = msgspec.structs.replace(self.tested, **one)
            record = msgspec.structs.replace(record, variants=(changed,))
        (self.folder / "record.json").write_bytes(msgspec.json.encode(record))
        return self.check_file(*words)

    def check_file(self, *words: str | Path) -> Result:
        tree = self.folder / "tree"
        return kci("test", self.kernel, "--tree", tree, "--check", self.folder / "record.json", *words)


@pytest.fixture
def day(tmp_path: Path) -> Day:
    return Day(tmp_path)


@pytest.mark.rule("KCI784", "KCI785", "KCI786", "KCI787", "KCI788", "KCI789", triggers=False)
def test_a_good_record_counts_and_is_what_the_gate_reads(day: Day, tmp_path: Path) -> None:
    done = day.check("--record", tmp_path / "kci-test.json")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0] == "NVIDIA H100, 9.0, driver 580.1, torch 2.13.0, 2026-11-20T10:00:00+00:00"
    assert done.stdout.splitlines()[-1].split() == [CUDA, "passed", "3", "1"]
    counted = read_json(tmp_path / "kci-test.json", TestRecord)
    assert (counted.leg, counted.passed) == ("cuda-x86_64-linux", True)
    assert counted.tree == tree_under_test({CUDA: variant_digest(day.variant)}, [CUDA])


def test_the_gate_takes_it_for_the_test_of_that_machine(day: Day, tmp_path: Path) -> None:
    """Of the very tree that the run has merged; a record that is refused leaves it untested."""
    leg = TestLeg("gated-norm", ".", "cuda-x86_64-linux", "cuda", "x86_64-linux", (CUDA,), ("a",), 60)
    present = Present(CUDA, variant_digest(day.variant), "cuda", Origin("a"))
    merged = KernelRecord(
        kernel="gated-norm", attempt=1, complete=True, manifest=Manifest("gated-norm", 1, None, (present,), (), True)
    )
    plan = msgspec.structs.replace(NO_PLAN, tests=(leg,))
    key, untested = ("gated-norm", leg.name), []
    for changes in ({}, {"error": "edited"}):
        day.check("--record", tmp_path / "kci-test.json", **changes)
        counted = read_json(tmp_path / "kci-test.json", TestRecord)
        untested.append(RunUploads(plan, {"gated-norm": merged}, {key: counted}).untested())
    assert untested == [{}, {key: "it says that it passed, and has an error"}]


def refused(done: Result, rule: str, said: str) -> None:
    assert done.code == 1
    assert f"error[{rule}]" in done.stderr
    assert said in done.stderr
    assert done.stdout == "", "nothing of it is shown as if it counted"
    assert "Traceback" not in done.stderr


@pytest.mark.rule("KCI784", triggers=True)
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "is not the record of a test"),
        (b"[" * 100_000, "is not the record of a test"),
        (b'{"kernel": "../x", "leg": "a", "attempt": 1, "passed": true}', "is not the record of a test"),
        (b" " * 2_000_000, "larger than 1024 KiB"),
        (b'{"kernel": "gated-norm", "leg": "a", "attempt": 1, "passed": true}', "does not say on which machine"),
        (b'{"schema": 2, "kernel": "gated-norm", "leg": "a", "attempt": 1, "passed": true}', "schema 2"),
    ],
)
def test_a_file_that_is_none(day: Day, data: bytes, said: str) -> None:
    (day.folder / "record.json").write_bytes(data)
    refused(day.check_file(), "KCI784", said)


@pytest.mark.rule("KCI784", triggers=True)
def test_a_file_that_is_not_there_or_a_link(day: Day) -> None:
    refused(day.check_file(), "KCI784", "cannot read")
    (day.folder / "record.json").symlink_to("/etc/passwd")
    refused(day.check_file(), "KCI784", "is a link")


@pytest.mark.rule("KCI785", triggers=True)
@pytest.mark.parametrize(
    ("changes", "tested", "said"),
    [
        ({"kernel": "other"}, {}, "it is about other, and this is gated-norm"),
        ({}, {"digest": "0" * 64}, "digest 000000000000, not "),
        ({"tested": (OTHER,)}, {"variant": OTHER}, "which is not here"),
        ({"tests": "0" * 64}, {}, "with other tests or benchmarks"),
        ({"tests": ""}, {}, "with other tests or benchmarks"),
    ],
    ids=["kernel", "digest", "variant", "tests", "no tests"],
)
def test_a_record_of_something_else(day: Day, changes: dict[str, Any], tested: dict[str, Any], said: str) -> None:
    refused(day.check(one=tested, **changes), "KCI785", said)


@pytest.mark.rule("KCI785", triggers=True)
def test_a_record_of_another_commit(day: Day, tmp_path: Path) -> None:
    """Every other file is the same: metadata.json names the commit."""
    source = msgspec.structs.replace(SOURCE, commit="b" * 40)
    other = make_variant(tmp_path / "again", CUDA, archs=("8.0", "9.0"), source=source)
    day.variant.rename(tmp_path / "away")
    other.rename(day.variant)
    refused(day.check(), "KCI785", "it is about another ")


MACHINES = {
    "of another backend": ({"backend": "cpu", "cuda": ""}, "it needs the backend cuda 13.0"),
    "with another torch": ({"torch": "2.12.0"}, "it needs torch 2.13"),
    "with an older CUDA": ({"cuda": "12.6"}, "CUDA 13.0"),
    "of another system": ({"system": "aarch64-linux"}, "a x86_64-linux machine"),
    "without a device": ({"device": ""}, "the machine names no device"),
    "that is too old": ({"arch": "7.5"}, "has code for 8.0, 9.0, and the machine is 7.5"),
    "of another generation": ({"arch": "10.0"}, "has code for 8.0, 9.0, and the machine is 10.0"),
    "of no arch": ({"arch": ""}, "of no known arch"),
}


@pytest.mark.rule("KCI786", triggers=True)
@pytest.mark.parametrize("kind", MACHINES)
def test_a_machine_that_could_not_have_run_it(day: Day, kind: str) -> None:
    changes, said = MACHINES[kind]
    refused(day.check(machine=msgspec.structs.replace(H100, **changes)), "KCI786", said)


@pytest.mark.rule("KCI786", triggers=False)
@pytest.mark.parametrize(
    ("archs", "arch"), [(("8.0+PTX",), "12.0"), (("9.0a",), "9.0"), (("8.0",), "8.9"), (("7.5", "8.0"), "8.0")]
)
def test_a_machine_that_runs_it(tmp_path: Path, archs: tuple[str, ...], arch: str) -> None:
    day = Day(tmp_path / "day")
    make_variant(tmp_path / "again", CUDA, archs=archs).joinpath("metadata.json").replace(day.variant / "metadata.json")
    tested = {"digest": variant_digest(day.variant)}
    done = day.check(machine=msgspec.structs.replace(H100, arch=arch), one=tested)
    assert done.code == 0, done.stderr


@pytest.mark.rule("KCI786", triggers=True)
@pytest.mark.parametrize(
    ("changes", "tested", "said"),
    [
        ({"error": "it failed"}, {}, "it says that it passed, and has an error"),
        ({"tested": ()}, {}, "its lists of variants do not agree"),
        ({}, {"failed": 1}, "with 3 tests passed and 1 failed"),
        ({}, {"passed": 0}, "with 0 tests passed"),
        ({"at": "2999-01-01T00:00:00+00:00"}, {}, "is not a time that has passed"),
        ({"at": "yesterday"}, {}, "is not a time that has passed"),
        ({"at": "2026-01-01T00:00:00"}, {}, "is not a time that has passed"),
    ],
)
def test_an_edited_record(day: Day, changes: dict[str, Any], tested: dict[str, Any], said: str) -> None:
    refused(day.check(one=tested, **changes), "KCI786", said)


@pytest.mark.rule("KCI787", triggers=True)
@pytest.mark.parametrize(
    ("changes", "tested", "said"),
    [
        ({"passed": False, "error": "assert 3 == 4"}, {"state": TestState.FAILED, "failed": 1}, "assert 3 == 4"),
        ({"passed": False, "error": "x"}, {"state": TestState.NOTHING_RAN}, f"{CUDA}: nothing ran"),
        ({"tested": ()}, {"state": TestState.NOT_RUN}, f"{CUDA}: not run"),
        ({}, {"workloads": (Workload("Norm.a", 1, 1, 1, False),)}, "the numbers of Norm.a are not torch's"),
        ({"variants": (), "tested": ()}, None, "nothing was tested"),
    ],
    ids=["failed", "nothing ran", "could not look", "numbers", "empty"],
)
def test_what_did_not_pass(
    day: Day, changes: dict[str, Any], tested: dict[str, Any] | None, said: str, tmp_path: Path
) -> None:
    done = day.check("--record", tmp_path / "kci-test.json", one=tested, **changes)
    refused(done, "KCI787", said)
    assert not read_json(tmp_path / "kci-test.json", TestRecord).passed


@pytest.mark.rule("KCI789", triggers=True)
def test_variants_without_a_record_are_named(day: Day, tmp_path: Path) -> None:
    make_variant(tmp_path / "tree", OTHER, archs=("9.0",))
    make_variant(tmp_path / "tree", "torch213-cxx11-cpu-x86_64-linux")
    done = day.check()
    assert done.code == 0
    assert f"{OTHER}: no record says that it was tested" in done.stderr
    assert "cpu" not in done.stderr


@pytest.mark.rule("KCI787", triggers=True)
@pytest.mark.parametrize(
    ("instead", "said"), [('"cuda"', "needs torch 2.13"), ('"cpu"', "needs an NVIDIA GPU")], ids=["torch", "no GPU"]
)
def test_a_machine_that_cannot_run_it_leaves_a_record_that_does_not_count(
    day: Day, instead: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another torch, or without a GPU: what could not be looked at has not passed."""
    monkeypatch.setattr(kernel_tests, "has_device", lambda _: False)
    path, tree = day.folder / "record.json", day.folder / "tree"
    python = python_with_cuda(day.folder)  # torch 2.14; the variant is for 2.13
    python.write_text(python.read_text().replace('"backend": "cuda"', f'"backend": {instead}'))
    made = kci("test", day.kernel, "--tree", tree, "--python", python, "--benchmark", "--record", path)
    assert made.code == 3
    record = read_json(path, TestRecord)
    assert (record.passed, record.machine is not None) == (False, True)
    refused(day.check_file(), "KCI787", said)


def publish(day: Day, *records: Path) -> Result:
    words = [word for record in records for word in ("--tested", record)]
    return kci("publish", day.kernel, "--tree", day.folder / "tree", "--dry-run", *words)


@pytest.mark.rule("KCI785", "KCI789", triggers=True)
def test_publishing_wants_a_record_of_all_of_a_kind(day: Day, tmp_path: Path) -> None:
    assert day.check().code == 0
    good = tmp_path / "record.json"
    passed = publish(day, good)
    assert "not all of it was tested" not in passed.stderr, "what is wrong then is another thing: it has no manifest"
    make_variant(tmp_path / "tree", OTHER, archs=("9.0",))
    left = publish(day, good)
    assert (left.code, f"{OTHER}: no record says that it was tested" in left.stderr) == (1, True)
    edited = tmp_path / "edited.json"
    edited.write_bytes(good.read_bytes().replace(day.tested.digest.encode(), b"0" * 64))
    refused(publish(day, edited), "KCI785", "it is about another ")
    nameless = kci("publish", tmp_path / "tree", "--dry-run", "--tested", good)
    assert (nameless.code, "--tested needs the kernel's tests" in nameless.stderr) == (2, True)


def test_what_a_hostile_record_says_drives_no_terminal(day: Day) -> None:
    machine = msgspec.structs.replace(H100, device="NVIDIA\x1b[2J\n::error::H100")
    done = day.check(machine=machine)
    assert "\x1b[2J" not in done.stdout + done.stderr
    assert "\n::error::" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "hardware").glob("*.json")), ids=lambda path: path.stem
)
def test_the_records_that_are_kept_are_the_cpus(path: Path) -> None:
    """Of archives that ran in an empty root without a network: docs/hardware.md says that no GPU was there."""
    record = read_test_record(path)
    assert record.machine is not None
    assert (record.machine.backend, record.machine.arch, record.machine.driver) == ("cpu", "", "")
    (one,) = record.variants
    assert record.passed
    assert (one.state, one.failed) == (TestState.PASSED, 0)
    assert "-cpu-" in one.variant
    assert all(work.verified for work in one.workloads)

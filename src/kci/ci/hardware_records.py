"""A record that came back from a machine with the hardware, held against what was built here.

Whoever has the file can have written it, so it is read as data: it counts for the very files and tests that it
names, if it agrees with itself. Nothing shows that the machine is the one that it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kci.ci.run_records import TestedVariant, TestRecord
from kci.diagnostics import Diagnostic, finding
from kci.errors import one_line, rule_error
from kci.files.bounded_json import read_record
from kci.files.walk import is_own
from kci.matrix.names import VariantName, parse_variant_name
from kci.run.kernel_tests import TestState
from kci.tree.digest import directory_digest, file_hashes
from kci.tree.leg_record import SealedVariant
from kci.verify.load_rules import LoaderEnvironment, unfit

_MOST_BYTES = 1024 * 1024


class BuiltHere(msgspec.Struct, frozen=True):
    """What a record has to be about."""

    kernel: str
    variants: Mapping[str, SealedVariant]
    tests: str
    """`digest_of_tests` of the kernel."""


def digest_of_tests(kernel_dir: Path) -> str:
    """A hash of the files in `tests/` and `benchmarks/` of a kernel."""
    folders = [kernel_dir / part for part in ("benchmarks", "tests") if (kernel_dir / part).is_dir()]
    hashes = {f"{folder.name}/{name}": value for folder in folders for name, value in file_hashes(folder).items()}
    return directory_digest({name: value for name, value in hashes.items() if is_own(name)})


def read_test_record(path: Path) -> TestRecord:
    """A record that came back. Raises FindingsError: it cannot be read, or is none (KCI784)."""
    try:
        record = read_record(path, TestRecord, _MOST_BYTES)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not the record of a test: {one_line(str(error))}"
    else:
        if record.machine is not None:
            return record
        message = f"{path} does not say on which machine it was made" + (record.error and f": {one_line(record.error)}")
    raise rule_error(
        "KCI784", message, hint="`run.py` of the archive makes one, and `kci test --record`", path=str(path)
    )


def judge_record(record: TestRecord, here: BuiltHere, path: Path) -> list[Diagnostic]:
    """What is wrong with a record: nothing if it is about what is here, agrees with itself, and everything passed."""
    found = [*_other_things(record, here), *_contradictions(record, here), *_failures(record)]
    return [finding(rule, one_line(message), path=str(path)) for rule, message in found]


def without_record(record: TestRecord, here: BuiltHere) -> list[str]:
    """The variants for the backends of a record that it says nothing of."""
    told = {item.variant for item in record.variants}
    kinds = {(name.backend, name.system) for name in map(parse_variant_name, told & here.variants.keys())}
    names = {name: parse_variant_name(name) for name in here.variants.keys() - told}
    return sorted(name for name, parsed in names.items() if (parsed.backend, parsed.system) in kinds)


def _other_things(record: TestRecord, here: BuiltHere) -> Iterator[tuple[str, str]]:
    if record.kernel != here.kernel:
        yield "KCI785", f"it is about {record.kernel}, and this is {here.kernel}"
        return
    if record.tests != here.tests:
        yield "KCI785", f"it was made with other tests or benchmarks than {here.kernel} has"
    for item in record.variants:
        sealed = here.variants.get(item.variant)
        if sealed is None:
            yield "KCI785", f"it is about {item.variant}, which is not here"
        elif sealed.digest != item.digest:
            yield "KCI785", f"it is about another {item.variant}: digest {item.digest[:12]}, not {sealed.digest[:12]}"


def _contradictions(record: TestRecord, here: BuiltHere) -> Iterator[tuple[str, str]]:
    names = [item.variant for item in record.variants]
    tested = {item.variant for item in record.variants if item.state is not TestState.NOT_RUN}
    if len(names) != len(set(names)) or tested != set(record.tested):
        yield "KCI786", "its lists of variants do not agree"
    if record.passed != (not record.error):
        yield "KCI786", "it says that it passed, and has an error" if record.passed else "it failed without an error"
    if not _is_past(record.at):
        yield "KCI786", f"{record.at!r} is not a time that has passed"
    machine = record.machine
    for item in record.variants:
        if item.state is TestState.PASSED and (not item.passed or item.failed):
            yield "KCI786", f"{item.variant} passed, with {item.passed} tests passed and {item.failed} failed"
        name = _parsed(item.variant)
        if name is None:
            yield "KCI786", f"{item.variant!r} is no name of a variant"
            continue
        if machine is None:
            continue
        backend = machine.backend if name.backend in ("cpu", "universal") else name.backend
        reason = unfit(name, machine)
        if item.state is TestState.PASSED and (reason or machine.backend != backend or not machine.device):
            reason = reason or f"it needs {name.backend}; the machine names {machine.device or 'no device'}"
            yield "KCI786", f"{item.variant} cannot have passed there: {reason}"
        sealed = here.variants.get(item.variant)
        if sealed is not None and not _runs(machine, name.backend, sealed.metadata.backend.archs):
            archs = ", ".join(sealed.metadata.backend.archs or ())
            yield (
                "KCI786",
                f"{item.variant} has code for {archs}, and the machine is {machine.arch or 'of no known arch'}",
            )


def _failures(record: TestRecord) -> Iterator[tuple[str, str]]:
    if not record.passed:
        yield "KCI787", f"it did not pass: {record.error}"
    for item in record.variants:
        if item.state is not TestState.PASSED:
            yield "KCI787", f"{item.variant}: {item.state}"
        yield from (("KCI787", f"{item.variant}: the numbers of {name} are not torch's") for name in _wrong(item))
    if not record.variants:
        yield "KCI787", "nothing was tested"


def _wrong(item: TestedVariant) -> list[str]:
    return [workload.name for workload in item.workloads if workload.verified is False]


def _parsed(variant: str) -> VariantName | None:
    try:
        return parse_variant_name(variant)
    except ValueError:
        return None


def _is_past(text: str) -> bool:
    try:
        return datetime.fromisoformat(text) <= datetime.now(UTC)
    except (TypeError, ValueError):
        return False


def _runs(machine: LoaderEnvironment, backend: str, archs: tuple[str, ...] | None) -> bool:
    """Whether a GPU runs code for one of some archs: its own, an older minor one's, or any older one's PTX."""
    if backend not in ("cuda", "rocm") or archs is None:
        return True
    if backend == "rocm":
        return machine.arch in archs
    own = _number(machine.arch)
    return any(
        (arch.endswith("+PTX") and _number(arch) <= own)
        or (_number(arch)[:1] == own[:1] and (_number(arch) == own if "a" in arch else _number(arch) <= own))
        for arch in archs
    )


def _number(arch: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall("[0-9]{1,4}", arch)[:2]))

"""`kci run --engine --test`: the legs that test merged trees where there is the hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kci.ci.run_records import TEST_FILE
from kci.config.engine_settings import EngineSettings
from kci.matrix.names import parse_variant_name
from kci.matrix.variants import Matrix
from kci.plan.plan import Leg
from kci.remote.engine_choice import need_of
from kci.remote.job import EngineJob, HardwareNeed, InputFile

MINUTES = 10
"""What testing a tree on one kind of hardware takes, roughly."""
TIMEOUT = 60
"""When it is given up, unless a limit of the kernel or backend says otherwise: as the plan's own tests."""


class TestGroup(msgspec.Struct, frozen=True):
    """Variants of a kernel that need the same hardware."""

    __test__ = False  # pytest would take it for a test

    leg: Leg
    """As a leg of a plan; its image is that of the variants."""
    need: HardwareNeed


def group_tests(matrix: Matrix, built: Iterable[Leg], timeouts: Mapping[tuple[str, str], int]) -> list[TestGroup]:
    """What there is to test once these legs have built.

    Args:
        matrix: with the archs of each variant.
        built: the legs.
        timeouts: in minutes, by kernel and backend, where a limit says so.
    """
    archs = {(kernel.name, item.name): item.archs for kernel in matrix.kernels for item in kernel.variants}
    grouped: dict[tuple[str, str, HardwareNeed], list[tuple[str, Leg]]] = {}
    for leg in built:
        for variant in leg.variants:
            name = parse_variant_name(variant)
            need = need_of(name.backend, archs.get((leg.kernel, variant)))
            grouped.setdefault((leg.kernel, name.system or "", need), []).append((variant, leg))
    found: list[TestGroup] = []
    for (kernel, system, need), members in sorted(grouped.items(), key=lambda item: (item[0][:2], str(item[0][2]))):
        same = sum(item.leg.kernel == kernel and item.need.backend == need.backend for item in found)
        first = members[0][1]
        leg = msgspec.structs.replace(
            first,
            name=f"test-{need.backend}" + (f"-{same + 1}" if same else ""),
            variants=tuple(sorted(variant for variant, _ in members)),
            backend=need.backend,
            system=system,
            minutes=MINUTES,
            timeout=timeouts.get((kernel, need.backend), TIMEOUT),
        )
        found.append(TestGroup(leg, need))
    return found


def test_words(engine: EngineSettings, need: HardwareNeed) -> list[str]:
    """The options of `kci test` that say where the tree is, where its record goes, and which Python is used."""
    python = engine.test_python or (None if need.backend == "cpu" else "python3")
    return ["--tree", "{work}/tree", "--record", f"{{out}}/{TEST_FILE}", *(["--python", python] if python else [])]


def with_tree(job: EngineJob, tree: InputFile, variants: Iterable[str]) -> EngineJob:
    """The job of a leg that tests, once it is known what was built."""
    words = [word for name in variants for word in ("--variant", name)]
    return msgspec.structs.replace(job, command=(*job.command, *words), inputs=(*job.inputs, tree))

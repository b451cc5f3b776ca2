"""The limits of control groups, of both kinds, as the files of the system tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from kci.builders.process import machine
from kci.builders.process.machine import cpu_limit, job_count, memory_limit, pool_depth

GIB = 2**30


def limits(tmp_path: Path, membership: str, **files: str) -> tuple[int | None, float | None]:
    root = write_tree(tmp_path, {"membership": membership})
    write_tree(root / "mount", files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_MEMBERSHIP", root / "membership")
        patch.setattr(machine, "_MOUNT", root / "mount")
        return memory_limit(), cpu_limit()


def test_the_tightest_of_a_group_and_those_above_it_holds(tmp_path: Path) -> None:
    files = {
        "job/step/memory.max": "max\n",
        "job/memory.max": f"{8 * GIB}\n",
        "memory.max": f"{64 * GIB}\n",
        "job/step/cpu.max": "150000 100000\n",
        "job/cpu.max": "max 100000\n",
    }
    assert limits(tmp_path, "0::/job/step\n", **files) == (8 * GIB, 1.5)


def test_a_container_that_is_named_as_the_host_sees_it(tmp_path: Path) -> None:
    files = {"memory.max": f"{2 * GIB}\n", "cpu.max": "200000 100000\n"}
    assert limits(tmp_path, "0::/system.slice/docker-1a2b.scope\n", **files) == (2 * GIB, 2.0)


def test_the_older_kind(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    }
    membership = "8:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n"
    assert limits(tmp_path, membership, **files) == (4 * GIB, 3.0)


@pytest.mark.parametrize("membership", ["", "0::/\n", "no\nsense:", "4:memory:/x\n0::/y"])
def test_no_limit_is_none(tmp_path: Path, membership: str) -> None:
    files = {"memory.max": "max\n", "cpu.max": "max 100000\n"}
    assert limits(tmp_path, membership, **files) == (None, None)


def test_compilers_keep_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_JOBS", "NVCC_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    sizes = {"SC_PHYS_PAGES": 64 * GIB // 4096}
    monkeypatch.setattr("os.sysconf", lambda name: sizes.get(name, 4096))
    monkeypatch.setattr(machine, "memory_limit", lambda: 8 * GIB)
    monkeypatch.setattr(machine, "cpu_limit", lambda: None)
    assert (job_count(None), pool_depth(None, "cpu"), pool_depth(None, "cuda")) == (16, 4, 2)
    monkeypatch.setattr(machine, "cpu_limit", lambda: 1.5)
    assert job_count(None) == 2
    monkeypatch.setattr(machine, "memory_limit", lambda: GIB // 2)
    assert pool_depth(None, "cpu") == 1

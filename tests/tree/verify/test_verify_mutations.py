"""Mutated archives and trees: a finding or an error that names it, never a traceback, a hang or a
stray file.

`KCI_MUTATIONS` sets how many archives are tried, and a quarter as many trees.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kci.errors import KciError
from kci.tree.merge import merge
from kci.utils import cache as caching
from variants import CPU, STABLE, make_artifact, make_variant

ARCHIVES = int(os.environ.get("KCI_MUTATIONS", "400"))
"""Far more than any of them takes; a hang is longer."""

FILES: dict[str, str | bytes] = {
    "__init__.py": "from ._ops import ops\nfrom . import layers\n",
    "_ops.py": "import torch\nops = torch.ops._gated_norm_cpu_1a2b3c4\n",
    "layers.py": "import torch\nclass A(torch.nn.Module):\n    def forward(self, x): return x\n",
    "d/x.json": "{}",
}


def mutated(data: bytes, random_: random.Random) -> bytes:
    content = bytearray(data)
    for _ in range(random_.choice([1, 1, 2, 4, 16])):
        if not content:
            break
        place = random_.randrange(len(content))
        match random_.randrange(6):
            case 0:
                content[place] = random_.randrange(256)
            case 1:
                del content[place:]
            case 2:
                start = random_.randrange(len(content))
                content[place:place] = content[start : start + random_.choice([1, 8, 512, 1024])]
            case 3:
                del content[place : place + random_.choice([1, 8, 512])]
            case 4:
                start = place // 512 * 512
                content[start : start + 512] = bytes(512)
            case _:
                content[min(place, 4095)] = random_.choice([0, 46, 47, 48, 55, 92, 255])
    return bytes(content)


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    return [
        make_artifact(tmp_path / "1", make_variant(tmp_path / "s1", CPU, files=FILES)),
        make_artifact(tmp_path / "2", make_variant(tmp_path / "s2", STABLE), suffix=".tar.zst"),
        make_artifact(tmp_path / "3", make_variant(tmp_path / "s3", "torch-cuda")),
    ]


def test_mutated_archives(
    tmp_path: Path, artifacts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without its record of a tree a merge need not wait for the next tick.
    monkeypatch.setattr(caching, "_FINE_TICK_NS", 0)
    random_ = random.Random(77)
    refused = 0
    for number in range(ARCHIVES):
        artifact = random_.choice(artifacts)
        work = tmp_path / "work" / str(number)
        work.mkdir(parents=True)
        (work / artifact.name).write_bytes(mutated(artifact.read_bytes(), random_))
        try:
            merge([work / artifact.name], work / "build")
        except KciError:
            refused += 1
            assert [path.name for path in work.iterdir()] == [artifact.name]
    assert refused > ARCHIVES // 2
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == [
        "1", "2", "3", "s1", "s2", "s3", "work",
    ]  # fmt: skip

"""Small variant directories for tests: sealed, and as real as a test needs them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kci.config.model import Build
from kci.config.reader import parse_kernel
from kci.matrix.variants import Kind, parse_variant_name
from kci.plan.plan import KernelPlan, Plan
from kci.tree.identity import GitState, directory_digest, file_hashes
from kci.tree.manifest import LegRecord, leg_for
from kci.tree.metadata import metadata_for, seal
from kci.tree.pack import pack

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = GitState(COMMIT, dirty=False)
CPU = "torch213-cxx11-cpu-x86_64-linux"
CUDA = "torch213-cxx11-cu130-x86_64-linux"
STABLE = "torch-stable-abi211-cpu-x86_64-linux"


def build_of(
    name: str = "gated-norm", version: int = 1, framework: str = "[torch]", general: str = ""
) -> Build:
    """A kernel for every backend that these tests use."""
    return parse_kernel(
        f'[general]\nname = "{name}"\nversion = {version}\nedition = 5\nlicense = "MIT"\n'
        f'backends = ["cpu", "cuda", "rocm", "xpu"]\n{general}\n{framework}\n'.encode()
    ).build


def make_variant(
    parent: Path,
    variant: str = CPU,
    *,
    name: str = "gated-norm",
    version: int = 1,
    unique: str = "1a2b3c4",
    files: Mapping[str, str | bytes] | None = None,
    archs: tuple[str, ...] | None = None,
    source: GitState | None = SOURCE,
    built_as: str | None = None,
    committed: int | None = None,
) -> Path:
    """Write and seal a variant directory: the files given, or a package that could be one."""
    parsed = parse_variant_name(variant)
    directory = parent / variant
    directory.mkdir(parents=True)
    build = build_of(name, version, "[torch-noarch]" if parsed.kind is Kind.NOARCH else "[torch]")
    metadata = metadata_for(
        build, parsed.backend, unique, archs=archs, provenance=source, variant=built_as or variant,
        committed=committed,
    )  # fmt: skip
    if files is None:
        library = {} if parsed.kind is Kind.NOARCH else {f"{metadata.id}.abi3.so": b"\x7fELF"}
        files = {"__init__.py": "from ._ops import ops\n", "_ops.py": "ops = None\n", **library}
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    seal(directory, metadata)
    return directory


def signature(signed: bytes, **changes: object) -> str:
    """A Sigstore bundle of the right shape, with a certificate of nobody."""
    value = base64.b64encode(hashlib.sha256(signed).digest()).decode()
    digest = {"algorithm": "SHA2_256", "digest": value}
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"certificate": {"rawBytes": "MEQ="}},
        "messageSignature": {"messageDigest": digest, "signature": "MEQ="},
    }
    return json.dumps(bundle | changes)


def variant_digest(directory: Path) -> str:
    """What a manifest says of a variant directory."""
    return directory_digest(file_hashes(directory))


def leg_of(directory: Path, **changes: object) -> LegRecord:
    """The leg of a variant directory."""
    made = leg_for(directory, system=str(changes.pop("system", "x86_64-linux")), builder="native")
    return msgspec.structs.replace(made, **changes)


def make_artifact(
    folder: Path, directory: Path, *, suffix: str = ".tar", **changes: object
) -> Path:
    """Pack a variant directory into a folder of its own, as GitHub's download lays
    artifacts out.
    """
    leg = leg_of(directory, **changes)
    name = f"kci-{leg.kernel}-{leg.variant}"
    folder.mkdir(parents=True, exist_ok=True)
    return pack(directory, folder / f"{name}{suffix}", leg)


def artifact_of(root: Path, variant: str = CPU, folder: str = "", **changes: object) -> Path:
    """An artifact of a variant that is made for it, in a folder of its own, as a download
    makes it.
    """
    keys = ("name", "version", "unique", "files", "source", "archs", "committed")
    made = {key: changes.pop(key) for key in keys if key in changes}
    where = root / (folder or f"{made.get('name', '')}{variant}{changes.get('attempt', '')}")
    return make_artifact(where, make_variant(where / "src", variant, **made), **changes)  # type: ignore[arg-type]


def tree_plan(
    *variants: str,
    kernel: str = "gated-norm",
    version: int = 1,
    commit: str | None = None,
    prints: dict[str, str] | None = None,
) -> Plan:
    """The plan of one kernel's variants."""
    return Plan(1, "release", (KernelPlan(kernel, ".", version, variants, prints),), commit=commit)

"""metadata.json: what kci writes and reads, and that it refuses whatever the loader does."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import outside_tools
from conftest import failure, only, refusal
from kci.tree import metadata
from kci.tree.identity import GitState
from kci.tree.metadata import Metadata, decode, encode, metadata_for, read_metadata, seal
from variants import COMMIT, build_of, make_variant

MINIMAL: dict[str, Any] = {
    "name": "gated-norm", "id": "_gated_norm_cpu_1a2b3c4", "version": 2, "license": "x",
    "python-depends": [], "backend": {"type": "cpu"},
}  # fmt: skip


def with_changes(**changes: Any) -> bytes:
    """The minimal file with keys replaced; `_` stands for `-`, and None removes a key."""
    data = MINIMAL | {key.replace("_", "-"): value for key, value in changes.items()}
    return json.dumps({key: value for key, value in data.items() if value is not None}).encode()


def made(backend: str, general: str = "", framework: str = "[torch]", **more: Any) -> Metadata:
    """The metadata of a variant for a backend, of such a build.toml."""
    return metadata_for(build_of(general=general, framework=framework), backend, "1a2b3c4", **more)


def written(backend: str, general: str = "") -> dict[str, Any]:
    """The file that kci writes of it."""
    return dict(json.loads(encode(made(backend, general))))


def test_the_file_has_the_reference_s_keys_in_its_order() -> None:
    general = 'upstream = "https://example.org/a"\nsource = "git@example.org:b/c.git"'
    archs, source = ["9.0a", "8.0", "12.0+PTX", "8.0", ""], GitState(COMMIT, True)
    metadata = made("cuda", general, archs=archs, provenance=source)
    text = encode(metadata).decode()
    data = json.loads(text)
    assert list(data) == [
        "name", "id", "version", "kernels-minver", "license", "upstream", "source",
        "python-depends", "kernel-depends", "backend", "provenance",
    ]  # fmt: skip
    assert data["backend"] == {"type": "cuda", "archs": ["12.0+PTX", "8.0", "9.0a"]}
    assert data["provenance"]["kernel"] == {"commit": COMMIT, "dirty": True}
    assert text.startswith('{\n  "name": "gated-norm",\n')
    assert text.endswith("\n}")
    assert decode(text.encode()) == metadata


DEPENDS = 'kernel-depends = [{ repo-id = "a/b", version = 1 }]'


@pytest.mark.parametrize(
    ("general", "minver"),
    [
        ("", "0.14.0"),
        ('upstream = "https://example.org/a"', "0.14.0"),
        ('upstream = ["https://example.org/a"]', "0.14.0"),
        (DEPENDS, "0.17.0"),
        (f"[general.cuda]\n{DEPENDS}", "0.17.0"),
        (f"[general.xpu]\n{DEPENDS}", "0.14.0"),
        ('upstream = ["https://example.org/a", "git@example.org:b/c.git"]', "0.18.0"),
        (f'{DEPENDS}\nupstream = ["https://a.example/a", "https://a.example/b"]', "0.18.0"),
    ],
)
def test_the_oldest_loader_follows_from_what_a_variant_asks_for(general: str, minver: str) -> None:
    data = written("cuda", general)
    assert data["kernels-minver"] == minver
    assert isinstance(data["kernel-depends"], list)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *(("kernels-minver", text) for text in ("0.14", "0.14.0.1", "v0.14.0", "0.14.x", "", 14)),
        ("kernels-minver", "0.14.0\n"), ("kernels-minver", f"0.0.{2**64}"),
        ("kernel-depends", None), ("python-depends", None), ("license", None),
    ],
)  # fmt: skip
def test_a_version_of_other_than_three_numbers_and_a_null_are_refused(
    key: str, wrong: object
) -> None:
    with pytest.raises(ValueError, match=rf"{key}|64 bits"):
        decode(json.dumps(written("cpu") | {key: wrong}).encode())


def test_noarch_lists_keep_the_order_of_the_file() -> None:
    noarch = '[torch-noarch]\ncuda_capabilities = ["9.0", "8.0"]\nrocm_archs = ["gfx942", "gfx90a"]'
    archs = {"cuda": ("9.0", "8.0"), "rocm": ("gfx942", "gfx90a"), "cpu": None}
    for backend, listed in archs.items():
        assert made(backend, framework=noarch).backend.archs == listed


@pytest.mark.rule("KCI720", triggers=False)
def test_dependencies_are_the_general_ones_and_then_the_backend_s() -> None:
    general = f"""\
python-depends = ["einops"]
{DEPENDS}
[general.cuda]
python-depends = ["nvidia-cutlass-dsl"]
kernel-depends = [{{ repo-id = "c/d", revision = "main" }}]
[general.neuron]
python-depends = ["no-check"]
"""
    cuda = made("cuda", general)
    assert cuda.python_depends == ("einops", "nvidia-cutlass-dsl")
    assert [depend.repo_id for depend in cuda.kernel_depends] == ["a/b", "c/d"]
    assert made("neuron", general).python_depends == ("einops",)
    assert json.loads(encode(cuda))["kernel-depends"] == [
        {"repo-id": "a/b", "version": 1},
        {"repo-id": "c/d", "revision": "main"},
    ]


@pytest.mark.rule("KCI720", triggers=True)
@pytest.mark.parametrize(
    ("general", "says"),
    [
        ('python-depends = ["numpy"]', "general.python-depends names 'numpy'"),
        ('python-depends = ["nvidia-cutlass-dsl"]', "general.python-depends names"),
        ('[general.cuda]\npython-depends=["einops"]', "general.cuda.python-depends names 'einops'"),
        ('[general.tpu]\npython-depends = ["jax"]', "general.tpu.python-depends names 'jax'"),
    ],
)
def test_an_unknown_dependency_is_an_error_for_every_backend(general: str, says: str) -> None:
    assert only(refusal(made, "cpu", general), "KCI720", says).hint


def built_by(kernel: object = None, **builder: object) -> dict[str, Any]:
    """Provenance of this builder, and of this kernel."""
    said: dict[str, object] = {"kernel-builder": {"version": "1", **builder}}
    return {"provenance": said | ({"kernel": kernel} if kernel else {})}


ACCEPTED = [
    {},
    {"kernel_depends": [{"repo-id": "a/b", "version": 1}]},
    {"unknown": {"key": 1}},
    built_by(),
    built_by(sha="A" * 40, dirty=True),
    built_by({"commit": "a" * 64, "dirty": False}),
    {"backend": {"type": "cuda", "archs": [], "x": 1}},
    {"digest": {"algorithm": "sha512", "files": {"a": "b"}}},
    {"version": 2**32},
]
REFUSED = [
    {"python_depends": None},
    {"license": None},
    {"version": 1.0},
    {"version": True},
    {"version": -1},
    {"version": 2**64},
    {"name": "a_b"},
    {"name": "relu\n"},
    {"upstream": "x/y"},
    {"backend": {"type": "npu"}},
    {"backend": {"type": "cuda", "archs": [8.0]}},
    {"kernel_depends": [{"repo-id": "a/b"}]},
    {"kernel_depends": [{"repo-id": "a/b", "version": 1, "x": 1}]},
    {"digest": {"algorithm": "md5", "files": {}}},
    {"digest": {"algorithm": "sha256"}},
    {"provenance": {}},
    {"provenance": {"kernel": {"commit": "a" * 40, "dirty": False}}},
    built_by(dirty=True),
    built_by(commit="a" * 40),
    built_by({"commit": "abc", "dirty": False}),
    built_by({"commit": "a" * 40}),
    built_by(sha="a" * 40, commit="b" * 40, dirty=False),
]
REFUSED_HERE = [{"id": "1 x"}, {"id": "a.b"}, {"id": "class"}, {"id": ""}, {"id": "_é"}]


def test_what_the_reference_reads_is_read() -> None:
    for changes in ACCEPTED:
        decode(with_changes(**changes))


@pytest.mark.parametrize("changes", REFUSED + REFUSED_HERE)
def test_what_the_reference_refuses_is_refused(changes: dict[str, Any]) -> None:
    failure(ValueError, r".", decode, with_changes(**changes))


@pytest.mark.rule("KCI710", triggers=False)
def test_sealing_removes_bytecode_and_an_old_signature_and_hashes_last(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    variant = make_variant(tmp_path)
    before = (variant / "metadata.json").read_bytes()
    compiled = ("a.pyc", "sub/__pycache__/b.cpython-311.pyc", "__pycache__/data.txt")
    for junk in (*compiled, "metadata.json.sigstore"):
        (variant / junk).parent.mkdir(parents=True, exist_ok=True)
        (variant / junk).write_text("x")
    umask = os.umask(0o077)  # who may read the metadata does not depend on it
    request.addfinalizer(lambda: os.umask(umask))
    sealed = seal(variant, read_metadata(variant / "metadata.json"))
    assert (variant / "metadata.json").read_bytes() == before == encode(sealed)
    assert sorted(path.name for path in variant.iterdir() if path.name != "sub") == [
        "__init__.py", "_gated_norm_cpu_1a2b3c4.abi3.so", "_ops.py", "metadata.json",
    ]  # fmt: skip
    assert (variant / "metadata.json").stat().st_mode & 0o777 == 0o644


def test_no_upstream_is_left_out_one_written_as_text_and_several_as_a_list() -> None:
    one = written("cpu", 'upstream = ["https://example.org/a"]')
    assert one["upstream"] == "https://example.org/a"
    assert "upstream" not in written("cpu", "upstream = []")
    both = ["https://example.org/a", "git@example.org:b/c.git"]
    several = made("cpu", f"upstream = {json.dumps(both)}")
    assert json.loads(encode(several))["upstream"] == both
    assert decode(encode(several)) == several
    assert several.upstreams == tuple(both)


@pytest.mark.torch
def test_the_reference_s_own_reader_agrees() -> None:
    reference = outside_tools.reference().Metadata
    for changes in ACCEPTED + REFUSED_HERE:
        reference.from_bytes(with_changes(**changes))
    for changes in REFUSED:
        failure(ValueError, r".", reference.from_bytes, with_changes(**changes))


rust = outside_tools.reference()

CASES = int(os.environ.get("KCI_FUZZ", "600"))

WHOLE: dict[str, Any] = {
    "name": "gated-norm",
    "id": "_gated_norm_cuda_1a2b3c4",
    "version": 2,
    "kernels-minver": "0.14.0",
    "license": "apache-2.0",
    "upstream": "https://github.com/a/b",
    "source": "git@github.com:a/b.git",
    "python-depends": ["einops"],
    "kernel-depends": [{"repo-id": "a/b", "version": 1}, {"repo-id": "a/b", "revision": "main"}],
    "backend": {"type": "cuda", "archs": ["8.0", "9.0a"]},
    "digest": {
        "algorithm": "sha256",
        "files": {"__init__.py": "oJkKRxmymMxOBcRXhqsfbO0E+ZiDfCQ2pRXm7qmMTA8="},
    },
    "provenance": {
        "kernel-builder": {"version": "0.17.0", "commit": "a" * 40, "dirty": False},
        "kernel": {"commit": "B" * 40, "dirty": True},
    },
    "kci": {"variant": "torch213-cxx11-cu130-x86_64-linux"},
}

VALUES = [
    None, True, False, 0, -1, 1.0, 1.5, 2**63, 2**64 - 1, 2**64, 10**400, "", "0", "1.2", "1.2.3",
    "1.2.3.4", "01.2.3",
    "99999999999999999999.0.0", "abc", "a\nb", "\ud800", "\u0000", "é", [], [None], ["x"], [1], {},
    {"type": "cpu"},
    {"x": 1}, "cuda", "npu", "sha512", "ftp://x/y", "https://", "a/b", "-a", "A" * 40, "g" * 40,
    "_x", "class",
]  # fmt: skip
RAW = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"1E2", b"\\ud83d", b"\xff",
    b"\xef\xbb\xbf", b"//", b",", b"\x00",
]  # fmt: skip


def places(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else listed:
        yield (*prefix, key)
        yield from places(inner, (*prefix, key))


def mutated(random_: random.Random) -> bytes:
    data = copy.deepcopy(WHOLE)
    for _ in range(random_.choice([1, 1, 1, 2])):
        *path, last = random_.choice(list(places(data)))
        owner = data
        for key in path:
            owner = owner[key]
        match random_.randrange(4):
            case 0:
                del owner[last]
            case 1 if isinstance(owner, dict):
                name = random_.choice(["sha", "commit", "extra", "version", last + "x"])
                owner[name] = owner.pop(last)
            case _:
                owner[last] = random_.choice(VALUES)
    raw = json.dumps(data, ensure_ascii=random_.random() < 0.5).encode("utf-8", "surrogatepass")
    match random_.randrange(8):
        case 0:
            position = random_.randrange(len(raw))
            return raw[:position] + random_.choice(RAW) + raw[position + random_.randrange(3) :]
        case 1:
            return raw[: random_.randrange(len(raw))]
        case 2:
            encoding = random_.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-le"])
            return raw.decode("utf-8", "replace").encode(encoding)
        case 3:
            changed = bytearray(raw)
            changed[random_.randrange(len(raw))] = random_.randrange(256)
            return bytes(changed)
    return raw


def refused(raw: bytes, read: Callable[[bytes], object] = decode) -> bool:
    try:
        read(raw)
    except (ValueError, OverflowError):
        return True
    return False


def test_what_the_reference_refuses_kci_refuses() -> None:
    random_ = random.Random(9)
    cases = [mutated(random_) for _ in range(CASES)]
    theirs = rust.Metadata.from_bytes
    wrong = [raw for raw in cases if refused(raw, theirs) and not refused(raw)]
    assert wrong == []
    assert any(not refused(raw) for raw in cases)


@pytest.mark.parametrize(
    "text", [b"NaN", b"1e999", b'"\\ud800"', b"[" * 200 + b"]" * 200, b'{"a": 1, "a": 2}']
)
def test_no_reader_of_json_has_to_guess(text: bytes) -> None:
    """The reference passes over what it does not know, whatever it is; other tools read these files
    as well.
    """
    whole = json.dumps(WHOLE).encode()[:-1]
    assert not refused(whole + b', "unknown": 1}')
    assert refused(whole + b', "unknown": ' + text + b"}")
    for depth, too_deep in ((126, False), (127, True), (200_000, True)):
        deep = b"[" * depth + b"]" * depth
        assert refused(whole + b', "unknown": ' + deep + b"}") is too_deep


def test_the_reference_reads_what_kci_writes(tmp_path: Path) -> None:
    files = {"__init__.py": "", "a.b": "1", "a/b.py": "2", "sub/metadata.json": "3"}
    directory = make_variant(tmp_path, files=files)
    ours = metadata.read_metadata(directory / "metadata.json")
    theirs = rust.Metadata.read_from_file(directory / "metadata.json")
    assert (theirs.id, theirs.version, theirs.license) == (ours.id, ours.version, ours.license)
    assert ours.digest is not None
    assert dict(theirs.digest.files) == ours.digest.files
    actual = rust.Digest.hash_variant(rust.DigestAlgorithm.SHA256, directory)
    theirs.digest.validate(actual)
    assert list(theirs.digest.files.items()) == list(actual.files.items())

"""The formats before and after edition 5: what tells them apart, and what they mean in it (docs/format.md#editions).

Kernels are held in the form of edition 5. A file without `general.edition` is of an earlier format: edition 4 is
edition 5 without the keys of `newer_keys`; version 3 lacks more keys, and may leave out `version`, `license` and the
framework. The reference reads version 3 only to rewrite it.

Edition 6 is read as far as it is known (docs/format.md#later): components name a language in place of a backend.
`cpp-cuda` is what `backend = "cuda"` was. `rust-cpu` is new; its Cargo manifest counts as one of its sources. An
earlier state of the edition still had `backend`, which is read as well. `[tvm-ffi]` may do without `src`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from kci.config.document import Document, KeyPath, refuse
from kci.config.model import Build
from kci.config.values import quoted
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.files.dated_data import Dated, shipped, to_type
from kci.suggest import one_of, suggestion


def newer_keys(data: dict[str, Any]) -> list[KeyPath]:
    """The places of everything that exists from edition 5 on: without `edition = 5` the reference refuses these."""
    general = _table(data, "general")
    found: list[KeyPath] = [("general", key) for key in ("kernel-depends", "tpu") if key in general]
    for backend in ("cuda", "xpu", "neuron"):
        if "kernel-depends" in _table(general, backend):
            found.append(("general", backend, "kernel-depends"))
    if isinstance(_table(data, "torch").get("stable-abi"), dict):
        found.append(("torch", "stable-abi"))
    return found


def newer_key_problems(document: Document) -> list[Diagnostic]:
    """An error for each of `newer_keys`, for a file without an edition."""
    return [
        document.at_key(
            path,
            "KCI105",
            f"`{'.'.join(map(str, path))}` exists from edition 5 on, and this file has no `edition`",
            "add `edition = 5` to `[general]`",
        )
        for path in newer_keys(document.data)
    ]


def version_3_as_5(data: dict[str, Any]) -> dict[str, Any] | None:
    """The edition 5 form of a version 3 file, or None if the data is not a valid version 3.

    The reference takes a malformed `[torch]` here for no framework at all and would turn the kernel into one of Python
    only; kci does not follow it there and reports what is wrong with the table.
    """
    general = data.get("general")
    if not isinstance(general, dict) or "source" in general or "torch-noarch" in data or newer_keys(data):
        return None
    if {"stable-abi", "cxx-flags"} & _table(data, "torch").keys() or ("torch" in data and "tvm-ffi" in data):
        return None
    upgraded = {**data, "general": {"version": 1, "license": "", **general}}
    if "torch" not in data and "tvm-ffi" not in data:
        upgraded["torch-noarch"] = {}
    return upgraded if convert_or_none(upgraded) is not None else None


def convert_or_none(data: dict[str, Any]) -> Build | None:
    """The data as a build config, or None if it is not one."""
    try:
        return to_type(data, Build)
    except (msgspec.ValidationError, RecursionError):
        return None


def older_version(data: dict[str, Any]) -> int | None:
    """1, 2 or 3 for data that is not a valid edition 4 and has the shape of that older format, or None.

    Versions 1 and 2 had no `general.backends`. Version 1 is told by `language` in components or `torch.universal`,
    version 2 by `general.universal` or the CUDA bounds next to the name.
    """
    if version_3_as_5(data) is not None:
        return 3
    general = data.get("general")
    if not isinstance(general, dict) or "backends" in general:
        return None
    components = _table(data, "kernel").values()
    if "universal" in _table(data, "torch") or any("language" in part for part in components if isinstance(part, dict)):
        return 1
    return 2 if {"universal", "cuda-minver", "cuda-maxver"} & general.keys() else None


def older_version_error(document: Document, directory: str) -> FindingsError | None:
    """Why a file of version 1, 2 or 3 cannot be used as it is, or None for a file of a later format."""
    version = older_version(document.data)
    if version is None:
        return None
    if version == 3:
        lacking = [f"`{key}`" for key in ("version", "license") if key not in document.data["general"]]
        if "torch" not in document.data and "tvm-ffi" not in document.data:
            lacking.append("a framework table")
        message = (
            f"a version 3 file (it lacks {' and '.join(lacking)}), which has to be rewritten before it can be used"
        )
        hint = f"run `kci update {directory}`"
        return refuse(document.at_key(("general",), "KCI108", message, hint))
    message = f"a version {version} file, which no current tool reads"
    hint = "declare `backends` in `[general]` and port the file to edition 5 by hand"
    return refuse(document.at_key(("general",), "KCI109", message, hint))


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


KNOWN_EDITIONS = (5, 6)
"""The editions that have a number kci knows, oldest first."""

CPP = {f"cpp-{backend}": backend for backend in ("cpu", "cuda", "metal", "rocm", "xpu")}
RUST = "rust-cpu"
_RUST_KEYS = ("cargo-manifest", "depends", "src")


class _Written(Dated, frozen=True):
    written: int


@cache
def written_edition() -> int:
    """The edition that kci writes by default: a line of `data/editions.toml`."""
    return shipped("config/data/editions.toml", _Written)().written


def as_edition_5(document: Document, data: dict[str, Any]) -> tuple[dict[str, Any], list[Diagnostic]]:
    """The data of a file of edition 6 as edition 5 has it, and what is wrong with it.

    Args:
        document: the file, for places.
        data: its content; not changed. What is reported as wrong is left out of the answer.
    """
    problems: list[Diagnostic] = []
    read = dict(data)
    if isinstance(read.get("tvm-ffi"), dict):
        read["tvm-ffi"] = {"src": [], **read["tvm-ffi"]}
    if isinstance(read.get("kernel"), dict):
        read["kernel"] = {}
        for label, part in data["kernel"].items():
            if not isinstance(part, dict):
                read["kernel"][label] = part
                continue
            found = _problem(document, data, label, part)
            if found is None:
                read["kernel"][label] = _component(part)
            else:
                problems.append(found)
    return read, problems


def _problem(document: Document, data: dict[str, Any], label: str, part: dict[str, Any]) -> Diagnostic | None:
    def at(rule: str, key: str, message: str, hint: str = "") -> Diagnostic:
        path: KeyPath = ("kernel", label, key)
        return document.at_value(path, rule, message, hint)

    language = part.get("language")
    known = [*CPP, RUST]
    if "language" not in part:
        if "backend" in part:
            return None
        return at("KCI102", "language", f"`kernel.{label}` lacks the key `language`", one_of(known))
    if "backend" in part:
        return at("KCI101", "backend", f"`kernel.{label}` has `language`, which says the backend", "remove `backend`")
    if not isinstance(language, str) or language not in known:
        hint = suggestion(str(language), known) or one_of(known)
        return at("KCI104", "language", f"{quoted(str(language)[:40])} is not a language for a component", hint)
    if language != RUST:
        return None
    if "tvm-ffi" not in data:
        return at("KCI104", "language", f"`{RUST}` is for a kernel with `[tvm-ffi]` only")
    for key in part:
        if key not in ("language", *_RUST_KEYS):
            return at("KCI101", key, f"`{key[:60]}` is not a key of a `{RUST}` component", one_of(_RUST_KEYS))
    if not isinstance(part.get("cargo-manifest"), str):
        return at("KCI102", "cargo-manifest", f"`kernel.{label}` lacks the key `cargo-manifest`", "such as Cargo.toml")
    return None


def _component(part: dict[str, Any]) -> dict[str, Any]:
    language = part.get("language")
    if language is None:
        return part
    kept = {key: value for key, value in part.items() if key != "language"}
    if language == RUST:
        manifest = kept.pop("cargo-manifest")
        if isinstance(kept.get("src"), list):
            kept["src"] = [*kept["src"], manifest]
    return {"backend": CPP.get(language, "cpu"), **kept}

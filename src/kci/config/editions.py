"""The formats before and after edition 5: what tells them apart, and what they mean in it (docs/format.md#editions).

Kernels are held in the form of edition 5. A file without `general.edition` is of an earlier format: edition 4 is
edition 5 without the keys of `newer_keys`; versions 1 to 3 are refused, with what has to be added to them.

Edition 6 is read as far as it is known (docs/format.md#later): components name a language in place of a backend.
`cpp-cuda` is what `backend = "cuda"` was. `rust-cpu` is new; its Cargo manifest counts as one of its sources. An
earlier state of the edition still had `backend`, which is read as well. `[tvm-ffi]` may do without `src`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kci.config.document import Document, KeyPath, refuse
from kci.config.model import Build
from kci.config.values import quoted
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.files.dated_data import to_type
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


def too_old_error(document: Document) -> FindingsError | None:
    """Why a file of version 1, 2 or 3 is refused, with all that has to change; None for a later format."""
    if not (is_version_3(document.data) or _is_older(document.data)):
        return None
    message = "a file of version 1, 2 or 3, which kci does not read"
    return refuse(document.at_key(("general",), "KCI108", message, "; ".join(_to_change(document.data))))


def is_version_3(data: dict[str, Any]) -> bool:
    """Whether it is a valid file of version 3, which may lack the version, the license and the framework.

    The reference takes a malformed `[torch]` here for no framework at all; kci reports what is wrong with the table.
    """
    general = data.get("general")
    if not isinstance(general, dict) or "source" in general or "torch-noarch" in data or newer_keys(data):
        return False
    if {"stable-abi", "cxx-flags"} & _table(data, "torch").keys() or ("torch" in data and "tvm-ffi" in data):
        return False
    whole = {**data, "general": {"version": 1, "license": "", **general}}
    if "torch" not in data and "tvm-ffi" not in data:
        whole["torch-noarch"] = {}
    try:
        to_type(whole, Build)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def _is_older(data: dict[str, Any]) -> bool:
    """Whether it has the shape of version 1 or 2: no `general.backends`, and a key that later formats do not have."""
    general = data.get("general")
    if not isinstance(general, dict) or "backends" in general:
        return False
    old = _OLD_KEYS & general.keys() or "universal" in _table(data, "torch")
    return bool(old) or any("language" in part for part in _components(data).values())


_OLD_KEYS = {"universal", "cuda-minver", "cuda-maxver"}
_ADDED = {"name": '"..."', "version": "1", "edition": "5", "license": '"..."', "backends": '["..."]'}
_MOVED = {"cuda-minver": "minver", "cuda-maxver": "maxver"}


def _to_change(data: dict[str, Any]) -> list[str]:
    """What has to be added to an old file, and what has another place, so that it is of edition 5."""
    general = data["general"]
    lacking = [f"`{key} = {value}`" for key, value in _ADDED.items() if key not in general]
    found = [f"add {', '.join(lacking)} to `[general]`"]
    noarch = general.get("universal") is True or _table(data, "torch").get("universal") is True
    if noarch:
        found.append("write `[torch-noarch]` in place of `[torch]`")
    elif not {"torch", "torch-noarch", "tvm-ffi"} & data.keys():
        found.append("add `[torch]`, `[tvm-ffi]`, or `[torch-noarch]` for Python only")
    if "universal" in general or "universal" in _table(data, "torch"):
        found.append("remove `universal`")
    found += [f"move `{old}` to `[general.cuda]` as `{new}`" for old, new in _MOVED.items() if old in general]
    for label, part in _components(data).items():
        wanted = [f"`{key} = {value}`" for key, value in _OF_COMPONENT.items() if key not in part]
        found += [f"add {', '.join(wanted)} to `[kernel.{label}]`"] if wanted else []
        found += [f"remove `language` from `[kernel.{label}]`"] if "language" in part else []
    return found


_OF_COMPONENT = {"backend": '"..."', "depends": "[]", "src": "[]"}


def _components(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {label: part for label, part in _table(data, "kernel").items() if isinstance(part, dict)}


def _table(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


KNOWN_EDITIONS = (5, 6)
"""The editions that have a number kci knows, oldest first."""

CPP = {f"cpp-{backend}": backend for backend in ("cpu", "cuda", "metal", "rocm", "xpu")}
RUST = "rust-cpu"
_RUST_KEYS = ("cargo-manifest", "depends", "src")


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

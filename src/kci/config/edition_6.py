"""Edition 6 as far as it is known (docs/format.md#later): components name a language in place of a backend.

`cpp-cuda` is what `backend = "cuda"` was. `rust-cpu` is new; its Cargo manifest counts as one of its sources. An
earlier state of the edition still had `backend`, which is read as well. `[tvm-ffi]` may do without `src`. Kernels are
held in the form of edition 5, so this module reads edition 6 as that one, and writes it from that one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kci.config.document import Document, KeyPath
from kci.config.values import quoted
from kci.diagnostics import Diagnostic, finding
from kci.files.dated_data import Dated, load_dated
from kci.suggest import one_of, suggestion

if TYPE_CHECKING:
    from kci.config.update import Edits

KNOWN_EDITIONS = (5, 6)
"""The editions that have a number kci knows, oldest first."""

CPP = {f"cpp-{backend}": backend for backend in ("cpu", "cuda", "metal", "rocm", "xpu")}
RUST = "rust-cpu"
_RUST_KEYS = ("cargo-manifest", "depends", "src")


class _Written(Dated, frozen=True):
    written: int


@cache
def written_edition() -> int:
    """The edition that kci writes where nobody asks for another: a line of `data/editions.toml`."""
    return load_dated(Path(__file__).parent / "data" / "editions.toml", _Written).written


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
    """What is wrong with a component as far as edition 5 cannot tell."""

    def at(rule: str, key: str, message: str, hint: str = "") -> Diagnostic:
        path: KeyPath = ("kernel", label, key)
        return finding(rule, message, hint=hint, path=document.path, span=document.value_span(path))

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


def write(edits: Edits) -> None:
    """Turn the text of a valid file of edition 5 into edition 6, the number itself apart."""
    for label, part in edits.document.data.get("kernel", {}).items():
        if "backend" in part:
            language = f"cpp-{part['backend']}"
            edits.respell(("kernel", label, "backend"), "language", language, f"`language` of `kernel.{label}`")

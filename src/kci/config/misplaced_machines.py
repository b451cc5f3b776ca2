"""Runners in kci.toml whose backend or system is unknown or left out, said better than "unknown key"."""

from __future__ import annotations

from typing import Any

from kci.config.document import Document
from kci.config.settings import Machine, MachinesByBackend
from kci.config.values import SYSTEMS
from kci.diagnostics import Diagnostic, finding
from kci.suggest import one_of, suggestion

_PLACES = [*MachinesByBackend.__struct_encode_fields__]
_MACHINE_KEYS = [*Machine.__struct_encode_fields__]


def misplaced_machines(document: Document) -> list[Diagnostic]:
    """KCI320 and KCI321: a runner whose system or backend is unknown or left out, said better than "unknown key"."""
    found = []
    for table in ("runners", "test"):
        by_backend = document.data.get(table)
        for backend, by_system in by_backend.items() if isinstance(by_backend, dict) else ():
            span = document.key_span((table, backend)) if backend not in _PLACES else None
            if backend in SYSTEMS or backend in _MACHINE_KEYS:
                message = f"`{table}.{backend}` does not name a backend"
                example = backend if backend in SYSTEMS else "x86_64-linux"
                hint = f"write `[{table}.any.{example}]`, or a backend in place of `any`"
                found.append(finding("KCI321", message, hint=hint, path=document.path, span=span))
            elif backend not in _PLACES:
                message = f"`{backend[:60]}` is not a backend that a runner can be for"
                hint = suggestion(backend, _PLACES) or one_of(_PLACES)
                found.append(finding("KCI320", message, hint=hint, path=document.path, span=span))
            else:
                found += _misplaced_in(document, table, backend, by_system)
    return found


def _misplaced_in(document: Document, table: str, backend: str, by_system: Any) -> list[Diagnostic]:
    found = []
    for system in by_system if isinstance(by_system, dict) else ():
        span = document.key_span((table, backend, system)) if system not in SYSTEMS else None
        if system in _MACHINE_KEYS:
            message = f"`{system}` is in `[{table}.{backend}]`, which does not name a system"
            hint = f"write it in `[{table}.{backend}.x86_64-linux]`, or in the table of its system"
            found.append(finding("KCI321", message, hint=hint, path=document.path, span=span))
        elif system not in SYSTEMS:
            message = f"`{system[:60]}` is not a system"
            hint = suggestion(system, SYSTEMS) or one_of(SYSTEMS)
            found.append(finding("KCI320", message, hint=hint, path=document.path, span=span))
    return found

"""Filters: what the command line, or a custom tier, keeps of a kernel's variants."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence

from kci.catalog.comparisons import Subject
from kci.catalog.where import Where
from kci.config.reader import Kernel
from kci.config.values import SYSTEMS, Backend
from kci.matrix.names import Kind
from kci.matrix.selection import Filtered, Narrow
from kci.matrix.variants import Variant

FIELDS: dict[str, Sequence[str]] = {
    "backend": [str(backend) for backend in Backend],
    "compute": (),
    "cuda": (),
    "kind": [str(kind) for kind in Kind],
    "name": (),
    "rocm": (),
    "stable-abi": (),
    "system": SYSTEMS,
    "torch": (),
    "tvm-ffi": (),
    "xpu": (),
}
"""What an expression about variants can name."""


def subject(variant: Variant) -> Subject:
    """What expressions see of a variant."""
    found = {
        "name": variant.name,
        "kind": str(variant.kind),
        "backend": str(variant.backend),
        "system": variant.system,
        "torch": variant.torch,
        "compute": variant.compute,
        "stable-abi": variant.stable_abi,
        "tvm-ffi": variant.tvm_ffi,
        str(variant.backend): variant.compute,
    }
    return {field: text for field, text in found.items() if text is not None}


def by_choice(
    *,
    systems: Collection[str] = (),
    backends: Collection[str] = (),
    only: Sequence[str] = (),
    rule: str = "KCI211",
    asked: str = "--{}",
    place: tuple[str, int] = ("", 0),
) -> Narrow:
    """A filter by system, backend and name. Several of one widen, different ones narrow; empty means all.

    Args:
        systems: to keep.
        backends: to keep.
        only: patterns of names to keep.
        rule: what a variant that is left out is reported as.
        asked: how the reason names the setting that left it out, with a place for its name.
        place: file and line of the setting, if it is in a file.
    """

    def reason(variant: Variant) -> str | None:
        if systems and variant.system not in systems:
            return f"{asked.format('system')} {' '.join(systems)} excludes it"
        if backends and variant.backend not in backends:
            return f"{asked.format('backend')} {' '.join(backends)} excludes it"
        if only and not any(fnmatch.fnmatchcase(variant.name, glob) for glob in only):
            return f"{asked.format('only')} {' '.join(only)} excludes it"
        return None

    def narrow(_: Kernel, variants: Sequence[Variant]) -> list[Filtered | None]:
        reasons = [reason(variant) for variant in variants]
        return [Filtered(rule, text, *place) if text else None for text in reasons]

    return narrow


def by_expression(
    where: Where, *, rule: str = "KCI211", asked: str = "--where", place: tuple[str, int] = ("", 0)
) -> Narrow:
    """A filter by an expression; `newest` and `oldest` are meant among the variants of one kernel."""

    def narrow(_: Kernel, variants: Sequence[Variant]) -> list[Filtered | None]:
        subjects = [subject(variant) for variant in variants]
        test = where.over(subjects)
        left_out = Filtered(rule, f"{asked} {where.text!r} excludes it", *place)
        return [None if test(seen) else left_out for seen in subjects]

    return narrow


def by_scope(scopes: Mapping[str, Collection[str]]) -> Narrow:
    """A filter by the backends that an argument such as `kernels/relu[cuda,rocm]` names, by kernel directory."""

    def narrow(kernel: Kernel, variants: Sequence[Variant]) -> list[Filtered | None]:
        backends = scopes.get(kernel.directory)
        if backends is None:
            return [None] * len(variants)
        left_out = Filtered("KCI211", f"{kernel.directory}[{','.join(backends)}] excludes it")
        return [None if variant.backend in backends else left_out for variant in variants]

    return narrow

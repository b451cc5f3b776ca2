"""What changed between two matrices: variants that came, went, or are built differently."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kci.errors import FindingsError
from kci.matrix.variants import KernelMatrix, Variant

COMPARED = ("kind", "torch", "compute", "stable_abi", "tvm_ffi", "archs", "bundled")
"""What can differ between two variants of one name and system."""


class FieldChange(msgspec.Struct, frozen=True):
    """One property of a variant that is different."""

    what: str
    old: str | None
    new: str | None


class Changed(msgspec.Struct, frozen=True):
    """A variant that is there on both sides, and built differently."""

    name: str
    system: str
    backend: str
    changes: tuple[FieldChange, ...]


class KernelDiff(msgspec.Struct, frozen=True):
    """The difference of one kernel; on one side it may not be there at all."""

    name: str
    old_path: str | None
    new_path: str | None
    added: tuple[Variant, ...]
    removed: tuple[Variant, ...]
    changed: tuple[Changed, ...]
    same: int
    """How many variants are the same."""

    @property
    def differs(self) -> bool:
        """Whether anything is different."""
        return bool(self.added or self.removed or self.changed)


def diff_matrices(old: Sequence[KernelMatrix], new: Sequence[KernelMatrix]) -> list[KernelDiff]:
    """Compare kernels by name; two single kernels are compared whatever their names."""
    if len(old) == len(new) == 1:
        return [diff_kernels(old[0], new[0])]
    before, after = _by_name(old), _by_name(new)
    return [diff_kernels(before.get(name), after.get(name)) for name in sorted({*before, *after})]


def _by_name(kernels: Sequence[KernelMatrix]) -> dict[str, KernelMatrix]:
    """Kernels by name; FindingsError if two have the same, so that it is ambiguous which of them is meant."""
    found: dict[str, KernelMatrix] = {}
    for kernel in kernels:
        if kernel.name in found:
            message = f"{found[kernel.name].path} and {kernel.path} are both named {kernel.name!r}"
            raise FindingsError(message, hint="compare them one by one")
        found[kernel.name] = kernel
    return found


def diff_kernels(old: KernelMatrix | None, new: KernelMatrix | None) -> KernelDiff:
    """Compare the variants of a kernel by name and system. At least one side must be there."""
    before, after = _variants(old), _variants(new)
    both = sorted(before.keys() & after.keys())
    pairs = [(before[key], after[key]) for key in both]
    changed = tuple(
        Changed(was.name, was.system, was.backend, changes) for was, now in pairs if (changes := _changes(was, now))
    )
    present = new or old
    return KernelDiff(
        name=present.name if present else "",
        old_path=old.path if old else None,
        new_path=new.path if new else None,
        added=tuple(after[key] for key in sorted(after.keys() - before.keys())),
        removed=tuple(before[key] for key in sorted(before.keys() - after.keys())),
        changed=changed,
        same=len(both) - len(changed),
    )


def _variants(kernel: KernelMatrix | None) -> dict[tuple[str, str], Variant]:
    return {(variant.system, variant.name): variant for variant in kernel.variants} if kernel else {}


def _changes(old: Variant, new: Variant) -> tuple[FieldChange, ...]:
    pairs = ((field, getattr(old, field), getattr(new, field)) for field in COMPARED)
    return tuple(
        FieldChange(field.replace("_", "-"), _text(was), _text(now)) for field, was, now in pairs if was != now
    )


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)

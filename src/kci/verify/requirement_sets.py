"""Older sets of requirements, selectable by name: what was asked of kernels before the current ones."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.errors import UsageError
from kci.suggest import suggestion
from kci.verify.abi import native_table, numbers
from kci.verify.binaries import BinaryKind
from kci.verify.elf import ElfError, read_elf
from kci.verify.subject import VariantDir

CURRENT = "current"


class RequirementSet(msgspec.Struct, frozen=True):
    """What a set asks for beyond the current requirements."""

    name: str
    glibc: str
    """The newest glibc that may be needed."""
    static: tuple[str, ...]
    """Libraries that have to be linked statically."""
    nested_package: bool
    """Whether the package lies in a directory of its own name."""
    ignore: tuple[str, ...]
    """Current rules that contradict it."""

    def check_variant(self, variant: VariantDir) -> Iterator[Diagnostic]:
        """The rules of the set about one variant."""
        if variant.metadata is not None and self.nested_package:
            package = python_name(variant.metadata.name)
            if not any(item.name == f"{package}/__init__.py" for item in variant.files):
                yield finding("KCI759", f"{self.name}: there is no {package}/__init__.py", path=variant.shown)
        for item, kind in variant.libraries():
            if kind is not BinaryKind.ELF:
                continue
            where = variant.at(item.name)
            try:
                elf = read_elf(item.path)
            except (ElfError, OSError):
                continue  # reported by the native rules
            for library in sorted(set(elf.needed) & set(self.static)):
                yield finding("KCI759", f"{self.name}: {library} has to be linked statically", path=where)
            for version in sorted(elf.required_versions):
                number = version.removeprefix("GLIBC_")
                known = number != version and number.replace(".", "").isdigit()
                if known and numbers(number) > numbers(self.glibc):
                    yield finding("KCI759", f"{self.name}: it needs {version}, beyond {self.glibc}", path=where)


def requirement_set(name: str) -> RequirementSet | None:
    """A set by its name; None for the current requirements, which every variant has to meet anyway.

    Raises:
        UsageError: there is no such set.
    """
    sets = native_table().sets
    if name == CURRENT:
        return None
    if name not in sets:
        known = [CURRENT, *sorted(sets)]
        hint = suggestion(name, known) or f"there are {', '.join(known)}"
        raise UsageError(f"there are no requirements called {name!r}", hint=hint)
    found = sets[name]
    return RequirementSet(name, found.glibc, found.static, found.nested_package, found.ignore)

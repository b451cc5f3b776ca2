"""Compiling for a system that this machine is not: which those are, and what it takes.

The target is a value, `x86_64-linux`, that every question about compilers, headers, wheels and libraries is asked with.
"""

from __future__ import annotations

from typing import NoReturn

from kci.catalog.runners import CrossTarget, default_runners
from kci.config.values import System
from kci.errors import MissingToolError
from kci.matrix.names import Kind, this_system
from kci.matrix.variants import Variant


def is_crossed(variant: Variant) -> bool:
    """Whether a variant is compiled, and for another system than this machine's."""
    return variant.kind is not Kind.NOARCH and variant.system != this_system()


def built_on(variant: Variant) -> System | None:
    """This machine's system, where a variant is compiled for another one; None where it is its own."""
    return System(this_system()) if is_crossed(variant) else None


def crosses(variant: Variant, host: str) -> bool:
    """Whether a machine of another system can compile a variant, once it has a cross compiler.

    Args:
        variant: which one.
        host: the system of that machine.
    """
    target = default_runners().cross.get(variant.system)
    backends = target.hosts.get(host, ()) if target is not None else ()
    return variant.kind is not Kind.NOARCH and variant.backend in backends


def refuse_other_system(variant: Variant) -> NoReturn:
    """Say that this machine does not compile a variant for another system, and what it does compile for that.

    Raises:
        MissingToolError: always.
    """
    here, target = this_system(), default_runners().cross.get(variant.system)
    message = f"{variant.name} needs a machine of {variant.system}, and this is {here}"
    if backends := target.hosts.get(here) if target is not None else None:
        message += f", where kci compiles for that system for {' and '.join(sorted(backends))} only"
    hint = f"run this on a {variant.system} machine; kci plan says which runner has one"
    raise MissingToolError(message, hint=hint)


def cross_target(system: str) -> CrossTarget:
    """What a cross compiler for a system is called, and which package has it.

    Raises:
        MissingToolError: kci does not know any.
    """
    target = default_runners().cross.get(system)
    if target is None:
        raise MissingToolError(f"kci knows no cross compiler for {system}", hint=f"run this on a {system} machine")
    return target


def system_of(machine: str) -> str:
    """The system that a compiler makes code for, by what it calls it, such as `aarch64-linux-gnu`; empty if unknown."""
    cpu, _, rest = machine.strip().partition("-")
    cpu = {"amd64": "x86_64", "arm64": "aarch64"}.get(cpu, cpu)
    names = {"linux": "linux", "darwin": "darwin", "mingw": "windows", "windows": "windows"}
    system = next((name for part, name in names.items() if part in rest), "")
    return f"{cpu}-{system}" if system and " " not in machine.strip() else ""

"""What a kernel offers to its users, and what a change of it takes away; read from sources, without a build.

That is what the package's `__init__` has under public names (what `__all__` lists, or names without an underscore that
the package itself defines), the submodules that it imports, and the schemas of the operators that C++ registers. An
addition takes nothing away; what the sources do not tell, such as a name that a build generates, is not compared.
"""

from __future__ import annotations

import ast
import logging
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kci.errors import FindingsError, MissingToolError
from kci.sources.op_rules import SUFFIXES, without_comments

if TYPE_CHECKING:
    import griffe


class Change(msgspec.Struct, frozen=True, order=True):
    """A difference that users of a kernel can see."""

    name: str
    """`silu`, `layers.Silu.forward`, or `ops.silu` for an operator."""
    what: str
    breaking: bool
    """Whether a call that was right before can fail now."""


def compare_interfaces(package: str, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[Change]:
    """The differences between two states of a kernel's files, sorted by name.

    Args:
        package: the kernel's Python name.
        old: contents by path relative to the kernel's directory; those of other files do not matter.
        new: the same, later.

    Raises:
        FindingsError: the package of one of them cannot be read.
        MissingToolError: griffe is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="kci-api-") as folder:
        before, after = (_loaded(package, files, Path(folder) / side) for side, files in (("old", old), ("new", new)))
        reachable = _shows_ops(before, package)
        found = [
            *_python_changes(before, after, package),
            *(item if reachable else msgspec.structs.replace(item, breaking=False)
              for item in _op_changes(_schemas(old), _schemas(new))),
        ]  # fmt: skip
    return sorted(found)


# --- Python -----------------------------------------------------------------------------------------------------------


def _loaded(package: str, files: Mapping[str, bytes], place: Path) -> griffe.Module:
    try:
        import griffe
    except ImportError:
        hint = "`pip install 'kci[api]'`, or griffelib beside it"
        raise MissingToolError("comparing Python interfaces needs griffe", hint=hint) from None
    logging.getLogger("griffe").setLevel(logging.CRITICAL)  # what it cannot resolve is not compared
    base = f"torch-ext/{package}/"
    for path, content in files.items():
        if path.startswith(base) and path.endswith(".py"):
            file = place / package / path.removeprefix(base)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    loader = griffe.GriffeLoader(search_paths=[place], allow_inspection=False)
    try:
        module = loader.load(package, try_relative_path=False)
        loader.resolve_aliases(implicit=True, external=False)
    except (griffe.GriffeError, ImportError, SyntaxError, UnicodeError, RecursionError, OSError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise FindingsError(f"the interface of {package} cannot be read: {reason}") from None
    if not isinstance(module, griffe.Module):
        raise FindingsError(f"the interface of {package} cannot be read: there is no __init__.py")
    return module


_Surface = dict[str, "griffe.Object | None"]
"""What stands under each public name; None for what is elsewhere, or made by a build."""


def _surface(
    module: griffe.Module, package: str, seen: frozenset[str] = frozenset(), *, every: bool = False
) -> _Surface:
    """The public names of a module and of the submodules that it imports, dotted; or every name, listed or not."""
    import griffe

    listed = {str(name) for name in module.exports} if module.exports is not None else None
    if every:
        listed = (listed or set()) | module.members.keys()
    imported = module.imports.keys() | _submodules(module)
    found: _Surface = {}
    for name, member in sorted(module.members.items()):
        if name not in listed if listed is not None else name.startswith("_"):
            continue
        target: griffe.Object | griffe.Alias | None = member
        try:
            # `from .silu import silu`: griffe has the submodule under that name, and Python the function.
            if isinstance(member, griffe.Module) and (meant := module.imports.get(name, member.path)) != member.path:
                target = module.modules_collection[meant]
            if isinstance(target, griffe.Alias):
                target = target.final_target
        except (griffe.GriffeError, KeyError):
            target = None
        if target is None or not f"{target.path}.".startswith(f"{package}."):
            if listed is not None:
                found[name] = None
        elif isinstance(target, griffe.Module):
            if (listed is not None or name in imported) and target.path not in seen:
                below = _surface(target, package, seen | {module.path, target.path}, every=every)
                found |= {f"{name}.{inner}": item for inner, item in below.items()}
        else:
            found[name] = target
    return found | {name: None for name in listed or () if name not in module.members}


def _submodules(module: griffe.Module) -> set[str]:
    """What `from . import NAME` names, of which griffe keeps no record."""
    if not isinstance(module.filepath, Path) or module.filepath.name != "__init__.py":
        return set()
    nodes = ast.walk(ast.parse(module.filepath.read_bytes()))
    own = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1 and not node.module)
    return {alias.asname or alias.name for node in own for alias in node.names}


def _shows_ops(module: griffe.Module, package: str) -> bool:
    """Whether users reach the operators under a public name; their namespace is another one in every build."""
    listed = module.exports
    names = [name for name, path in module.imports.items() if path == f"{package}._ops.ops"]
    return any(name in listed if listed is not None else not name.startswith("_") for name in names)


def _python_changes(old: griffe.Module, new: griffe.Module, package: str) -> Iterator[Change]:
    before, after, there = _surface(old, package), _surface(new, package), _surface(new, package, every=True)
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            if name not in old.imports:  # of elsewhere, or of what a build generates; so below
                yield Change(name, "is new", False)
        elif name not in there:
            if name not in new.imports:
                yield Change(name, "is gone", True)
        else:
            if name not in after and not (there[name] is None and name in new.imports):
                yield Change(name, "left `__all__`, and is still there", False)
            if (one := before[name]) is not None and (other := there[name]) is not None:
                yield from _object_changes(name, one, other)


def _object_changes(name: str, old: griffe.Object, new: griffe.Object) -> Iterator[Change]:
    import griffe

    sides = []
    for item in (old, new):
        side = griffe.Module("side")
        item.public = True
        side.members["it"] = item
        sides.append(side)
    told: dict[tuple[str, bool], list[str]] = {}
    for breakage in griffe.find_breaking_changes(sides[0], sides[1]):
        said = _said(breakage)
        if said is not None:
            inner = breakage.obj.path != new.path  # a method, which may be one of a base
            where = f"{name}.{breakage.obj.name}" if inner else name
            told.setdefault((where, said[1]), []).append(said[0])
    for (where, breaking), whats in told.items():
        yield Change(where, "; ".join(dict.fromkeys(whats)), breaking)


_SAID = {
    "PARAMETER_REMOVED": "has no parameter `{old.name}` any more",
    "PARAMETER_ADDED_REQUIRED": "needs the new parameter `{new.name}`",
    "PARAMETER_CHANGED_REQUIRED": "needs the parameter `{new.name}`, which had a default",
    "PARAMETER_CHANGED_KIND": "takes `{new.name}` {new.kind.value}, and took it {old.kind.value}",
    "PARAMETER_MOVED": "has `{new.name}` at another position",
    "PARAMETER_CHANGED_DEFAULT": "has {new.default} as the default of `{new.name}`, and had {old.default}",
}
"""What griffe finds of parameters, in words; it finds more, which no caller notices."""


def _said(breakage: griffe.Breakage) -> tuple[str, bool] | None:
    """What a breakage is in words, and whether a call can fail because of it; None for what no caller notices."""
    kind, old, new = breakage.kind.name, breakage.old_value, breakage.new_value
    if kind == "OBJECT_REMOVED":
        return None if "instance-attribute" in breakage.obj.labels else ("is gone", True)
    if kind == "OBJECT_CHANGED_KIND":
        return None if "attribute" in (old.value, new.value) else (f"is a {new.value} and was a {old.value}", True)
    told = _SAID.get(kind)
    return (told.format(old=old, new=new), kind != "PARAMETER_CHANGED_DEFAULT") if told else None


# --- operators --------------------------------------------------------------------------------------------------------

_DEF = re.compile(r"\.\s*def\s*\(\s*((?:(?:TORCH_SELECTIVE_SCHEMA\s*\(\s*)?\"(?:\\.|[^\"\\\n])*\"\s*)+)")
_TEXT = re.compile(r"\"((?:\\.|[^\"\\\n])*)\"")
_SCHEMA = re.compile(r"\s*(?:\w+::)?(\w+(?:\.\w+)?)\s*\((.*)\)\s*->\s*(.*?)\s*", re.DOTALL)


_ALIASING = re.compile(r"(?<=\w)(?:\(\w+!?(?:\s*->\s*[\w|*]+)?\)|!)")
"""`(a!)`: what an operator writes to, which no call has to know."""


class _Schema(msgspec.Struct, frozen=True):
    parameters: tuple[str, ...]
    returns: str


def _schemas(files: Mapping[str, bytes]) -> dict[str, set[_Schema | None]]:
    """The schemas of each operator; None for one that follows from a C++ function. It may be registered twice."""
    found: dict[str, set[_Schema | None]] = {}
    for path, content in sorted(files.items()):
        if not path.endswith(SUFFIXES) or b"TORCH_LIBRARY" not in content:
            continue
        for match in _DEF.finditer(without_comments(content.decode("utf-8", "replace"))):
            text = "".join(_TEXT.findall(match[1]))
            read = _SCHEMA.fullmatch(text)
            if read:
                parameters, returns = (_ALIASING.sub("", part) for part in read.group(2, 3))
                schema = _Schema(tuple(_split(parameters)), re.sub(r"\s+", "", returns))
                found.setdefault(read[1], set()).add(schema)
            elif re.fullmatch(r"\w+(?:\.\w+)?", text):
                found.setdefault(text, set()).add(None)
    return found


def _split(text: str) -> Iterator[str]:
    """The parameters of a schema, each with one blank where there are any."""
    part, depth = "", 0
    for char in f"{text},":
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            if part.strip():
                yield re.sub(r"\s*=\s*", "=", " ".join(part.split()))
            part = ""
        else:
            part += char


def _op_changes(old: Mapping[str, set[_Schema | None]], new: Mapping[str, set[_Schema | None]]) -> Iterator[Change]:
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield Change(f"ops.{name}", "is gone", True)
        elif name not in old:
            yield Change(f"ops.{name}", "is new", False)
        elif old[name] != new[name] and None not in old[name] | new[name]:
            told = [[_why_not(one, other) for other in new[name] if other] for one in old[name] if one]
            lost = [reasons for reasons in told if all(reasons)]
            if lost:
                yield Change(f"ops.{name}", min(lost[0], key=len), True)
            elif other := _otherwise(old[name], new[name]):
                yield Change(f"ops.{name}", other, True)
            elif _calls(old[name]) != _calls(new[name]):
                yield Change(f"ops.{name}", "takes more than before", False)


def _calls(schemas: set[_Schema | None]) -> set[tuple[str, ...]]:
    return {schema.parameters for schema in schemas if schema is not None}


def _otherwise(old: set[_Schema | None], new: set[_Schema | None]) -> str:
    """What a build returns to a call that returned something else in every build; empty if there is no such build."""
    before = {schema.returns for schema in old if schema is not None}
    now = {schema.returns for schema in new if schema is not None and schema.parameters in _calls(old)}
    more = sorted(now - before)
    return f"returns {more[0]} in some builds, and returned {sorted(before)[0]}" if more and before else ""


def _why_not(old: _Schema, new: _Schema) -> str:
    """Why calls of one schema fail with another; empty if they do not."""
    if old.returns != new.returns:
        return f"returns {new.returns}, and returned {old.returns}"
    keyword, wanted = False, list(new.parameters)
    for parameter in old.parameters:
        if parameter == "*":
            keyword = True
            continue
        place = next((index for index, other in enumerate(wanted) if _bare(other) == _bare(parameter)), None)
        before = [other for other in wanted[:place] if other != "*"] if place is not None else []
        if place is None or (before and not keyword):
            return f"does not take `{parameter}` as before"
        if "=" in parameter and "=" not in wanted[place]:
            return f"needs `{wanted[place]}`, which had a default"
        del wanted[place]
    needed = [parameter for parameter in wanted if parameter != "*" and "=" not in parameter]
    return f"needs the new parameter `{needed[0]}`" if needed else ""


def _bare(parameter: str) -> str:
    return parameter.partition("=")[0]

"""From a pybind11 module to operators of PyTorch: a schema and a wrapper for each function, in the place of the module.

PyTorch passes tensors, int64_t, double, bool, texts, and lists and options of them. A wrapper takes these and calls the
function with its own types, so that the function stays as it is.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

import msgspec

from kci.starter.cpp_code import (
    Binding,
    Code,
    CppFunction,
    bindings,
    enum_named,
    functions_named,
    modules,
    own_class,
    parameter,
)
from kci.starter.cpp_text import block_end, split_arguments, without_comments
from kci.starter.mutation import writes_to


class Operator(msgspec.Struct, frozen=True):
    """What became of one function of a module."""

    name: str
    file: str
    line: int
    """Where it was bound."""
    left: str = ""
    """Why it is left out; empty for an operator."""
    notes: tuple[str, ...] = ()
    """What a person has to look at."""
    within: tuple[str, ...] = ()
    """The conditions of the preprocessor that it is bound in."""


class _Type(msgspec.Struct, frozen=True):
    """How PyTorch passes a type of C++."""

    schema: str
    taken: str
    """The type of the wrapper's argument or result."""
    own: str = ""
    """The function's own type, where it is another one."""
    made: str = "{0}"
    """From the one to the other."""


_INTS = frozenset((
    "int", "long", "long long", "short", "unsigned", "unsigned int", "unsigned long", "size_t", "int8_t", "int16_t",
    "int32_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "uintptr_t", "intptr_t", "ssize_t", "unsigned char",
    "unsigned long long",
))  # fmt: skip
_FLOATS = {"float": "float", "half": "half", "Half": "c10::Half"}
_PLAIN = {
    "Tensor": _Type("Tensor", "at::Tensor"), "int64_t": _Type("int", "int64_t"), "double": _Type("float", "double"),
    "bool": _Type("bool", "bool"), "string": _Type("str", "std::string"),
    "TensorList": _Type("Tensor[]", "at::TensorList"),
    "IntArrayRef": _Type("int[]", "at::IntArrayRef"), "ScalarType": _Type("ScalarType", "at::ScalarType"),
    "Dtype": _Type("ScalarType", "at::ScalarType"), "Scalar": _Type("Scalar", "at::Scalar"),
    "Device": _Type("Device", "at::Device"),
    "Generator": _Type("Generator", "at::Generator"),
}  # fmt: skip
_SPACES = re.compile(r"^(?:::)?(?:std|c10|at|torch|caffe2|aten)::")
_RESULTS = frozenset(("Tensor", "Tensor?", "int", "float", "bool", "str", "Tensor[]", "int[]", "float[]"))


def _bare(text: str) -> str:
    """A type without `const`, reference and namespace."""
    text = re.sub(r"\bconst\b|\bstruct\b|\binline\b|\bstatic\b", " ", text).replace("&", " ")
    text = " ".join(text.split())
    while (shorter := _SPACES.sub("", text)) != text:
        text = shorter
    return text.strip()


def passed(text: str, enum: Callable[[str], str]) -> _Type | None:
    """How PyTorch passes a parameter's type; None if it cannot. `enum` tells the full name of an enum, if it is one."""
    bare = _bare(text)
    if "*" in text or "&&" in text:
        return None
    if found := _PLAIN.get(bare):
        return found
    if own := bare if bare in _INTS else f"::{full}" if (full := enum(bare)) else "":
        return _Type("int", "int64_t", own, f"static_cast<{own}>({{0}})")
    if own := _FLOATS.get(bare, ""):
        return _Type("float", "double", own, f"static_cast<{own}>({{0}})")
    inner = re.fullmatch(r"(optional|vector|ArrayRef)\s*<(.*)>", bare)
    part = passed(inner[2], lambda _: "") if inner is not None else None
    if inner is None or part is None or part.schema.endswith(("[]", "?")):
        return None
    if inner[1] == "optional":
        own = f"std::optional<{'const ' * ('const' in text.partition('<')[2])}{part.own or part.taken}>"
        taken = f"std::optional<{part.taken}>"
        return _Type(f"{part.schema}?", taken, own, "{0}" if own == taken else f"{own}({{0}})")
    if part.schema not in ("Tensor", "int", "float") or (part.own and inner[1] == "ArrayRef"):
        return None
    made = f"std::vector<{part.own}>({{0}}.begin(), {{0}}.end())" if part.own else "{0}"
    return _Type(f"{part.schema}[]", f"std::vector<{part.taken}>", part.own, made)


def _returned(text: str, enum: Callable[[str], str]) -> _Type | None:
    kind = passed(text, enum)
    if kind is None or kind.schema not in _RESULTS:
        return None
    whole = "[]" not in kind.schema or ("vector" in text and not kind.own)
    return kind if whole and ("?" not in kind.schema or kind.made == "{0}") else None


def _result(text: str, enum: Callable[[str], str]) -> tuple[str, str, str] | None:
    """Schema, type and expression (of `{}`) of a result."""
    bare = _bare(text)
    if bare == "void":
        return "()", "void", "{};"
    if found := re.fullmatch(r"(?:tuple|pair)\s*<(.*)>", bare):
        kinds = [kind for item in split_arguments(found[1]) if (kind := _returned(item, enum)) is not None]
        if not kinds or len(kinds) != len(split_arguments(found[1])):
            return None
        whole = ", ".join(f"static_cast<{item.taken}>(std::get<{index}>(result))" for index, item in enumerate(kinds))
        schema = f"({', '.join(item.schema for item in kinds)})" if len(kinds) > 1 else kinds[0].schema
        made = f"std::tuple<{', '.join(item.taken for item in kinds)}>"
        return schema, made, f"auto result = {{}}; return {made}({whole});"
    kind = _returned(text, enum)
    return None if kind is None else (kind.schema, kind.taken, f"return static_cast<{kind.taken}>({{}});")


def _default(text: str, schema: str) -> str | None:
    """A default as a schema writes it, or None where it cannot."""
    text = re.sub(r"(?<=[\d.])[fFlLuU]+$", "", text.strip())
    if re.search(r"(?:none\(\)|nullopt|None|optional<.*>(?:\(\)|\{\})|nullptr)$", text) or text == "{}":
        return "None" if schema.endswith("?") else ("[]" if schema.endswith("[]") else None)
    if (found := re.fullmatch(r"(?:(?:std::)?vector<[\w:]+>)?(?:\(\)|\{([-\d, ]*)\})", text)) and schema == "int[]":
        return f"[{found[1] or ''}]"
    if schema.startswith("bool") and text in ("true", "false", "0", "1"):
        return str(text in ("true", "1"))
    if schema.startswith("int") and re.fullmatch(r"-?\d+", text):
        return text
    if schema.startswith("float") and re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", text, re.I):
        return str(float(text))
    return text if re.fullmatch(r'"[\w .-]*"', text) and schema.startswith("str") else None


class _MadeOperator(msgspec.Struct, frozen=True):
    operator: Operator
    wrapper: str = ""
    schema: str = ""
    function: str = ""
    conditional: str = ""


def with_operators(file: str, text: str, code: Code) -> tuple[str, list[Operator]]:
    """A source with operators in the place of its pybind11 modules, and what became of each function."""
    plain = without_comments(text)
    found = list(modules(plain))
    if not found:
        return text, []
    made: list[Operator] = []
    names: dict[str, int] = {}
    parts: list[str] = []
    bound = bindings(file, text, code)
    done = 0
    for start, end, _, body in found:
        parts.append(text[done:start])
        done = end
        first, last = plain.count("\n", 0, start) + 1, plain.count("\n", 0, end) + 1
        here = [_made(item, code, names) for item in bound if first <= item.line <= last]
        made += [item.operator for item in here]
        parts.append(_block(here, body, plain.count("\n", 0, plain.index("{", start) + 1) + 1))
    return "".join([*parts, text[done:]]), made


_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif|else|endif)\b(?:[^\n\\]|\\.|\\\n)*", re.M)


def _block(made: list[_MadeOperator], body: str, line: int) -> str:
    """Wrappers and registrations, within the conditions of the preprocessor that they stood in."""
    items: list[tuple[int, str | _MadeOperator]] = [(item.operator.line, item) for item in made]
    inner = [
        found.span() for item in made if item.conditional for found in re.finditer(re.escape(item.conditional), body)
    ]
    items += [
        (line + body.count("\n", 0, found.start()), found[0].strip())
        for found in _CONDITIONAL.finditer(body)
        if not any(start < found.start() < end for start, end in inner)
    ]
    wrappers, lines = list[str](), list[str]()
    for _, item in sorted(items, key=lambda pair: pair[0]):
        if isinstance(item, str):
            wrappers.append(item)
            lines.append(item)
            continue
        done = item.operator
        lines += [f"  // draft: `{done.name}` is left out: {done.left}"] if done.left else []
        lines += [f"  // draft: {note}" for note in done.notes]
        if item.schema:
            wrappers.append(item.wrapper)
            schema = item.schema.replace('"', '\\"')
            lines.append(f'  ops.def("{schema}", &{item.function});')
    if not any(item.schema for item in made):
        return "\n".join(f"// {line.strip().removeprefix('// ')}" for line in lines if not line.startswith("#")) + "\n"
    return (
        "// The functions of a pybind11 module, as operators of PyTorch: a wrapper takes the types that it passes.\n"
        "namespace kci_operators {\nnamespace {\n"
        + "\n".join(wrappers)
        + "\n}  // namespace\n}  // namespace kci_operators\n\n"
        "TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, ops) {\n" + "\n".join(lines) + "\n}\n"
    )


_NO_FUNCTION = {
    "class": "it is a class: a person has to find functions for it",
    "enum": "it is an enum: callers pass its numbers",
    "other": "only functions can be operators: write what it does into the Python package",
}


def _made(binding: Binding, code: Code, names: dict[str, int]) -> _MadeOperator:
    if why := _NO_FUNCTION.get(binding.kind):
        return _left(binding, why)
    if keyword.iskeyword(binding.name):
        return _left(binding, "its name is a keyword of Python")
    if (function := _function(binding, code)) is not None:
        return _wrapped(binding, function, code, names)
    if binding.target.startswith("["):
        return _left(binding, "a lambda has to say what it returns, with `->`, and to take nothing from around it")
    return _left(binding, f"no declaration of `{binding.target[:60]}` was found")


def _left(binding: Binding, why: str) -> _MadeOperator:
    return _MadeOperator(Operator(binding.name, binding.file, binding.line, left=why), conditional=binding.conditional)


def _wrapped(binding: Binding, function: CppFunction, code: Code, names: dict[str, int]) -> _MadeOperator:
    space = function.name.rpartition("::")[0]

    def enum(text: str) -> str:
        return enum_named(code, text, space)

    kinds: list[_Type] = []
    listed = [item for item in function.parameters if item.type != "void"]
    for item in listed:
        kind = None if own_class(code, item.type, space) else passed(item.type, enum)
        if kind is None:
            return _left(binding, f"PyTorch cannot pass `{item.type[:60]}`")
        kinds.append(kind)
    result = None if own_class(code, function.result, space) else _result(function.result, enum)
    if result is None:
        return _left(binding, f"PyTorch cannot return `{function.result[:60]}`")
    schema, returned, how = result
    defaults, notes = _defaults(binding, kinds)
    arguments, call, taken, asked, before = list[str](), list[str](), list[str](), list[str](), ""
    letter = iter("abcdefghijklmnopqrstuvwxyz" * 10)
    written: dict[str, str] = {}
    for index, (item, kind) in enumerate(zip(listed, kinds, strict=True)):
        name = binding.arguments[index][0] if index < len(binding.arguments) else item.name
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"arg{index}"
        shown = kind.schema
        if shown.startswith("Tensor"):
            writes = writes_to(function, index, code)
            if writes is None:
                asked.append(name)
            if writes is not False:
                written[item.name] = mark = next(letter)
                shown = shown.replace("Tensor", f"Tensor({mark}!)", 1)
        arguments.append(f"{shown} {name}" + (f"={defaults[index]}" if defaults[index] is not None else ""))
        taken.append(f"{kind.taken} arg{index}")
        value = kind.made.format(f"arg{index}")
        outer = re.sub(r"<.*>", "", item.type)
        if kind.made != "{0}" and "&" in outer and "const" not in outer:  # it takes no temporary value
            before += f"auto own{index} = {value}; "
            value = f"own{index}"
        call.append(value)
    if asked:
        notes.append(f"does it write to {', '.join(asked)}? Remove the `!` from its schema where it does not")
    back = re.search(r"return\s+(\w+)\s*;", function.body)
    if schema == "Tensor" and back and back[1] in written:
        schema = f"Tensor({written[back[1]]}!)"
    count = names.get(binding.name, 0)
    names[binding.name] = count + 1
    unique = f"{binding.name}_op{count or ''}"  # no keyword of C++, and of no other binding
    full = binding.name + (f".overload{count}" if count else "")
    statement = before + how.format(f"{_called(binding, function)}({', '.join(call)})")
    wrapper = f"{returned} {unique}({', '.join(taken)}) {{ {statement} }}"
    operator = Operator(binding.name, binding.file, binding.line, notes=tuple(notes))
    signature = f"{full}({', '.join(arguments)}) -> {schema}"
    return _MadeOperator(operator, wrapper, signature, f"kci_operators::{unique}", binding.conditional)


def _called(binding: Binding, function: CppFunction) -> str:
    if binding.target.startswith("["):
        return f"({binding.conditional or binding.target})"
    template = re.search(r"<.*>$", binding.target)
    return f"::{function.name}{template[0] if template else ''}"


def _function(binding: Binding, code: Code) -> CppFunction | None:
    if binding.target.startswith("["):
        return _lambda(binding)
    found = functions_named(code, binding.target)
    found = tuple(item for item in found if not item.internal or item.file == binding.file)
    found = tuple(item for item in found if not item.template or "<" in binding.target)
    if binding.cast is not None:
        wanted = [_bare(item) for item in binding.cast]
        found = tuple(item for item in found if [_bare(one.type) for one in item.parameters] == wanted)
    if binding.arguments:
        found = tuple(item for item in found if len(item.parameters) == len(binding.arguments)) or found
    found = tuple(item for item in found if item.name == binding.target.removeprefix("::")) or found
    here = [item for item in found if item.file == binding.file and item.body]
    return next(iter(here or found), None)


def _lambda(binding: Binding) -> CppFunction | None:
    """A lambda that says what it returns."""
    text = binding.target
    at = block_end(text, 0)
    opened = text.find("(", at)
    closed = block_end(text, opened) if opened >= 0 else 0
    found = re.match(r"\s*(?:mutable\s*)?->\s*([^{]+)\{", text[closed:]) if closed else None
    if found is None or text[:at].strip("[]& =\n"):
        return None
    listed = tuple(parameter(item) for item in split_arguments(text[opened + 1 : closed - 1]))
    return CppFunction("lambda", found[1].strip(), listed, text[closed:], binding.file, internal=True, template=False)


def _defaults(binding: Binding, kinds: list[_Type]) -> tuple[list[str | None], list[str]]:
    """The defaults that a schema can have, which are those behind which every argument has one; and what is lost."""
    found: list[str | None] = [None] * len(kinds)
    lost: list[str] = []
    for index in reversed(range(min(len(kinds), len(binding.arguments)))):
        name, said = binding.arguments[index]
        value = _default(said, kinds[index].schema) if said and None not in found[index + 1 :] else None
        found[index] = value
        if said and value is None:
            lost.append(f"`{name} = {said[:40]}`")
    return found, [f"callers have to give {', '.join(reversed(lost))}: a schema cannot say it"] if lost else []

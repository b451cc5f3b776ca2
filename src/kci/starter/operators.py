"""From a pybind11 module to operators of PyTorch: a schema and a wrapper for each function, in the place of the module.

PyTorch passes tensors, int64_t, double, bool, texts, and lists and options of them. A wrapper takes these and calls the
function with its own types, so that the function stays as it is.
"""

from __future__ import annotations

import keyword
import re

import msgspec

from kci.starter.cpp_code import Binding, Code, CppFunction, Parameter, bindings, functions_named, modules, parameter
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
    asked: tuple[str, ...] = ()
    """Arguments that it may write to."""
    within: tuple[str, ...] = ()
    """The conditions of the preprocessor that it is bound in."""


class _Type(msgspec.Struct, frozen=True):
    """How PyTorch passes a type of C++."""

    schema: str
    taken: str
    """The type of the wrapper's argument or result."""
    made: str = "{}"
    """From that type to the function's own; of a result, the other way round."""


_INTS = frozenset((
    "int", "long", "long long", "short", "unsigned", "unsigned int", "unsigned long", "size_t", "int8_t", "int16_t",
    "int32_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t", "uintptr_t", "intptr_t", "ssize_t", "unsigned char",
    "unsigned long long",
))  # fmt: skip
_PLAIN = {
    "Tensor": _Type("Tensor", "at::Tensor"), "int64_t": _Type("int", "int64_t"), "double": _Type("float", "double"),
    "bool": _Type("bool", "bool"), "string": _Type("str", "std::string"),
    "TensorList": _Type("Tensor[]", "at::TensorList"),
    "IntArrayRef": _Type("int[]", "at::IntArrayRef"), "ScalarType": _Type("ScalarType", "at::ScalarType"),
    "Dtype": _Type("ScalarType", "at::ScalarType"), "Scalar": _Type("Scalar", "at::Scalar"),
    "Device": _Type("Device", "at::Device"),
    "Generator": _Type("Generator", "at::Generator"),
}  # fmt: skip
_SPACES = re.compile(r"^(?:::)?(?:std|c10|at|torch|pybind11|py|caffe2|aten)::")
_RESULTS = frozenset(("Tensor", "int", "float", "bool", "str", "Tensor[]", "int[]"))


def _bare(text: str) -> str:
    """A type without `const`, reference and namespace."""
    text = re.sub(r"\bconst\b|\bstruct\b|\binline\b|\bstatic\b", " ", text).replace("&", " ")
    text = " ".join(text.split())
    while (shorter := _SPACES.sub("", text)) != text:
        text = shorter
    return text.strip()


def passed(text: str, enums: frozenset[str]) -> _Type | None:
    """How PyTorch passes a parameter's type; None if it cannot."""
    bare = _bare(text)
    if "*" in text or "&&" in text:
        return None
    if found := _PLAIN.get(bare):
        return found
    writable = "&" in text and "const" not in text
    if bare in _INTS or bare in enums or bare.rpartition("::")[2] in enums:
        return None if writable else _Type("int", "int64_t", f"static_cast<{_own(text)}>({{}})")
    if bare in ("float", "half", "Half"):
        return None if writable else _Type("float", "double", f"static_cast<{_own(text)}>({{}})")
    inner = re.fullmatch(r"(optional|vector|ArrayRef|List|OptionalRef)\s*<(.*)>", bare)
    part = passed(inner[2], enums) if inner is not None else None
    if inner is None or part is None or part.schema.endswith(("?", "[]")):
        return None
    if inner[1] == "optional":
        made = "{}"
        if part.made != "{}" or "const" in inner[2]:
            own = inner[2].strip()
            made = f"({{0}}.has_value() ? std::optional<{own}>({part.made.format('*{0}')}) : std::optional<{own}>())"
        return (
            None
            if made != "{}" and writable and "const" not in inner[2]
            else _Type(f"{part.schema}?", f"std::optional<{part.taken}>", made)
        )
    if part.schema not in ("Tensor", "int", "float", "bool"):
        return None
    if (
        inner[1] in ("vector", "ArrayRef")
        and part.made == "{}"
        and not (inner[1] == "vector" and part.schema == "bool")
    ):
        taken = f"std::vector<{part.taken}>"
        return _Type(f"{part.schema}[]", taken)
    if inner[1] == "vector" and part.schema in ("int", "float"):
        own = inner[2].strip()
        return _Type(
            f"{part.schema}[]", f"std::vector<{part.taken}>", f"std::vector<{own}>({{0}}.begin(), {{0}}.end())"
        )
    return None


def _own(text: str) -> str:
    return " ".join(re.sub(r"\bconst\b", " ", text).replace("&", " ").split())


def _result(text: str, enums: frozenset[str]) -> tuple[str, str, str] | None:
    """Schema, type and expression (of `{}`) of a result."""
    bare = _bare(text)
    if bare == "void":
        return "()", "void", ""
    if found := re.fullmatch(r"(?:tuple|pair)\s*<(.*)>", bare):
        parts = [passed(item, enums) for item in split_arguments(found[1])]
        if not parts or any(item is None or item.schema not in _RESULTS for item in parts):
            return None
        kinds = [item for item in parts if item is not None]
        whole = ", ".join(f"static_cast<{item.taken}>(std::get<{index}>(result))" for index, item in enumerate(kinds))
        schema = f"({', '.join(item.schema for item in kinds)})" if len(kinds) > 1 else kinds[0].schema
        return (
            schema,
            f"std::tuple<{', '.join(item.taken for item in kinds)}>",
            f"auto result = {{}}; return {{{{{whole}}}}};",
        )
    kind = passed(text.replace("&", " "), enums)
    if kind is None or kind.schema not in _RESULTS:
        return None
    if kind.schema == "Tensor[]" and "vector" not in bare:
        return None
    if kind.schema == "int[]" and (kind.made != "{}" or "vector" not in bare):
        return None
    return kind.schema, kind.taken, f"return static_cast<{kind.taken}>({{}});"


def _default(text: str, schema: str) -> str | None:
    """A default as a schema writes it, or None where it cannot."""
    text = re.sub(r"(?<=[\d.])[fFlLuU]+$", "", text.strip())
    if text in ("true", "false"):
        return text.capitalize()
    if re.search(r"(?:none\(\)|nullopt|None|optional<.*>\(\)|nullptr)$", text) or text == "{}":
        return "None" if schema.endswith("?") else ("[]" if schema.endswith("[]") else None)
    if re.fullmatch(r"-?\d+", text):
        return f"{text}.0" if schema.startswith("float") else text
    if re.fullmatch(r"-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", text, re.I):
        return text
    return text if re.fullmatch(r'"[\w .-]*"', text) and schema.startswith("str") else None


class _MadeOperator(msgspec.Struct, frozen=True):
    operator: Operator
    wrapper: str = ""
    schema: str = ""
    function: str = ""


def with_operators(file: str, text: str, code: Code) -> tuple[str, list[Operator]]:
    """A source with operators in the place of its pybind11 modules, and what became of each function."""
    plain = without_comments(text)
    found = list(modules(plain))
    if not found:
        return text, []
    made: list[Operator] = []
    names: dict[str, int] = {}
    parts: list[str] = []
    bound = bindings(file, text)
    done = 0
    for start, end, _, body in found:
        parts.append(text[done:start])
        done = end
        first, last = plain.count("\n", 0, start) + 1, plain.count("\n", 0, end) + 1
        here = [_made(item, code, names) for item in bound if first <= item.line <= last]
        made += [item.operator for item in here]
        parts.append(_block(here, body, plain.count("\n", 0, plain.index("{", start) + 1) + 1))
    return "".join([*parts, text[done:]]), made


def _block(made: list[_MadeOperator], body: str, line: int) -> str:
    """Wrappers and registrations, within the conditions of the preprocessor that they stood in."""
    items: list[tuple[int, str | _MadeOperator]] = [(item.operator.line, item) for item in made]
    items += [
        (line + number, text.strip()) for number, text in enumerate(body.split("\n")) if text.lstrip().startswith("#")
    ]
    ordered = [item for _, item in sorted(items, key=lambda pair: pair[0])]
    wrappers, lines = [], []
    for item in ordered:
        if isinstance(item, str):
            wrappers.append(item)
            lines.append(item)
        elif item.operator.left:
            lines.append(f"  // draft: `{item.operator.name}` is left out: {item.operator.left}")
        else:
            wrappers.append(item.wrapper)
            if item.operator.asked:
                lines.append(
                    f"  // draft: does it write to {', '.join(item.operator.asked)}? Remove the `!` where it does not."
                )
            lines.append(f'  ops.def("{item.schema}", &{item.function});')
    if not any(not item.operator.left for item in made):
        return "\n".join(f"// {line.strip().removeprefix('// ')}" for line in lines if not line.startswith("#")) + "\n"
    return (
        "// The functions of a pybind11 module, as operators of PyTorch: a wrapper takes the types that it passes.\n"
        "namespace kci_operators {\nnamespace {\n"
        + "\n".join(wrappers)
        + "\n}  // namespace\n}  // namespace kci_operators\n\n"
        "TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, ops) {\n" + "\n".join(lines) + "\n}\n"
    )


def _made(binding: Binding, code: Code, names: dict[str, int]) -> _MadeOperator:
    def left(why: str) -> _MadeOperator:
        return _MadeOperator(Operator(binding.name, binding.file, binding.line, left=why))

    if binding.kind != "function":
        what = {"class": "a class: a person has to find functions for it", "enum": "an enum: callers pass its numbers"}
        return left(f"it is {what.get(binding.kind, 'no function of the module itself')}")
    function = _function(binding, code)
    if function is None:
        return left(f"no declaration of `{binding.target[:60]}` was found")
    listed = [item for item in function.parameters if item.type != "void"]
    arguments, call, taken = [], [], []
    kinds = [passed(item.type, code.enums) for item in listed]
    defaults = _defaults(binding, listed, kinds)
    asked: list[str] = []
    letter = iter("abcdefghijklmnopqrstuvwxyz" * 10)
    written: dict[str, str] = {}
    for index, (item, kind) in enumerate(zip(listed, kinds, strict=True)):
        if kind is None:
            return left(f"PyTorch cannot pass `{item.type[:60]}`")
        name = binding.arguments[index][0] if index < len(binding.arguments) else item.name
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"arg{index}"
        schema = kind.schema
        if schema in ("Tensor", "Tensor?", "Tensor[]"):
            writes = writes_to(function, index, code)
            if writes is None:
                asked.append(name)
            if writes is not False:
                mark = next(letter)
                schema = schema.replace("Tensor", f"Tensor({mark}!)", 1)
                written[item.name] = mark
        arguments.append(f"{schema} {name}" + (f"={defaults[index]}" if defaults[index] is not None else ""))
        taken.append(f"{kind.taken} arg{index}")
        call.append(kind.made.format(f"arg{index}"))
    result = _result(function.result, code.enums)
    if result is None:
        return left(f"PyTorch cannot return `{function.result[:60]}`")
    schema, returned, how = result
    back = re.search(r"return\s+(\w+)\s*;", function.body)
    if schema == "Tensor" and back and back[1] in written:
        schema = f"Tensor({written[back[1]]}!)"
    count = names.get(binding.name, 0)
    names[binding.name] = count + 1
    unique = binding.name + (f"_{count}" if count else "")
    shown = binding.name + (f".overload{count}" if count else "")
    called = f"{_called(binding, function)}({', '.join(call)})"
    statement = how.format(called) if how else f"{called};"
    wrapper = f"{returned} {unique}({', '.join(taken)}) {{ {statement} }}"
    operator = Operator(binding.name, binding.file, binding.line, asked=tuple(asked))
    return _MadeOperator(operator, wrapper, f"{shown}({', '.join(arguments)}) -> {schema}", f"kci_operators::{unique}")


def _called(binding: Binding, function: CppFunction) -> str:
    if binding.target.startswith("["):
        return f"({binding.target})"
    name = binding.target
    template = re.search(r"<.*>$", name)
    return (
        f"::{function.name}{template[0] if template else ''}"
        if not function.internal or "::" not in function.name
        else name
    )


def _function(binding: Binding, code: Code) -> CppFunction | None:
    if binding.target.startswith("["):
        return _lambda(binding)
    found = functions_named(code, binding.target)
    found = tuple(item for item in found if not item.internal or item.file == binding.file)
    found = tuple(item for item in found if not item.template or "<" in binding.target)
    if binding.arguments:
        found = tuple(item for item in found if len(item.parameters) == len(binding.arguments)) or found
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
    listed = tuple(_split_default(item) for item in split_arguments(text[opened + 1 : closed - 1]))
    return CppFunction(
        "lambda", found[1].strip(), listed, text[closed:], binding.file, binding.line, internal=True, template=False
    )


def _split_default(text: str) -> Parameter:
    before, _, default = text.partition("=")
    return parameter(before) if default else parameter(text)


def _defaults(binding: Binding, listed: list[Parameter], kinds: list[_Type | None]) -> list[str | None]:
    """The defaults that a schema can have: those behind which every argument has one."""
    given = [default for _, default in binding.arguments][: len(listed)]
    found: list[str | None] = [None] * len(listed)
    for index in reversed(range(len(listed))):
        kind = kinds[index]
        said = given[index] if index < len(given) else ""
        value = _default(said, kind.schema) if said and kind is not None else None
        if value is None:
            break
        found[index] = value
    return found

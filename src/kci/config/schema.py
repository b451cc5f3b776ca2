"""JSON Schemas, derived from the types that read the files; descriptions are their docstrings."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kci.config.model import Build
from kci.config.settings import Settings
from kci.utils.bounded_json import encode_file
from kci.utils.shipped import Dated, shipped
from kci.version import REPOSITORY

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Hook = Callable[[type], dict[str, Any]]


def build_schema() -> dict[str, Any]:
    """The JSON Schema of build.toml, editions 4 and 5."""
    title, file = "build.toml of a GPU kernel", "build.schema.json"
    schema = document_schema(
        Build, title, file, lambda type_: {"$ref": f"#/$defs/{type_.__name__}"}
    )
    schema["oneOf"] = [{"required": [name]} for name in ("torch", "torch-noarch", "tvm-ffi")]
    definitions = schema["$defs"]
    definitions["General"]["properties"]["edition"]["const"] = 5
    definitions["KernelDependency"]["oneOf"] = [
        {"required": ["version"]},
        {"required": ["revision"]},
    ]
    definitions |= _value_schemas().definition
    schema["$defs"] = dict(sorted(definitions.items()))
    return schema


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of kci.toml."""
    title = "kci.toml: how and where a repository wants its GPU kernels built"
    schema = document_schema(
        Settings,
        title,
        "kci.schema.json",
        lambda type_: _value_schemas().definition[type_.__name__],
    )
    runners, test, images = (schema["properties"][table] for table in ("runners", "test", "images"))
    systems = runners["additionalProperties"], test["additionalProperties"]["anyOf"][0]
    for names, tables in (
        ("RunnerKind", (runners, test)),
        ("Backend", (images,)),
        ("System", systems),
    ):
        for table in tables:
            table["propertyNames"] = {"$ref": f"#/$defs/{names}"}
    return schema


PUBLISHED_AT = f"https://raw.githubusercontent.com/{REPOSITORY}/main/docs/schemas/"
"""Base of schema ids; SchemaStore's catalog names it too."""


def document_schema(
    struct: type[msgspec.Struct], title: str, file: str, hook: Hook
) -> dict[str, Any]:
    """Make the JSON Schema of a struct; `hook` gives the schema of other types, `file` the id."""
    _, made = msgspec.json.schema_components(
        [struct], schema_hook=hook, ref_template="#/$defs/{name}"
    )
    for name, definition in made.items():
        if "description" in definition:  # a docstring, with its line ends
            definition["description"] = " ".join(definition["description"].split())
        if "properties" in definition:
            _describe(definition["properties"], getattr(sys.modules[struct.__module__], name))
    definitions = {name: _tidy(part) for name, part in sorted(made.items())}
    document = definitions.pop(struct.__name__)
    return {
        "$schema": DIALECT,
        "$id": PUBLISHED_AT + file,
        **document,
        "title": title,
        "$defs": definitions,
    }


def schema_text(schema: dict[str, Any]) -> str:
    """Format a schema as the text of a file."""
    return encode_file(schema).decode()


class _ValueSchemas(Dated):
    definition: dict[str, dict[str, Any]]


_value_schemas = shipped("config/data/value-schemas.toml", _ValueSchemas)


def _tidy(value: Any) -> Any:
    # drops nulls for missing values, and the limits of JSON integers
    if isinstance(value, list):
        return [_tidy(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _tidy(part)
        for key, part in value.items()
        if key not in ("default", "maximum", "discriminator")
    }
    if "anyOf" in kept:
        kept["anyOf"] = [part for part in kept["anyOf"] if part != {"type": "null"}]
        if len(kept["anyOf"]) == 1:
            (only,) = kept.pop("anyOf")
            kept |= only
    if kept.get("required") == []:
        del kept["required"]
    return kept


def _describe(properties: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    for key, schema in properties.items():
        for base in struct.__mro__:
            text = _field_docs(base.__module__).get(base.__name__, {}).get(names.get(key, ""))
            if text:
                properties[key] = {"description": text, **schema}
                break


@cache
def _field_docs(module: str) -> dict[str, dict[str, str]]:
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or not file.endswith(".py"):
        return {}
    docs: dict[str, dict[str, str]] = {}
    for part in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(part, ast.ClassDef):
            docs[part.name] = {}
            for field, below in zip(part.body, part.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str() as text)
                    ):
                        docs[part.name][name] = re.sub(r"\s+", " ", text).strip()
    return docs

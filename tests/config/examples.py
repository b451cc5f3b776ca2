"""The examples in the rule texts as files that can be read: what they leave out is filled in."""

from __future__ import annotations

import tomlkit

from kci.diagnostics import Rule

GENERAL = {
    "name": "norm", "version": 1, "edition": 5, "license": "apache-2.0",
    "backends": ["cuda", "rocm"], "hub": {"repo-id": "acme/norm"},
}  # fmt: skip


def complete(snippet: str) -> str:
    """A whole build.toml around a part of one, comments and all."""
    document = tomlkit.parse(snippet)
    general = document.setdefault("general", tomlkit.table())
    for key, value in GENERAL.items():
        if key not in general:
            general[key] = value
    if not any(name in document for name in ("torch", "torch-noarch", "tvm-ffi")):
        document["torch-noarch" if "kernel" not in document else "torch"] = tomlkit.table()
    return tomlkit.dumps(document)


def with_examples(rules: dict[str, Rule], prefix: tuple[str, ...]) -> list[Rule]:
    """The rules of some prefixes that have examples."""
    return [
        rule for rule in rules.values() if rule.id.startswith(prefix) and rule.bad and rule.good
    ]

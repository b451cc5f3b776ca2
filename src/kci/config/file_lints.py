"""Lints on the text of a build.toml, one generator per rule; `FILE_LINTS` lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

from kci.config.document import Document, KeyPath
from kci.config.facts import BACKENDS, depends_table
from kci.config.reader import Kernel
from kci.config.values import Version, quoted
from kci.diagnostics import Diagnostic, in_file_order
from kci.utils.shipped import Dated, shipped
from kci.utils.suggest import one_of, suggestion

_NATIVE = re.compile(
    r"(?<![\w-])(?:-m(?:arch|cpu)=native|-xHost|/QxHost|"
    r"--?(?:arch|gpu-architecture|gpu-code|offload-arch)[= ]native)\b"
)


class Flag(NamedTuple):
    """A compiler flag in build.toml."""

    backend: str
    """Empty for the bindings."""
    place: KeyPath
    text: str
    src: tuple[str, ...]


def compiler_flags(kernel: Kernel) -> Iterator[Flag]:
    """Yield every compiler flag."""
    build = kernel.build
    components = ((part.backend, ("kernel", label), part) for label, part in build.kernel.items())
    for backend, place, table in (
        ("", ("torch",), build.torch),
        ("", ("tvm-ffi",), build.tvm_ffi),
        *components,
    ):
        for key in ("cxx-flags", BACKENDS[backend].flags if backend else ""):
            for index, text in enumerate(getattr(table, key.replace("-", "_"), None) or ()):
                yield Flag(backend, (*place, key, index), text, table.src if table else ())


def _joined_flags(kernel: Kernel) -> Iterator[tuple[Flag, str]]:
    # with the text that a value of its own makes of it and the flag before
    before = ""
    for flag in compiler_flags(kernel):
        yield flag, f"{before} {flag.text}" if flag.text in ("native", "true") else flag.text
        before = flag.text


LintFinding = tuple[KeyPath, str, str]
"""The place in the file, a message and a hint."""

_Subject = TypeVar("_Subject")
Lints = Mapping[str, Callable[[_Subject], Iterator[LintFinding]]]
"""Generators of findings by rule."""


def findings_of(
    document: Document, lints: Lints[_Subject], subject: _Subject, of_keys: Collection[str] = ()
) -> list[Diagnostic]:
    """The findings of lints in file order; those of the rules `of_keys` are at the key, and not at
    its value.
    """
    findings = [
        (document.at_key if rule in of_keys else document.at_value)(place, rule, message, hint)
        for rule, lint in lints.items()
        for place, message, hint in lint(subject)
    ]
    return sorted(findings, key=in_file_order)


def lint_file(kernel: Kernel, rules: Collection[str] = ()) -> list[Diagnostic]:
    """The findings of `FILE_LINTS`, or of some of its rules."""
    lints = {rule: lint for rule, lint in FILE_LINTS.items() if not rules or rule in rules}
    return findings_of(kernel.document, lints, kernel, ("KCI139",))


def backend_without_component(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI130: a backend of `[torch]` has no component (docs/format.md#noarch-build)."""
    if kernel.build.torch is None:
        return
    declared = kernel.build.general.backends
    for backend in dict.fromkeys(declared):
        if kernel.build.components(backend):
            continue
        hint = f'add a component with `backend = "{backend}"`, or remove it from `backends`'
        if not BACKENDS[backend].components:
            hint = f"{backend} cannot have components; only a [torch-noarch] kernel can declare it"
        message = (
            f"{backend} is declared and has no component: the reference builder fails on such a "
            "backend"
        )
        yield ("general", "backends", declared.index(backend)), message, hint


def component_undeclared(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI131: `general.backends` lacks the backend of a component."""
    declared = kernel.build.general.backends
    for label, component in kernel.build.kernel.items():
        if component.backend not in declared:
            message = (
                f"component `{label}` is for {component.backend}, which is not in "
                "`general.backends`: never built"
            )
            hint = f'add "{component.backend}" to `backends`, or remove the component'
            yield ("kernel", label, "backend"), message, hint


def bounds_inverted(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI133: a lower bound is above its upper bound."""
    for table, least, most in _bounds(kernel):
        if least is not None and most is not None and least > most:
            name = ".".join(table)
            message = (
                f"`{name}.minver` ({least}) is newer than `{name}.maxver` ({most}): no version is "
                "between them"
            )
            yield (*table, "minver"), message, "swap the two, or remove one"


def version_spelling(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI135: a version without exactly two parts (docs/format.md#version-bounds)."""
    for path, version in versions(kernel):
        bad_abi = path[1] == "stable-abi" and len(version) < 2  # that is KCI144
        if version.text.count(".") != 1 and not bad_abi:
            message = (
                f"the reference refuses {quoted(version.text[:40])}, or reads it differently: it "
                "has not two parts"
            )
            hint = (
                f'write "{version.minor_text}"'
                if len(version) <= 2
                else "write major and minor only"
            )
            yield path, message, hint


def versions(kernel: Kernel) -> list[tuple[KeyPath, Version]]:
    """Every version of torch, stable ABI and CUDA."""
    found: list[tuple[KeyPath, Version | None]] = [*_abi_versions(kernel)]
    for table, least, most in _bounds(kernel):
        found += [((*table, "minver"), least), ((*table, "maxver"), most)]
    for label, component in kernel.build.kernel.items():
        found.append((("kernel", label, BACKENDS[component.backend].minver), component.minver))
    return [(path, version) for path, version in found if version is not None]


def repo_id_missing(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI139: no repository to publish to."""
    hub = kernel.build.general.hub
    if hub is None or hub.repo_id is None:
        path: KeyPath = ("general", "hub") if hub else ("general",)
        message = (
            "no `general.hub.repo-id`: the kernel can be built, but not published, and its card "
            "is not rendered"
        )
        hint = f'add `[general.hub]` with `repo-id = "<owner>/{kernel.build.name}"`'
        yield path, message, hint


_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)


def repo_id_malformed(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI140: a repository id that the Hub rejects."""
    general = kernel.build.general
    own = general.hub.repo_id if general.hub else None
    ids: list[tuple[KeyPath, str | None]] = [(("general", "hub", "repo-id"), own)]
    for backend, table in general.tables.items():
        for index, dependency in enumerate(getattr(table, "kernel_depends", None) or ()):
            ids.append(
                ((*_general(backend), "kernel-depends", index, "repo-id"), dependency.repo_id)
            )
    for path, repo_id in ids:
        if repo_id is not None and (problem := repo_id_problem(repo_id)):
            message = f"{quoted(repo_id[:100])} is not a repository id: {problem}"
            yield path, message, _repo_hint(repo_id)


def _repo_hint(repo_id: str) -> str:
    match = re.fullmatch(
        r"(?:https?://)?(?:huggingface\.co|hf\.co)/(?:kernels/|models/)?([^/]+/[^/]+?)/?",
        repo_id[:300],
    )
    if match and not repo_id_problem(match[1]):
        return f'write "{match[1]}"'
    return (
        f'write it with its owner: "<owner>/{repo_id}"'
        if _REPO_PART.fullmatch(repo_id[:96])
        else "owner/name"
    )


def repo_id_problem(repo_id: str) -> str:
    """The reason why the Hub rejects a repository id; empty if it is valid."""
    owner, slash, name = repo_id.partition("/")
    if not slash:
        return "it has no owner"
    if not owner or not name:
        return "owner or name is empty"
    if "/" in name:
        return "it has more than one slash"
    if len(owner) > 96 or len(name) > 96:
        return "owner or name has more than 96 characters"
    if not (_REPO_PART.fullmatch(owner) and _REPO_PART.fullmatch(name)):
        return (
            "owner and name are letters, digits, `_`, `.` and `-`, and neither starts nor ends "
            "with `.` or `-`"
        )
    if "--" in repo_id or ".." in repo_id or name.endswith(".git"):
        return "`--`, `..` and a final `.git` are not allowed"
    return ""


def license_unknown(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI141: a license unknown to SPDX and the Hub; case does not matter."""
    text = kernel.build.general.license
    known = _licenses().identifiers
    if text.lower() in known or _is_spdx(text):
        return
    hint = (
        suggestion(text.lower().replace(" ", "-"), sorted(known))
        or "use an SPDX identifier such as `apache-2.0` or `mit`"
    )
    message = f"{quoted(text[:60])} is neither an SPDX license expression nor a license of the Hub"
    yield ("general", "license"), message, hint


def _is_spdx(text: str) -> bool:
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if len(text) > 1000 or not text.isprintable():
        return False
    try:
        canonicalize_license_expression(text)
    except (InvalidLicenseExpression, RecursionError, MemoryError):  # the expression is compiled
        return False
    return True


def python_depend_unknown(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI142: a Python dependency outside of the reference's table; neuron is exempt
    (docs/format.md#dependencies).
    """
    names_of = {"": depends_table().general, **depends_table().backends}
    for backend, table in kernel.build.general.tables.items():
        if backend and not BACKENDS[backend].depends_recorded:
            continue
        prefix, allowed = _general(backend), sorted(names_of.get(backend, ()))
        for index, name in enumerate(table.python_depends or ()):
            if name in allowed:
                continue
            message = (
                f"{quoted(name[:60])} is not a Python dependency that {'.'.join(prefix)} can have"
            )
            hint = suggestion(name, allowed) or one_of(allowed)
            if owner := [other for other, names in names_of.items() if name in names]:
                hint = f"it belongs in `{'.'.join(_general(owner[0]))}.python-depends`"
            elif not allowed:
                hint = "this list has to be empty"
            yield (*prefix, "python-depends", index), message, hint


def _general(backend: str) -> tuple[str, ...]:
    return ("general", backend) if backend else ("general",)


def stable_abi_without_minor(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI144: a stable ABI version without a minor above zero (docs/format.md#stable-abi)."""
    for path, version in _abi_versions(kernel):
        if len(version) < 2:
            lacks = "the minor version 0" if "." in version.text else "no minor version"
            message = (
                f"the stable ABI version {quoted(version.text)} has {lacks}: the reference's "
                "build cannot read it"
            )
            yield path, message, 'name a release of torch, such as "2.11"'


def build_machine_flag(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI163: a flag that compiles for the build machine only."""
    for flag, text in _joined_flags(kernel):
        if match := _NATIVE.search(text):
            message = (
                f"`{match[0]}` compiles for the machine that builds; on others the code may not run"
            )
            hint = (
                "leave it out; `-mtune` chooses what the code is fast on, and leaves where it runs"
            )
            yield flag.place, message, hint


# spellings of nvcc and hipcc; nvcc accepts one dash or two, and a separate value
_RELOCATABLE = re.compile(
    r"(?<![\w-])(?:-rdc[= ]true|--?relocatable-device-code[= "
    r"]true|-dc|--?device-c|-dw|--?device-w|-dlto"
    r"|--?dlink-time-opt|--?gen-opt-lto|-ewp|--?extensible-whole-program|-fgpu-rdc)(?![\w-])|\blto_\d+[af]?\b"
)


_GPU_FLAGS = [facts.flags for facts in BACKENDS.values() if facts.archs]


def relocatable_device_code(kernel: Kernel) -> Iterator[LintFinding]:
    """KCI168: a flag for relocatable device code, which needs a device link that kci does
    not make.
    """
    for flag, text in _joined_flags(kernel):
        if flag.place[-2] in _GPU_FLAGS and (match := _RELOCATABLE.search(text)):
            message = (
                f"`{match[0]}` makes relocatable device code, and kci makes no device link: it "
                "cannot be loaded"
            )
            yield flag.place, message, "leave it out"


def _abi_versions(kernel: Kernel) -> Iterator[tuple[KeyPath, Version]]:
    stable = kernel.build.torch.stable_abi if kernel.build.torch else None
    for backend, version in (stable or {}).items():
        yield ("torch", "stable-abi", *filter(None, [backend])), version


def _bounds(kernel: Kernel) -> list[tuple[tuple[str, ...], Version | None, Version | None]]:
    tables = {_general(name): table for name, table in kernel.build.general.tables.items()}
    return [
        (place, getattr(table, "minver", None), getattr(table, "maxver", None))
        for place, table in {**tables, ("torch",): kernel.build.torch}.items()
    ]


class _Licenses(Dated):
    identifiers: frozenset[str]


_licenses = shipped("config/data/licenses.toml", _Licenses)


FILE_LINTS: Lints[Kernel] = {
    "KCI130": backend_without_component,
    "KCI131": component_undeclared,
    "KCI133": bounds_inverted,
    "KCI135": version_spelling,
    "KCI139": repo_id_missing,
    "KCI140": repo_id_malformed,
    "KCI141": license_unknown,
    "KCI142": python_depend_unknown,
    "KCI144": stable_abi_without_minor,
    "KCI163": build_machine_flag,
    "KCI168": relocatable_device_code,
}

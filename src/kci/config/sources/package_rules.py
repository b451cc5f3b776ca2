"""Rules about the Python files of a package: syntax, imports, ops.

Findings are cached by file state.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from operator import eq
from pathlib import Path
from typing import TypeGuard

from kci.config.discovery import RepositorySettings, companion, drop_suppressed
from kci.config.facts import depends_table
from kci.config.model import Build
from kci.config.reader import BUILD_TOML, Kernel
from kci.config.sources.card import card_files, render_card
from kci.config.sources.imports import (
    ImportGraph,
    ImportSite,
    PackageModule,
    Reach,
    module_name,
    node_span,
    python_table,
    read_module,
    with_parents,
)
from kci.config.sources.op_rules import SUFFIXES, check_cpp, check_ops
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, Span, finding, placed
from kci.errors import FindingsError
from kci.utils.bounded_json import read_bounded
from kci.utils.cache import StatCache
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped
from kci.utils.walk import Entry, collision, is_bytecode, is_lfs_pointer, unsafe_name, walk
from kci.version import __version__

MAX_BYTES = 4 * 1024 * 1024
_NATIVE = (".so", ".pyd", ".dylib", ".dll")
TESTS = "tests"
OPS = "_ops"
"""The module that every build generates."""


class ProvidedTable(Dated):
    """`provided-modules.toml`."""

    modules: dict[str, tuple[str, ...]]
    only: dict[str, tuple[str, ...]]
    backends: dict[str, tuple[str, ...]]
    depends: dict[str, tuple[str, ...]]


provided_table = shipped("config/sources/data/provided-modules.toml", ProvidedTable)
"""Modules of the loader, of torch and of declared packages."""


class Package(Frozen):
    """The Python package to check."""

    name: str
    """Importable as the package itself."""
    lacking: dict[str, tuple[str, ...]]
    """The importable modules besides the standard library, each with the backends that lack it."""

    def allows(self, module: str) -> bool:
        """True for an importable module and for its submodules."""
        return not self.lacking.keys().isdisjoint(with_parents(module))

    def backends_without(self, modules: Iterable[str]) -> str:
        """The backends that lack one of some importable modules, in words."""
        tops = (next(filter(self.lacking.get, with_parents(module)), "") for module in modules)
        return ", ".join(sorted({name for top in tops for name in self.lacking.get(top, ())}))


def make_package(
    name: str, depends: Iterable[tuple[str, str]], backends: Iterable[str], *, tvm_ffi: bool = False
) -> Package:
    """Describe the package of a kernel; `depends` has `python-depends` names with their
    backends.
    """
    table, names = provided_table(), tuple(map(str, backends))
    having = defaultdict(set, {module: set(some) for module, some in table.only.items()})
    for backend in names:
        for module in table.backends.get(backend, ()):
            having[module].add(backend)
    for depend, backend in depends:
        package = depends_table().lookup(depend, backend)
        for module in (*package.imports, *table.depends.get(depend, ())) if package else ():
            having[module].update([backend] if backend else names)
    for module in chain(*table.modules.values(), ["tvm_ffi"] if tvm_ffi else ()):
        having[module].update(names)
    lacking = {
        module: tuple(backend for backend in names if backend not in some)
        for module, some in sorted(having.items())
    }
    return Package(python_name(name), lacking)


def check_package(
    files: Iterable[Entry], package: Package, generated: Collection[str]
) -> Iterator[Diagnostic]:
    """Yield the findings about a package, with paths in it; `generated` lists the build's
    modules.
    """
    modules: list[PackageModule] = []
    others = set(generated)
    for item in _own(files):
        if item.name.endswith((".py", *_NATIVE)):
            others.add(module_name(item.name))
        if not item.name.endswith(".py"):
            continue
        where = item.name
        try:
            text = read_bounded(item.path, MAX_BYTES)
            tree = _tree(text)
            modules.append(read_module(where, tree))
            if item.name != f"{OPS}.py" and any(
                word in text for word in _OF_OPS
            ):  # most files have none
                yield from placed(check_ops(tree, package.name), where)
        except OSError as error:
            yield finding("KCI700", f"cannot read it: {error.strerror}", where)
        except SyntaxError as error:
            message = f"it does not parse for Python {python_table().loader}: {error.msg}"
            line, column = error.lineno or 1, max(1, error.offset or 1)
            yield finding("KCI770", message, where, span=Span(line, column, line, column + 1))
        except (ValueError, RecursionError, MemoryError) as error:
            yield finding(
                "KCI770", f"it does not parse: {str(error) or type(error).__name__}", where
            )
    yield from _check_imports(modules, ImportGraph(modules, others), package)


def _own(files: Iterable[Entry]) -> list[Entry]:
    return [item for item in files if item.regular and not item.link and not is_bytecode(item.name)]


_OF_OPS = (
    b"library",
    b"custom_op",
    b"register_",
    b"triton_op",
    b"op_namespace_prefix",
    b"torch.ops.",
)


def _check_tests(files: Iterable[tuple[str, str]], build: Build) -> Iterator[Diagnostic]:
    version, hub = build.general.version, build.general.hub
    own = {build.name, ((hub and hub.repo_id) or "").rpartition("/")[2]}
    for shown, file in files:
        nodes: list[ast.AST] = []
        with suppress(
            OSError, ValueError, SyntaxError, RecursionError, MemoryError
        ):  # running them says it
            text = read_bounded(Path(file), MAX_BYTES)
            nodes += ast.walk(_tree(text)) if b"kernels" in text and b"version" in text else ()
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            given: dict[str | None, ast.expr] = dict(zip(["repo_id"], call.args, strict=False))
            given |= {key.arg: key.value for key in call.keywords}
            match given.get("repo_id"), given.get("version"):
                case ast.Constant(value=str(name)), ast.Constant(value=int(asked)) as place if (
                    asked != version and name.rpartition("/")[2] in own
                ):
                    message = (
                        f"it loads version {asked} of {name}, and build.toml has version {version}"
                    )
                    yield finding("KCI783", message, shown, span=node_span(place))


def _tree(text: bytes) -> ast.Module:
    version = python_table().loader
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the author's strings are no findings
        feature = (version[0], version[1])
        try:
            tree = ast.parse(text, feature_version=feature)
        except SyntaxError:
            ast.parse(
                text.decode("utf-8-sig", "replace"), feature_version=feature
            )  # its columns are characters
            raise
    if version < _UNPACKING and _STARRED.search(text):
        place = next(filter(_unpacks, ast.walk(tree)), None)
        if place is not None:
            raise SyntaxError(
                "Unpacking here is only supported in Python 3.11 and greater",
                ("", place.lineno, place.col_offset + 1, ""),
            )
    return tree


_UNPACKING = (3, 11)
"""First Python with `x[*rest]` and `*args: *Types`; `feature_version` accepts them always."""

_STARRED = re.compile(rb"[\[,:](?:\s|\\|#[^\n]*\n)*\*(?!\s*[*,)])")
"""Every file with such syntax matches, so others need no walk over their nodes."""


def _unpacks(node: ast.AST) -> TypeGuard[ast.expr | ast.arg]:
    match node:
        case ast.Subscript(slice=ast.Tuple(elts=[first, *_] as parts) as index):
            # in parentheses it is old syntax, and larger than its parts
            own = (index.lineno, index.col_offset), (index.end_lineno, index.end_col_offset)
            last = parts[-1]
            inner = (first.lineno, first.col_offset), (last.end_lineno, last.end_col_offset)
            return any(map(eq, own, inner)) and any(isinstance(part, ast.Starred) for part in parts)
        case ast.arg(annotation=ast.Starred()):
            return True
        case _:
            return False


def _check_imports(
    modules: Iterable[PackageModule], graph: ImportGraph, package: Package
) -> Iterator[Diagnostic]:
    gaps: dict[str, Diagnostic] = {}
    sites = ((module, site) for module in modules for site in module.sites)
    for module, site in sites:
        reach, top = min(graph.reach[module.name], site.reach), site.module.partition(".")[0]
        where = module.path
        loaded = reach is Reach.LOADED
        if site.level:
            reason = graph.import_problem(module, site)
            if reason and loaded and not site.guarded:
                yield finding(
                    "KCI776", f"its relative import fails: {reason}", where, span=site.span
                )
        elif reach is Reach.NEVER or top in python_table().modules or top in graph.registered:
            continue
        elif top == package.name or not all(map(package.allows, site.imported)):
            yield _foreign(site, package, where, loaded=loaded)
        elif (
            loaded
            and not site.guarded
            and top not in gaps
            and (these := package.backends_without(site.imported))
        ):
            message = (
                f"it imports {site.module}, which torch for {these} does not bring and nothing "
                "declares for it"
            )
            hint = (
                f"import it in the function that needs it, catch the ImportError, or take {these} "
                "out of `backends`"
            )
            gaps[top] = finding("KCI771", message, where, hint=hint, span=site.span)
    yield from gaps.values()


def _foreign(site: ImportSite, package: Package, where: str, *, loaded: bool) -> Diagnostic:
    top, _, inside = site.module.partition(".")
    if top == package.name:
        hint = f"import relatively: `from .{inside} import ...`"
    else:
        tables = depends_table()
        known = dict.fromkeys([*sorted(tables.general), *sorted(chain(*tables.backends.values()))])
        late = "say why it may be absent in [[lint.ignore]] of kci.toml"
        late = "import it in the function that needs it" if loaded else late
        hint = f"{late}, or do without; `python-depends` can name {', '.join(known)}"
    message = (
        f"it imports {site.module}, which the kernel does not "
        f"declare{'' if loaded else ' when that code runs'}"
    )
    return finding("KCI771" if loaded else "KCI773", message, hint=hint, path=where, span=site.span)


@cache
def checker_version() -> str:
    """A hash of what judges sources: what was found by another kci is not remembered."""
    kci = Path(__file__).parents[2]
    digest = hashlib.sha256(f"{sys.version} {__version__}".encode())
    read = (
        "config/**/*.[pt]*",
        "matrix/**/*.[pt]*",
        "plan/inputs/*.py",
        "rules/*.toml",
        "diagnostics.py",
    )
    for file in sorted(file for pattern in read for file in kci.glob(pattern)):
        if file.suffix in (".py", ".toml"):
            digest.update(file.read_bytes())
    return digest.hexdigest()


FETCH_LFS = (
    "fetch it: `git lfs pull`; workflows that `kci render` writes do where .gitattributes says so"
)


def source_findings(
    kernel: Kernel, settings: RepositorySettings, seen: StatCache | None = None
) -> list[Diagnostic]:
    """Check a kernel's sources and drop suppressed findings; `seen` as for `check_sources`."""
    return drop_suppressed(list(check_sources(kernel, seen)), settings)


def check_sources(kernel: Kernel, seen: StatCache | None = None) -> Iterator[Diagnostic]:
    """Yield the findings about a kernel's sources; `seen` caches findings of unchanged files."""
    build, kernel_dir = kernel.build, Path(kernel.directory)
    prefix = kernel.document.path.removesuffix(BUILD_TOML)
    tvm_ffi = build.framework_name == "tvm-ffi"
    name = python_name(build.name)
    relative = f"{'tvm-ffi-ext' if tvm_ffi else 'torch-ext'}/{name}"
    where, root = prefix + relative, kernel_dir / relative
    if not (root / "__init__.py").is_file():
        yield kernel.document.at_value(
            ("general", "name"), "KCI774", f"there is no {relative}/__init__.py"
        )
        return
    if os.path.lexists(root / name):
        yield finding(
            "KCI703", f"the package holds an entry called {name}, as it is called itself", where
        )
    tables = build.general.tables.items()
    depends = [(name, backend) for backend, table in tables for name in table.python_depends or ()]
    package = make_package(build.name, depends, build.general.backends, tvm_ffi=tvm_ffi)
    try:
        own = _own(walk(root))
    except FindingsError as error:
        yield finding("KCI700", error.message, where)
        return
    listed = [(prefix + name, file) for name, file in _source_paths(kernel_dir, build)]
    base = os.path.realpath(root)
    # the sources of one component of each backend are compiled together, with the binding's
    binding = set(build.torch.src if build.torch else ())
    together = [
        sorted(
            prefix + name
            for name in binding.union(*(part.src for part in build.components(backend).values()))
        )
        for backend in build.general.backends
    ]
    cards, tests = (
        [(file.as_posix(), os.path.realpath(file)) for file in files if file.is_file()]
        for files in (card_files(kernel), sorted(companion(kernel_dir, TESTS).rglob("*.py")))
    )

    every = [*((f"{where}/{item.name}", f"{base}/{item.name}") for item in own), *listed, *cards]

    def state() -> object:
        files = [(path, seen.digest(file)) for path, file in (*every, *tests)] if seen else ()
        return checker_version(), package, build.general.version, build.general.hub, together, files

    def check() -> list[Diagnostic]:
        pointers = [path for path, file in every if is_lfs_pointer(file)]
        unfetched = "it is a pointer of Git LFS, and not the file"
        cpp = [(file, path) for path, file in listed if path.endswith(SUFFIXES)]
        return [
            *(finding("KCI732", unfetched, path, hint=FETCH_LFS) for path in pointers),
            *_names(own, where),
            *placed(check_package(own, package, (OPS,)), where),
            *_check_tests(tests, build),
            *check_cpp(cpp, together),
            *render_card(kernel).findings,
        ]

    yield from seen.answer(where, state, list[Diagnostic], check) if seen else check()


def _names(files: Iterable[Entry], where: str) -> Iterator[Diagnostic]:
    # as packing refuses them, after the build
    seen: dict[str, str] = {}
    for item in files:
        other = collision(item.name, seen)
        if reason := unsafe_name(item.name) or (
            f"it differs from {other!r} in case only" if other else ""
        ):
            yield finding(
                "KCI708", f"{item.name!r} fits into no artifact: {reason}", f"{where}/{item.name}"
            )


def _source_paths(kernel_dir: Path, build: Build) -> Iterator[tuple[str, str]]:
    root, tables = (
        os.path.realpath(kernel_dir),
        [build.torch, build.tvm_ffi, *build.kernel.values()],
    )
    for name in sorted({name for table in tables if table for name in table.src}):
        with suppress(OSError, ValueError):
            place = os.path.realpath(f"{root}/{name}")
            if stat.S_ISREG(os.lstat(place).st_mode) and place.startswith(f"{root}/"):
                yield name, place

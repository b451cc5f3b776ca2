"""Facts about backends, oldest supported versions, and `python-depends` names.

Annotations are not postponed, because msgspec would compile each of them at every start.
"""

from collections.abc import Mapping

from kci.config.values import C_ENDINGS, CXX_ENDINGS, HEADER_ENDINGS, Backend, Version
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped


class BackendFacts(Frozen, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Facts about one backend; those about one version of it stand in other data files, by the
    backend's name.
    """

    title: str
    # names in its place: that people write, and that loaders accept in names of noarch variants
    aliases: tuple[str, ...] = ()
    old_names: tuple[str, ...] = ()
    compute_prefix: str = ""
    """Prefix of the version in variant names; empty if names have no version."""
    # what variants need, if anything; a command that succeeds where it is, or a pattern of its
    # files below /dev
    device: str = ""
    device_program: tuple[str, ...] = ()
    device_files: str = ""
    macos: bool = False
    """True if it is built and run on macOS alone."""
    variables: tuple[str, ...] = ()
    """Environment variables that lead to its toolkit or devices."""
    components: bool = True
    """True if build.toml can have components for it (docs/format.md#components)."""
    # keys of a component, if it has them: its architectures, flags of the device compiler, oldest
    # toolkit version
    archs: str = ""
    flags: str = ""
    minver: str = ""
    capabilities: bool = False
    """True if its archs are versions, which each toolkit supports some of; else they are names."""
    endings: tuple[str, ...] = ()
    """Of device code."""
    depends_recorded: bool = True
    """True if its own `python-depends` reach the metadata."""
    general_since_5: bool = False
    """True if its table of `[general]` exists from edition 5 on."""
    # whether the native builder supports it, also with tvm-ffi
    compiled: bool = False
    tvm_ffi: bool = False
    compiler: str = ""
    """Of device code; empty if the C++ compiler compiles all."""
    compiler_id: tuple[str, str] = ("", "")
    """CMake's names of that compiler's language and vendor; of a C++ compiler of its own if there
    is no other."""
    defines: tuple[str, ...] = ()
    minor_compatible: bool = False
    """True if newer minor versions of its toolkit run what an older one made."""
    probe: str = ""
    """Python expression that is true if torch is for it; empty if generated code does not ask."""
    torch_library: str = ""
    torch_version: str = ""
    """Name in torch/version.py of the toolkit version."""
    headers_only: bool = False
    """True if a build takes only the headers out of torch's wheel."""
    only_index: bool = False
    """True if no index but torch's own has its wheels."""
    loads: bool = False
    """True if there are wheels of torch for it on Linux, with which a kernel can be loaded without
    a device."""
    driver: str = ""
    """The driver's library, which few kernels link and only a machine with a device has."""
    # for `kci init`: endings of the templates for its source, by framework; frameworks that it is
    # usual with
    templates: Mapping[str, str] = {}
    usual: tuple[str, ...] = ()


class _BackendTable(Dated):
    backend: dict[Backend, BackendFacts]


BACKENDS: Mapping[str, BackendFacts] = dict(
    shipped("config/data/backends.toml", _BackendTable)().backend.items()
)

HOST = Backend.CPU
"""The backend that every machine has, and for which kci has torch itself."""

VERSIONED = tuple(
    str(name) for name in Backend if BACKENDS[name].compute_prefix and BACKENDS[name].components
)
"""Backends whose compute version an expression can name."""

_DEVICE_ENDINGS = tuple(ending for facts in BACKENDS.values() for ending in facts.endings)
SOURCE_ENDINGS = (*C_ENDINGS, *CXX_ENDINGS, *_DEVICE_ENDINGS, *HEADER_ENDINGS)
"""All files that a preprocessor reads."""

_COMPILED = (
    *CXX_ENDINGS,
    *HEADER_ENDINGS,
    *(one for facts in BACKENDS.values() if facts.compiled for one in facts.endings),
)


def has_compiler(source: str) -> bool:
    """True for a header, and for a source that a compiler of kci takes."""
    return source.lower().endswith(_COMPILED)


def needs_device(backend: str) -> bool:
    """True if a machine needs a device for it; the legacy name `universal` of noarch variants needs
    none.
    """
    return backend in BACKENDS and bool(BACKENDS[backend].device)


class LoaderFloors(Frozen, forbid_unknown_fields=True, rename="kebab"):
    """Releases of the `kernels` library, as `major.minor.patch`."""

    any: str
    """For variants without special needs."""
    kernel_depends: str
    """For variants that depend on other kernels."""
    several_upstreams: str
    """For metadata with a list of upstreams."""


class Floors(Dated):
    """`floors.toml`: the oldest supported versions."""

    python: Version
    torch: Version
    compute: dict[str, Version]
    """Oldest compute version, by each backend that `[general]` can bound."""
    cxx_standard: dict[str, int]
    """Oldest C++ standard of torch's headers, by the first torch version that needs it."""
    kernels: LoaderFloors


floors = shipped("matrix/catalog/data/floors.toml", Floors)


class PythonPackage(Frozen, forbid_unknown_fields=True):
    """The package and modules of a `python-depends` name."""

    package: str
    imports: tuple[str, ...]


class DependsTable(Dated):
    """`python-depends.toml`: the reference's curated names."""

    general: dict[str, PythonPackage]
    backends: dict[str, dict[str, PythonPackage]]

    def lookup(self, name: str, backend: str) -> PythonPackage | None:
        """Resolve a name in the general table, then in the backend's."""
        return self.general.get(name) or self.backends.get(backend, {}).get(name)


depends_table = shipped("config/data/python-depends.toml", DependsTable)

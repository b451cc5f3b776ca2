"""Tables of build.toml.

Annotations are not postponed, because msgspec would compile each of them at every start.
"""

from typing import Annotated, Any

from msgspec import Meta

from kci.config.facts import BACKENDS
from kci.config.urls import GitUrl, Upstream
from kci.config.values import Backend, Depend, KernelName, StableAbi, Version
from kci.utils.frozen import Frozen

Unsigned = Annotated[int, Meta(ge=0, le=2**63 - 1)]

DEFAULT_PYEXT = ("py", "pyi")


class Table(Frozen, forbid_unknown_fields=True, rename="kebab", omit_defaults=True):
    """A table of build.toml or kci.toml."""


class KernelDependency(Table):
    """Another kernel on the Hub: exactly one of `version` and `revision` says which state of it."""

    repo_id: str
    """The other kernel's repository, such as `acme/activation`."""
    version: Unsigned | None = None
    """The major version of the other kernel's interface."""
    revision: str | None = None
    """A branch, tag or commit of the other kernel's repository."""

    def __post_init__(self) -> None:
        if (self.version is None) == (self.revision is None):
            raise ValueError("a kernel dependency needs exactly one of `version` and `revision`")


class Hub(Table):
    """`[general.hub]`: where the kernel is published."""

    repo_id: str | None = None
    """The repository on the Hub, such as `acme/gated-norm`."""
    branch: str | None = None
    """The branch to publish to; without it, `v` and the kernel's version."""


class BackendGeneral(Table):
    """`[general.xpu]` and `[general.neuron]`: dependencies of that backend's variants."""

    python_depends: tuple[str, ...] | None = None
    """Python packages that this backend's variants need, out of the allowed ones."""
    kernel_depends: tuple[KernelDependency, ...] | None = None
    """Other kernels that this backend's variants load."""


class CudaGeneral(BackendGeneral):
    """`[general.cuda]`: bounds on the CUDA version, and dependencies of the CUDA variants."""

    minver: Version | None = None
    """The oldest CUDA version to build for, such as `12.6`."""
    maxver: Version | None = None
    """The newest CUDA version to build for, such as `13.0`."""


class TpuGeneral(Table):
    """`[general.tpu]`: dependencies of the TPU variants."""

    python_depends: tuple[str, ...] | None = None
    """Python packages that the TPU variants need."""


class General(Table):
    """`[general]`: what the kernel is."""

    name: KernelName
    """The kernel's name: lower-case letters, digits and dashes."""
    version: Unsigned
    """The major version of the kernel's interface; it is published on the branch `v<version>`."""
    license: str
    """The license, as an SPDX identifier such as `Apache-2.0`."""
    backends: tuple[Backend, ...]
    """The backends to build for."""
    edition: int = 5
    """The edition of the format. 5 is the only number to write; a file without it is read as
    edition 4."""
    upstream: Upstream | None = None
    """Where the kernel's code comes from: one URL, or a list of them."""
    source: GitUrl | None = None
    """The repository that holds this build.toml."""
    python_depends: tuple[str, ...] | None = None
    """Python packages that every variant needs, out of the allowed ones."""
    kernel_depends: tuple[KernelDependency, ...] | None = None
    """Other kernels that every variant loads."""
    hub: Hub | None = None
    cuda: CudaGeneral | None = None
    xpu: BackendGeneral | None = None
    neuron: BackendGeneral | None = None
    tpu: TpuGeneral | None = None

    @property
    def tables(self) -> "dict[str, General | BackendGeneral | TpuGeneral]":
        """The tables that are there by backend, this one as the empty text."""
        return {"": self} | {
            name: own for name in GENERAL_BACKENDS if (own := getattr(self, name)) is not None
        }


GENERAL_BACKENDS = tuple(sorted(BACKENDS.keys() & set(General.__struct_fields__)))


class Torch(Table):
    """`[torch]`: a kernel with compiled code that registers torch ops."""

    src: tuple[str, ...] = ()
    """The sources of the bindings, headers included."""
    pyext: tuple[str, ...] | None = None
    """Extensions of the files to install from the Python package; without it, `py` and `pyi`."""
    include: tuple[str, ...] | None = None
    """Include directories of the bindings, relative to build.toml."""
    minver: Version | None = None
    """The oldest torch version to build for, such as `2.12`."""
    maxver: Version | None = None
    """The newest torch version to build for."""
    cxx_flags: tuple[str, ...] | None = None
    """Flags for the C++ compiler."""
    stable_abi: StableAbi | None = None
    """Build against torch's stable ABI of this version: one version for every backend, or a table
    with one for each."""


class TorchNoarch(Frozen, forbid_unknown_fields=True, omit_defaults=True):
    """`[torch-noarch]`: a kernel of Python only.

    Its reader in the reference has no case conversion, so its two list keys are snake_case.
    """

    pyext: tuple[str, ...] | None = None
    """Extensions of the files to install from the Python package; without it, `py` and `pyi`."""
    cuda_capabilities: tuple[str, ...] | None = None
    """The CUDA capabilities that the kernel supports, such as `9.0`."""
    rocm_archs: tuple[str, ...] | None = None
    """The ROCm targets that the kernel supports, such as `gfx942`."""

    def archs(self, backend: str) -> tuple[str, ...] | None:
        """The archs that the kernel supports of a backend; None if the file does not say."""
        return getattr(self, BACKENDS[backend].archs.replace("-", "_"), None)


class TvmFfi(Table):
    """`[tvm-ffi]`: a kernel with compiled code behind the tvm-ffi interface."""

    src: tuple[str, ...]
    """The sources of the bindings, headers included."""
    pyext: tuple[str, ...] | None = None
    """Extensions of the files to install from the Python package; without it, `py` and `pyi`."""
    include: tuple[str, ...] | None = None
    """Include directories of the bindings, relative to build.toml."""
    cxx_flags: tuple[str, ...] | None = None
    """Flags for the C++ compiler."""


Framework = Torch | TorchNoarch | TvmFfi


class AnyComponent(Table, tag_field="backend"):
    """Keys of every `[kernel.<label>]`."""

    depends: tuple[Depend, ...]
    """C++ dependencies; an empty list if there are none."""
    src: tuple[str, ...]
    """The component's sources, headers included."""
    include: tuple[str, ...] | None = None
    """Include directories of these sources, relative to build.toml."""
    cxx_flags: tuple[str, ...] | None = None
    """Flags for the C++ compiler."""

    @property
    def backend(self) -> Backend:
        return Backend(str(self.__struct_config__.tag))

    @property
    def archs(self) -> tuple[str, ...]:
        """The archs to build for; empty for all usual ones."""
        return self._own("archs") or ()

    @property
    def device_flags(self) -> tuple[str, ...]:
        return self._own("flags") or ()

    @property
    def minver(self) -> Version | None:
        minver: Version | None = self._own("minver")
        return minver

    def _own(self, fact: str) -> Any:
        return getattr(self, getattr(BACKENDS[self.backend], fact).replace("-", "_"), None)


class CpuComponent(AnyComponent, tag="cpu"):
    """`[kernel.<label>]` with `backend = "cpu"`."""


class CudaComponent(AnyComponent, tag="cuda"):
    """`[kernel.<label>]` with `backend = "cuda"`."""

    cuda_capabilities: tuple[str, ...] | None = None
    """The CUDA capabilities to build for, such as `8.0`, `9.0a` or `12.0+PTX`; without it, all
    usual ones."""
    cuda_flags: tuple[str, ...] | None = None
    """Flags for nvcc."""
    cuda_minver: Version | None = None
    """Leave the component out with an older CUDA version."""


class MetalComponent(AnyComponent, tag="metal"):
    """`[kernel.<label>]` with `backend = "metal"`."""


class RocmComponent(AnyComponent, tag="rocm"):
    """`[kernel.<label>]` with `backend = "rocm"`."""

    rocm_archs: tuple[str, ...] | None = None
    """The ROCm targets to build for, such as `gfx942`; without it, all usual ones."""
    hip_flags: tuple[str, ...] | None = None
    """Flags for the HIP compiler."""


class XpuComponent(AnyComponent, tag="xpu"):
    """`[kernel.<label>]` with `backend = "xpu"`."""

    sycl_flags: tuple[str, ...] | None = None
    """Flags for the SYCL compiler, after the usual ones."""


Component = CpuComponent | CudaComponent | MetalComponent | RocmComponent | XpuComponent


class Build(Table):
    """A complete build.toml, always in its edition-5 form. It has exactly one framework table."""

    general: General
    torch: Torch | None = None
    torch_noarch: TorchNoarch | None = None
    tvm_ffi: TvmFfi | None = None
    kernel: dict[str, Component] = {}
    """The components: sources that are compiled together for one backend, by labels of your
    choice."""

    @property
    def framework(self) -> Framework:
        framework = self.torch or self.torch_noarch or self.tvm_ffi
        assert framework is not None  # noqa: S101  - `reader` lets no other document through
        return framework

    @property
    def framework_name(self) -> str:
        if self.torch is not None:
            return "torch"
        return "torch-noarch" if self.torch_noarch is not None else "tvm-ffi"

    @property
    def name(self) -> str:
        return str(self.general.name)

    def components(self, backend: str) -> dict[str, Component]:
        """Components of a backend by label, in file order."""
        return {label: part for label, part in self.kernel.items() if part.backend == backend}

    def stable_abi(self, backend: str) -> Version | None:
        """The stable ABI version of a backend; None for the full ABI
        (docs/format.md#stable-abi).
        """
        if self.torch is None or self.torch.stable_abi is None:
            return None
        return self.torch.stable_abi.version_for(backend)

    @property
    def data_extensions(self) -> tuple[str, ...]:
        """Extensions of package data files (docs/format.md#frameworks)."""
        return tuple(
            ext for ext in self.framework.pyext or DEFAULT_PYEXT if ext not in DEFAULT_PYEXT
        )

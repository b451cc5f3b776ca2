"""A new kernel: what can be chosen, and the files that follow from it."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence

import msgspec

from kci.catalog.loading import load_catalog
from kci.config.file_lints import repo_id_problem
from kci.config.settings import KCI_TOML
from kci.config.values import Backend, KernelName, Version, near_kernel_name, python_name
from kci.errors import UsageError
from kci.files.templates import template_environment
from kci.suggest import nearest

FRAMEWORKS = {
    "torch": "C++ and CUDA, compiled against PyTorch",
    "torch-noarch": "Python only: PyTorch, Triton or another DSL",
    "tvm-ffi": "C++ and CUDA without PyTorch, for every framework that speaks DLPack",
}
"""The frameworks of build.toml, and what each one is for."""

BACKENDS: dict[str, tuple[str, ...]] = {
    "torch": ("cpu", "cuda", "rocm"),
    "torch-noarch": tuple(str(backend) for backend in Backend),
    "tvm-ffi": ("cpu", "cuda"),
}
"""The backends that have a template."""

USUAL = {"torch": ("cpu", "cuda"), "torch-noarch": ("cpu", "cuda", "rocm"), "tvm-ffi": ("cpu",)}
"""The backends by default."""

OLDEST_STABLE_ABI = Version.parse("2.11")
"""The first version whose stable ABI has all that the template uses."""

PLACEHOLDER_OWNER = "your-name"
USUAL_LICENSE = "Apache-2.0"


class NewKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A new kernel; see `choose`."""

    name: str
    framework: str = "torch"
    backends: tuple[str, ...] = ()
    stable_abi: str | None = None
    license: str = USUAL_LICENSE
    """Empty for the license of the project that is taken over."""
    repo_id: str = ""

    @property
    def placeholder(self) -> bool:
        """Whether nobody has chosen the repository on the Hub yet."""
        return self.repo_id.startswith(f"{PLACEHOLDER_OWNER}/")


def choose(
    name: str,
    *,
    framework: str = "torch",
    backends: Sequence[str] = (),
    stable_abi: str | None = None,
    license: str = USUAL_LICENSE,
    repo_id: str = "",
) -> NewKernel:
    """Complete and check what was chosen; a UsageError's hint has what fits."""
    require_name(name)
    if framework not in FRAMEWORKS:
        raise UsageError(f"there is no framework {framework[:60]!r}", hint=nearest(framework, FRAMEWORKS))
    for backend in backends:
        if backend not in BACKENDS[framework]:
            hint = f"for {framework}: {', '.join(BACKENDS[framework])}"
            raise UsageError(f"there is no template for {backend[:60]!r} with {framework}", hint=hint)
    if stable_abi is not None:
        stable_abi = _stable_abi(stable_abi, framework)
    if (license and not license.strip()) or not license.isprintable() or len(license) > 100:
        raise UsageError("the license must be one line of text", hint='such as "Apache-2.0" or "MIT"')
    if repo_id and (problem := repo_id_problem(repo_id)):
        raise UsageError(f"{repo_id[:100]!r} is not a repository id: {problem}", hint="owner/name")
    return NewKernel(
        name=name,
        framework=framework,
        backends=tuple(dict.fromkeys(backends)) or USUAL[framework],
        stable_abi=stable_abi,
        license=license.strip(),
        repo_id=repo_id or f"{PLACEHOLDER_OWNER}/{name}",
    )


def require_name(name: str) -> None:
    """Refuse a name that no kernel can have, or that Python cannot import (UsageError); the hint proposes another."""
    try:
        KernelName.parse(name)
    except ValueError as error:
        raise UsageError(str(error), hint=f"such as {near_kernel_name(name) or 'my-kernel'}") from None
    if keyword.iskeyword(python_name(name)):
        raise UsageError(f"{name!r} is a keyword of Python, not a name for a package", hint=f"such as {name}-kernel")


def _stable_abi(text: str, framework: str) -> str:
    if framework != "torch":
        raise UsageError(f"{framework} has no stable ABI: it does not compile against PyTorch", hint="leave it out")
    try:
        version = Version.parse(text)
    except ValueError as error:
        raise UsageError(f"the stable ABI version: {error}", hint="such as 2.11") from None
    newest = max(row.torch for row in load_catalog().rows)
    if not OLDEST_STABLE_ABI <= version <= newest:
        message = f"the template needs a stable ABI from {OLDEST_STABLE_ABI.text} to {newest.text}, not {text}"
        raise UsageError(message, hint=f"--stable-abi {OLDEST_STABLE_ABI.text} serves the most versions of torch")
    return text


def files_of(new: NewKernel, *, standalone: bool) -> dict[str, str]:
    """The files of a new kernel, by their path in its directory. `standalone`: it is a whole repository."""
    package = python_name(new.name)
    values = {
        **{field: getattr(new, field) for field in new.__struct_fields__},
        "placeholder": new.placeholder,
        "package": package,
        "gpu": bool({"cuda", "rocm"} & set(new.backends)),
        "summary": f"SiLU, `x / (1 + exp(-x))`, for {_and(new.backends)} tensors.",
        "standalone": standalone,
        "edition": load_catalog().name,
        "ops_from": ".._silu" if new.framework == "torch-noarch" else ".._ops",
        "ops_name": "silu" if new.framework == "torch-noarch" else "ops",
        "call": "silu" if new.framework == "torch-noarch" else "ops.silu",
    }
    return rendered(_templates(new, package, standalone=standalone), values)


def rendered(templates: Mapping[str, str], values: Mapping[str, object]) -> dict[str, str]:
    """Files from the templates of kernels, by their path."""
    environment = template_environment()
    return {
        path: environment.get_template(f"kernel/{template}").render(values).rstrip() + "\n"
        for path, template in sorted(templates.items())
    }


def tvm_ffi_overlay() -> str:
    """What kci.toml must say before a kernel for tvm-ffi has a variant."""
    return rendered({KCI_TOML: "common/overlay.toml.j2"}, {})[KCI_TOML]


def _templates(new: NewKernel, package: str, *, standalone: bool) -> dict[str, str]:
    files = {
        "build.toml": "common/build.toml.j2",
        "CARD.md": "common/CARD.md.j2",
        "README.md": "common/README.md.j2",
        ".gitignore": "common/gitignore.j2",
        "benchmarks/benchmark.py": "common/benchmark.py.j2",
        "tests/conftest.py": "common/conftest.py.j2",
        f"tests/test_{package}.py": f"{'tvm_ffi' if new.framework == 'tvm-ffi' else 'torch'}/test.py.j2",
    }
    if standalone:
        files["kci.toml"] = "common/kci.toml.j2"
    match new.framework:
        case "tvm-ffi":
            sources = {"cpu": "csrc/silu.cpp", "cuda": "csrc/silu.cu"}
            files |= {path: f"tvm_ffi/{path[5:]}.j2" for backend, path in sources.items() if backend in new.backends}
            return files | {
                "csrc/silu.h": "tvm_ffi/silu.h.j2",
                "tvm-ffi-ext/binding.cpp": "tvm_ffi/binding.cpp.j2",
                f"tvm-ffi-ext/{package}/__init__.py": "tvm_ffi/package.py.j2",
            }
        case "torch-noarch":
            return files | {
                f"torch-ext/{package}/__init__.py": "noarch/package.py.j2",
                f"torch-ext/{package}/_silu.py": "noarch/_silu.py.j2",
                f"torch-ext/{package}/layers/__init__.py": "torch/layers.py.j2",
            }
    code = "stable" if new.stable_abi else "torch"
    files |= {
        f"torch-ext/{package}/__init__.py": "torch/package.py.j2",
        f"torch-ext/{package}/layers/__init__.py": "torch/layers.py.j2",
        "torch-ext/torch_binding.cpp": "torch/torch_binding.cpp.j2",
        "torch-ext/torch_binding.h": f"{code}/torch_binding.h.j2",
    }
    if "cpu" in new.backends:
        files["csrc/silu_cpu.cpp"] = f"{code}/silu_cpu.cpp.j2"
    if {"cuda", "rocm"} & set(new.backends):
        files["csrc/silu.cu"] = f"{code}/silu.cu.j2"
    return files


def _and(backends: Sequence[str]) -> str:
    shown = [_SHOWN.get(backend, backend.upper()) for backend in backends]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


_SHOWN = {"rocm": "ROCm", "metal": "Metal", "neuron": "Neuron"}

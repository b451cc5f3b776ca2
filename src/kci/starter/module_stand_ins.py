"""The stand-ins that a setup.py imports in place of torch, setuptools and what else it names; see `setup_stand_ins`."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import operator
import os
import re
import sys
import types
from typing import Any

SETUP = os.path.abspath("setup.py")
RECORD: dict[str, Any] = {"extensions": [], "setup": {}, "error": "", "line": 0}
_ROOTS = ("torch", "torchvision", "setuptools", "distutils", "wheel", "pkg_resources", "skbuild", "pybind11", "numpy",
          "Cython", "cmake", "ninja", "requests", "pip", "torch_npu", "torch_musa", "intel_extension_for_pytorch",
          "setuptools_scm", "hipify", "scikit_build_core", "nanobind", "triton")  # fmt: skip
"""What setup.py gets a stand-in for, whether it is installed or not. Any other module that is not here gets one too."""


class Anything:
    """Has every attribute, can be called, compared and iterated, and is empty."""

    def __init__(self, name: str = "anything") -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(f"{self._name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Anything(self._name)

    __getitem__ = __call__

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return (AnyCommand,)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __str__(self) -> str:
        return ""

    __fspath__ = __str__

    def _same(self, *_: Any) -> Any:
        return self

    def _no(self, *_: Any) -> bool:
        return False

    __add__ = __radd__ = __sub__ = __truediv__ = __rtruediv__ = __or__ = __mod__ = __enter__ = _same
    __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __setitem__ = __exit__ = _no


class AnyCommand:
    """A command of setuptools, which no one runs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name)

    @classmethod
    def with_options(cls, **_: Any) -> type[AnyCommand]:
        return cls


class Extension:
    """An extension of setuptools: what was given, and where."""

    kind = "plain"

    def __init__(self, name: Any = "", sources: Any = (), *more: Any, **given: Any) -> None:
        given.update(zip(("include_dirs", "define_macros", "undef_macros"), more, strict=False))
        self.name, self.sources = name, list(sources or ())
        for key in ("include_dirs", "define_macros", "undef_macros", "libraries", "library_dirs", "extra_link_args",
                    "extra_compile_args", "extra_objects", "depends"):  # fmt: skip
            value = given.pop(key, None)
            setattr(self, key, value if value is not None else ({} if key == "extra_compile_args" else []))
        self.__dict__.update({key: value for key, value in given.items() if key not in self.__dict__})
        self.language, self.line = given.get("language", "c++"), line_of_setup()


class CppExtension(Extension):
    """The one of torch for C++."""

    kind = "cpp"


class CUDAExtension(Extension):
    """The one of torch for CUDA and ROCm."""

    kind = "cuda"


class SyclExtension(Extension):
    """The one of torch for SYCL."""

    kind = "xpu"


def line_of_setup() -> int:
    """The line of setup.py that is being executed."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == SETUP:
            return int(frame.f_lineno)
        frame = frame.f_back
    return 0


class TorchVersionText(str):
    """A version of torch, which files compare with texts, tuples and other versions."""

    __slots__ = ()

    @staticmethod
    def _key(text: Any) -> tuple[int, ...]:
        if isinstance(text, tuple):
            return tuple(item for item in text if isinstance(item, int))
        return tuple(int(part) for part in re.findall(r"\d+", str(text).partition("+")[0])[:3])

    __lt__, __le__, __gt__, __ge__ = (
        lambda self, other, compare=one: compare(self._key(self), self._key(other))
        for one in (operator.lt, operator.le, operator.gt, operator.ge)
    )


def find_packages(where: str = ".", exclude: Any = (), include: Any = ("*",), **_: Any) -> list[str]:
    """The packages below a folder, as setuptools finds them."""
    from fnmatch import fnmatchcase

    found = []
    for folder, folders, files in os.walk(where):
        folders.sort()
        name = os.path.relpath(folder, where).replace(os.sep, ".")
        if name == ".":
            continue
        if "__init__.py" not in files:
            folders.clear()
        elif any(fnmatchcase(name, item) for item in include) and not any(fnmatchcase(name, e) for e in exclude):
            found.append(name)
    return found


def setup(**given: Any) -> Any:
    """What setup.py ends with."""
    kept = ("name", "version", "license", "license_expression", "classifiers", "packages", "package_dir", "py_modules")
    RECORD["setup"] = {key: given[key] for key in kept if key in given}
    for item in list(given.get("ext_modules") or ())[:500]:
        if isinstance(item, Extension):
            RECORD["extensions"].append(_described(item))
    return Anything("distribution")


def _described(item: Any) -> dict[str, Any]:
    flags = item.extra_compile_args
    flags = dict(flags) if isinstance(flags, dict) else {"cxx": list(flags)}
    return {
        "kind": item.kind, "name": item.name, "sources": list(item.sources), "line": item.line,
        "include_dirs": list(item.include_dirs), "libraries": list(item.libraries), "link_args": list(item.extra_link_args),
        "define_macros": [list(pair) if isinstance(pair, tuple | list) else [pair] for pair in item.define_macros],
        "undef_macros": list(item.undef_macros), "flags": {key: list(value) for key, value in flags.items()},
    }  # fmt: skip


def load(name: Any = "", sources: Any = (), **given: Any) -> Any:
    """`torch.utils.cpp_extension.load`: an extension as well."""
    flags = {"cxx": given.get("extra_cflags") or [], "nvcc": given.get("extra_cuda_cflags") or []}
    sources = [sources] if isinstance(sources, str) else list(sources)
    kind = CUDAExtension if any(str(item).endswith(".cu") for item in sources) else CppExtension
    item = kind(name, sources, include_dirs=given.get("extra_include_paths"), extra_compile_args=flags)
    RECORD["extensions"].append(_described(item))
    return Anything(str(name))


def _torch(backend: str, facts: dict[str, str], roots: dict[str, dict[str, Any]]) -> None:
    gpu = backend in ("cuda", "rocm")
    tail = {"cuda": f"+cu{facts['cuda'].replace('.', '')}", "rocm": f"+rocm{facts['hip'][:3]}"}.get(backend, "+cpu")
    version = TorchVersionText(facts["torch"] + tail)
    where = facts["site"] + "/torch"
    device = Anything("device")
    device.__dict__.update(major=9, minor=0, name="GPU", total_memory=80 << 30, multi_processor_count=100)
    roots["torch"] = {
        "__version__": version, "__file__": f"{where}/__init__.py", "compiled_with_cxx11_abi": lambda: True,
        "has_cuda": gpu,
    }  # fmt: skip
    roots["torch.version"] = {
        "__version__": version, "cuda": facts["cuda"] if backend == "cuda" else None,
        "hip": facts["hip"] if backend == "rocm" else None, "rocm": facts["hip"] if backend == "rocm" else None,
        "xpu": None, "git_version": "0" * 40, "debug": False,
    }  # fmt: skip
    roots["torch.cuda"] = {
        "is_available": lambda: gpu, "device_count": lambda: int(gpu), "is_initialized": lambda: False,
        "get_device_capability": lambda *_: (9, 0), "get_device_name": lambda *_: "GPU",
        "get_device_properties": lambda *_: device, "get_arch_list": lambda: ["sm_90"] if backend == "cuda" else [],
        "current_device": lambda: 0,
    }  # fmt: skip
    roots["torch.utils"] = {"cmake_prefix_path": f"{where}/share/cmake"}
    roots["torch._C"] = {"_GLIBCXX_USE_CXX11_ABI": True}
    roots["torch.__config__"] = {
        "parallel_info": lambda: "ATen parallel backend: OpenMP\n", "show": lambda: "USE_OPENMP=ON",
    }  # fmt: skip
    roots["torch.torch_version"] = {"TorchVersion": TorchVersionText}
    cuda_home = facts["cuda_home"] if backend == "cuda" else None
    rocm_home = facts["rocm_home"] if backend == "rocm" else None
    roots["torch.utils.cpp_extension"] = {
        "CUDAExtension": CUDAExtension, "CppExtension": CppExtension, "SyclExtension": SyclExtension,
        "BuildExtension": AnyCommand, "CUDA_HOME": cuda_home, "ROCM_HOME": rocm_home, "HIP_HOME": rocm_home,
        "CUDNN_HOME": None, "IS_HIP_EXTENSION": backend == "rocm", "IS_WINDOWS": False, "TORCH_LIB_PATH": f"{where}/lib",
        "COMMON_NVCC_FLAGS": [], "COMMON_HIP_FLAGS": [], "COMMON_HIPCC_FLAGS": [], "load": load, "load_inline": load,
        "include_paths": lambda *_, **__: [f"{where}/include"], "library_paths": lambda *_, **__: [f"{where}/lib"],
        "_get_cuda_arch_flags": lambda *_: [], "get_compiler_abi_compatibility_and_version": lambda *_: (True, "13"),
        "_is_cuda_file": lambda path: str(path).endswith((".cu", ".cuh")), "is_ninja_available": lambda: True,
        "_find_cuda_home": lambda: cuda_home, "_find_rocm_home": lambda: rocm_home, "_join_rocm_home": lambda *p: "/".join([rocm_home or "", *p]),
    }  # fmt: skip


def _others(roots: dict[str, dict[str, Any]], facts: dict[str, str]) -> None:
    commands = dict.fromkeys(("build_ext", "build_py", "build", "develop", "install", "sdist", "bdist_wheel", "egg_info", "test", "clean", "editable_wheel", "install_lib", "bdist_egg", "build_clib"), AnyCommand)  # fmt: skip
    shared = {
        "setup": setup, "Extension": Extension, "find_packages": find_packages, "Command": AnyCommand, **commands,
        "find_namespace_packages": lambda where=".", **given: find_packages(where, **given),
        "Distribution": AnyCommand, "BuildExtension": AnyCommand, "CUDAExtension": CUDAExtension, "CppExtension": CppExtension,
    }  # fmt: skip
    for root in ("setuptools", "distutils", "distutils.core", "setuptools.extension", "distutils.extension", "skbuild"):
        roots[root] = dict(shared)
    roots["setuptools"]["__version__"] = "80.0.0"
    for name in commands:
        for root in ("setuptools.command", "distutils.command", "wheel"):
            roots[f"{root}.{name}"] = {name: AnyCommand}
            roots.setdefault(root, {})[name] = types.SimpleNamespace(**{name: AnyCommand})
    roots["distutils.version"] = {"LooseVersion": TorchVersionText, "StrictVersion": TorchVersionText}
    roots["distutils.errors"] = roots["setuptools.errors"] = {
        name: type(name, (Exception,), {}) for name in ("CompileError", "DistutilsError", "DistutilsPlatformError", "CCompilerError", "DistutilsExecError", "LinkError", "DistutilsSetupError")
    }  # fmt: skip
    roots["distutils.util"] = {"strtobool": lambda text: int(str(text).lower() in ("1", "y", "yes", "on", "true", "t"))}
    roots["pybind11.setup_helpers"] = {
        "Pybind11Extension": CppExtension,
        "build_ext": AnyCommand,
        "ParallelCompile": Anything("x"),
    }
    roots["pybind11"] = {
        "get_include": lambda *_, **__: facts["site"] + "/pybind11/include", "__version__": "2.13.0",
        "get_cmake_dir": lambda: facts["site"] + "/pybind11/share/cmake/pybind11",
    }  # fmt: skip
    roots["numpy"] = {"get_include": lambda: facts["site"] + "/numpy/include", "__version__": "2.0.0"}
    roots["Cython.Build"] = {"cythonize": lambda items, **_: [items] if isinstance(items, Extension) else list(items)}
    roots["pkg_resources"] = {
        "parse_version": TorchVersionText,
        "get_distribution": lambda _: types.SimpleNamespace(version=facts["torch"]),
    }


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of `_ROOTS`, and last of all for what is nowhere."""

    def __init__(self, roots: dict[str, dict[str, Any]], *, last: bool) -> None:
        self.roots = roots
        self.last = last

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names and root != "distutils":
            return None
        if self.last or root in _ROOTS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        name = spec.name
        module = types.ModuleType(name)
        module.__path__ = []
        module.__file__ = f"/{name.replace('.', '/')}/__init__.py"
        module.__dict__.update({"__version__": "99.0.0"} | self.roots.get(name, {}))  # new enough for who asks

        def absent(attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            below = f"{name}.{attribute}"
            return importlib.import_module(below) if below in self.roots else Anything(below)

        module.__getattr__ = absent  # type: ignore[method-assign]
        return module

    def exec_module(self, _module: Any) -> None:
        pass


def roots_of(backend: str, facts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The stand-ins by the names of their modules, with what each has."""
    roots: dict[str, dict[str, Any]] = {}
    _torch(backend, facts, roots)
    _others(roots, facts)
    return roots

"""A separate program, in the Python of a torch: loads a variant, and judges what it registers and
its layers.

Arguments: a folder with the variant, its backend, its id, and the seconds that it may take. Prints
a line of JSON when torch is there, and one with the answer.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import sys
import traceback
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

MARK = "kci-loaded:"


def main() -> None:
    """Load, judge and print."""
    place, backend, own, seconds = sys.argv[1:]
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    import torch
    from kernels import get_local_kernel

    print(MARK + "{}", flush=True)
    tree = Path(place).resolve()
    registered = _watch_registrations(torch, tree)
    try:
        kernel = get_local_kernel(tree, backend=backend)
    except BaseException as error:
        traceback.print_exc()
        print(
            MARK + json.dumps({"error": traceback.format_exception_only(error)[0].strip()}),
            flush=True,
        )
        raise SystemExit(1) from None
    # a variant of Python only takes the backend in its namespace from torch
    name, _, unique = own.rpartition("_")
    start, end = name.removesuffix(backend), f"_{unique}"
    foreign = [
        op
        for op in registered
        if not (op.startswith(start) and op.partition("::")[0].endswith(end))
    ]
    faults = [["KCI787", f"it registers the operator {op}"] for op in foreign]
    layers = getattr(kernel, "layers", None)
    faults += [
        ["KCI788", text]
        for text in _layer_faults(torch.nn.Module, torch.autograd.Function, layers, tree)
    ]
    print(MARK + json.dumps({"torch": torch.__version__, "faults": faults[:20]}), flush=True)


def _watch_registrations(torch: Any, tree: Path) -> dict[str, None]:
    # of the kernel's own libraries and Python alone: what it imports may register operators too
    found: dict[str, None] = {}
    create, define = ExtensionFileLoader.create_module, torch.library.Library.define
    names, package = torch._C._dispatch_get_all_op_names, Path(torch.__file__).parent
    machinery = (str(package / "library.py"), str(package / "_library"))

    def creating(self: ExtensionFileLoader, spec: Any) -> ModuleType:
        before = set(names())
        module = create(self, spec)
        if tree in Path(self.path).resolve().parents:
            found.update(
                dict.fromkeys(name.partition(".")[0] for name in names() if name not in before)
            )
        return module

    def defining(self: Any, *arguments: Any, **options: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame and frame.f_code.co_filename.startswith(machinery):
            frame = frame.f_back
        name = define(self, *arguments, **options)
        if frame and tree in Path(frame.f_code.co_filename).resolve().parents:
            found[f"{self.ns}::{name}"] = None
        return name

    ExtensionFileLoader.create_module = creating  # type: ignore[method-assign]
    torch.library.Library.define = defining
    return found


def _layer_faults(module: type, function: type, layers: Any, tree: Path) -> list[str]:
    # what `kernelize` refuses
    listed, faults = getattr(layers, "__all__", None), []
    usual = {name for name, _ in inspect.getmembers(module)} | {"can_torch_compile", "has_backward"}
    names = vars(layers) if listed is None and isinstance(layers, ModuleType) else listed or ()
    for name in sorted(name for name in names if not name.startswith("_")):
        layer: Any = getattr(layers, name, None)
        if not inspect.isclass(layer) or tree not in _place(layer).parents:
            continue
        if not issubclass(layer, module):
            if listed is not None or (
                hasattr(layer, "forward") and not issubclass(layer, function)
            ):
                faults.append(f"layers.{name} is not a torch.nn.Module")
        elif layer.__init__ is not module.__init__:  # type: ignore[misc]
            faults.append(f"layers.{name} has a constructor")
        elif more := {member for member, _ in inspect.getmembers(layer)} - usual:
            faults.append(
                f"layers.{name} has members that nn.Module lacks: {', '.join(sorted(more))}"
            )
    return faults


def _place(layer: type) -> Path:
    return Path(getattr(sys.modules.get(layer.__module__), "__file__", None) or "-")


if __name__ == "__main__":
    main()

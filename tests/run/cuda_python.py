"""Pythons with torch, as far as kci asks them anything: one for CUDA, without a GPU, and one that
loads.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from buildkit import program, write_tree

# `kernels` finds what LOCAL_KERNELS or a path names; `torch` has what is asked of it about layers
# and operators.
_KERNELS = """
import importlib.util, os, sys
from pathlib import Path
def get_local_kernel(path, backend):
    (variant,) = path.iterdir()
    name, place = variant.name.replace("-", "_"), variant / "__init__.py"
    where = {"submodule_search_locations": [str(variant)]}
    spec = importlib.util.spec_from_file_location(name, place, **where)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
def get_kernel(name, version=None):
    known = dict(entry.split("=") for entry in os.environ["LOCAL_KERNELS"].split(":"))
    return get_local_kernel(Path(known[name]), "cpu")
"""
_TORCH = """
import types
class Module:
    training = True
    def forward(self, x): pass
class Function:
    def forward(self, x): pass
class Library:
    def __init__(self, ns): self.ns = ns
    def define(self, schema): return schema.partition("(")[0]
__version__ = "2.13.0+cpu"
nn, library = types.SimpleNamespace(Module=Module), types.SimpleNamespace(Library=Library)
autograd = types.SimpleNamespace(Function=Function)
_C = types.SimpleNamespace(_dispatch_get_all_op_names=list)
"""


def python_that_loads(folder: Path) -> Path:
    """The program; it ignores PYTHONPATH's usual content, which a test of a kernel must not see.

    Of the plugins that this project's own tests have it takes none: kci's environments have none,
    and they are slow.
    """
    library = write_tree(folder / "lib", {"kernels.py": _KERNELS, "torch.py": _TORCH})
    (folder / "bin").mkdir()
    return program(
        folder / "bin",
        "python",
        f"PYTHONPATH={shlex.quote(str(library))}:$PYTHONPATH PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "
        f'exec {shlex.quote(sys.executable)} "$@"',
    )


_PYTHON = """\
#!/bin/sh
# Says what it has, loads everything, and runs two tests.
case "$*" in
  *_backend*) echo 'kci-load-result:{"torch": "2.14.0", "toolkit": "13.0", "backend": "cuda"}' ;;
  *get_local_kernel*) echo 'kci-loaded:{"torch": "2.14.0"}' ;;
  *pytest.console_main*)
    for word; do case "$word" in --junitxml=*) report=${word#--junitxml=} ;; esac; done
    suite='<testsuite tests="2" failures="0" errors="0" skipped="0"/>'
    echo "<testsuites>$suite</testsuites>" > "$report"
    if grep -q BROKEN tests/*.py; then
      printf '%s\\n' 'test_it.py:7: in test_it' 'E   AssertionError: 3 is not 4' 'end'
      exit 1
    fi
    grep -q NOTHING tests/*.py && exit 5
    exit 0 ;;
esac
"""


def python_with_cuda(folder: Path) -> Path:
    """The program; a test with the word BROKEN fails in it, and with NOTHING none is selected."""
    python = folder / "cuda" / "python-with-torch"
    python.parent.mkdir(parents=True)
    python.write_text(_PYTHON)
    python.chmod(0o755)
    return python

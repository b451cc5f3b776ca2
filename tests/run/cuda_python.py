"""A Python with torch for CUDA, as far as kci asks it anything: for machines that have no GPU."""

from __future__ import annotations

from pathlib import Path

_PYTHON = """\
#!/bin/sh
# Says what it has, loads everything, and runs two tests.
case "$*" in
  *_backend*) echo 'kci-load-result:{"torch": "2.14.0", "toolkit": "13.0", "backend": "cuda"}' ;;
  *get_local_kernel*) echo 'kci-loaded:{"torch": "2.14.0"}' ;;
  "-m pytest "*)
    for word; do case "$word" in --junitxml=*) report=${word#--junitxml=} ;; esac; done
    echo '<testsuites><testsuite tests="2" failures="0" errors="0" skipped="0"/></testsuites>' > "$report"
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

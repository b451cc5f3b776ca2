"""`kci check`: checks build.toml, sources and kci.toml."""

from __future__ import annotations

from kci.cli import format_option, kci_command
from kci.cli._answers import FORMATS, show_findings
from kci.cli._output import slow_progress
from kci.cli._workspace import KERNELS
from kci.plan.check import check_kernels
from kci.utils.cache import default_cache
from kci.utils.suggest import count


@kci_command
@KERNELS
@format_option(*FORMATS)
def command(kernels: tuple[str, ...], output: str) -> int:
    """Check the build.toml of each KERNEL, its sources and Python package, and kci.toml.

    Exit 1 if there is an error.

    An entry of `[[lint.ignore]]` in kci.toml suppresses a finding. Infos are only counted, unless
    -v shows them.

    Examples:
        # check every kernel in this directory and kci.toml
        kci check
    """
    checked = check_kernels(kernels, None, default_cache() / "inputs", slow_progress())
    what = f"{count(len(checked.files), 'file')} checked"
    return show_findings(checked.diagnostics, output, what=what)

"""Snakemake: a Snakefile that reads the plan when it runs, the same for every repository.

A pure function.
"""

from __future__ import annotations

from collections.abc import Sequence

from kci.config.facts import BACKENDS, needs_device
from kci.utils.shipped import fill_template
from kci.version import __version__
from kci.workflows.render import Inputs, command, input_digest, refuse_unsafe
from kci.workflows.rendered_files import with_checksum

SNAKEFILE = "Snakefile"


def render_snakemake(kernels: Sequence[str]) -> dict[str, str]:
    """The Snakefile by its path; UnsafeError as `refuse_unsafe`."""
    refuse_unsafe(kernels)
    values = {
        "version": __version__,
        "command": command(Inputs((), tuple(kernels)), "--ci", "snakemake"),
        "digest": input_digest({"kernels": kernels}),
        "kernels": list(kernels),
        "devices": sorted(str(name) for name in BACKENDS if needs_device(name)),
    }
    text = fill_template("snakemake/Snakefile.j2", values)
    return {SNAKEFILE: with_checksum(text)}

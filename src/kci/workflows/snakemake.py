"""Snakemake: a Snakefile that reads the plan when it runs, the same for every repository.

A pure function.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kci.config.facts import BACKENDS, needs_device
from kci.utils.frozen import Frozen
from kci.utils.shipped import template_environment, tidy
from kci.version import __version__
from kci.workflows.render import input_digest, refuse_unsafe
from kci.workflows.rendered_files import with_checksum

SNAKEFILE = "Snakefile"


class SnakemakeInputs(Frozen):
    """The inputs of the Snakefile, besides its template and kci's version."""

    kernels: tuple[str, ...]


def render_snakemake(kernels: Sequence[str], version: str = __version__) -> dict[str, str]:
    """The Snakefile by its path; UnsafeError as `refuse_unsafe`."""
    inputs = SnakemakeInputs(tuple(kernels))
    refuse_unsafe(inputs)
    words = ["kci", "render", *(kernels if inputs.kernels != (".",) else ()), "--ci", "snakemake"]
    values = {
        "version": version,
        "command": shlex.join(words),
        "digest": input_digest(inputs),
        "kernels": list(inputs.kernels),
        "devices": sorted(str(name) for name in BACKENDS if needs_device(name)),
    }
    text = tidy(template_environment().get_template("snakemake/Snakefile.j2").render(values))
    return {SNAKEFILE: with_checksum(text)}

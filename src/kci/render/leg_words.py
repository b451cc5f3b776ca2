"""The command line of a leg, where no action of kci's writes it: for GitLab and for Snakemake."""

from __future__ import annotations

from kci.plan.plan import Leg


def build_words(leg: Leg, tier: str) -> list[str]:
    """`build` and the options of `kci build` that say what a leg makes and how; not where it is put."""
    words = ["build", *(word for name in leg.variants or [leg.variant] for word in ("--variant", name))]
    words += ["--tier", tier, "--container", "none"]
    words += ["--part", f"{leg.part}/{leg.parts}"] if leg.part else []
    words += ["--builder", leg.builder] if leg.builder else []
    return words

"""Snakemake: the Snakefile of a plan, with a rule for each leg. A pure function."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from kci.config.facts import needs_device
from kci.matrix.catalog.runners import Runners
from kci.matrix.variants import Kind, artifact_name, objects_name
from kci.plan.plan import Leg, Plan, TestLeg
from kci.utils.shipped import template_environment, tidy
from kci.version import __version__
from kci.workflows.render import build_words, input_digest, refuse_unsafe
from kci.workflows.rendered_files import with_checksum

SNAKEFILE = "Snakefile"
_OUT = "kci-out"
_GIB = 1024
_THREADS, _MEMORY_GB = 4, 16
"""Of a machine without numbers in kci.toml: as GitHub's runners."""


class SnakemakeInputs(msgspec.Struct, frozen=True):
    """The inputs of the Snakefile, besides its template and kci's version."""

    kernels: tuple[str, ...]
    plan: Plan
    sources: dict[str, tuple[str, ...]]
    """Files that each kernel depends on: its directory, kci.toml, declared inputs."""
    sizes: dict[str, tuple[int, int]]
    """Threads and GiB of memory of each leg, by `<kernel>/<leg>`."""


def leg_sizes(plan: Plan, runners: Runners) -> dict[str, tuple[int, int]]:
    """The threads and GiB of memory of each leg, from its machine in kci.toml and the memory of a compiler."""
    sizes = {}
    for leg in plan.legs:
        runner = runners.machine("noarch" if leg.kind is Kind.NOARCH else leg.backend, leg.system)
        threads = (runner and runner.cpus) or _THREADS
        memory = (runner and runner.memory_gb) or _MEMORY_GB
        most = memory * 2**30 // runners.compiler_memory(leg.backend)
        sizes[f"{leg.kernel}/{leg.name}"] = max(1, min(leg.max_jobs or threads, threads, most)), memory
    return sizes


def render_snakemake(inputs: SnakemakeInputs, version: str = __version__) -> dict[str, str]:
    """The Snakefile by its path; UnsafeError as `refuse_unsafe`."""
    plan = inputs.plan
    refuse_unsafe(inputs)
    names = _Names()
    words = ["kci", "render", *(inputs.kernels if inputs.kernels != (".",) else ()), "--ci", "snakemake"]
    chosen = ["plan", "--tier", plan.tier, "--format", "json", "--", *inputs.kernels]
    values = {
        "version": version,
        "command": shlex.join(words),
        "digest": input_digest(inputs),
        "plan": f"{_kci(chosen[:3])} --only {{params.only:q}} {_words(chosen[3:])} > {{output:q}}",
        "sources": [(name, ", ".join(map(repr, places))) for name, places in sorted(inputs.sources.items())],
        "legs": [_leg(leg, plan.tier, inputs.sizes[f"{leg.kernel}/{leg.name}"], names) for leg in plan.legs],
        "kernels": [_kernel(kernel.name, plan.legs, names) for kernel in plan.kernels],
        "tests": [_test(test, names) for test in plan.tests],
    }
    text = tidy(template_environment().get_template("snakemake/Snakefile.j2").render(values))
    return {SNAKEFILE: with_checksum(text)}


class _Names:
    """Unique rule names: Python identifiers."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __call__(self, *parts: str) -> str:
        plain = name = re.sub(r"\W", "_", "_".join(parts), flags=re.ASCII)
        number = 1
        while name in self._used:
            number += 1
            name = f"{plain}_{number}"
        self._used.add(name)
        return name


def _words(words: Sequence[str]) -> str:
    # Snakemake expands braces
    return shlex.join(words).replace("{", "{{").replace("}", "}}")


def _kci(words: Sequence[str]) -> str:
    return f"{{config[kci]}} {_words(words)}"


def _pack(kernel: str, leg: str) -> str:
    return f"{_OUT}/objects/{objects_name(kernel, leg)}.tar"


def _artifact(kernel: str, variant: str) -> str:
    return f"{_OUT}/artifacts/{artifact_name(kernel, variant)}"


def _leg(leg: Leg, tier: str, size: tuple[int, int], names: _Names) -> dict[str, Any]:
    threads, memory = size
    words = build_words(leg, tier)
    packs = [_pack(leg.kernel, name) for name in leg.takes]
    if leg.part:
        outputs = [_pack(leg.kernel, leg.name)]
        words += ["--objects-to", outputs[0]]
    else:
        outputs = [_artifact(leg.kernel, name) for name in leg.variants]
        words += ["--pack", f"{_OUT}/artifacts", "--output", f"{_OUT}/built/{leg.kernel}"]
        words += [*(f"--objects-from={pack}" for pack in packs), "--link"] if packs else []
    of_nvcc = f"NVCC_THREADS={leg.cores} " if leg.cores is not None else ""
    return {
        "rule": names("build", leg.kernel, leg.name),
        "kernel": leg.kernel,
        "packs": packs,
        "outputs": outputs,
        "log": f"{_OUT}/logs/{leg.kernel}/{leg.name}.log",
        "threads": threads,
        "mem_mb": memory * _GIB,
        "timeout": leg.timeout,
        "minutes": leg.minutes,
        "image": f"docker://{leg.image}" if leg.image else "",
        "script": f"{of_nvcc}{_kci(words)} --jobs {{threads}} {_words(['--', leg.path])} > {{log:q}} 2>&1",
    }


def _tree(kernel: str) -> str:
    return f"{_OUT}/trees/{kernel}"


def _verified(kernel: str) -> str:
    return f"{_OUT}/verified/{kernel}.json"


def _kernel(name: str, legs: Sequence[Leg], names: _Names) -> dict[str, Any]:
    built = sorted(variant for leg in legs if leg.kernel == name for variant in leg.variants)
    tree = _tree(name)
    merge = ["--into", tree, "--kernel", name]
    return {
        "name": name,
        "artifacts": [(variant, _artifact(name, variant)) for variant in built],
        "manifest": f"{tree}/kci-manifest.json",
        "verified": _verified(name),
        "merge": names("merge", name),
        "merge_script": f"rm -rf {_words([tree])} && {_kci(['merge'])} {{input.artifacts:q}} "
        f"--plan {{input.plan:q}} {_words(merge)}",
        "verify": names("verify", name),
        "verify_script": f"{_kci(['verify', '--format', 'json', '--', tree])} > {{output:q}}",
    }


def _test(test: TestLeg, names: _Names) -> dict[str, Any]:
    words = ["test", _tree(test.kernel), "--kernel", test.path, "--leg", test.name]
    gpu = needs_device(test.backend)
    python = " --python {config[test_python]:q}" if gpu else ""
    return {
        "rule": names("test", test.kernel, test.name),
        "verified": _verified(test.kernel),
        "record": f"{_OUT}/tests/{test.kernel}/{test.name}.json",
        "variants": test.variants,
        "timeout": test.timeout,
        "gpu": gpu,
        "script": f"{_kci(words)} --record {{output:q}}{python} {{params.variants:q}}",
    }

"""Loads built variants as users do, before they are packed: with each torch that they are for, in
fresh processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from kci.builders.process.run import Log, ProgramScope, StoppedError
from kci.builders.request import BuildOptions
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import is_reachable
from kci.builders.toolchains.environment import ensure_runtime, kci_environment
from kci.config.facts import BACKENDS, HOST
from kci.diagnostics import finding, rules
from kci.errors import FindingsError, KciError, MissingToolError, first_error, one_line
from kci.matrix.variants import Variant, parse_variant_name, this_system
from kci.run.kernel_tests import loader_for
from kci.run.loader import load_alone, probe, why_incompatible
from kci.tree.manifest import Loading
from kci.tree.metadata import FILE_NAME, Metadata, read_metadata
from kci.tree.verify.abi import demangled
from kci.utils.atomic import locked

NARROWING = "`load` in [plan] of kci.toml names the backends whose variants are loaded"


def load_built(
    directory: Path,
    variant: Variant,
    chosen: Collection[str] | None,
    options: BuildOptions,
    log: Log,
) -> Loading:
    """Load a built variant with its torch versions; `chosen` are the backends of `[plan] load`.

    FindingsError if it does not load, or registers what the loader does not take. If a torch cannot
    be installed, the variant is not loaded; if it must be, a CI run raises MissingToolError.
    """
    must, metadata = variant.must_load and not options.archs, read_metadata(directory / FILE_NAME)
    loaded: list[str] = []
    reason = "" if variant.loads else _why_none(variant, chosen)
    reason = reason if options.load else "`--no-load` was given"
    flavour = toolchains().flavour(variant.backend, variant.compute)
    made = {
        torch: kci_environment(options.cache, torch, flavour).complete for torch in variant.loads
    }
    lacking: dict[str, MissingToolError] = {}
    for torch in sorted(variant.loads, key=lambda torch: not made[torch]) if options.load else ():
        if loaded and variant.stable_abi is None:
            break  # it has no ABI of torch
        try:
            index = toolchains().torch_wheel(torch, flavour)[1]
            if loaded and options.isolation and not made[torch] and not is_reachable(index):
                raise MissingToolError(f"{index} cannot be reached")
            loaded.append(_load(directory, variant, metadata, torch, options, log))
        except DriverMissingError as error:
            must, reason = False, error.message
            break
        except MissingToolError as error:
            lacking[torch] = error
    if lacking and not loaded:
        newest = lacking[max(lacking, key=variant.loads.index)]
        reason = first_error(newest)
        if must and options.run:
            message = f"{variant.name} was built and is not loaded: {newest.message}"
            raise MissingToolError(message, f"run the job again; {NARROWING}")
    elif variant.stable_abi is not None:
        reasons = [f"{torch}: {first_error(why)}" for torch, why in lacking.items()]
        reason = "; ".join(filter(None, [reason, *reasons]))
    result = Loading(tuple(dict.fromkeys(reversed(loaded))), reason, must)
    log(f"{variant.name}: {'loaded with ' if loaded else ''}{result}")
    return result


@contextmanager
def fetching(variant: Variant, options: BuildOptions, log: Log) -> Iterator[None]:
    """Fetch the torch for a GPU that will load a variant while it is built: gigabytes, and ended
    with a failed build.

    It raises nothing: `load_built` says which torch is missing, and why.
    """
    flavour, scope = toolchains().flavour(variant.backend, variant.compute), ProgramScope()

    def fetch() -> None:
        made = (kci_environment(options.cache, torch, flavour).complete for torch in variant.loads)
        with scope.entered(), suppress(KciError, StoppedError):
            if not any(made):
                ensure_runtime(variant.loads[0], cache=options.cache, log=log, flavour=flavour)

    # that for the CPU compiles too, so the build fetches it
    wanted = options.load and options.isolation and flavour != HOST and variant.loads
    thread = threading.Thread(target=fetch)
    if wanted:
        thread.start()
    try:
        yield
    except BaseException:
        scope.stop()
        raise
    finally:
        if wanted:
            thread.join()


class DriverMissingError(KciError):
    """A variant that only a machine with its device can load."""


def _why_none(variant: Variant, chosen: Collection[str] | None) -> str:
    if chosen is not None and variant.backend not in chosen:
        return f"`load` in [plan] of kci.toml leaves out {variant.backend}"
    if (
        BACKENDS[variant.backend].loads
        and variant.torch is not None
        and variant.system.endswith("-linux")
    ):
        return "the compat tier loads variants for the CPU"
    return f"kci knows no torch for {BACKENDS[variant.backend].title} on {variant.system}"


def _load(
    directory: Path,
    variant: Variant,
    metadata: Metadata,
    torch: str,
    options: BuildOptions,
    log: Log,
) -> str:
    name = parse_variant_name(directory.name)
    python = None if options.isolation else Path(sys.executable)
    if name.system not in (None, this_system()):
        raise MissingToolError(f"it needs a {name.system} machine")
    if python and (why := why_incompatible(name, probe(python))):
        raise MissingToolError(f"without isolation, {why}")
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if metadata.kernel_depends and not is_reachable(hub):
        raise MissingToolError("it depends on other kernels, and the Hub cannot be reached")
    flavour = toolchains().flavour(variant.backend, variant.compute)
    python, packages = loader_for(
        directory, metadata, log, cache=options.cache, torch=torch, python=python, flavour=flavour
    )
    log(f"loading {directory.name} with torch {torch}")
    # the first load of an environment compiles torch's modules for the others
    root = python.parents[1]
    is_first = options.isolation and not any(root.glob("lib/*/site-packages/torch/__pycache__"))
    with (
        locked(root) if is_first else nullcontext(),
        tempfile.TemporaryDirectory(prefix="kci-load-") as folder,
    ):
        loaded = load_alone(directory, metadata, Path(folder), python, packages)
    facts = BACKENDS[variant.backend]
    if facts.driver and f"{facts.driver}: cannot open shared object file" in loaded.error:
        raise DriverMissingError(
            f"it links {facts.driver}, which only a machine with {facts.device} has"
        )
    if loaded.error:
        why = one_line(demangled(loaded.error))
        summary = f"{variant.name} does not load with torch {torch}: {why}"
        raise _fault("KCI785", summary, loaded.output)
    if loaded.faults:
        first, *more = [(rule, f"{variant.name}: {one_line(text)}") for rule, text in loaded.faults]
        raise _fault(*first, "\n".join(f"{text} [{rule}]" for rule, text in more))
    return loaded.torch


def _fault(rule: str, summary: str, more: str) -> FindingsError:
    problem = finding(rule, summary, hint=rules()[rule].fix)
    return FindingsError(f"{summary}\n{more}".strip(), problem.hint, diagnostics=[problem])

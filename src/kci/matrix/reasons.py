"""Why candidates are kept or dropped, put together for people: by backend, and by reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kci.matrix.archs import natural
from kci.matrix.variants import Dropped, Kept, KernelMatrix


class DroppedGroup(msgspec.Struct, frozen=True):
    """Candidates of one backend that were dropped for one reason."""

    rule: str
    reason: str
    candidates: tuple[Dropped, ...]
    whole: bool
    """True if these are all candidates of the backend."""

    @property
    def what(self) -> str:
        """The candidates in a few words: `cuda 12.6, 13.0; torch 2.12, 2.13; x86_64-linux`."""
        if self.whole:
            count = len(self.candidates)
            return "every row" if count > 1 else "the only row" if self.candidates[0].system else "no row"
        computes = _listed(item.compute for item in self.candidates)
        backend = self.candidates[0].backend
        torches = _listed(item.torch for item in self.candidates)
        parts = [f"{backend} {computes}".strip(), f"torch {torches}", _listed(item.system for item in self.candidates)]
        return "; ".join(part for part in parts if part)

    @property
    def where(self) -> str:
        """The places that decided: `build.toml:9`, or `catalog/2026-08-20.toml:27, 57`."""
        return places((item.path, item.line) for item in self.candidates)


class BackendReasons(msgspec.Struct, frozen=True):
    """All that was decided about one backend."""

    backend: str
    kept: tuple[Kept, ...]
    dropped: tuple[DroppedGroup, ...]

    @property
    def title(self) -> str:
        """`cuda: 6 kept, 3 dropped`."""
        dropped = sum(len(group.candidates) for group in self.dropped)
        return f"{self.backend}: {len(self.kept)} kept, {dropped} dropped"


def by_backend(kernel: KernelMatrix) -> list[BackendReasons]:
    """The decisions about a kernel (which has to be computed with `explain`), sorted: backends with variants first."""
    kept: dict[str, list[Kept]] = {}
    for variant, reason in zip(kernel.variants, kernel.kept, strict=True):
        kept.setdefault(str(variant.backend), []).append(reason)
    dropped: dict[str, list[Dropped]] = {}
    for item in kernel.dropped:
        dropped.setdefault(str(item.backend), []).append(item)
    backends = sorted({*kept, *dropped}, key=lambda backend: (backend not in kept, backend))
    return [
        BackendReasons(backend, tuple(kept.get(backend, ())), _groups(dropped.get(backend, ()), backend not in kept))
        for backend in backends
    ]


def _groups(dropped: Sequence[Dropped], nothing_kept: bool) -> tuple[DroppedGroup, ...]:
    found: dict[tuple[str, str], list[Dropped]] = {}
    for item in dropped:
        found.setdefault((item.rule, item.reason), []).append(item)
    whole = nothing_kept and len(found) == 1
    return tuple(DroppedGroup(*key, tuple(items), whole) for key, items in sorted(found.items()))


def places(of: Iterable[tuple[str, int]]) -> str:
    """Files with their lines, each file once; what the command line decided has no place."""
    lines: dict[str, set[int]] = {}
    for path, line in of:
        if path:
            lines.setdefault(path, set()).add(line)
    return ", ".join(
        f"{path}:{', '.join(str(line) for line in sorted(numbers))}" if numbers - {0} else path
        for path, numbers in sorted(lines.items())
    )


def _listed(texts: Iterable[str | None]) -> str:
    return ", ".join(sorted({text for text in texts if text}, key=natural))

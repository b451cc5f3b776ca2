"""Legs of a variant that does not fit into one job: those that compile parts of its objects, and one that links.

Variants of a kernel that differ in torch alone share what reads no header of torch: parts of the first compile it, and
the links of the others take it, where that saves minutes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from kci.catalog.runners import Runners
from kci.matrix.names import Kind, objects_name, upload_name
from kci.matrix.variants import KernelMatrix, Variant
from kci.plan.object_work import Work, work_data
from kci.plan.plan import Leg, Split
from kci.plurals import count


class Placed(NamedTuple):
    """A variant with a place: the leg that it is by itself, without what setting up takes."""

    variant: Variant
    leg: Leg
    setup: int
    """Minutes before anything is built."""
    most: int
    """Minutes that a job may take there."""


class Room(NamedTuple):
    """What is to be compiled on a machine, and what that has room for."""

    work: Work
    cores: int
    memory: float
    """In GiB."""

    def seconds(self) -> float:
        return self.work.seconds(self.cores, self.memory)

    @property
    def at_once(self) -> int:
        """How many of the largest objects are compiled side by side."""
        return max(1, min(self.cores, int(self.memory // self.work.memory) if self.work.memory else self.cores))


def of_minutes(leg: Leg, minutes: int, setup: int = 0, compiles: int | None = None) -> Leg:
    """A leg that takes so many minutes beside those of setting up, and as much less or more as an estimated one may."""
    least, most = (max(1, round(minutes * end / leg.minutes)) + setup for end in leg.ends)
    known = leg.at_most is None
    return msgspec.structs.replace(
        leg, minutes=setup + minutes, compiles=compiles, at_least=None if known else min(least, setup + minutes),
        at_most=None if known else max(most, setup + minutes),
    )  # fmt: skip


def whole_leg(kernel: KernelMatrix, placed: Sequence[Placed], name: str) -> Leg:
    """The leg that builds some variants, one after the other."""
    legs = [item.leg for item in placed]
    measured = all(leg.measured for leg in legs)
    return msgspec.structs.replace(
        legs[0],
        path=kernel.path,
        variant=" ".join(leg.variant for leg in legs),
        variants=tuple(leg.variant for leg in legs),
        name=name,
        timeout=min(sum(leg.timeout for leg in legs), placed[0].most),
        minutes=placed[0].setup + sum(leg.minutes for leg in legs),
        at_least=None if measured else placed[0].setup + sum(leg.ends[0] for leg in legs),
        at_most=None if measured else placed[0].setup + sum(leg.ends[1] for leg in legs),
        measured=measured,
        recorded=all(leg.recorded for leg in legs),
        compiles=sum(leg.compiles or 0 for leg in legs) if all(leg.compiles is not None for leg in legs) else None,
        artifact=upload_name(kernel.name, name),
        loads=tuple(dict.fromkeys(torch for leg in legs for torch in leg.loads)),
    )


class _Candidate(NamedTuple):
    """A variant that may be split."""

    placed: Placed
    whole: Leg
    room: Room
    asked: int | str | None
    """What [[limits]] says of parts."""
    memory: int | None

    @property
    def box(self) -> int:
        """Minutes that its jobs may take."""
        return self.whole.timeout

    def minutes(self, work: Work) -> int:
        """What some of its work takes, in the measure of all of it: that may have been recorded."""
        share = self.room._replace(work=work).seconds() / self.room.seconds()
        return max(1, math.ceil(self.placed.leg.minutes * share)) if work.objects else 0

    def taking(self, minutes: int) -> Leg:
        """The leg of its variant, if compiling takes so many minutes."""
        sized = of_minutes(self.placed.leg, minutes, self.placed.setup)
        return msgspec.structs.replace(
            self.whole, minutes=sized.minutes, at_least=sized.at_least, at_most=sized.at_most
        )

    def parts(self, work: Work, *, linking: int = 0) -> int:
        """How many parts compile some of its work; 1 if it fits into a job, beside so many minutes."""
        limits, setup, minutes = work_data().parts, self.placed.setup, self.minutes(work)
        if isinstance(self.asked, int):
            return min(self.asked, len(work.objects))
        if setup + linking + minutes <= self.box * limits.fits:
            return 1
        return min(len(work.objects), math.ceil(minutes / max(1.0, self.box * limits.aim - setup)))

    def legs(self, work: Work, parts: int, *, torch_only: bool = False) -> list[Leg]:
        """The part legs that compile some of its work."""
        return [
            msgspec.structs.replace(
                self.taking(self.minutes(share)),
                name=f"{self.whole.name}.part{number}of{parts}",
                variants=(),
                artifact=objects_name(self.whole.kernel, f"{self.whole.name}.part{number}of{parts}"),
                part=number,
                parts=parts,
                torch_only=torch_only,
                memory=self.memory if share.memory else None,
            )
            for number, share in enumerate(work.shares(parts), start=1)
        ]

    def link(self, parts: Sequence[Leg], own: int, work: Work | None = None) -> Leg:
        """The leg that links what some parts, `own` of them its own, have compiled, and compiles this work itself."""
        rest = self.minutes(work) if work is not None else 0
        return msgspec.structs.replace(
            self.taking(work_data().parts.link + rest), parts=own, takes=tuple(part.name for part in parts),
            memory=self.memory if work is not None and work.memory else None,
        )  # fmt: skip


def told_by(work: Work) -> str:
    """By what the minutes of some work are known, where those of its variant were not recorded."""
    if not work.recorded:
        return "estimated"
    rest = len(work.objects) - work.recorded
    return "from recorded seconds" + (f" of {work.recorded} objects, {rest} estimated" if rest else "")


def split_kernel(
    kernel: KernelMatrix, placed: Sequence[Placed], rooms: Mapping[tuple[str, str], Room], runners: Runners
) -> tuple[dict[str, list[Leg]], list[Split]]:
    """The legs of those variants of a kernel that are compiled in parts, by name, and why they are."""
    legs: dict[str, list[Leg]] = {}
    splits: list[Split] = []
    alike: dict[tuple[object, ...], list[_Candidate]] = {}
    for item in placed:
        room = rooms.get((kernel.name, item.variant.name))
        if room is None or not room.work.objects:
            continue
        worst = runners.compiler_memory(item.leg.backend, cutlass=True) // 2**30
        asked = runners.limit(kernel.name, item.leg.backend).parts
        each = _Candidate(item, whole_leg(kernel, [item], item.variant.name), room, asked, worst)
        parts = each.parts(room.work)
        if parts > 1:
            made = each.legs(room.work, parts)
            legs[item.variant.name] = [*made, each.link(made, parts)]
            splits.append(_split(each, parts))
        if item.variant.kind is Kind.FULL and not isinstance(asked, int):
            key = (item.leg.backend, item.leg.system, item.variant.compute, item.leg.runner, room.work)
            alike.setdefault(key, []).append(each)
    for group in alike.values():
        shared, told = _shared(group, legs)
        legs |= shared
        splits = [item for item in splits if item.variant not in shared] + told
    return legs, sorted(splits, key=lambda item: item.variant)


def _shared(group: Sequence[_Candidate], alone: Mapping[str, list[Leg]]) -> tuple[dict[str, list[Leg]], list[Split]]:
    """The legs of variants that differ in torch alone, where the parts of the first compile for all; else nothing."""
    first, *others = group
    common, rest = (first.room.work.only(torch=torch) for torch in (False, True))
    if not others or not common.objects:
        return {}, []
    parts = first.parts(first.room.work)
    compiled = first.legs(first.room.work, parts)
    legs = {first.whole.name: [*compiled, first.link(compiled, parts)]}
    for each in others:
        own = each.parts(rest, linking=work_data().parts.link)
        mine = each.legs(rest, own, torch_only=True) if own > 1 else []
        legs[each.whole.name] = [*mine, each.link([*mine, *compiled], len(mine), rest if not mine else None)]
    before = {each.whole.name: sum(leg.minutes for leg in alone.get(each.whole.name, [each.whole])) for each in group}
    saves = {name: before[name] - sum(leg.minutes for leg in legs[name]) for name in before}
    if sum(saves.values()) < work_data().parts.worth:
        return {}, []
    told = [_split(first, parts)]
    for each in others:
        name = each.whole.name
        own = legs[name][-1].parts or 0
        shares = (
            f"{count(len(common.objects), 'object')} that read no header of torch, by their includes, are those of "
        )
        shares += f"{first.whole.name}; this saves {count(saves[name], 'minute')}"
        told.append(
            _split(each, own, takes=first.whole.name, shared=len(common.objects), saves=saves[name], why=shares)
        )
    return legs, told


def _split(each: _Candidate, parts: int, *, takes: str = "", shared: int = 0, saves: int = 0, why: str = "") -> Split:
    work, room = each.room.work, each.room
    size = f" of {work.memory} GiB" if work.memory else ""
    asked = f"; kci.toml asks for {count(parts, 'part')}" if isinstance(each.asked, int) else ""
    reason = (
        f"{count(len(work.objects), 'object')}{size}, {room.at_once} at once: about {each.whole.minutes} minutes "
        f"({told_by(work)}), and a job has {each.box}{asked}"
    )
    return Split(
        kernel=each.whole.kernel, variant=each.whole.name, parts=parts, objects=len(work.objects),
        minutes=each.whole.minutes, reason="; ".join(filter(None, (reason, why))), takes=takes, shared=shared,
        saves=saves,
    )  # fmt: skip

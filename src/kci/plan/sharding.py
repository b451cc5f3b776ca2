"""Which shard of the workflow a kernel is in.

GitHub takes 256 jobs in one matrix, so a large plan needs several. A kernel's legs stay together, in the caller job or
the matrix of its shard. Which one that is depends on the kernel's name and on the number of shards only (rendezvous
hashing): a new kernel moves no other, and one more shard takes from all and mixes none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from kci.plan.machines import Pool
from kci.plan.plan import Leg, Role, Shard

MAX_MATRIX = 256
"""Jobs that one matrix of a GitHub workflow may have; the run fails beyond (GitHub docs, "Actions limits")."""

MAX_SHARDS = 64
"""GitHub cannot show a run of more jobs than this allows."""


def shard_of(kernel: str, count: int) -> int:
    """The shard of a kernel among `count`: the one whose hash with its name is the highest."""
    return max(range(count), key=lambda index: hashlib.sha256(f"{index}\0{kernel}".encode()).digest())


def shard_count(legs: Iterable[Leg]) -> int:
    """The smallest number of shards in which no matrix has too many legs; a kernel with too many is one by itself.

    Parts do not count: a workflow has as many jobs for them as there have to be.
    """
    sizes = Counter((leg.kernel, leg.role) for leg in legs if leg.role is not Role.PART)
    most = max(MAX_MATRIX, *sizes.values(), 0)
    each = Counter[Role]()
    for (_, role), number in sizes.items():
        each[role] += number
    for count in range(max(1, -(-max(each.values(), default=0) // most)), MAX_SHARDS):
        matrices = Counter[tuple[int, Role]]()
        for (kernel, role), number in sizes.items():
            matrices[shard_of(kernel, count), role] += number
        if max(matrices.values(), default=0) <= most:
            return count
    return MAX_SHARDS


def assign(legs: Iterable[Leg], count: int | None = None) -> tuple[list[Leg], int]:
    """Give every leg the shard of its kernel: the legs in their order, and the number of shards.

    `count` is for a workflow file that fixes it. Whether each shard is small enough, `check_limits` says.
    """
    legs = list(legs)
    wanted = shard_count(legs) if count is None else count
    shard = {kernel: shard_of(kernel, wanted) for kernel in {leg.kernel for leg in legs}}
    return [msgspec.structs.replace(leg, shard=shard[leg.kernel]) for leg in legs], wanted


def shards(legs: Sequence[Leg], count: int) -> tuple[Shard, ...]:
    """The shards of a plan, each with the part of the pools that it may use.

    `max-parallel` bounds one matrix only, so the budget of all pools is split: each pool by how many of its legs are in
    which matrix, at least one where there are any, the rest by the largest remainders. Legs of a pool whose size is not
    known, or whose jobs GitHub holds back itself, bring their own number, so that they are never held back here.
    """
    most = allowances(legs, [leg.shard for leg in legs], count)
    sizes = [sum(leg.shard == index for leg in legs) for index in range(count)]
    return tuple(Shard(index, sizes[index], *most[index]) for index in range(count))


def allowances(legs: Sequence[Leg], groups: Sequence[int], count: int) -> list[tuple[int | None, int | None]]:
    """How many legs of each of `count` groups may run at once; None where nothing holds them back. See `shards`.

    First of the legs that make whole variants, then of part legs; link legs run after those, and take their place.
    """
    matrices = [2 * group + (leg.role is not Role.WHOLE) for leg, group in zip(legs, groups, strict=True)]
    allowed, sizes = [0] * 2 * count, [0] * 2 * count
    by_pool: dict[Pool, list[int]] = {}
    for leg, matrix in zip(legs, matrices, strict=True):
        by_pool.setdefault(leg.pool, [0] * 2 * count)[matrix] += 1
        sizes[matrix] += 1
    for pool, here in sorted(by_pool.items(), key=lambda item: item[0].name):
        share = here if pool.size is None or pool.queued else split(pool.size, here)
        allowed = [total + more for total, more in zip(allowed, share, strict=True)]
    found = [most if 0 < most < size else None for most, size in zip(allowed, sizes, strict=True)]
    return list(zip(found[::2], found[1::2], strict=True))


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Split a number by weights: nothing for a weight of 0, at least 1 for every other, never more than the weight."""
    beyond = [max(0, weight - 1) for weight in weights]
    rest = min(sum(beyond), max(0, total - sum(weight > 0 for weight in weights)))
    whole = max(1, sum(beyond))
    parts = [min(1, weight) + rest * more // whole for weight, more in zip(weights, beyond, strict=True)]
    # Biggest remainder first; ties by position, so that the result is the same everywhere.
    order = sorted(range(len(weights)), key=lambda index: (-(rest * beyond[index] % whole), index))
    for index in order[: rest - sum(rest * more // whole for more in beyond)]:
        parts[index] += 1
    return parts

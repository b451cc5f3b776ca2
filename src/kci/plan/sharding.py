"""Which shard of the workflow a kernel is in.

GitHub takes 256 jobs in one matrix, so a large plan needs several. A kernel's legs stay together, in the caller job or
the matrix of its shard. Which one that is depends on the kernel's name and on the number of shards only (rendezvous
hashing): a new kernel moves no other, and one more shard takes from all and mixes none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kci.plan.machines import Pool
from kci.plan.plan import Leg, Shard

MAX_MATRIX = 256
"""Jobs that one matrix of a GitHub workflow may have; the run fails beyond (GitHub docs, "Actions limits")."""

MAX_SHARDS = 64
"""GitHub cannot show a run of more jobs than this allows."""


def shard_of(kernel: str, count: int) -> int:
    """The shard of a kernel among `count`: the one whose hash with its name is the highest."""
    return max(range(count), key=lambda index: hashlib.sha256(f"{index}\0{kernel}".encode()).digest())


def shard_count(legs: Mapping[str, int]) -> int:
    """The smallest number of shards in which no matrix has too many legs; a kernel with too many is one by itself."""
    most = max(MAX_MATRIX, *legs.values(), 0)
    for count in range(max(1, -(-sum(legs.values()) // most)), MAX_SHARDS):
        sizes = Counter[int]()
        for kernel, number in legs.items():
            sizes[shard_of(kernel, count)] += number
        if max(sizes.values(), default=0) <= most:
            return count
    return MAX_SHARDS


def assign(legs: Iterable[Leg], count: int | None = None) -> tuple[list[Leg], int]:
    """Give every leg the shard of its kernel: the legs in their order, and the number of shards.

    `count` is for a workflow file that fixes it. Whether each shard is small enough, `check_limits` says.
    """
    legs = list(legs)
    kernels = Counter(leg.kernel for leg in legs)
    wanted = shard_count(kernels) if count is None else count
    shard = {kernel: shard_of(kernel, wanted) for kernel in kernels}
    return [msgspec.structs.replace(leg, shard=shard[leg.kernel]) for leg in legs], wanted


def shards(legs: Sequence[Leg], count: int) -> tuple[Shard, ...]:
    """The shards of a plan, each with the part of the pools that it may use.

    `max-parallel` bounds one matrix only, so the budget of all pools is split: each pool by how many of its legs are in
    which shard, at least one where there are any, the rest by the largest remainders. Legs of a pool whose size is not
    known, or whose jobs GitHub holds back itself, bring their own number, so that they are never held back here.
    """
    most = allowances(legs, [leg.shard for leg in legs], count)
    sizes = [sum(leg.shard == index for leg in legs) for index in range(count)]
    return tuple(Shard(index, size, allowed) for index, (size, allowed) in enumerate(zip(sizes, most, strict=True)))


def allowances(legs: Sequence[Leg], parts: Sequence[int], count: int) -> list[int | None]:
    """How many legs of each of `count` matrices may run at once; None where nothing holds them back. See `shards`."""
    allowed, sizes = [0] * count, [0] * count
    by_pool: dict[Pool, list[int]] = {}
    for leg, part in zip(legs, parts, strict=True):
        by_pool.setdefault(leg.pool, [0] * count)[part] += 1
        sizes[part] += 1
    for pool, here in sorted(by_pool.items(), key=lambda item: item[0].name):
        share = here if pool.size is None or pool.queued else split(pool.size, here)
        allowed = [total + more for total, more in zip(allowed, share, strict=True)]
    return [most if 0 < most < size else None for most, size in zip(allowed, sizes, strict=True)]


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

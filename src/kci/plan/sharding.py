"""Which matrix of the workflow a leg is in.

GitHub takes 256 jobs in one matrix, so a large plan needs several. A leg's shard depends on the leg, on its pool and on
the number of shards only (rendezvous hashing), so a new variant moves no other. The number itself grows with the plan:
shards are filled to `SLACK` on average and so do not overflow by chance, and when one is added, legs move into the new
one only. A workflow file has a fixed number of build jobs; it passes that number, and then nothing ever moves.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from kci.diagnostics import finding
from kci.errors import FindingsError
from kci.plan.plan import Leg, Shard
from kci.plan.pools import Pool

MAX_MATRIX = 256
"""Jobs that one matrix of a GitHub workflow may have; the run fails beyond (GitHub docs, "Actions limits")."""

SLACK = 200
"""Legs per shard that a plan of several shards aims at."""

MAX_SHARDS = 64
"""A run of more jobs than this allows is none that GitHub can show."""


def shard_of(key: str, count: int, among: Sequence[int] | None = None) -> int:
    """The shard of a leg among `count`, or among some of them: the one whose hash with the leg's key is the highest."""
    if count == 1:
        return 0
    return max(among or range(count), key=lambda index: _rank(index, key))


def _rank(index: int, key: str) -> bytes:
    return hashlib.sha256(f"{index}\0{key}".encode()).digest()


def _open_to(pool: Pool, count: int, legs: int) -> Sequence[int] | None:
    """The shards that the legs of a pool may be in: no more than it has machines, if that many hold them.

    Every matrix runs at least one job at a time, so that more of them would use more machines than there are.
    """
    if pool.size is None or pool.queued or pool.size >= count:
        return None
    return sorted(range(count), key=lambda index: _rank(index, pool.name))[: max(1, pool.size, -(-legs // SLACK))]


def key_of(leg: Leg) -> str:
    """What identifies a leg from one plan to the next, wherever its kernel lies."""
    return f"{leg.kernel}\0{leg.name}"


def shard_count(keys: Sequence[str]) -> int:
    """How many shards a plan needs: one while everything fits, then as many as `SLACK` asks for.

    Raises:
        FindingsError: more legs than `MAX_SHARDS` shards hold (KCI305).
    """
    if len(keys) <= MAX_MATRIX:
        return 1
    for count in range(max(2, -(-len(keys) // SLACK)), MAX_SHARDS + 1):
        if max(_sizes(keys, count)) <= MAX_MATRIX:
            return count
    raise _too_many(f"{len(keys)} legs, more than {MAX_SHARDS} matrices of {MAX_MATRIX} jobs can hold")


def assign(legs: Iterable[Leg], count: int | None = None) -> tuple[list[Leg], int]:
    """Give every leg its shard.

    Args:
        legs: all legs of the plan.
        count: the number of shards, where the workflow file fixes it.

    Returns:
        The legs in their order, and the number of shards.

    Raises:
        FindingsError: a shard has more than 256 legs (KCI305).
    """
    legs = list(legs)
    keys = [key_of(leg) for leg in legs]
    wanted = shard_count(keys) if count is None else count
    taken = Counter(leg.pool for leg in legs)
    placed = [
        msgspec.structs.replace(leg, shard=shard_of(key, wanted, _open_to(leg.pool, wanted, taken[leg.pool])))
        for leg, key in zip(legs, keys, strict=True)
    ]
    sizes = [sum(leg.shard == index for leg in placed) for index in range(wanted)]
    if max(sizes) > MAX_MATRIX:
        shards = f"{wanted} matrices" if wanted > 1 else "one matrix"
        message = f"{len(legs)} legs do not fit into {shards} of at most {MAX_MATRIX} jobs"
        raise _too_many(message, f"use {shard_count(keys)} shards; `kci render` writes a build job for each")
    return placed, wanted


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
    """How many legs of each matrix may run at once; None where nothing holds them back. See `shards`.

    Args:
        legs: all legs of the plan.
        parts: the matrix of each of them.
        count: how many matrices there are.
    """
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


def _sizes(keys: Iterable[str], count: int) -> list[int]:
    sizes = [0] * count
    for key in keys:
        sizes[shard_of(key, count)] += 1
    return sizes


def _too_many(message: str, hint: str = "") -> FindingsError:
    hint = hint or "plan fewer kernels at a time, or narrow with --tier, --backend, --system or --only"
    return FindingsError(message, hint=hint, diagnostics=[finding("KCI305", message, hint=hint)])

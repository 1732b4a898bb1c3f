"""Damaged and hostile index caches."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from cntkio.storage import index_cache

NUMBERS = [0, 1, 2**31, 2**63, 2**64 - 1]


def flipped(whole: bytes, at: int, bit: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]


def mutated(whole: bytes, chance: random.Random) -> bytes:
    at, other = (chance.randrange(len(whole)) for _ in range(2))
    low, high = min(at, other), max(at, other)
    kinds: list[Callable[[], bytes]] = [
        lambda: flipped(whole, at, chance.randrange(8)),
        lambda: flipped(flipped(whole, at, 3), other, 5),
        lambda: whole[:at],
        lambda: whole + whole[:at],
        lambda: whole[:at] + bytes(chance.randrange(1, 40)) + whole[at:],
        lambda: whole[:low] + whole[high:],
        lambda: whole[:low] + bytes(high - low) + whole[high:],
        lambda: whole[:at] + chance.randbytes(8) + whole[at + 8 :],
        lambda: whole[: at & ~7] + struct.pack("<Q", chance.choice(NUMBERS)) + whole[8 + (at & ~7) :],
    ]
    return chance.choice(kinds)()


def header_of(whole: bytes) -> Any:
    """Return the header of a cache."""
    size, _ = struct.unpack_from("<QQ", whole, 16)
    return json.loads(whole[32 : 32 + size])


def with_header(whole: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a cache with another header, and right checksums."""
    size, _ = struct.unpack_from("<QQ", whole, 16)
    changed = change(json.loads(whole[32 : 32 + size]))
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    return whole[:16] + struct.pack("<QQ", len(text), index_cache.sum_of(text)) + text + whole[32 + size :]


HOSTILE: list[Any] = [
    None, True, -1, 0.5, 2**31, 2**63, 2**64, 10**400, "", "x" * 1000, [], {}, [[]], [1, 2, 3], {"a": {}}, float("nan"),
]  # fmt: skip


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_in(inner, (*path, key))


def replaced(header: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    header[path[0]] = replaced(header[path[0]], path[1:], value)
    return header

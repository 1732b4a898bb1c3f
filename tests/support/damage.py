"""Damaged input, which every reader must read or refuse with a position."""

from collections.abc import Iterator

from support.rounds import step


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield every prefix, and the input with each of its bits flipped (in `make test` at least one of each byte)."""
    for end in range(len(data)):
        yield data[:end]
    for position in range(0, 8 * len(data), step(7)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        yield bytes(flipped)

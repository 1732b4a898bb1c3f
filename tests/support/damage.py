"""Damaged input: what every reader must refuse with a place, or read."""

from collections.abc import Iterator


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield every prefix, and the input with each of its bits flipped."""
    for end in range(len(data)):
        yield data[:end]
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)

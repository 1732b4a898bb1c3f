"""The 64-bit Mersenne Twister in plain Python, for the slow twins of shuffled orders."""

from collections.abc import Iterator

WORD = 2**64


def draws(seed: int) -> Iterator[int]:
    """Yield the words that mt19937_64 generates from a seed."""
    state = [seed % WORD]
    while len(state) < 312:
        state.append((6364136223846793005 * (state[-1] ^ state[-1] >> 62) + len(state)) % WORD)
    while True:
        for i in range(312):
            joined = (state[i] >> 31 << 31) + state[(i + 1) % 312] % 2**31
            state[i] = state[(i + 156) % 312] ^ joined >> 1 ^ (0xB5026F5AA96619E9 if joined % 2 else 0)
        for y in list(state):
            y ^= y >> 29 & 0x5555555555555555
            y ^= y << 17 & 0x71D67FFFEDA60000
            y ^= y << 37 & 0xFFF7EEE000000000
            yield y ^ y >> 43

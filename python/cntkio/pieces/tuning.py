"""Sizes by which conversions are divided. They change memory and time, never a result."""

PIECE_BYTES = 16 << 20
"""Bytes of arrays in a piece."""
SAMPLES_AT_ONCE = 1 << 16
"""Minibatch size when a source is written."""
SEQUENCES_PER_CORE = 2048
"""Sequences that a thread turns into text at a time."""
BLOCK = 8 << 20
"""Bytes of a token or number file that are converted at a time."""
LONGEST_LINE = 256 << 20
"""Most bytes of a line of a token or number file; a packed file can hold a line of any size."""
NUM_LOADERS = 2
"""Threads that load chunks ahead."""
PARSED_AHEAD = 128 << 20
"""Most bytes of chunks that the pass over a text may parse for `read_ctf`, so that they are not read again."""

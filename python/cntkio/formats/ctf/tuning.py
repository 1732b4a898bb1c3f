"""Sizes by which a text is divided among threads. They change only the time, never a result."""

BLOCK = 4 << 20
"""Bytes of text that a thread indexes at a time: few enough to share the work evenly, many enough to be worth a job."""
WATCHED = 256 << 20
"""Bytes of text that a call indexes if a watcher displays the progress; otherwise a call indexes a whole window."""
PIECE = 1 << 20
"""Least bytes of a chunk that a thread parses at a time."""
PIECE_OF_SOME = 4 << 20
"""The same for a part of a chunk's sequences: larger arrays get larger memory pages, and two chunks are parsed at the
same time anyway."""
PART = 512 << 10
"""Bytes that are indexed and parsed in one go: together with their values, they fit the cache of a core."""
GAP = 8 << 10
"""Most bytes between two wanted sequences that are read along with them, because skipping bytes takes another call."""

"""Formats written in Python: a base class, and the checks of what its methods return. (docs/user-defined.md)"""

from cntkio.formats.user.columns import Column, chunk_of, column, joined_columns
from cntkio.formats.user.corpus import MainTimelineCorpus, UserDeserializer, UserTimelineCorpus

__all__ = [
    "Column",
    "MainTimelineCorpus",
    "UserDeserializer",
    "UserTimelineCorpus",
    "chunk_of",
    "column",
    "joined_columns",
]

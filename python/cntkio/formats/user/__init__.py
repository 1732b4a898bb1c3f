"""Formats written in Python: a base class, and the checks of what its methods return. (docs/user-defined.md)"""

from cntkio.formats.user.corpus import (
    Column,
    MainTimelineCorpus,
    UserDeserializer,
    UserTimelineCorpus,
    chunk_of,
    column,
    joined_columns,
)

__all__ = [
    "Column",
    "MainTimelineCorpus",
    "UserDeserializer",
    "UserTimelineCorpus",
    "chunk_of",
    "column",
    "joined_columns",
]

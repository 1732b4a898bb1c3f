"""The formats: one module each with its description (a deserializer), its index, its loading and its errors.

What they owe to the source, and all that the source knows of them, is on one page: `cntkio.formats.contract`.
"""

from __future__ import annotations

from cntkio.formats.contract import NOTHING_AHEAD as NOTHING_AHEAD
from cntkio.formats.contract import Ahead as Ahead
from cntkio.formats.contract import Corpus as Corpus
from cntkio.formats.contract import Deserializer as Deserializer
from cntkio.formats.contract import Loaded as Loaded
from cntkio.formats.contract import Utterances as Utterances

__all__ = ["NOTHING_AHEAD", "Ahead", "Corpus", "Deserializer", "Loaded", "Utterances"]

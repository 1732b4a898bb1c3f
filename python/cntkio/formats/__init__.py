"""The formats: a folder for each, with its deserializer, index, loading and errors; and what all formats share.

The source knows formats only by their contract, `cntkio.formats.contract`.
"""

from __future__ import annotations

from cntkio.formats.contract import NOTHING_AHEAD as NOTHING_AHEAD
from cntkio.formats.contract import Ahead as Ahead
from cntkio.formats.contract import Corpus as Corpus
from cntkio.formats.contract import Deserializer as Deserializer
from cntkio.formats.contract import Loaded as Loaded
from cntkio.formats.contract import Opening as Opening
from cntkio.formats.contract import PlacesInFiles as PlacesInFiles
from cntkio.formats.contract import Utterances as Utterances

__all__ = ["NOTHING_AHEAD", "Ahead", "Corpus", "Deserializer", "Loaded", "Opening", "PlacesInFiles", "Utterances"]

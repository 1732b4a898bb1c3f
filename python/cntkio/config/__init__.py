"""CNTK's configuration files: their language, and the meaning of their readers here. (docs/configuration.md)

::

    text ──> language ──> reading ──> ReaderConfig ──> MinibatchSource
               files      deserializers     └──writing──> text
                                keys
"""

from cntkio.config.reader_config import ReaderConfig
from cntkio.config.reading import read_config

__all__ = ["ReaderConfig", "read_config"]

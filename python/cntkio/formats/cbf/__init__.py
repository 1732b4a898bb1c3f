"""The CNTK binary format, in both of its layouts. (docs/formats/cbf.md)

::

    2.x layout          magic, version | chunk | chunk | … | header: streams, chunk table | offset of the header
    documented layout   header: streams, chunk table       | chunk | chunk | …

    header      reads and checks headers
    faults      faults of a chunk, and the words for them
    corpus      options, the opened corpus
    writer      writes files

Headers are read here, chunks by the compiled core. No count in a file is used before it is compared with the number of
bytes that the file has.
"""

from cntkio.formats.cbf.corpus import CBFCorpus, CBFDeserializer
from cntkio.formats.cbf.header import Layout
from cntkio.formats.cbf.writer import CBFWriter

__all__ = ["CBFCorpus", "CBFDeserializer", "CBFWriter", "Layout"]

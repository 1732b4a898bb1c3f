"""The CNTK binary format, in both of its layouts. (docs/formats/cbf.md)

::

    2.x layout          magic, version | chunk | chunk | … | header: streams, chunk table | offset of the header
    documented layout   header: streams, chunk table       | chunk | chunk | …

    header      reads and checks headers; faults of a chunk, and the words for them
    corpus      options, the opened corpus
    writer      writes files

This package reads headers; the compiled core reads chunks. Every count in a file is compared with the size of the file
before it is used.
"""

from cntkio.formats.cbf.corpus import CBFDeserializer
from cntkio.formats.cbf.header import LayoutName
from cntkio.formats.cbf.writer import CBFWriter, write_cbf

__all__ = ["CBFDeserializer", "CBFWriter", "LayoutName", "write_cbf"]

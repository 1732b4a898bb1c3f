"""The svmlight (libsvm) text format: its lines; the rest is that of the text format. (docs/formats/svmlight.md)

corpus  SvmlightDeserializer: the index, the parser's settings, and the words for errors; whole texts: read_svmlight,
        write_svmlight
"""

from cntkio.formats.svmlight.corpus import SvmlightDeserializer, in_files, read_svmlight
from cntkio.formats.svmlight.writer import write_svmlight

__all__ = ["SvmlightDeserializer", "in_files", "read_svmlight", "write_svmlight"]

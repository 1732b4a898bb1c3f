"""Archives (ark), lists (scp) and maps of Kaldi. (docs/formats/kaldi.md)

::

    objects    where the matrices, vectors and lines of the files are, by their headers
    corpus     options, the opened corpus; whole archives: read_kaldi
    writer     writes archives

Values become frames as in HTK's files, and whole numbers become runs of classes as in label files.
"""

from cntkio.formats.kaldi.corpus import KaldiDeserializer, in_files, maps_in_files, read_kaldi
from cntkio.formats.kaldi.writer import write_kaldi

__all__ = ["KaldiDeserializer", "in_files", "maps_in_files", "read_kaldi", "write_kaldi"]

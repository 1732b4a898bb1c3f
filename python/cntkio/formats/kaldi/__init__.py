"""Archives (ark), lists (scp) and maps of Kaldi. (docs/formats/kaldi.md)

::

    objects    where the matrices, vectors and lines of the files are, by their headers
    corpus     options, the opened corpus

Values become frames as those of HTK do, and whole numbers become runs of classes as those of label files do.
"""

from cntkio.formats.kaldi.corpus import KaldiDeserializer

__all__ = ["KaldiDeserializer"]

"""The corpora in files of every format: the kinds of files, their deserializers, and the opened corpora.

::

    names ── inputs ──> Input ── described(Reading) ──> Described ── open, parts ──> MinibatchSource, Corpus

    files       files that are read in place, and temporary copies of the others
    reading     options, and a function for each kind of file
    speech      lists of HTK features, and label files

Invariant: an option that no file of a call takes is refused.
"""

from cntkio.corpora.files import STANDARD_INPUT, Input, inputs
from cntkio.corpora.reading import CHUNK_SIZE, SURVEYED_AT_ONCE, Described, Reading, described

__all__ = ["CHUNK_SIZE", "STANDARD_INPUT", "SURVEYED_AT_ONCE", "Described", "Input", "Reading", "described", "inputs"]

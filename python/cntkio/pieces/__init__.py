"""Sequences that are to be written, piece by piece, from anything that can be written. (docs/convert.md)

::

    deserializer, source, arrays, Arrow ──> pieces ──> a writer of a format ──> one file, or several

    contract        the seam: sequences piece by piece; chunks, loaded ahead; whole corpora as arrays
    array_streams   pieces of arrays, SciPy matrices, minibatches, corpora and sources
    chunks          some chunks of a corpus, as a small value
    files           the sequences of a corpus in several files; text that is compressed while it is written

Invariant: memory is bounded by a few chunks, however long the input is. The writers of all formats take their data,
their progress and their files from here.
"""

from cntkio.pieces.array_streams import ArrayStream, pieces_of
from cntkio.pieces.chunks import CorpusChunks, corpus_chunks, pieces_of_corpus
from cntkio.pieces.contract import (
    SEQUENCES_PER_CORE,
    Classes,
    Files,
    Piece,
    Pieces,
    Progress,
    Writable,
    chunks_in_order,
    in_arrays,
    is_table,
    joined,
    read_corpus,
)
from cntkio.pieces.files import Compression, compressed, compression_of, write_several

__all__ = [
    "SEQUENCES_PER_CORE", "ArrayStream", "Classes", "Compression", "CorpusChunks", "Files", "Piece", "Pieces",
    "Progress", "Writable", "chunks_in_order", "compressed", "compression_of", "corpus_chunks", "in_arrays",
    "is_table", "joined", "pieces_of", "pieces_of_corpus", "read_corpus", "write_several",
]  # fmt: skip

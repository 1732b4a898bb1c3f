"""Conversions: corpora and arrays to files, files to arrays, token and number files to text. (docs/convert.md)

::

    deserializer, source, arrays, Arrow ──> pieces ──> write_ctf, write_cbf
    token files, columns of numbers ──> blocks of whole lines ──> text

    pieces          the seam: sequences piece by piece, from anything that can be written; chunks, loaded ahead
    array_streams   pieces of arrays, SciPy matrices, minibatches, corpora and sources
    chunks          some chunks of a corpus, as a small value
    arrays          whole corpora as arrays: read_ctf, read_kaldi, read_svmlight
    writers         write_ctf, write_cbf, write_kaldi, write_svmlight, sequence_to_cntk_text_format
    several_files   the sequences of a corpus in several files
    compression     text that is compressed while it is written
    files           convert_file: from one file to another of any format, or a selection of it; header files
    scripts         CNTK's scripts txt2ctf.py and uci2ctf.py
    tuning          how much is converted at a time

Invariants: memory is bounded by a few chunks however long the input is, except for `read_ctf`. A file appears under its
name when it is complete. An input that the target format cannot express is an error that names its location.
"""

from cntkio.convert.array_streams import ArrayStream, pieces_of
from cntkio.convert.arrays import CommentedMinibatch, read_ctf, read_kaldi, read_svmlight
from cntkio.convert.chunks import CorpusChunks, corpus_chunks
from cntkio.convert.files import (
    Reading,
    cbf_to_ctf,
    convert_file,
    corpus_of,
    ctf_to_cbf,
    format_of,
    format_of_name,
    read_header_file,
    write_file,
)
from cntkio.convert.pieces import Files, Piece, Pieces, Progress, Writable, is_table, joined
from cntkio.convert.scripts import LabelType, txt_to_ctf, uci_to_ctf
from cntkio.convert.several_files import write_several
from cntkio.convert.writers import sequence_to_cntk_text_format, write_cbf, write_ctf, write_kaldi, write_svmlight
from cntkio.formats.detect import FileFormat
from cntkio.formats.output_file import AnyPath

__all__ = [
    "AnyPath", "ArrayStream", "CommentedMinibatch", "CorpusChunks", "FileFormat", "Files", "LabelType", "Piece",
    "Pieces", "Progress", "Reading", "Writable", "cbf_to_ctf", "convert_file", "corpus_chunks", "corpus_of",
    "ctf_to_cbf", "format_of", "format_of_name", "is_table", "joined", "pieces_of", "read_ctf", "read_header_file",
    "read_kaldi", "read_svmlight", "sequence_to_cntk_text_format", "txt_to_ctf", "uci_to_ctf", "write_cbf", "write_ctf",
    "write_file", "write_kaldi", "write_several", "write_svmlight",
]  # fmt: skip

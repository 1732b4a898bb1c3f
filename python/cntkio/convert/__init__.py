"""Conversions: corpora and arrays to files, files to arrays, token and number files to text. (docs/convert.md)

::

    anything that can be written ──> pieces ──> write_ctf, write_cbf
    token files, columns of numbers ──> blocks of whole lines ──> text

    files           convert_file: from one file to another of any format, or a selection of it; header files
    scripts         CNTK's scripts txt2ctf.py and uci2ctf.py

Invariants: memory is bounded by a few chunks however long the input is, except for `read_ctf`. A file appears under its
name when it is complete. An input that the target format cannot express is an error that names its location.
"""

from cntkio.convert.files import (
    cbf_to_ctf,
    convert_file,
    corpus_of,
    ctf_to_cbf,
    format_of,
    read_header_file,
    write_file,
)
from cntkio.convert.scripts import LabelType, txt_to_ctf, uci_to_ctf
from cntkio.formats.arrays import ArrayStream, pieces_of
from cntkio.formats.cbf import write_cbf
from cntkio.formats.contract import Reading
from cntkio.formats.ctf import CommentedMinibatch, read_ctf, sequence_to_cntk_text_format, write_ctf
from cntkio.formats.detect import FileFormat
from cntkio.formats.kaldi import read_kaldi, write_kaldi
from cntkio.formats.pieces import (
    CorpusChunks,
    Files,
    Piece,
    Pieces,
    Progress,
    Writable,
    corpus_chunks,
    is_table,
    joined,
)
from cntkio.formats.svmlight import read_svmlight, write_svmlight
from cntkio.formats.written_files import format_of_name, write_pieces
from cntkio.storage.output_file import AnyPath

__all__ = [
    "AnyPath", "ArrayStream", "CommentedMinibatch", "CorpusChunks", "FileFormat", "Files", "LabelType", "Piece",
    "Pieces", "Progress", "Reading", "Writable", "cbf_to_ctf", "convert_file", "corpus_chunks", "corpus_of",
    "ctf_to_cbf", "format_of", "format_of_name", "is_table", "joined", "pieces_of", "read_ctf", "read_header_file",
    "read_kaldi", "read_svmlight", "sequence_to_cntk_text_format", "txt_to_ctf", "uci_to_ctf", "write_cbf", "write_ctf",
    "write_file", "write_kaldi", "write_pieces", "write_svmlight",
]  # fmt: skip

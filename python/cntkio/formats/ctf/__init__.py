"""The CNTK text format. (docs/formats/ctf.md)

::

    index         lines, sequences and chunks, from a pass over the text, or from an index cache
    findings      errors and warnings of the parser, and the words for them
    infer         the streams that a text has, and the words in its comments
    corpus        options, the opened corpus, its errors; whole texts: read_ctf
    writer        writes texts

The compiled core finds and parses. This package decides how a file begins, what a sequence is, what is left out, what
an error means, and which error exceeds the budget. Nothing here loops over lines or sequences.
"""

from cntkio.formats.ctf.corpus import (
    CommentedMinibatch,
    CTFDeserializer,
    bounds_of,
    in_files,
    index_part,
    join_parts,
    read_ctf,
)
from cntkio.formats.ctf.findings import KINDS_OF_BAD_SAMPLES, KINDS_OF_GAPS
from cntkio.formats.ctf.index import PartOfText
from cntkio.formats.ctf.infer import (
    Vocabulary,
    guessed_streams,
    infer_streams,
    infer_usual_streams,
    read_vocabularies,
    require_names,
    vocabularies_in,
)
from cntkio.formats.ctf.writer import sequence_to_cntk_text_format, text_name, write_ctf

__all__ = [
    "KINDS_OF_BAD_SAMPLES", "KINDS_OF_GAPS", "CTFDeserializer", "CommentedMinibatch", "PartOfText", "Vocabulary",
    "bounds_of", "guessed_streams", "in_files", "index_part", "infer_streams", "infer_usual_streams", "join_parts",
    "read_ctf", "read_vocabularies", "require_names", "sequence_to_cntk_text_format", "text_name", "vocabularies_in",
    "write_ctf",
]  # fmt: skip

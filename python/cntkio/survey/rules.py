"""The rules of `cntkio check`: for each decision of a person a code, what it means, and what to change.

Several kinds of errors and warnings of the formats have one rule, because they need the same change.
`docs/check-rules.md` has an example of each rule.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Rule(NamedTuple):
    """A kind of finding, with a stable code.

    Attributes:
        severity: ``"error"`` if a source refuses the data or leaves some of them out; ``"warning"`` if it reads them.
        meaning: Its description, in a sentence or more.
        help: What to change.
        kinds: The kinds of errors and warnings of the formats that the rule stands for.
    """

    code: str
    severity: Literal["error", "warning"]
    meaning: str
    help: str
    kinds: tuple[str, ...] = ()


# Rules without kinds are found by the check itself, not by a format.
_ROWS = (
    # Texts.
    Rule("bad-number", "error", "A byte cannot be part of a number, so the sample is dropped.",
         "write numbers like 1, -2.5 or 3e-4, with a point and without quotes", ("bad number", "bad label")),
    Rule("bad-index", "error",
         "A sparse sample has a value without an index, or a word where an index should be. The sample is dropped.",
         "write each value as index:value, or define the stream as dense", ("bad index", "missing colon")),
    Rule("index-too-large", "error",
         "A sparse value, such as a label, has an index that is not below the stream's dimension.",
         "correct the index, or give the stream a larger dimension",
         ("index out of range", "large class", "row too large")),
    Rule("unsorted-indices", "error", "The indices of a line of an svmlight text do not ascend. The line is left out.",
         "sort the features of each line, and give each of them once", ("index not ascending",)),
    Rule("too-many-values", "error",
         "A dense sample has more values than the stream's dimension. The sample is dropped.",
         "remove the values that are too many, or give the stream a larger dimension",
         ("too many values", "too many values together")),
    Rule("too-few-values", "warning",
         "A dense sample has fewer values than the stream's dimension. The rest is filled with zeros.",
         "add the missing values, or give the stream a smaller dimension", ("short dense sample",)),
    Rule("wrong-stream", "error",
         "Most sequences contradict the definition of a stream that was asked for: its name, form or dimension.",
         "define the stream as the text has it"),
    Rule("stray-text", "error", "A line has text that belongs to no sample. It is skipped.",
         "remove it, or begin each sample with a pipe and the name of its stream, and each comment with |#",
         ("junk", "pipe without a name", "byte above 0x7F")),
    Rule("missing-sample", "error",
         "A line or a sequence has no sample of a stream that is read, or fewer samples than lines. It is left out, "
         "or joined with the wrong samples.",
         "add the sample, remove the line, or read only the streams that each sequence has",
         ("line without a sample", "stream without a sample", "too few samples", "line left out", "sequence left out",
          "bad query")),
    Rule("extra-sample", "error", "A line has two samples of a stream, so the stream is longer than the others.",
         "write the second sample on a line of its own, with the same id, or remove it",
         ("too many samples", "stream twice on a line", "several samples in a dense sequence")),
    Rule("unknown-name", "warning",
         "Hardly any sequence has a stream of this name, so it is probably misspelled. Its samples are not read. "
         "(This is found only if `--stream` does not name the streams.)",
         "correct the name; or name all streams with --stream, if it is right", ("unknown name",)),
    Rule("repeated-id", "error",
         "Two sequences that are not neighbours have the same id. A text is read, but a join uses only one of them; "
         "lists and label files leave them out.",
         "give each sequence its own id, and write the lines of a sequence together; read files that count anew with "
         "--keys per_file", ("repeated id", "repeated utterance")),
    Rule("ids-not-consecutive", "warning",
         "The ids of almost all sequences ascend by one, but here ids are missing or out of order.",
         "look for a part of the corpus that was lost or moved; if the ids are right, ignore this rule"),
    Rule("mixed-line-ends", "warning",
         "Some lines end with CR LF, the others with LF alone. The readers accept both; other programs may not.",
         "end all lines in the same way, for example with dos2unix", ("carriage return",)),
    # Files.
    Rule("broken-file", "error",
         "The bytes of a file break its format: the file was cut short, was changed, or is a file of another kind.",
         "copy the file again, or write it again with the program that made it",
         ("name at the end", "no value at the end", "length list beyond the chunk", "count beyond the chunk",
          "dense samples beyond the chunk", "sparse samples beyond the chunk", "negative count",
          "negative sample size", "wrong sum of values", "columns begin late", "descending columns",
          "column beyond the values", "negative row", "descending samples", "more samples than the table says",
          "chunk with unused bytes", "bad header", "wrong sum", "entry cut off", "no header", "not binary", "version",
          "truncated")),
    Rule("empty-file", "warning",
         "A file has no sequence: it has 0 bytes, or only blanks and comments. The corpus of several files leaves it "
         "out.", "write the file again if it should have sequences, or remove it"),
    Rule("missing-file", "error", "A list or a configuration names a file that cannot be opened.",
         "correct the path, or, for features of HTK, give the folder with --prefix"),
    Rule("bad-configuration", "error", "A configuration cannot be read, or asks for something that is not possible.",
         "correct the configuration at this place"),
    Rule("bad-column", "error",
         "A column of a table has nulls, or values that are not numbers, or not as many as its other samples.",
         "fill in the values or remove the rows; convert the column to numbers, or read other columns (--stream)"),
    # Lists, features, labels.
    Rule("bad-list-line", "error",
         "A line of a list of utterances has no id, no path or no range, or no object begins at its offset.",
         "write id=path[first,last] for HTK, such as u1=train.ark[0,299], and key path:offset for Kaldi, such as u1 "
         "train.ark:5",
         ("no id", "no range", "bad range", "no path", "bad key", "open quote", "no value", "command",
          "several values", "wrong offset")),
    Rule("bad-range", "error", "The frames of an utterance end before they begin, or the file has fewer frames.",
         "write the first and the last frame, counted from 0 in the file",
         ("reversed", "range beyond the matrix", "range beyond the file", "file ends early")),
    Rule("bad-times", "error",
         "The rows of an entry of a label file do not follow each other from frame 0. The utterance is left out.",
         "begin each row where the previous one ends, in units of 100 ns that are multiples of the frame shift; "
         "labels without times need a forced alignment", ("out of order", "late start", "bad time", "no times")),
    Rule("bad-label-entry", "error",
         "An entry of a label file cannot be read: its name is not in quotes, or a row does not have the expected "
         "columns.", 'write the name as "*/u1.lab", a row as start, end and label, and a dot after the last row',
         ("columns", "bad class", "unquoted key", "pattern", "long key")),
    Rule("unknown-label", "error", "A label is not in the mapping file. The utterance cannot be read.",
         "add the label to the mapping file, or correct its spelling", ("unknown label",)),
    Rule("empty-utterance", "error", "An utterance has no frames.",
         "remove the utterance from the list or the label file", ("no frames", "empty entry")),
    Rule("utterance-too-long", "warning", "An utterance is longer than the limit, and is left out.",
         "raise max_sequence_length, or cut the utterance", ("utterance too long",)),
    Rule("other-dimension", "error", "An utterance has more or fewer values per frame than the first utterance.",
         "compute all features with the same settings, or remove the utterance", ("other dimension",)),
    Rule("mixed-files", "warning", "A feature file differs from the first file in its kind or its frame shift.",
         "compute all features with the same settings", ("mixed files",)),
    # Joins.
    Rule("missing-key", "error",
         "A corpus lacks the key of a sequence of the corpus with which it is joined. The join leaves the sequence "
         "out.", "add the sequence to the corpus that lacks it, or remove it from the other one"),
    Rule("cannot-join", "error", "The corpora cannot be joined, or cannot be joined in this order.",
         "compare the keys and the names of the streams; put features and texts before labels"),
    Rule("unequal-lengths", "warning",
         "A stream has fewer or more samples in a sequence than another stream that is usually as long.",
         "write a sample for each frame, or for each sample of the other streams; unequal_lengths='drop' leaves out "
         "utterances of label files"),
    # Contents.
    Rule("not-finite", "warning",
         "A value is NaN, infinite, or too large for its type. Whatever is computed with it becomes NaN, too.",
         "find out what computed the value, and correct or remove the sample"),
    Rule("constant-values", "warning",
         "A stream, or a column of a dense stream, has the same value in all samples, so a network learns nothing "
         "from it.",
         "check the program that wrote the stream; if the values are right, leave the stream or the column out"),
    Rule("not-one-hot", "warning",
         "A sample has no value, several values, or a value other than 1, while the other samples of the stream have "
         "a single 1.", "write a single 1 for the class; if the sample is right, ignore this rule"),
    Rule("one-based-indices", "warning",
         "All indices from 1 to the last one occur, but 0 does not, so they probably count from 1. Indices of CNTK "
         "count from 0.", "subtract 1 from each index"),
    Rule("index-outlier", "warning",
         "An index of 1000 or more is more than ten times as large as all others, so it makes the stream and the "
         "weights of a network that much wider.", "correct the index, or remove the sample"),
    Rule("unused-class", "warning", "A class never occurs, while each of the others occurs at least ten times.",
         "look for lost samples of the class, or give the stream a smaller dimension"),
    Rule("equal-sequences", "warning",
         "Sequences of a corpus have exactly the same contents, so they count several times.",
         "remove the copies; if they are right, ignore this rule"),
    Rule("overlap", "warning",
         "A sequence is also in another corpus of the call. A test with sequences of the training measures nothing.",
         "remove the sequences from one of the corpora"),
)  # fmt: skip
RULES = {rule.code: rule for rule in _ROWS}
"""The rules, by code."""
_CODES = {kind.lower(): rule.code for rule in _ROWS for kind in rule.kinds}


def code_of(kind: str) -> str:
    """Return the code of a kind of error or warning of a format.

    Example:
        >>> code_of("bad number"), code_of("mixed files: a frame shift of 3"), code_of("another damage")
        ('bad-number', 'mixed-files', 'broken-file')
    """
    # A kind may end with a detail, such as a frame shift. A kind without a row is damage of a file.
    return _CODES.get(kind.partition(":")[0].lower(), "broken-file")

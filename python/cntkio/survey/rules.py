"""The rules of `cntkio check`: for each kind of finding its code, its severity, what it means, and what to do.

The codes are the kinds of errors and warnings of the formats with hyphens for blanks, and the codes of `check` itself.
The pages in `docs/rules` are generated from this table:

::

    python -m cntkio.survey.rules docs/rules
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Rule(NamedTuple):
    """A kind of finding.

    Attributes:
        code: Its stable name.
        severity: Whether CNTK's readers count it as an error, or continue with or without a warning.
        formats: The kinds of files in which it is found.
        meaning: Its description, in a sentence or more.
        help: Advice.
    """

    code: str
    severity: Severity
    formats: str
    meaning: str
    help: str

    def page(self) -> str:
        """Return the page of the rule as Markdown."""
        counts = "it costs one of `max_errors`" if self.formats == "text" else "it ends the reading"
        effect = f"An error: {counts}." if self.severity == "error" else "A warning: the data are read."
        return (
            f"# {self.code}\n\n{self.meaning}\n\n| | |\n|---|---|\n| severity | {self.severity} |\n"
            f"| found in | {self.formats} |\n\n{effect}\n\n**What to do:** {self.help}\n"
        )


def code_of(kind: str) -> str:
    """Return the code of a kind of error or warning.

    Example:
        >>> code_of("bad number"), code_of("mixed files: a frame shift of 3")
        ('bad-number', 'mixed-files')
    """
    code = kind.partition(":")[0].lower().replace(" ", "-")
    return code if code in RULES else "broken-file"


_SPELL = "correct the line"
_CUT = "the file was cut short, or bytes were changed; copy it again, or write it again"
_ROWS: tuple[tuple[str, Severity, str, str, str], ...] = (
    ("bad-number", "error", "text",
     "A byte cannot be part of a number. The sample is dropped.",
     _SPELL),
    ("bad-index", "error", "text",
     "A sparse sample has a byte where an index should be. The sample is dropped.",
     "write each value as index:value, or define the stream as dense"),
    ("index-out-of-range", "error", "text, binary corpora",
     "A sparse value, such as a label, has an index that is not below the stream's dimension. The sample is "
     "dropped.",
     "correct the index, or give the stream a larger dimension"),
    ("missing-colon", "error", "text",
     "An index of a sparse sample has no colon and value after it. The sample is dropped.",
     "write each value as index:value, or define the stream as dense"),
    ("too-many-values", "error", "text, binary corpora",
     "A dense sample has more values than the stream's dimension. The sample is dropped.",
     "remove values, or give the stream a larger dimension"),
    ("junk", "error", "text",
     "A printable byte stands where a sample should start. It is skipped.",
     "begin each sample with a pipe and the name of its stream"),
    ("pipe-without-a-name", "error", "text",
     "A pipe has no name after it. The sample is skipped.",
     "write the name of the stream directly after the pipe, or |# for a comment"),
    ("name-at-the-end", "error", "text",
     "The file ends within the name of a stream.",
     _CUT),
    ("no-value-at-the-end", "error", "text",
     "The file ends where the first value of a sample should be.",
     _CUT),
    ("line-without-a-sample", "error", "text",
     "A line has no sample of any stream that is read.",
     "add a sample, remove the line, or read the streams that the line has"),
    ("stream-without-a-sample", "error", "text",
     "A sequence has no sample of a stream that is read. It is left out.",
     "add a sample of the stream to the sequence, or remove the sequence"),
    ("too-many-samples", "error", "text",
     "A sequence has more samples of a stream than lines.",
     "write one sample of a stream on a line"),
    ("too-few-samples", "error", "text",
     "The longest stream of a sequence has fewer samples than the sequence has lines.",
     "give each line of the sequence a sample of its longest stream"),
    ("byte-above-0x7f", "warning", "text",
     "A byte above 0x7F ended the values of a sample. What follows it on the line is lost.",
     "write values in ASCII; other characters are possible in comments"),
    ("short-dense-sample", "warning", "text",
     "A dense sample has fewer values than the stream's dimension. The rest is filled with zeros.",
     "add the missing values, or define the stream as sparse"),
    ("stream-twice-on-a-line", "warning", "text",
     "A stream has two samples on a line. Both are kept, so its sequence is longer than its lines.",
     "write the second sample on a line of its own, or remove it"),
    ("unknown-name", "warning", "text",
     "Fewer than 1 of 100 sequences have a stream of this name: perhaps it is misspelled. Its samples are not read. "
     "(This is found only if `--stream` does not name the streams.)",
     "correct the name; or name all streams with `--stream`, if it is right"),
    ("repeated-id", "warning", "text",
     "Two sequences that are not neighbours have the same id. Both are read; in a join only one of them has a "
     "partner.",
     "give each sequence its own id, and write the lines of a sequence together"),
    ("line-left-out", "warning", "text",
     "A line has no sample of the stream that defines the minibatch size. It is left out.",
     "add a sample, or let another stream define the minibatch size"),
    ("sequence-left-out", "warning", "text",
     "A sequence has no sample of the stream that defines the minibatch size. It is left out.",
     "add a sample, or let another stream define the minibatch size"),
    ("mixed-line-ends", "warning", "text, lists, label files",
     "Some lines end with CR LF, the others with LF alone. The readers accept both; other programs may not.",
     "end all lines in the same way, for example with dos2unix"),
    ("length-list-beyond-the-chunk", "error", "binary corpora",
     "The lengths of a chunk's sequences take more bytes than the chunk has.",
     _CUT),
    ("count-beyond-the-chunk", "error", "binary corpora",
     "A count lies beyond the end of its chunk.",
     _CUT),
    ("dense-samples-beyond-the-chunk", "error", "binary corpora",
     "Dense samples take more bytes than are left of the chunk.",
     _CUT),
    ("sparse-samples-beyond-the-chunk", "error", "binary corpora",
     "Sparse samples take more bytes than are left of the chunk.",
     _CUT),
    ("negative-count", "error", "binary corpora",
     "The number of values of a sequence is negative.",
     _CUT),
    ("negative-sample-size", "error", "binary corpora",
     "The number of values of a sample is negative.",
     _CUT),
    ("wrong-sum-of-values", "error", "binary corpora",
     "The numbers of values of a sequence and of its samples contradict each other.",
     _CUT),
    ("columns-begin-late", "error", "binary corpora",
     "The first column of a sparse sequence does not begin at value 0.",
     _CUT),
    ("descending-columns", "error", "binary corpora",
     "A column of a sparse sequence ends before it begins.",
     _CUT),
    ("column-beyond-the-values", "error", "binary corpora",
     "A column ends beyond the values of its sequence.",
     _CUT),
    ("negative-row", "error", "binary corpora",
     "A row number of a sparse sequence is negative.",
     _CUT),
    ("descending-samples", "error", "binary corpora",
     "The values of a sparse sequence are not in the order of its samples.",
     "write the file again; its writer is at fault"),
    ("more-samples-than-the-table-says", "error", "binary corpora",
     "A sequence has more samples than the table of chunks allows for.",
     _CUT),
    ("several-samples-in-a-dense-sequence", "error", "binary corpora",
     "A dense sequence of the documented layout has more than one sample.",
     "write the corpus in the 2.x layout"),
    ("row-too-large", "error", "binary corpora",
     "A row number does not fit the documented layout.",
     "write the corpus in the 2.x layout"),
    ("too-many-values-together", "error", "binary corpora",
     "A sequence has more values than the layout can count.",
     "split the sequence"),
    ("chunk-with-unused-bytes", "warning", "binary corpora",
     "The last bytes of a chunk belong to no stream.",
     "write the file again, if you do not know what the bytes are"),
    ("no-id", "error", "lists",
     "A line of a list has no id before an equals sign.",
     "write id=path[first,last]"),
    ("no-range", "error", "lists",
     "A line of a list has no range of frames.",
     "write id=path[first,last]"),
    ("bad-range", "error", "lists",
     "The range of a line is not two numbers.",
     "write id=path[first,last]"),
    ("reversed", "error", "lists, label files",
     "A range or a row ends before it begins.",
     "write the smaller number first"),
    ("no-path", "error", "lists",
     "A line of a list names no file.",
     "write id=path[first,last]"),
    ("bad-key", "error", "lists",
     "A line has no id, or an id of more than 4096 bytes.",
     "shorten the id"),
    ("open-quote", "error", "lists",
     "A quote is not closed on its line.",
     "close the quote"),
    ("bad-header", "error", "feature files",
     "The first bytes of a feature file are not a header of HTK.",
     "name another file, or write it again with cntkio.write_htk_features"),
    ("utterance-too-long", "warning", "lists",
     "An utterance is longer than the limit, and is left out.",
     "raise max_sequence_length, or cut the utterance"),
    ("repeated-utterance", "warning", "lists, label files",
     "An utterance occurs several times. A label file is refused, and so are several lists that have the same "
     "utterance; from a single list, all lines of the utterance are left out.",
     "keep one line or entry of each utterance"),
    ("mixed-files", "warning", "feature files",
     "A feature file differs from the first file in its kind, its frame shift or its qualifiers.",
     "compute all features with the same settings"),
    ("out-of-order", "error", "label files",
     "A row does not begin where the row before it ended. The utterance is invalid.",
     "correct the times of the entry"),
    ("late-start", "error", "label files",
     "The first row of an entry does not begin at frame 0. The utterance is invalid.",
     "correct the times of the entry"),
    ("columns", "error", "label files",
     "A row has a different number of columns than expected.",
     "write start, end and label; without a mapping file also the class"),
    ("bad-time", "error", "label files",
     "A time is not a number, or is not the beginning of a frame.",
     "write times in units of 100 ns that are multiples of the frame shift"),
    ("unknown-label", "error", "label files",
     "A label is not in the mapping file.",
     "add the label to the mapping file, or correct it"),
    ("bad-class", "error", "label files",
     "The fourth column of a row is not a class.",
     "write a whole number"),
    ("large-class", "error", "label files",
     "The class of a row is beyond the dimension.",
     "give the stream a larger dimension, or correct the class"),
    ("no-frames", "error", "feature files, label files",
     "An utterance has no frames.",
     "remove the utterance"),
    ("wrong-sum", "error", "label files",
     "The runs of an entry do not add up to its number of frames.",
     _CUT),
    ("unquoted-key", "warning", "label files",
     "A line between entries is not in quotes. Its entry is left out.",
     "write the name of each entry in quotes"),
    ("empty-entry", "warning", "label files",
     "An entry has no rows. It is left out.",
     "remove the entry"),
    ("entry-cut-off", "warning", "label files",
     "The file ends within an entry, which is left out.",
     _CUT),
    ("pattern", "warning", "label files",
     "A key has a wildcard after its beginning, and matches no utterance.",
     "write the name of the utterance"),
    ("no-header", "error", "label files",
     "The file does not begin with #!MLF!#.",
     "add the line #!MLF!#"),
    ("no-times", "error", "label files",
     "The last row of an entry has no times.",
     "write start, end and label"),
    ("long-key", "error", "label files",
     "A key has more than 4096 bytes.",
     "shorten the key"),
    ("not-binary", "error", "label files",
     "A binary label file does not begin with the letters MLF.",
     _CUT),
    ("version", "error", "label files",
     "A binary label file has an unknown version.",
     "write it again with cntkio.write_binary_mlf"),
    ("truncated", "error", "label files",
     "A binary label file ends within an entry.",
     _CUT),
    ("broken-file", "error", "all",
     "The file breaks its format in a way that has no code of its own, such as in its header. The rest is not"
     " checked.",
     "read the message: it names the damage and the expected content"),
    ("not-a-number", "warning", "all",
     "A value is NaN. Whatever is computed with it becomes NaN, too.",
     "find out what computed the value, and correct or remove the sample"),
    ("infinite-value", "warning", "all",
     "A value is infinite, or too large for its type.",
     "find out what computed the value, and correct or remove the sample"),
    ("all-zero-stream", "warning", "all",
     "All values of a stream are zero.",
     "check the name and the form of the stream, and what wrote it"),
    ("constant-stream", "warning", "all",
     "All values of a dense stream, or all samples of a sparse one, are the same. A network learns nothing from "
     "it.",
     "check what wrote the stream"),
    ("not-one-hot", "warning", "all",
     "A sample has no value, several values, or a value other than 1, while at least 99 of 100 samples of the "
     "stream have a single 1.",
     "check the sample; if it is right, nothing is wrong"),
    ("unequal-lengths", "warning", "all",
     "A stream has fewer samples in a sequence than the longest stream, while it has the same number "
     "in at least 99 of 100 sequences.",
     "check the sequence; if it is right, nothing is wrong"),
    ("missing-key", "warning", "joined corpora",
     "A corpus lacks the key of a sequence of the first corpus, or the first corpus lacks its key. A join leaves "
     "the sequence out.",
     "add the sequence to the other corpus, or remove it from the corpus that has it"),
    ("no-common-key", "error", "joined corpora",
     "Two corpora have no key in common, so a join has no sequence.",
     "compare the keys that the message shows"),
)  # fmt: skip
RULES = {row[0]: Rule(*row) for row in _ROWS}
"""The rules, by code."""


def pages() -> dict[str, str]:
    """Return the page of each rule, and the page that lists all of them as `index`, as Markdown."""
    rows = "\n".join(f"| [{rule.code}]({rule.code}.md) | {rule.severity} | {rule.formats} |" for rule in RULES.values())
    index = (
        "# Rules of check\n\nThe program `python -m cntkio.survey.rules docs/rules` makes these pages from its table.\n"
        "`cntkio rule CODE` prints a page.\n\n| code | severity | found in |\n|---|---|---|\n"
        f"{rows}\n\n```{{toctree}}\n:hidden:\n:glob:\n\n*\n```\n"
    )
    return {"index": index, **{code: rule.page() for code, rule in RULES.items()}}


if __name__ == "__main__":
    for name, page in pages().items():
        Path(sys.argv[1], f"{name}.md").write_text(page, encoding="utf-8")

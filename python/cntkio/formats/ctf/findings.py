"""Kinds of errors and warnings that the parser finds, and the words for them."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._core import CTFFinding
from cntkio.formats.report import UNKNOWN_NAME, WrongWord

WORDS = {
    "bad number": "{byte} in a number; expected digits such as 1, -2.5 or 3e-4",
    "bad index": "{byte} where an index should be; expected index:value",
    "index out of range": "index {found}, but the dimension is {dim}; expected 0 to {last}",
    "missing colon": "{byte} after index {found}; expected ':'",
    "too many values": "{values}, but the dimension is {dim}",
    "junk": "{byte} where a sample should start; expected '|'",
    "pipe without a name": "a pipe without a name after it; expected the name of a stream, or '#'",
    "name at the end": "the file ends within the name of a stream",
    "no value at the end": "the file ends where the sample's first value should be",
    "line without a sample": "a line without a sample; expected a sample of at least one stream",
    "stream without a sample": "no sample of this stream in the sequence; expected at least one",
    "too many samples": "{samples}, but the sequence has {lines}",
    "too few samples": "{samples} in the longest stream, but the sequence has {lines}",
    "byte above 0x7F": "{byte} separates samples, as a blank does; what follows it up to the next pipe is lost",
    "stream twice on a line": "a second sample of this stream on the line; both are kept",
    UNKNOWN_NAME: "a name that hardly any other sequence has; what follows it is not read",
    "short dense sample": "{values}, but the dimension is {dim}; the rest was filled with zeros",
}
"""Templates of the messages, by kind: what was found (`{found}`, also as `{values}` or `{samples}`; `{byte}`), the
stream's dimension (`{dim}`) and largest index (`{last}`), and the number of lines of the sequence (`{lines}`)."""
KINDS_OF_FINDINGS: tuple[str, ...] = _core.CTF_KINDS
"""The kinds, in the order of the core. The first CTF_NUM_ERROR_KINDS are errors, the others warnings."""
KINDS_OF_BAD_SAMPLES = {"bad number", "bad index", "index out of range", "missing colon", "too many values"}
# Kinds that a wrong name, form or dimension of a stream causes.
KINDS_OF_MISFITS = KINDS_OF_BAD_SAMPLES | {"line without a sample", "stream without a sample"}
# Kinds of bad samples, which another definition of the stream might read.
KINDS_OF_VALUES = KINDS_OF_BAD_SAMPLES | {"short dense sample"}
# Kinds of lines and sequences that lack the requested streams.
KINDS_OF_GAPS = {"line without a sample", "stream without a sample", "too few samples"}
# The words for remarks of the index.
REMARKS = {
    "repeated id": "an earlier sequence in the file has this id, too",
    "line left out": "the line has no sample of the stream that defines the minibatch size, and is left out",
    "sequence left out": "the sequence has no sample of the stream that defines the minibatch size, and is left out",
}


class ParserFindings(NamedTuple):
    """The errors and warnings of a chunk.

    Attributes:
        counts: Number of findings of each kind.
        first: The first few findings of each kind.
        last_straw: The error that exceeded the budget, if one did.
        first_byte: Offset of the chunk in the file.
        first_sequence: Index of its first sequence.
        sequences: Indices in the chunk of the sequences that were parsed; None: all.
    """

    counts: list[int]
    first: list[CTFFinding]
    last_straw: CTFFinding | None
    first_byte: int
    first_sequence: int
    sequences: npt.NDArray[np.uint32] | None = None

    def sequence_index(self, finding: CTFFinding) -> int:
        """Return the index of a finding's sequence in the table."""
        within = finding.sequence if self.sequences is None else int(self.sequences[finding.sequence])
        return self.first_sequence + within


LONGEST_WORD = 16
"""Bytes that `advice_at` needs."""
NO_NUMBER = re.compile(
    rb"(?i)[+-]?(\d+\.)?(#(Q?NAN|SNAN|INF0*|IND0*|N/A|NUM!|DIV/0!|VALUE!|NULL!|REF!|NAME\?)|nan?\b|n/a\b|null\b|none\b"
    rb"|inf(inity)?\b|\xe2\x88\x9e)"
)
"""What .NET, MSVC, Excel, R and Python write in place of a number that is missing or infinite."""
_ADVICE = {
    "bad number": {
        re.compile(rb"\.\d"): "; write 0.5 for .5",
        NO_NUMBER: "; the format has no NaN and no infinity",
    },
    "junk": {re.compile(rb"#(?!\s*\d+\s*[|])"): "; a comment begins with '|#'"},
}


_NO_ID = "; an id begins its line, has digits only, and a blank or a pipe ends it"
_BLANKS = r"[\s\u200b\ufeff]*"  # also characters that are not white space for Python


def advice_at(kind: str, text: bytes, before: bytes = b"\n") -> str:
    """Return advice on an error, as the end of its message; empty if there is none.

    Args:
        kind: The kind of the error.
        text: What is at its place.
        before: What is before it; without a line feed, no id can be before it.

    Example:
        >>> advice_at("bad number", b".5 2")
        '; write 0.5 for .5'
    """
    advice = next((advice for pattern, advice in _ADVICE.get(kind, {}).items() if pattern.match(text)), "")
    _, is_whole, line = before.rpartition(b"\n")
    if advice or kind not in ("junk", "byte above 0x7F") or not is_whole or re.search(rb"[|]|\d[^!-~]", line):
        return advice
    if line and not line.decode(errors="replace").strip() and text[:1].isdigit():
        return "; an id begins its line: remove the white space before it"
    return _NO_ID


def byte_text(byte: bytes) -> str:
    """Print a byte for a message.

    Example:
        >>> byte_text(b"a"), byte_text(b"\\xff"), byte_text(b"")
        ("'a'", 'byte 0xFF', 'the end of the file')
    """
    if not byte:
        return "the end of the file"
    return f"'{byte.decode()}'" if 0x20 < byte[0] < 0x7F else f"byte 0x{byte[0]:02X}"


# --------------------------------------------------------------------------------------------------------------
# Advice on words, for the check.

_CORRECTIONS = str.maketrans(",\u2212\u2013\u2014", ".---", "'\"\u00a0_[]()")
_EXPONENT = re.compile(r"(?<=\d)[dD](?=[+-]?\d)")  # of Fortran
_NUMBER = re.compile(r"[+-]?\d+\.?\d*([eE][+-]?\d+)?")
_BAD_VALUES = ("bad-number", "bad-index")


def advice_on_sample(wrong: WrongWord) -> str:
    """Return the change of a word that mends a text; see `FileKind.advice_on_words`."""
    code, text, word = wrong.code, wrong.text, wrong.word
    is_large = "a sequence id of 2^64" in wrong.message
    if is_large or "; an id begins its line" in wrong.message:
        digits = re.match(rf"{_BLANKS}([0-9]+)[.:,;)]?{_BLANKS}([|]|$)", text)
        if digits and not is_large:
            return f"remove what is not a part of the id, so that the line begins with {digits[1]} and a blank"
        head = text.partition("|")[0].strip()
        return f"write an id for {head}: a whole number below 2^64, without a sign, that no other sequence has"
    if code == "stray-text" and word.startswith("#") and "|" in text[wrong.caret :]:
        return "remove the line; a comment begins with |# and ends at the next pipe"
    if code == "stray-text" and "no pipe of the file has one" in wrong.message:
        name = re.match(r"[|]\s*([A-Za-z_]\w*)(\s|$)", text[wrong.caret :])
        return f"write |{name[1]} here" if name else "write the name of the stream here"
    if code == "stray-text" and wrong.message.startswith("a text without a pipe"):
        return "convert the columns, or begin each sample with a pipe and the name of its stream"
    if code == "broken-file" and wrong.line == 1 and word.startswith("#"):
        return "write |# for #, because a comment begins with a pipe"
    if code == "broken-file" and wrong.line == 1 and "|" in text:
        return "remove the line if it is a header; otherwise, begin it with a number as its id, or with a pipe"
    if code in _BAD_VALUES and word.startswith("#") and not NO_NUMBER.match(word.encode()):
        return f"write |{word} if a comment begins here"
    if found := advice_on_value(wrong):
        return found
    if code == "stray-text" and " separates samples" in wrong.message:
        return "remove the characters beyond ASCII, or write a blank or a line's end for them"
    if code == "bad-number" and re.fullmatch(r"\d+:\S+", word):
        return "write the values without indices, or define the stream as sparse (--stream NAME:DIM:sparse)"
    if code in _BAD_VALUES and re.fullmatch(r"[A-Za-z_^]\S*:\S+", word):
        return f"number the names, write index:value for {word}, and define the stream as sparse"
    if code == "bad-number" and re.fullmatch(r"[A-Za-z_]\w*", word):
        return f"write |{word} if a stream begins here, or else a number"
    return ""


def advice_on_value(wrong: WrongWord, prefix: str = "", first_index: str = "0") -> str:
    """Return the change of a word that should be a value, or an index and a value, of any text.

    Args:
        prefix: The index and the colon before the value; empty: the word is a value.
        first_index: The least index, for messages.

    Example:
        >>> advice_on_value(WrongWord("bad-number", "", 1, None, "|x 1,5", 3, "1,5"))
        'write 1.5 for 1,5'
    """
    code, text, word, value = wrong.code, wrong.text, wrong.word, wrong.word.removeprefix(prefix)
    if code in _BAD_VALUES and NO_NUMBER.match(word.rpartition(":")[2].encode()):
        return f"write a number for {word}, or remove the sample"
    if code == "bad-index" and re.fullmatch(r"\d+=[+-]?\d\S*", word):
        return f"write {word.replace('=', ':')} for {word}"
    if code == "bad-index" and (negative := re.match(r"-\d+", word)):
        return f"write an index for {negative[0]}; indices count from {first_index}"
    if code not in ("bad-number", "stray-text"):
        return ""
    number = _EXPONENT.sub("e", value.rstrip(";").translate(_CORRECTIONS))
    number = re.sub(r"^([+-]?)\.(?=\d)", r"\g<1>0.", number)
    if number != value and _NUMBER.fullmatch(number):
        return f"write {prefix}{number} for {word}"
    if re.fullmatch(r"[\d.]+(,[\d.]+){2,}", word):
        return f"write {word.replace(',', ' ')} for {word}"
    index, later = re.search(r"\d+:\s*$", text[: wrong.caret + 1]), re.match(r"\s+([^\s|]+)", text[wrong.caret :])
    if index and later:
        return f"write {index[0].rstrip()}{later[1]} for {index[0].rstrip()}{later[0]}"
    return ""

"""Detection of the kind of a file and of its deserializer, by its first bytes or else by its name.

::

    detect(path)                 the kind; a file of no known kind counts as text in CNTK's format
    other_than(form, path)       for the error about a file that cannot be read: the kind that its bytes show
    other_in(form, text)         the same for an opened text

No other module of cntkio guesses what a file is. Only the first bytes are read.
"""

from __future__ import annotations

import codecs
import importlib
import os
import re
import shlex
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cntkio.errors import ConfigError
from cntkio.storage.compressed import PACKED_MAGIC
from cntkio.storage.open_input import Beginning, open_stored
from cntkio.storage.text_input import UTF_16_ADVICE, TextInput

CBF_MAGIC = b"nib_ktnc"
"""First bytes of the binary format in its 2.x layout."""
CBF_DOCUMENTED = struct.pack("<q", 1)
"""First bytes of the binary format in its documented layout: its version."""

_CBF_START = struct.Struct("<qqii")
_HEAD = 4096
_LONG_LINE = 3000
_LARGEST_VERSION = 99
_MOST_STREAMS = 1 << 16
_LONGEST_NAME = 1 << 12
# Forms that a name shows, unless the first bytes show another kind.
_NAMED = {".cntk": "configuration", ".config": "configuration", ".bs": "configuration", ".mlf": "mlf"}
# The six low bits are one of HTK's kinds, 0 to 11, or 12, which only CNTK has; the other bits are qualifiers.
_MOST_HTK_KIND = 12
_HTK_KIND_BITS = 0o77


FileFormat = Literal["ctf", "cbf", "svmlight", "kaldi", "parquet", "arrow"]
"""The forms in `KINDS` that can be written."""


class FileKind(NamedTuple):
    """A kind of file.

    Attributes:
        form: Short name.
        call: The call of the deserializer that reads it, with `{path}` for the file; empty: no deserializer reads it.
        advice: Advice on a file that no deserializer reads, with `{path}` for the file, quoted for a shell.
        magic: First bytes, each of which shows the kind.
        first_line: Pattern of the first line of a text that is neither empty nor a comment. The first kind that fits
            counts.
        is_text: Whether a zero byte shows that a file is of another kind.
        is_read_packed: Whether files that are compressed with gzip or zstd are read where they are.
        reader: The deserializer of such files, as module and name: from files, with `options` as keywords.
        in_files: The function that reads such files in its place, as module and name: from files and `ReadingOptions`
            to a list of `CorpusInFiles` (`cntkio.formats.contract`). Both empty: none does.
        options: The `ReadingOptions` that apply to it.
        advice_on_words: The function that says how to mend a word of such a text, as module and name: from a
            `cntkio.formats.report.WrongWord` to a sentence, empty if the word does not show it. Empty: none does.
        writer: The function that writes such a file, as module and name, for `cntkio.convert.write_pieces`, with
            `written_options` as keywords. Empty: none does.
        written_options: The options of `cntkio.convert.write_file` that apply to it.
        extensions: Extensions of names that ask the writers for this kind.
        shown_by: Extensions of names that show this kind where the bytes show nothing else, as in a damaged file.
        is_table: Whether its sequences are the rows of a table.
        has_text_keys: Whether its keys are texts, whatever the file.
        names_streams: Whether each sample is written with the name of its stream, and may have a word as a comment.
        is_list: Whether it lists files with the data, so that neither its size nor its first bytes describe them.
        is_labels: Whether it has only labels of frames, which a source joins with features.
        is_configuration: Whether it describes readers, which name the files.
        is_packing: Whether it is another file in compressed form.
        has_precisions: Whether it gives the type of each stream's values.
        is_configurable: Whether a configuration can describe it.
        cache: What saves time at the next start, for people, if it is not an index cache; empty: an index cache does.
        is_noted: Whether a manifest keeps the bytes that its opening reads, which are few or are all.
    """

    form: str
    title: str
    call: str = ""
    advice: str = ""
    magic: tuple[bytes, ...] = ()
    first_line: re.Pattern[bytes] | None = None
    is_text: bool = False
    is_read_packed: bool = False
    reader: str = ""
    in_files: str = ""
    options: tuple[str, ...] = ()
    advice_on_words: str = ""
    writer: str = ""
    written_options: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()
    is_table: bool = False
    has_text_keys: bool = False
    names_streams: bool = False
    is_list: bool = False
    is_labels: bool = False
    is_configuration: bool = False
    is_packing: bool = False
    has_precisions: bool = False
    is_configurable: bool = False
    cache: str = "none"
    is_noted: bool = False

    @property
    def deserializer(self) -> str | None:
        """The class that reads it; None: no deserializer reads it."""
        return self.call.split("(")[0] or None

    @property
    def noun(self) -> str:
        """Name of such a file, with its article."""
        article = "an" if self.title.startswith(("HTK", "Arrow", "HDF5", "SVM", "image")) else "a"
        return f"{article} {self.title.replace(' format', ' corpus')}"

    def use(self, path: str | os.PathLike[str]) -> str:
        """Say how to use such a file."""
        if self.call:
            return f"use {self.call.format(path=os.fspath(path))}"
        return self.advice.format(path=shlex.quote(os.fspath(path)))


def _packed(form: str, command: str) -> FileKind:
    magic = tuple(magic for magic, packing in PACKED_MAGIC.items() if packing == form)
    advice = f"unpack it ({command} {{path}})"
    return FileKind(form, f"file compressed with {form}", advice=advice, magic=magic, is_packing=True)


def _table(form: str, title: str, magic: tuple[bytes, ...], *extensions: str) -> FileKind:
    return FileKind(
        form, title, "cntkio.arrow.ArrowDeserializer({path!r})", magic=magic,
        in_files="cntkio.arrow.deserializer:in_files", options=("streams", "one_hot", "keys", "dtype"),
        writer=f"cntkio.arrow.writer:write_{form}_file" if extensions else "", written_options=("key", "flat", "ids"),
        extensions=extensions, is_table=True, has_precisions=True, cache="",
    )  # fmt: skip


_NUMBER = rb"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_SVMLIGHT_LINE = re.compile(rb"%s(,%s)*\s+(qid:\d+\s+)?(\d+:%s\s*)+(#.*)?" % ((_NUMBER,) * 3))
_ARRAY_ADVICE = "cntkio.write_ctf(path, {{name: array}}) writes its arrays as a corpus"
# A place has a letter, `/` or `_`, and is not `qid:1`: so `1 3:0.5` and `1 qid:2` stay lines of svmlight.
_KALDI_LINE = re.compile(
    rb"[^\s=|]+[ \t]+((?!qid:)(?=[^\s:]*[A-Za-z/_])[^\s=|]+:\d+(\[[\d:,]*\])?|\[(\s+%s)+\s*\])\s*" % _NUMBER
)
_KALDI_OBJECT = re.compile(rb"\S+[ \t]\0B(\x04|[FD][MV] |CM[23]? )")
# A key has a letter, `_` or `-` between digits, since lines of numbers alone are a table.
_KALDI_KEY = rb"(?=\S*(?:[A-Za-z_]|\d-\d))[^\s|,;=:]+"
# The forms of Kaldi's lists: each line fits the pattern. Lines of one number are read as classes, like the others.
_KALDI_LINES = (
    ("numbers", re.compile(rb"%s[ \t]+\d+" % _KALDI_KEY)),
    ("kaldi", re.compile(rb"%s( +\d+)+" % _KALDI_KEY)),
    ("data folder", re.compile(rb"%s([ \t]+%s)?([ \t]+\d+(\.\d*)?){1,2}" % (_KALDI_KEY, _KALDI_KEY))),
    ("kaldi map", re.compile(rb"%s [^\s|,;=:]+" % _KALDI_KEY)),
    ("data folder", re.compile(rb"[^\s|,;=:]+([ \t]+(?=\S*\d)%s)+" % _KALDI_KEY)),
)
# Two paths, of a sound and of its features; or a key, and a sound or a command that writes it.
_SOUND = rb"\.(?:wav|sph|wv1|flac|nist|raw|pcm|mp3|ogg|aiff?)"
_HCOPY_LINE = re.compile(rb"\S+%s\s+\S*[./]\S*\s*" % _SOUND, re.I)
_SOUND_LINE = re.compile(rb"[^\s|=]+[ \t]+([^\s|]+%s|[^|]+(\|[^|]+)*\|)\s*" % _SOUND, re.I)
_IMAGE_LINE = re.compile(rb"[^|]+\.(?:jpe?g|png|bmp|gif|ppm|tiff?)\s+\d+\s*", re.I)
_POSTERIORS = re.compile(rb"[^\s=|]+(\s+\[(\s+\d+\s+%s)+\s*\]){2,}\s*" % _NUMBER)
_TRANSCRIPT = re.compile(rb"(?=\S*[\d_-])[^\s|,;=:]+([ \t]+[^\s|=:\[\]]*[^\s|=:\[\]\d.,;][^\s|=:\[\]]*)+")
# A point comes only before the number of a state, as in `aa.s2` or `aa.3`.
_NAME = re.compile(rb"([^\s|,;={}\"':./]|\.(?=s?\d)){1,40}")
_LETTER = re.compile(rb"[A-Za-z\x80-\xff]")
_COLUMNS = re.compile(rb"%s([ \t]+%s)+" % (_NUMBER, _NUMBER))
_STRICT = re.compile(rb"(\d+[ \t]*)?\|[^\s|]")  # a line that is CNTK's format, whatever the name of the file
_KALDI_MATRIX = re.compile(rb"[^\s=|]+[ \t]+\[[ \t\r]*\n\s*%s\s" % _NUMBER)
# First lines are compared in this order: `u1=x |x 1` fits the pattern of configurations, too, but is a text.
KINDS = {
    kind.form: kind
    for kind in (
        FileKind(
            "kaldi", "Kaldi archive or list", "KaldiDeserializer({path!r})", first_line=_KALDI_LINE,
            is_read_packed=True, in_files="cntkio.formats.kaldi:in_files",
            options=("dtype", "chunk_size_in_bytes", "labels"), writer="cntkio.formats.kaldi.writer:write_kaldi_file",
            extensions=(".ark",), has_text_keys=True, cache="none; the headers are read at each start",
            advice_on_words="cntkio.formats.ctf.findings:advice_on_value",
        ),
        FileKind(
            "kaldi map", "Kaldi map (utt2spk)", "KaldiDeserializer({path!r}, content='map')", is_text=True,
            is_read_packed=True, in_files="cntkio.formats.kaldi:maps_in_files", options=("chunk_size_in_bytes",),
            has_text_keys=True,
        ),
        FileKind(
            "numbers", "list of names and numbers, such as utt2num_frames, words.txt or classes of images",
            "KaldiDeserializer({path!r})", is_text=True, is_read_packed=True, in_files="cntkio.formats.kaldi:in_files",
            options=("dtype", "chunk_size_in_bytes"), has_text_keys=True,
        ),
        FileKind(
            "ctf", "CNTK text format (CTF)", "CTFDeserializer({path!r}, StreamDefs(...))",
            first_line=re.compile(rb"[^|\0]*\|\s*[^\s|].*", re.DOTALL), is_text=True, is_read_packed=True,
            in_files="cntkio.formats.ctf:in_files",
            options=("streams", "max_errors", "skip_sequence_ids", "strict", "chunk_size_in_bytes", "keys", "dtype"),
            writer="cntkio.formats.ctf.writer:write_ctf_file", written_options=("renumber", "keys_file", "compress"),
            extensions=(".ctf", ".txt"), names_streams=True, is_configurable=True, cache="",
            advice_on_words="cntkio.formats.ctf.findings:advice_on_sample",
        ),
        FileKind(
            "svmlight", "SVMlight text (libsvm)", "SvmlightDeserializer({path!r})", first_line=_SVMLIGHT_LINE,
            is_text=True, is_read_packed=True, in_files="cntkio.formats.svmlight:in_files",
            options=("max_errors", "strict", "dtype", "chunk_size_in_bytes", "keys"),
            writer="cntkio.formats.svmlight.writer:write_svmlight_file", written_options=("compress",),
            extensions=(".svm", ".svmlight", ".libsvm"), shown_by=(".svm", ".svmlight", ".libsvm"), cache="",
            advice_on_words="cntkio.formats.svmlight.corpus:advice_on_line",
        ),
        FileKind(
            "cbf", "CNTK binary format (CBF)", "CBFDeserializer({path!r})", magic=(CBF_MAGIC, CBF_DOCUMENTED),
            reader="cntkio.formats.cbf:CBFDeserializer", options=("streams", "strict"), extensions=(".cbf", ".bin"),
            shown_by=(".cbf",), writer="cntkio.formats.cbf.writer:write_cbf_file",
            written_options=("layout", "chunk_size_in_bytes", "order"), has_precisions=True, is_configurable=True,
            cache="none; the file has its own", is_noted=True,
        ),
        FileKind(
            "scp", "list of HTK features (scp)",
            "HTKFeatureDeserializer(StreamDefs(features=StreamDef(scp={path!r}, shape=...)))",
            first_line=re.compile(rb"\S.*\[\d+,\d+\]\s*"), is_text=True, in_files="cntkio.formats.htk:in_files",
            options=("streams", "prefix", "strict", "labels"), has_text_keys=True, is_list=True, is_configurable=True,
            cache="none; the list is read at each start", is_noted=True,
        ),
        FileKind("htk", "HTK feature file", advice="name it in a list (scp), which HTKFeatureDeserializer reads"),
        FileKind(
            "mlf", "HTK label file (MLF)",
            "HTKMLFDeserializer(mapping, StreamDefs(labels=StreamDef(mlf={path!r}, shape=...)))",
            is_text=True, in_files="cntkio.formats.mlf:in_files", options=("mapping",), has_text_keys=True,
            is_labels=True, advice_on_words="cntkio.formats.mlf.entries:advice_on_row",
            cache="none by this command; a program keeps one with StreamDef(..., cache_index=True)",
            is_noted=True,
        ),
        FileKind(
            "binary mlf", "binary HTK label file (MLF)",
            "HTKMLFBinaryDeserializer(StreamDefs(labels=StreamDef(mlf={path!r}, shape=...)))",
            magic=(b"MLF\1\0", b"MLF\2\0"), in_files="cntkio.formats.mlf:in_files", options=("mapping",),
            has_text_keys=True, is_labels=True,
            cache="none; the file is read at each start", is_noted=True,
        ),
        FileKind(
            "posteriors", "Kaldi archive of posteriors", first_line=_POSTERIORS,
            advice="ali-to-pdf or ali-to-phones --per-frame of Kaldi writes alignments, which KaldiDeserializer reads",
        ),
        FileKind(
            "configuration", "CNTK configuration", advice="MinibatchSource.from_config opens its reader",
            first_line=re.compile(rb"[A-Za-z_][\w.]*\s*(=|\[).*", re.DOTALL), is_text=True, is_configuration=True,
            in_files="cntkio.config.reading:in_files",
        ),
        _table("parquet", "Parquet file", (b"PAR1", b"PARE"), ".parquet", ".pq"),  # PARE: with an encrypted footer
        _table("arrow", "Arrow file", (b"ARROW1",), ".arrow", ".feather", ".ipc"),
        # A stream has no magic number; this marker is the beginning of every message.
        _table("arrow stream", "Arrow stream", (b"\xff\xff\xff\xff",)),
        _packed("gzip", "gzip -dk"),
        _packed("bzip2", "bzip2 -dk"),
        _packed("xz", "xz -dk"),
        _packed("zstd", "zstd -dk"),
        FileKind("zip", "zip archive", advice="unpack it (unzip {path})", magic=(b"PK\3\4",)),
        FileKind("sound", "sound file (WAV)", advice="HCopy of HTK makes features of it", magic=(b"RIFF",)),
        FileKind(
            "image", "image", advice="cntkio reads no images: torchvision.io.decode_image does",
            magic=(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8"),
        ),
        FileKind("npy", "NumPy array", advice=_ARRAY_ADVICE, magic=(b"\x93NUMPY",)),
        FileKind("npz", "NumPy archive", advice=_ARRAY_ADVICE),
        FileKind("hdf5", "HDF5 file", advice=f"h5py reads it, and {_ARRAY_ADVICE}", magic=(b"\x89HDF\r\n\x1a\n",)),
        FileKind(
            "utf-32", "text in UTF-32", magic=(b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
            advice="expected bytes of ASCII or UTF-8; convert it: iconv -f UTF-32 -t UTF-8 {path}",
        ),
        FileKind("utf-16", "text in UTF-16", advice=UTF_16_ADVICE, magic=(codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
        FileKind(
            "csv", "table of columns (CSV)",
            advice="cntkio convert uci2ctf converts columns of numbers (--delimiter names their separator, "
            "--skip-header skips a line of names), and txt2ctf columns of tokens",
        ),
        FileKind(
            "hcopy", "script of HCopy", first_line=_HCOPY_LINE,
            advice="HTKFeatureDeserializer reads a list of the second paths alone: awk '{{print $2}}' {path} > NEW.scp",
        ),
        FileKind(
            "sound list", "list of sound files (wav.scp)", first_line=_SOUND_LINE,
            advice="a program makes features of the files, such as make_mfcc.sh of Kaldi or HCopy of HTK; name their "
            "list",
        ),
        FileKind(
            "image list", "map file of images", first_line=_IMAGE_LINE,
            advice="cntkio reads no images: read them in a UserDeserializer, for example with torchvision",
        ),
        FileKind(
            "pointer", "pointer of Git LFS", magic=(b"version https://git-lfs",),
            advice="git lfs pull puts the file itself in its place",
        ),
        FileKind(
            "page", "page of a web server (HTML)", first_line=re.compile(rb"<(!doctype html|html|head)\b.*", re.I),
            advice="download the file itself: a page with a log-in or an error is in its place",
        ),
        FileKind(
            "xml", "text in XML", first_line=re.compile(rb"<(\?xml|!--|[A-Za-z][\w:]*\s+[\w:]+=).*"),
            advice=f"Python's xml.etree reads it, and {_ARRAY_ADVICE}",
        ),
        FileKind(
            "transcripts", "list of transcripts (Kaldi's text)",
            advice="cntkio convert txt2ctf converts columns of words; for frames, align the words first",
        ),
        FileKind(
            "data folder", "list in a data folder of Kaldi (spk2utt, segments, utt2dur)",
            advice="KaldiDeserializer reads feats.scp, which make_mfcc.sh writes, and utt2spk with content='map'",
        ),
        FileKind(
            "names", "list of names, such as states, one on each line",
            advice="it may be the mapping of a label file: --mapping {path}, or the first argument of "
            "HTKMLFDeserializer",
        ),
        FileKind(
            "json", "JSON text", advice=f"Python's json reads it, whole or line by line, and {_ARRAY_ADVICE}",
            first_line=re.compile(rb"\{\s*([\"'}].*)?|\[\s*([\[{\"\d].*)?|\[\s*-\d.*"),
        ),
    )
}  # fmt: skip
"""The kinds, by form."""

_MOST_ARROW_METADATA = 1 << 28
_SEPARATORS = b",\t;"
_CONTROLS = re.compile(rb"[\0-\x08\x0e-\x1f]")


def function_named(text: str) -> Callable[..., Any]:
    """Return the function that a row of `KINDS` names: module and name, with a colon between them.

    Example:
        >>> function_named("cntkio.formats.detect:detect")("examples/iris/iris.ctf").form
        'ctf'
    """
    module, _, name = text.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def detect(path: str | os.PathLike[str]) -> FileKind:
    """Detect the kind of a file. A file of no known kind counts as text in CNTK's format, whose errors say more.

    Raises:
        OSError: The file cannot be read.
        ConfigError: The remote store is of an unknown kind.

    Example:
        >>> detect("examples/iris/iris.ctf").deserializer
        'CTFDeserializer'
        >>> detect("examples/digits/digits.cntk").title
        'CNTK configuration'
    """
    return KINDS[_form_of(_beginning(path), Path(path).suffix.lower(), "") or "ctf"]


def detect_several(paths: Sequence[str]) -> FileKind:
    """Detect the kind of files that are one corpus: that of the first file whose content shows one."""
    for path in paths:
        begin = _beginning(path)
        is_blank = not begin.head.removeprefix(codecs.BOM_UTF8).strip()
        if not is_blank and (form := _form_of(begin, Path(path).suffix.lower(), "")) is not None:
            return KINDS[form]
    # All files are empty, also in compressed form, or of no known kind.
    return KINDS[_form(b"", 0, Path(paths[0]).suffix.lower()) or "ctf"]


def kind_in(text: TextInput) -> FileKind:
    """Detect the kind of an opened text, as `detect` does."""
    begin = Beginning(text.read(0, _HEAD), text.size, text.storage.compression)
    return KINDS[_form_of(begin, Path(text.path).suffix.lower(), "ctf") or "ctf"]


def other_than(form: str, path: str | os.PathLike[str], before: str = "; ") -> str:
    """Describe the kind of a file and its reader, if its bytes show that it is not of the kind that a reader expected.

    The name of the file does not matter. Only the first bytes are read. The description is the end of another error's
    message, so it is empty if the file cannot be read.

    Args:
        form: The form that the reader expects, one of `KINDS`.
        path: The file.
        before: Text to put before the description.

    Returns:
        A part of a sentence; empty if the bytes do not show another kind.

    Example:
        >>> other_than("ctf", "examples/iris/iris.ctf")
        ''
        >>> other_than("cbf", "examples/iris/iris.ctf")
        "; this is a CNTK text corpus (CTF): use CTFDeserializer('examples/iris/iris.ctf', StreamDefs(...))"
    """
    try:
        return _said(form, _beginning(path), os.fspath(path), before)
    except (OSError, ConfigError):
        return ""


def other_in(form: str, text: TextInput, before: str = "; ") -> str:
    """Describe the kind of an opened text, as `other_than` does."""
    try:
        begin = Beginning(text.read(0, _HEAD), text.size, text.storage.compression)
    except OSError:
        return ""
    return _said(form, begin, text.path, before)


def old_line_ends(text: TextInput) -> str:
    """Return advice on a text whose lines end as on old Macs, as the end of a message; empty if the lines do not."""
    head = text.read(0, _HEAD)
    if b"\n" in head or head.count(b"\r") < 2:
        return ""
    convert = f"tr '\\r' '\\n' < {shlex.quote(text.path)} > NEW"
    return f"; lines end with a carriage return alone; expected line feeds: {convert}"


def _said(form: str, begin: Beginning, path: str, before: str) -> str:
    found = _form_of(begin, "", form)
    if found == form or (form, found) in _ALIKE:
        return ""
    if found is not None:
        return f"{before}this is {KINDS[found].noun}: {KINDS[found].use(path)}"
    # After lines of the expected form, a zero byte is an error in the text, not a sign of another format.
    lines = begin.head[: begin.head.find(b"\0")].rpartition(b"\n")[0]
    is_text = b"\0" not in begin.head or (not _CONTROLS.search(lines) and _form_of_text(lines) == form)
    is_wrong = not is_text and form in KINDS and KINDS[form].is_text
    return f"{before}this is not a text, for it has zero bytes" if is_wrong else ""


# Pairs of an expected form and a form that looks like it: a list without ranges (`u1=a.mfc`) is like a configuration,
# and so is a matrix in text (`u1 [`).
_ALIKE = {("scp", "configuration"), ("kaldi", "configuration")}


def _beginning(path: str | os.PathLike[str]) -> Beginning:
    with closing(open_stored(os.fspath(path))) as file:
        return Beginning.of(file, _HEAD)


def _form_of(begin: Beginning, suffix: str, text: str) -> str | None:
    """Return the form of a file with this extension, or None if nothing shows it.

    For compressed content of a kind that is not read where it is, the result is the compression. `text` is the form of
    compressed content of no known kind.
    """
    if begin.compression is None:
        return _form(begin.head, begin.size, suffix)
    # The size and the extension belong to the compressed file, and say nothing about its content.
    found = _form(begin.head, 0, "") or text
    return found if found in KINDS and KINDS[found].is_read_packed else begin.compression


def _form(head: bytes, size: int, suffix: str) -> str | None:
    form = next((kind.form for kind in KINDS.values() if head.startswith(kind.magic)), None)
    if form == "arrow stream" and not 0 < int.from_bytes(head[4:8], "little") < _MOST_ARROW_METADATA:
        form = None  # after the mark, a message of Arrow has the size of its metadata
    # An archive of NumPy has the name of its first array in the first header.
    if form == "zip" and b".npy" in head[:256]:
        return "npz"
    if form is not None:
        return form
    # Readers of texts pass over a byte order mark and blank lines.
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"#!MLF!#"):
        return "mlf"
    if _KALDI_OBJECT.match(head):
        return "kaldi"
    # Lines of CNTK's format are nothing else. A list of HTK may have only paths, which no pattern recognizes.
    if b"\0" not in head and _STRICT.match(text):
        return "ctf"
    if suffix == ".scp" and (found := _form_of_text(text)) in ("sound list", "svmlight", "page"):
        return found
    if suffix == ".scp":
        return "kaldi" if _KALDI_LINE.match(text.split(b"\n", 1)[0]) else "scp"
    if suffix in _NAMED:
        return _NAMED[suffix]
    if _is_htk(head, size):
        return "htk"
    # Version 1 has known first bytes. This finds other versions, so that the reader's error names the version.
    if cbf_version(head) is not None:
        return "cbf"
    if b"\0" in head:
        return "utf-16" if _is_utf_16(head) else _shown_by(suffix)
    found = _form_of_text(text)
    # A damaged file may look like nothing or like a table; then its extension shows its kind.
    if found in (None, "csv"):
        return _shown_by(suffix) or found
    return found


def _shown_by(suffix: str) -> str | None:
    return next((kind.form for kind in KINDS.values() if suffix in kind.shown_by), None)


def _form_of_text(text: bytes) -> str | None:
    """Return the form of a text, by its first line that is neither empty nor a comment."""
    lines = [line for line in map(bytes.strip, text.split(b"\n")) if line and not line.startswith((b"#", b"//"))]
    if not lines:
        return None
    if b"\n" not in text.strip() and len(text) > _LONG_LINE:
        lines[0] = lines[0].rpartition(b" ")[0]  # the last field may be cut off
    # Before the patterns of first lines, since the pattern of configurations fits `u1 [`, too.
    if _KALDI_MATRIX.match(text):
        return "kaldi"
    # Before them, too: a name may be a bracket, or have one.
    if (
        len(lines) > 2
        and all(map(_NAME.fullmatch, lines[:-1]))
        and 2 * len([*filter(_LETTER.search, lines)]) >= len(lines)
    ):
        return "names"
    for kind in KINDS.values():
        if kind.first_line is not None and kind.first_line.fullmatch(lines[0]):
            return kind.form
    whole = lines[:-1] or lines  # the last line may be cut off
    if any(map(_SVMLIGHT_LINE.fullmatch, lines[1:3])):  # below a line of names
        return "svmlight"
    for form, pattern in _KALDI_LINES:
        # A single line of this form may be anything.
        if len(lines) > 1 and all(map(pattern.fullmatch, whole)):
            return form
    firsts = {b"".join(line.split()[:1]) for line in whole}
    if len(lines) > 1 and all(map(_TRANSCRIPT.fullmatch, whole)) and len(firsts) == len(whole):
        return "transcripts"
    if all(map(_COLUMNS.fullmatch, whole[1:] or whole)) and len({len(line.split()) for line in whole}) == 1:
        return "csv"
    for separator in _SEPARATORS:
        counts = {line.count(separator) for line in whole}
        if len(counts) == 1 and counts != {0}:
            return "csv"
    return None


def cbf_version(head: bytes) -> int | None:
    """Return the version if the first bytes of a file are a header of the documented binary layout."""
    if len(head) < _CBF_START.size:
        return None
    version, num_chunks, num_streams, name_size = _CBF_START.unpack_from(head)
    name = head[_CBF_START.size :][:name_size]
    # The layout has no magic number, so every field must have a plausible value.
    has_counts = 0 < num_chunks < 1 << 40 and 0 < num_streams <= _MOST_STREAMS
    has_name = 0 < name_size <= _LONGEST_NAME and min(name, default=0) > ord(" ")
    return version if 0 < version <= _LARGEST_VERSION and has_counts and has_name else None


def _is_utf_16(head: bytes) -> bool:
    """Return whether the bytes are ASCII text in UTF-16: every second byte is zero."""
    even, odd = head[0::2], head[1::2]
    return any(not any(zeros) and text.isascii() and 0 not in text for zeros, text in ((odd, even), (even, odd)))


def _is_htk(head: bytes, size: int) -> bool:
    if len(head) < struct.calcsize(">iIHH"):
        return False
    # HTK's own order is big-endian; the reader takes either order.
    for order in "><":
        num_frames, period, frame_size, kind = struct.unpack_from(f"{order}iIHH", head)
        is_kind = kind & _HTK_KIND_BITS <= _MOST_HTK_KIND and min(num_frames, period, frame_size) > 0
        # A checksum may follow the frames, in two bytes.
        if is_kind and size - 12 - num_frames * frame_size in (0, 2):
            return True
    return False

"""A byte order mark at the head of a text is not text, at any door; a mark in the middle is named."""

import codecs
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cntkio import CTFDeserializer, MinibatchSource, infer_streams, read_ctf, read_vocabularies
from cntkio.config import read_config
from cntkio.convert import convert_file, read_header_file, read_kaldi, read_svmlight, txt_to_ctf, uci_to_ctf
from cntkio.errors import FormatError
from cntkio.formats.detect import detect
from cntkio.formats.htk import read_list
from cntkio.formats.mlf import HTKMLFDeserializer, infer_labels, read_mapping, read_targets
from cntkio.streams import StreamDef, StreamDefs

MLF = b'#!MLF!#\n"u"\n0 200000 a 0\n.\n'
UCI = {"features_start": 0, "features_dim": 1, "labels_start": 1, "num_labels": 2}


def converted(convert: Callable[[Path], object], folder: Path) -> bytes:
    """Return what a converter writes."""
    convert(folder / "out.ctf")
    return (folder / "out.ctf").read_bytes()


def numbers(minibatch: object) -> object:
    """Return the keys and the values of all streams, to be compared."""
    data = {name: (one.values.tolist(), one.offsets.tolist()) for name, one in minibatch.items()}  # type: ignore[attr-defined]
    return [str(key) for key in minibatch.keys_of_sequences.tolist()], data  # type: ignore[attr-defined]


def words(folder: Path) -> Path:
    (folder / "words").write_bytes(b"a\nb\n")
    return folder / "words"


def utterances(path: Path) -> object:
    streams = StreamDefs(y=StreamDef(mlf=path, shape=2, is_sparse=True))
    return HTKMLFDeserializer(None, streams).open().table.keys.tolist()


def labels_listed(path: Path) -> object:
    (path.parent / "one.mlf").write_bytes(MLF)
    streams = StreamDefs(y=StreamDef(shape=2, is_sparse=True))
    labels = HTKMLFDeserializer(None, streams, stream_options={"y": {"mlfFileList": str(path)}})
    return labels.open().table.keys.tolist()


def keys_left(path: Path) -> object:
    (path.parent / "a.ctf").write_bytes(b"7 |x 1\n8 |x 2\n9 |x 3\n10 |x 4\n")
    corpus = CTFDeserializer(path.parent / "a.ctf", StreamDefs(x=StreamDef("x", 1)))
    with MinibatchSource(corpus, max_sweeps=1, leave_out=path) as source:
        return sorted(source.next_minibatch(9).keys_of_sequences.tolist())


# For each kind of text: its name, two texts of which the second may follow the first, and what is read.
DOORS: dict[str, tuple[str, bytes, bytes, Callable[[Path], object]]] = {
    "lines of CTF": ("a.ctf", b"|x 1\n|x 2\n", b"|x 3\n", lambda path: numbers(read_ctf(path))),
    "ids of CTF": ("a.ctf", b"7 |x 1\n8 |x 2\n", b"9 |x 3\n", lambda path: numbers(read_ctf(path))),
    "streams": ("a.ctf", b"7 |x 1\n8 |x 2\n", b"|x 3\n", lambda path: infer_streams(path).x.dim),
    "keys to leave out": ("keys.txt", b"7\n8\n", b"9\n", keys_left),
    "vocabularies": ("a.ctf", b"|w 3:1 |# a\n", b"|w 4:1 |# b\n", lambda path: dict(read_vocabularies(path)["w"])),
    "svmlight": ("a.svm", b"1 2:3\n-1 1:4\n", b"1 5:6\n", lambda path: numbers(read_svmlight(path))),
    "Kaldi archive": ("a.ark", b"u  [\n 1 2 ]\n", b"v  [\n 3 4 ]\n", lambda path: numbers(read_kaldi(path))),
    "Kaldi alignments": ("a.ali", b"u 0 1\nv 1\n", b"w 0\n", lambda path: numbers(read_kaldi(path))),
    "Kaldi map": ("utt2spk", b"u s\nv t\n", b"w s\n", lambda path: numbers(read_kaldi(path, content="map"))),
    "scp": ("a.scp", b"u=a.mfc[0,1]\n", b"v=a.mfc[2,3]\n", lambda path: read_list(path).keys.tolist()),
    "MLF": ("a.mlf", MLF, MLF.replace(b'"u"', b'"v"'), utterances),
    "labels of MLF": ("a.mlf", MLF, MLF.replace(b"a 0", b"b 1"), infer_labels),
    "list of MLF": ("mlfs", b"one.mlf\n", b"one.mlf\n", labels_listed),
    "state list": ("states", b"sil\naa\n", b"bb\n", read_mapping),
    "targets": ("targets", b"sil 10\naa 01\n", b"bb 11\n", lambda path: read_targets(path, 2)),
    "header": ("header", b"x X dense 2\n", b"y Y sparse 3\n", read_header_file),
    "dictionary": (
        "map", b"a\nb\n", b"c\n",
        lambda path: converted(lambda out: txt_to_ctf(io.BytesIO(b"a b"), out, [path], unknown="b"), path.parent),
    ),
    "tokens": (
        "in.txt", b"a b\n", b"b\n",
        lambda path: converted(lambda out: txt_to_ctf([path], out, [words(path.parent)], unknown="b"), path.parent),
    ),
    "tokens of an open file": (
        "in.txt", b"a b\n", b"b\n",
        lambda path: converted(
            lambda out: txt_to_ctf(io.BytesIO(path.read_bytes()), out, [words(path.parent)], unknown="b"), path.parent
        ),
    ),
    "columns": (
        "in.csv", b"0.5 1\n", b"0.25 0\n",
        lambda path: converted(lambda out: uci_to_ctf(path, out, **UCI), path.parent),
    ),
    "categories": (
        "names", b"a\nb\n", b"c\n",
        lambda path: converted(
            lambda out: uci_to_ctf(io.BytesIO(b"0.5 a\n"), out, mapping_file=path, **UCI), path.parent
        ),
    ),
    "converted text": (
        "a.ctf", b"7 |x 1\n8 |x 2\n", b"9 |x 3\n",
        lambda path: converted(lambda out: convert_file(path, out), path.parent),
    ),
    "configuration": ("a.cntk", b"a = [ b = 1 ]\n", b"c = 2\n", lambda path: len(read_config(path, section="a").calls)),
    "format": ("x", b"7 |x 1\n8 |x 2\n", b"9 |x 3\n", lambda path: detect(path).form),
}  # fmt: skip
PACKED = {"lines of CTF", "ids of CTF", "vocabularies", "svmlight", "dictionary", "tokens", "columns", "categories"}
# A second mark is white space where lines have no ids. Configurations and MLF lose a mark on each line.
NO_HARM = {"lines of CTF", "streams", "vocabularies", "MLF", "labels of MLF", "configuration", "format"}


def outcome(read: Callable[[Path], object], path: Path) -> object:
    try:
        return read(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("door", DOORS)
def test_a_byte_order_mark_at_the_head_is_not_text(door: str, current_folder: Path) -> None:
    name, text, _, read = DOORS[door]
    path = current_folder / name
    path.write_bytes(text)
    expected = outcome(read, path)
    path.write_bytes(codecs.BOM_UTF8 + text)
    assert outcome(read, path) == expected
    if door in PACKED:
        path.write_bytes(gzip.compress(codecs.BOM_UTF8 + text))
        assert outcome(read, path) == expected


@pytest.mark.parametrize("door", DOORS)
def test_a_byte_order_mark_between_two_texts_is_named(door: str, current_folder: Path) -> None:
    name, text, more, read = DOORS[door]
    path = current_folder / name
    path.write_bytes(text + more)
    expected = outcome(read, path)
    path.write_bytes(text + codecs.BOM_UTF8 + more)
    if door in NO_HARM:
        assert outcome(read, path) == expected
    else:
        with pytest.raises(FormatError, match="byte order mark in the middle"):
            read(path)


def test_rows_of_a_csv_with_a_mark_are_all_converted(current_folder: Path) -> None:
    (current_folder / "in.csv").write_bytes(codecs.BOM_UTF8 + b"0.5,1\r\n0.25,0\r\n")
    assert uci_to_ctf(current_folder / "in.csv", current_folder / "out.ctf", delimiter=",", **UCI) == 2
    corpus = read_ctf(current_folder / "out.ctf")
    assert np.array_equal(corpus["features"].values.ravel(), [0.5, 0.25])


WHOLE = [
    "keys to leave out",
    "header",
    "dictionary",
    "tokens",
    "tokens of an open file",
    "columns",
    "categories",
    "MLF",
    "state list",
]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("door", WHOLE)
def test_a_text_in_utf_16_is_named(door: str, encoding: str, current_folder: Path) -> None:
    name, text, _, read = DOORS[door]
    (current_folder / name).write_bytes(("\ufeff" + text.decode()).encode(encoding))
    with pytest.raises(FormatError, match=r"a text in UTF-16.*iconv -f UTF-16 -t UTF-8"):
        read(current_folder / name)

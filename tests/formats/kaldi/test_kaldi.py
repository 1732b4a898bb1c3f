"""Kaldi's files: values of every kind against recorded values, joins, windows, errors with places, and writing."""

import gzip
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CntkIoError,
    ConfigError,
    CorpusError,
    FormatError,
    HTKMLFDeserializer,
    KaldiDeserializer,
    Minibatch,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    read_kaldi,
    write_kaldi,
    write_mlf,
)
from cntkio.formats.detect import detect
from support.damage import damaged
from support.kaldi_files import CLASSES, DATA, write

fsspec = pytest.importorskip("fsspec", reason="the extra 'remote' is not installed")

NAMES = [
    *(f"{name}.{kind}" for name in ("cm", "cm2", "cm3", "fm", "dm", "text") for kind in ("ark", "scp")),
    *(f"{name}.ark" for name in ("fv", "dv", "text_v", *CLASSES)),
    "ranges.scp",
]
TEXT = "u1  [\n  1 2\n  3 4 ]\nu2  [\n  5 6 ]\n"


pytestmark = pytest.mark.usefixtures("current_folder")


def by_key(data: Minibatch) -> dict[str, Any]:
    """The values of each utterance of the only stream."""
    ((_, stream),) = data.items()
    parts = np.split(stream.values, stream.offsets[1:-1])
    return dict(zip(data.keys_of_sequences.tolist(), parts, strict=True))


def require_same(folder: Path, expected: Any) -> None:
    """Compare all files of a folder with the values of another reader, bit for bit."""
    for name in NAMES:
        stem = name.partition(".")[0]
        is_class, dtype = stem in CLASSES, np.float64 if stem in ("dm", "dv") else np.float32
        found = by_key(read_kaldi(name, as_class_ids=is_class, dtype=dtype, chunk_size_in_bytes=64))
        wanted = {key.partition("/")[2]: expected[key] for key in expected if key.startswith(f"{stem}/")}
        assert [*found] == [*wanted], name
        for key, values in wanted.items():
            assert found[key].dtype == values.dtype or is_class
            assert np.array_equal(found[key], values.reshape(found[key].shape)), (name, key)


def test_recorded_files_of_every_kind_have_the_recorded_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)
    require_same(DATA, np.load("expected.npz"))


def test_values_are_those_of_another_reader(current_folder: Path) -> None:
    pytest.importorskip("kaldi_native_io", reason="kaldi_native_io is not installed")
    require_same(current_folder, write(current_folder, random.randrange(1 << 30)))


def test_windows_are_the_same_in_both_precisions() -> None:
    Path("a.ark").write_text(TEXT)
    for dtype in (np.float32, np.float64):
        data = read_kaldi("a.ark", context=(1, 1), dtype=dtype)["features"].values
        assert data.tolist() == [[1, 2, 1, 2, 3, 4], [1, 2, 3, 4, 3, 4], [5, 6, 5, 6, 5, 6]]
        assert data.dtype == dtype


@pytest.mark.parametrize("frame_mode", [False, True])
def test_features_join_alignments_and_label_files_by_utterance(frame_mode: bool) -> None:
    Path("a.ark").write_text(TEXT)
    Path("ali").write_text("u2 7\nu3 1\nu1 0 5\n")
    states = [f"s{number}" for number in range(8)]
    Path("states").write_text("\n".join(states))
    write_mlf("a.mlf", [("u2", np.array([7])), ("u1", np.array([0, 5]))], states)
    parts: list[Any] = [KaldiDeserializer("a.ark"), KaldiDeserializer("ali", shape=8)]
    parts += [HTKMLFDeserializer("states", StreamDefs(mlf=StreamDef(mlf="a.mlf", shape=8)))]
    options: dict[str, Any] = {"frame_mode": True} if frame_mode else {}
    with MinibatchSource(parts, randomize=False, max_sweeps=1, **options) as source:
        data = source.next_minibatch(3)
    assert data["features"].values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data["labels"].indices.tolist() == data["mlf"].indices.tolist() == [0, 5, 7]


def test_a_map_gives_each_utterance_the_class_of_its_word() -> None:
    Path("utt2spk").write_text("u1 bob\nu2 anna\nu3 bob\n")
    Path("speakers").write_text("anna\nbob\n")
    ids = [
        read_kaldi("utt2spk", content="map", as_class_ids=True, mapping=mapping)["labels"].values
        for mapping in (None, "speakers")
    ]
    assert [each.tolist() for each in ids] == [[0, 1, 0], [1, 0, 1]]
    Path("speakers").write_text("anna\n")
    with pytest.raises(FormatError, match=r"utt2spk, byte 0, sequence u1, stream 'labels': 'bob' is not among the 1"):
        read_kaldi("utt2spk", content="map", mapping="speakers")
    Path("more").write_text("u4 carl\nu5 anna\n")
    both = read_kaldi(["utt2spk", "more"], content="map", as_class_ids=True)["labels"].values
    assert both.tolist() == [0, 1, 0, 2, 1]


def test_vectors_are_single_frames_or_frames_of_one_value() -> None:
    Path("a.ark").write_text("u1  [ 1 0 2 ]\nu2  [ 4 5 6 ]\n")
    assert read_kaldi("a.ark")["features"].values.tolist() == [[1, 0, 2], [4, 5, 6]]
    frames = read_kaldi("a.ark", content="frames")["features"]
    assert (frames.values.shape, frames.offsets.tolist()) == ((6, 1), [0, 3, 6])


def test_a_list_in_any_order_reads_rows_and_columns_of_several_archives() -> None:
    for name, factor in (("a.ark", 1), ("b.ark", 10)):
        write_kaldi(name, {"x": [np.arange(12, dtype=np.float32).reshape(4, 3) * factor]})
    lines = ["u3 b.ark:2[1:2,0:1]", "u1 a.ark:2[:,1:2]", "u4 b.ark:2[3:6,0:1]", "", "u2 a.ark:2[0:0,1:2]"]
    Path("a.scp").write_text("\n".join(lines))
    for dtype in (np.float32, np.float64):
        found = by_key(read_kaldi("a.scp", dtype=dtype))
        assert {key: values.tolist() for key, values in found.items()} == {
            "u3": [[30, 40], [60, 70]],
            "u1": [[1, 2], [4, 5], [7, 8], [10, 11]],
            "u4": [[90, 100]],
            "u2": [[1, 2]],
        }
    with closing(KaldiDeserializer("a.scp").open()) as corpus:
        assert corpus.places(np.array([1, 0])).texts() == ["a.ark: byte 2", "b.ark: byte 2"]


@pytest.mark.parametrize("name", ["a.ark", "t.ark", "utt2spk"])
def test_archives_are_the_same_compressed_and_in_a_store(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cntkio.formats.kaldi.objects.WINDOW", 64)
    Path("t.ark").write_text(TEXT)
    Path("utt2spk").write_text("u1 bob\nu2 anna\n")
    write_kaldi("a.ark", {"x": [np.ones((rows, 5), np.float32) * rows for rows in range(1, 9)]}, scp="a.scp")
    content: Any = "map" if name == "utt2spk" else None
    expected = by_key(read_kaldi(name, content=content))
    Path("a.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
    fsspec.filesystem("memory").pipe("memory://kaldi/a", Path(name).read_bytes())
    for other in ("a.gz", "memory://kaldi/a"):
        found = by_key(read_kaldi(other, content=content))
        assert [*found] == [*expected]
        assert all(np.array_equal(found[key], values) for key, values in expected.items())
    if name == "a.ark":
        lines = Path("a.scp").read_text().replace("a.ark", "memory://kaldi/a")
        Path("b.scp").write_text(lines)
        assert all(np.array_equal(values, expected[key]) for key, values in by_key(read_kaldi("b.scp")).items())


BINARY = b"u1 \0BFM \4\1\0\0\0\4\1\0\0\0\0\0\0\0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            BINARY + b"u2 \0BFM \4\2\0\0\0\4\1\0\0\0\0\0\0\0",
            "a, byte 44, sequence u2, .*: the file ends within the object",
        ),
        (BINARY + b"u2 \0BXM \4\1\0\0", "a, byte 27, sequence u2, .*: an object of an unknown type; expected a matrix"),
        (BINARY + b"u2 \0BFM \x08\1\0\0\0\4\1\0\0\0\0\0\0\0", "a, byte 30, .*: a number that is not of 4 bytes"),
        (BINARY + b"u2 \0BFV \4\xff\xff\xff\xff" + bytes(9), "a, byte 31, .*: a negative number in the header"),
        (BINARY + b"u2 \0BFM \4\0\0\0\0\4\0\0\0\0", "a, byte 25, sequence u2, .*: no frames"),
        (
            BINARY + b"u2 \0BFM \4\1\0\0\0\4\2\0\0\0" + bytes(8),
            "u2, .*: frames of 2 values, but the first utterance has",
        ),
        (BINARY + b"u2 \0BFV \4\1\0\0\0\0\0\0\0", "u2, .*: a float vector; expected matrices, as the first object"),
        (BINARY * 2, "a, byte 25, sequence u1, .*: a second object of this utterance"),
        (b"u1  [\n 1 2\n 3 ]\n", "a, byte 14, sequence u1, .*: a row of the matrix has another number of values"),
        (b"u1  [\n 1 x ]\n", "a, byte 9, sequence u1, .*: text that is not a number"),
        (b"u1  [\n 1 2 \n", "a, byte 12, sequence u1, .*: the file ends within the object"),
        (b"u1 1 2\nu2 1 -2\n", "a, byte 10, sequence u2, stream 'labels': class -2 of frame 1; expected 0 to"),
        (b"k" * 5000, "a, byte 0: neither an archive .* nor a list"),
        (b"k" * 5000 + b" \0", "a, byte 0, .*: a key of more than 4096 bytes"),
        (b"u1 a.ark:3\nu2 copy-feats x - |\n", "a, line 2, column 1 .*: a command, which cntkio does not run"),
        (b"u1 a.ark:3[2:1]\n", r"a, line 1, .*: a range that is not \[first:last\]"),
        (b"u1 a.ark:3[]\n", "a, line 1, .*: a range that is not"),
        (b"u1 a.ark:3[0:0]\nu2 a.ark:3[,1:1]\n", "a, line 2, .*: a range that is not"),
        (b"u1 a.ark:3[0:1,]\n", "a, line 1, .*: a range that is not"),
        (b"u1 a.ark:3[,]\n", "a, line 1, .*: a range that is not"),
        (b"u1 a.ark:3[:,:,:]\n", "a, line 1, .*: a range that is not"),
        (b"u1 none.ark:3\n", r"No such file .*\(utterance u1 of a, line 1\)"),
        (
            b"\nu1 b.ark:2[0:1,0:1]\n",
            r"b.ark, byte 2, sequence u1, .*: a range beyond the matrix of 2 rows and 1 .*line 2",
        ),
        (
            b"\nu1 b.ark:7\n",
            r"a, line 2, sequence u1, .*: no object of b.ark begins at byte 7; expected the byte after",
        ),
        (b"u1 b.ark:0\n", r"a, line 1, sequence u1, .*: no object of b.ark begins at byte 0; expected the byte after"),
        (b"", "a, byte 0: the file is empty"),
    ],
)
def test_errors_name_the_place_and_what_was_expected(content: bytes, message: str) -> None:
    write_kaldi("b.ark", {"x": [np.ones((2, 1), np.float32)]})
    Path("a").write_bytes(content)
    with pytest.raises((FormatError, OSError), match=message):
        read_kaldi("a")


ALIGNMENT = b"u1 \0B\4\1\0\0\0\4\5\0\0\0"


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a", ALIGNMENT + b"u2 \0B\4\2\0\0\0", {}, "sequence u2, stream 'labels': the file ends within the object"),
        ("a", b"u1 1 2\nu2 1 x\n", {}, "sequence u2, stream 'labels': text that is not a number"),
        ("a", ALIGNMENT[:-1], {"content": "classes"}, "sequence u1, stream 'labels': the file ends within the object"),
        ("a", ALIGNMENT + b"u2 \0B\4\0\0\0\0", {}, "sequence u2, stream 'labels': no frames"),
        ("a", ALIGNMENT * 2, {}, "sequence u1, stream 'labels': a second object of this utterance"),
        ("a", ALIGNMENT * 2, {"stream": "x"}, "sequence u1, stream 'x': a second object of this utterance"),
        ("a.scp", b"u1 ali:3\nu2 ali:18\n", {}, "sequence u2, stream 'labels': the file ends within the object"),
        ("a.scp", b"u1 ali:3[0:0]\n", {}, "sequence u1, stream 'labels': a range of a vector; expected a matrix"),
        ("a.scp", b"u1 ali\n", {"content": "classes"}, "sequence u1, stream 'labels': no object of ali begins"),
        ("a", b"u1 x y\n", {"content": "map"}, "stream 'labels': several values for a key"),
        ("a", b"u1 x\nu1 x\n", {"content": "map"}, "sequence u1, stream 'labels': a second object"),
    ],
)
def test_an_error_about_classes_names_their_stream(
    name: str, content: bytes, options: dict[str, Any], message: str
) -> None:
    Path("ali").write_bytes(ALIGNMENT + b"u2 \0B\4\2\0\0\0")
    Path(name).write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_kaldi(name, **options)


def test_classes_beyond_the_shape_and_impossible_options_are_refused() -> None:
    Path("ali").write_text("u1 0 5\n")
    with pytest.raises(FormatError, match="class 5 of frame 1; expected 0 to 3, or a larger shape"):
        read_kaldi("ali", shape=4)
    for options in ({"content": "x"}, {"context": (1, 0)}, {"shape": 0}, {"unequal_lengths": "x"}, {"broadcast": True}):
        with pytest.raises(ConfigError):
            read_kaldi("ali", **options)


@pytest.mark.parametrize(
    ("text", "utterances"), [(TEXT, "1 utterance is"), (f"{TEXT}u3  [\n  1 2\n  3 4 ]\n", "2 utterances are")]
)
def test_long_utterances_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture, text: str, utterances: str
) -> None:
    Path("a.ark").write_text(text)
    with closing(KaldiDeserializer("a.ark", max_sequence_length=1).open()) as corpus:
        assert corpus.table.num_sequences == 1
    assert f"{utterances} longer than 1 frames, and left out: u1" in caplog.text


def test_an_archive_that_changes_is_refused() -> None:
    Path("a.ark").write_text(TEXT)
    with closing(KaldiDeserializer("a.ark").open()) as corpus:
        Path("a.ark").write_text(TEXT + "u3 [ ]")
        with pytest.raises(CorpusError, match="changed while in use"):
            corpus.load(0)


@pytest.mark.parametrize(
    ("name", "content", "text"), [("a.ark", None, TEXT), ("a.scp", None, "u a.ark:3\n"), ("utt2spk", "map", "u anna\n")]
)
def test_a_file_that_changes_while_it_is_opened_is_refused(
    name: str, content: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.ark").write_text(TEXT)
    Path(name).write_text(text)
    # The pass counts the bytes after it has read them.
    monkeypatch.setattr("cntkio.formats.kaldi.objects.passed", lambda _: Path(name).write_text(text * 2))
    with pytest.raises(CorpusError, match=f"{name}.* changed while in use"):
        KaldiDeserializer(name, content=content).open()


@pytest.mark.parametrize("name", ["cm.ark", "text.ark", "ali.ark", "fm.scp", "utt2spk"])
def test_every_prefix_and_flipped_bit_is_read_or_refused(name: str, current_folder: Path) -> None:
    for other in DATA.glob("*.ark"):
        (current_folder / other.name).write_bytes(other.read_bytes()[:300])
    whole = (DATA / name).read_bytes()[:150]
    for data in damaged(whole):
        Path(name).write_bytes(data)
        try:
            read_kaldi(name, content="map" if name == "utt2spk" else None)
        except (CntkIoError, OSError) as error:
            assert ".ark" in str(error) or name in str(error)


@pytest.mark.parametrize("text", [False, True])
def test_what_is_written_reads_back_to_the_same_bits(text: bool) -> None:
    generator = np.random.default_rng(3)
    arrays = [generator.normal(size=(rows, 3)).astype(np.float32) for rows in (1, 7, 2)]
    arrays[1][0] = [np.inf, np.nan, 1e-40]
    write_kaldi("a.ark", {"x": arrays}, scp="a.scp", text=text)
    for name in ("a.ark", "a.scp"):
        assert all(
            np.array_equal(found.view(np.uint32), one.view(np.uint32))
            for found, one in zip(by_key(read_kaldi(name)).values(), arrays, strict=True)
        )
    write_kaldi("b.ark", KaldiDeserializer("a.ark", dtype=np.float64), text=text)
    last = read_kaldi("b.ark", dtype=np.float64)["features"].values[-1]
    assert np.array_equal(last.astype(np.float32), arrays[2][-1])
    Path("ali").write_text("u1 0 5\nu2 3\n")
    write_kaldi("c.ark", KaldiDeserializer("ali"), text=text)
    found = by_key(read_kaldi("c.ark", as_class_ids=True))
    assert {key: values.tolist() for key, values in found.items()} == {"u1": [0, 5], "u2": [3]}
    with pytest.raises(ConfigError, match="has 2 streams"):
        write_kaldi("d.ark", {"x": arrays, "y": arrays})


@pytest.mark.parametrize("name", NAMES)
def test_the_first_bytes_show_the_format(name: str) -> None:
    if name != "text_ali.ark":  # a line of numbers may be anything
        assert detect(DATA / name).form == "kaldi"


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("a.ark", TEXT, None),
        ("a.ark", "u1 0 1\n", None),
        ("a.scp", "u1 b.ark:3\n", None),
        ("utt2spk", "u1 anna\n", "map"),
    ],
)
def test_a_byte_order_mark_is_not_part_of_a_key(name: str, text: str, content: Any) -> None:
    Path("b.ark").write_text(TEXT)
    Path(name).write_text("\ufeff" + text, encoding="utf-8")
    assert read_kaldi(name, content=content).keys_of_sequences[0] == "u1"


def test_a_matrix_that_is_cut_off_is_not_taken_for_a_configuration() -> None:
    Path("a.ark").write_text("u1 [ 1 2")
    with pytest.raises(FormatError, match="expected all its values$"):
        read_kaldi("a.ark")

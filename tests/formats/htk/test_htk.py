"""HTK features and labels: written and read back, options, lists and labels of all forms, damaged files."""

import dataclasses
import os
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CntkIoError,
    ConfigError,
    CorpusError,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.formats import htk, mlf
from cntkio.formats.htk.lists import Listed
from cntkio.formats.mlf import entries
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.builders import peak_memory
from support.damage import damaged
from support.rounds import rounds, step

NAMES = ["sil", "aa", "b"]


def features(scp: Path | list[Path], shape: int = 2, **options: Any) -> HTKFeatureDeserializer:
    stream = {key: options.pop(key) for key in ("context", "broadcast", "max_sequence_length") if key in options}
    return HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=scp, shape=shape, **stream)), **options)


def labels(path: Path | list[Path], mapping: Path | None, dim: int = 3, **options: Any) -> HTKMLFDeserializer:
    return HTKMLFDeserializer(mapping, StreamDefs(L=StreamDef(mlf=path, shape=dim)), **options)


def read(*deserializers: Any, **options: Any) -> list[dict[str, Any]]:
    """Read all utterances in order."""
    utterances = []
    options = {"randomize": False, "max_sweeps": 1, **options}
    with MinibatchSource(list(deserializers), **options) as source:
        for minibatch in source.minibatches(1):
            if not minibatch.num_sequences:
                continue
            utterance = {"key": minibatch.keys_of_sequences[0]}
            for name, data in minibatch.items():
                utterance[name] = data.indices.tolist() if data.is_sparse else data.values.copy()
            utterances.append(utterance)
    return utterances


@pytest.fixture
def archive_with_labels(tmp_path: Path) -> Path:
    """Three utterances in an archive, with labels of each kind."""
    utterances = [(f"u{n}", np.arange(2 * size).reshape(-1, 2) + 100 * n) for n, size in enumerate((3, 1, 4))]
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    classes = [(key, np.array([0, 0, 2, 1])[: len(frames)]) for key, frames in utterances]
    mlf.write_mlf(tmp_path / "a.mlf", classes, NAMES)
    mlf.write_binary_mlf(tmp_path / "a.bmlf", classes)
    mlf.write_mapping(tmp_path / "states.list", NAMES)
    return tmp_path


@settings(max_examples=rounds(60))
@given(
    values=arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(width=32)),
    big_endian=st.booleans(),
    kind=st.sampled_from(["USER", "MFCC_E_D_A", "PLP_0", "FBANK", "LPC", "USER_K"]),
    period=st.sampled_from([0, 1, 100_000, 256, 2**24]),
)
def test_written_features_are_read_back_bit_for_bit(
    values: Any, big_endian: bool, kind: str, period: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("htk")
    htk.write_features(folder / "x" / "u.fea", values, kind=kind, period=period, big_endian=big_endian)
    (folder / "u.scp").write_text(f"u={folder}/x/u.fea\n")
    (utterance,) = read(features(folder / "u.scp", values.shape[1]))
    assert utterance["F"].tobytes() == values.tobytes()


@settings(max_examples=rounds(60))
@given(
    values=arrays.arrays(
        np.float32, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.floats(-1000, 1000, width=32)
    ),
    big_endian=st.booleans(),
)
def test_compressed_features_are_read_back_within_the_bound(
    values: Any, big_endian: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("htk")
    htk.write_features(folder / "u.fea", values, compressed=True, big_endian=big_endian)
    (folder / "u.scp").write_text(f"u=.../u.fea[0,{len(values) - 1}]\n")
    (utterance,) = read(features(folder / "u.scp", values.shape[1]))
    span = values.max(axis=0).astype(float) - values.min(axis=0)
    # Half a step, and the rounding of (x + b) / a in single precision, which is relative to the largest value.
    rounding = 4 * np.finfo(np.float32).eps * np.abs(values).max(axis=0)
    assert (np.abs(utterance["F"].astype(float) - values) <= span / 65534 * 1.001 + rounding + 2e-34).all()


@settings(max_examples=rounds(40))
@given(
    size=st.one_of(st.integers(1, 40), st.integers(4090, 4100), st.just(40_000)),
    seed=st.integers(0, 99),
    big_endian=st.booleans(),
    compressed=st.booleans(),
)
def test_the_check_sum_is_all_words_after_the_header_as_a_number(
    size: int, seed: int, big_endian: bool, compressed: bool
) -> None:
    values = np.random.default_rng(seed).normal(size=(size, 1))
    data = htk.encode_features(values, kind="USER_K", big_endian=big_endian, compressed=compressed)
    order = ">" if big_endian else "<"
    *words, check_sum = struct.unpack(f"{order}{len(data) // 2 - 6}H", data[12:])
    expected = 0
    for word in words:
        expected = (expected * 65536 + word) % 36897
    assert check_sum == expected
    assert data[10:12] == struct.pack(f"{order}H", 9 | 0o10000 | (0o2000 if compressed else 0))
    without = htk.encode_features(values, big_endian=big_endian, compressed=compressed)
    assert data[12:-2] == without[12:]


def test_labels_are_read_back_from_text_and_from_binary(archive_with_labels: Path) -> None:
    expected = [[0, 0, 2], [0], [0, 0, 2, 1]]
    text = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list")
    binary = HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=archive_with_labels / "a.bmlf", shape=3)))
    for deserializer in (text, binary):
        assert [utterance["L"] for utterance in read(features(archive_with_labels / "a.scp"), deserializer)] == expected


def test_a_class_equal_to_the_dimension_is_an_error(archive_with_labels: Path) -> None:
    text = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list", dim=2)
    binary = HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=archive_with_labels / "a.bmlf", shape=2)))
    for deserializer in (text, binary):
        with pytest.raises(FormatError, match="the class is beyond the dimension, which is 2") as caught:
            read(features(archive_with_labels / "a.scp"), deserializer)
        assert caught.value.sequence == "u0"


def test_a_run_of_more_than_65535_frames_is_read_back(tmp_path: Path) -> None:
    classes = np.repeat([1, 2], [150_000, 3])
    mlf.write_binary_mlf(tmp_path / "a.bmlf", [("u", classes)])
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", [("u", np.zeros((len(classes), 2)))])
    binary = HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=tmp_path / "a.bmlf", shape=3)))
    assert read(features(tmp_path / "a.scp"), binary)[0]["L"] == classes.tolist()


def test_classes_are_delivered_as_class_ids_on_request(archive_with_labels: Path) -> None:
    deserializer = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list", as_class_ids=True)
    with MinibatchSource(
        [features(archive_with_labels / "a.scp"), deserializer], randomize=False, max_sweeps=1
    ) as source:
        data = source.next_minibatch(100)["L"]
        assert (data.values.dtype, data.values.tolist()) == (np.int32, [0, 0, 2, 0, 0, 0, 2, 1])
        assert data.offsets.tolist() == [0, 3, 4, 8]


def test_an_index_cache_changes_only_the_time(archive_with_labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def classes() -> Any:
        cached = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list", cache_index=True)
        return [utterance["L"] for utterance in read(features(archive_with_labels / "a.scp"), cached)]

    before = classes()
    monkeypatch.setattr(entries, "scan_text", None)
    assert classes() == before
    (archive_with_labels / "states.list").write_text("aa\nsil\nb\n")
    with pytest.raises(TypeError):  # other names: the file must be scanned again
        classes()


def test_a_cache_of_labels_belongs_to_the_file_that_was_read(
    archive_with_labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, scan_text = archive_with_labels / "a.mlf", entries.scan_text
    other = archive_with_labels / "other.mlf"
    other.write_text(path.read_text().replace("sil", "aa"))
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))

    def replaced_before(*arguments: Any, **options: Any) -> Any:
        if other.exists():
            other.rename(path)
        return scan_text(*arguments, **options)

    def classes() -> Any:
        deserializer = labels(path, archive_with_labels / "states.list", cache_index=True)
        return [utterance["L"] for utterance in read(features(archive_with_labels / "a.scp"), deserializer)]

    monkeypatch.setattr(entries, "scan_text", replaced_before)
    before = classes()
    after = classes()
    assert before != after == classes()


def test_frames_and_classes_beyond_16_bits_are_cached(tmp_path: Path) -> None:
    large, small = tmp_path / "large.mlf", tmp_path / "small.mlf"
    large.write_text('#!MLF!#\n"u1"\n0 66000 a 69999\n66000 70000 b 3\n.\n')
    small.write_text('#!MLF!#\n"u2"\n0 5 a 4\n5 6 a 65536\n.\n"u3"\n0 1 c 1\n.\n')
    deserializer = labels([small, large], None, 70000, times="frames", cache_index=True)
    for _ in range(2):  # from the files, and from the caches
        archive_with_labels = deserializer.open()
        rows = [[column.tolist() for column in archive_with_labels.index.layout.rows(number)] for number in range(3)]
        assert rows == [[[5, 1], [4, 65536]], [[1], [1]], [[66000, 4000], [69999, 3]]]
        assert archive_with_labels.index.layout.num_rows == 5
    assert len(list(tmp_path.glob("*.index"))) == 2


def test_the_documented_example_is_read_with_blanks_in_paths_and_columns(tmp_path: Path) -> None:
    folder = tmp_path / "my features"
    key = "train-dr1-fcjf0-si1027"
    htk.write_features(folder / "a.mfc", np.arange(10).reshape(5, 2), kind="MFCC")
    htk.write_features(folder / "a.plp", np.arange(5).reshape(5, 1), kind="PLP")
    (folder / "mfc.scp").write_text(f"{key}.mfc=.../a.mfc [0,4]\r\n\r\n")
    (folder / "plp.scp").write_text(f'{key}.plp="{folder}/a.plp"[ 0 , 4 ]')
    (folder / "a.mlf").write_text(f'#!MLF!#\n"*/{key}.rec"\n0 200000 h#_s2\n200000  500000\taa_s3 -1.5 aa\n.\n')
    (folder / "states.list").write_text("h#_s2\naa_s3")
    both = HTKFeatureDeserializer(
        StreamDefs(
            mfc=StreamDef(scp=folder / "mfc.scp", shape=6),
            plp=StreamDef(scp=folder / "plp.scp", shape=1, context=(0, 1)),
        )
    )
    (utterance,) = read(both, labels(folder / "a.mlf", folder / "states.list", 2))
    assert (utterance["key"], utterance["L"]) == (key, [0, 0, 1, 1, 1])
    assert utterance["mfc"][0].tolist() == [0, 1, 0, 1, 2, 3]
    assert utterance["plp"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 4]]


def test_mapped_and_copied_frames_are_equal(tmp_path: Path) -> None:
    frames = np.arange(3 << 19, dtype=np.float32).reshape(-1, 2)
    utterances = [("a", frames), ("b", frames[:3]), ("c", frames[7:20])]
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    for memory_map in (True, False):
        read_back = read(features(tmp_path / "a.scp", 2, memory_map=memory_map))
        for (key, expected), utterance in zip(utterances, read_back, strict=True):
            assert utterance["key"] == key
            np.testing.assert_array_equal(utterance["F"], expected)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says which pages are mapped")
def test_a_part_of_an_archive_touches_only_the_pages_of_its_utterances(tmp_path: Path) -> None:
    frames = np.arange(1 << 19, dtype=np.float32).reshape(-1, 16)  # two megabytes, four of them in a chunk
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", [(f"u{n}", frames + n) for n in range(4)])
    archive_with_labels = features(tmp_path / "a.scp", 16).open()
    sizes = []
    for sequences in ([0, 1, 2, 3], [0, 3]):
        loaded = archive_with_labels.load(0, np.array(sequences, np.uint32))
        mapped = Path("/proc/self/smaps").read_text().split(f"{tmp_path / 'a.ark'}\n")[1]
        sizes.append(int(re.findall(r"^Rss: +(\d+) kB", mapped, re.MULTILINE)[0]))
        del loaded
    archive_with_labels.close()
    assert sizes[1] < 0.6 * sizes[0]


def test_an_error_in_a_label_names_file_line_utterance_and_row(archive_with_labels: Path) -> None:
    text = (archive_with_labels / "a.mlf").read_text()
    for old, new, what in [
        ("200000 300000 b", "200000 300000 zz", "the label is not in the mapping file: '200000 300000 zz'"),
        ("0 200000 sil", "x 200000 sil", "a time that is not a number"),
        ("200000 300000 b", "200000 100000 b", "the row ends before it begins"),
    ]:
        (archive_with_labels / "bad.mlf").write_text(text.replace(old, new).replace("#!MLF!#\n", "#!MLF!#\n\n\n"))
        with pytest.raises(FormatError) as caught:
            read(
                features(archive_with_labels / "a.scp"),
                labels(archive_with_labels / "bad.mlf", archive_with_labels / "states.list"),
            )
        assert what in str(caught.value)
        assert caught.value.sequence == "u0"
        assert caught.value.line is not None
        assert (archive_with_labels / "bad.mlf").read_text().splitlines()[caught.value.line - 1] == new


def test_an_utterance_of_another_length_is_refused_dropped_or_kept(archive_with_labels: Path) -> None:
    mlf.write_mlf(
        archive_with_labels / "a.mlf",
        [("u0", np.zeros(2, int)), ("u1", np.ones(1, int)), ("u2", np.ones(4, int))],
        NAMES,
    )

    def lengths(rule: Any) -> list[Any]:
        joined = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list", unequal_lengths=rule)
        return [len(utterance["L"]) for utterance in read(features(archive_with_labels / "a.scp"), joined)]

    with pytest.raises(CorpusError, match=r"utterance u0: 2 frames in .*a.mlf, but 3 in .*a.scp"):
        lengths(None)
    assert lengths("drop") == [1, 4]
    assert lengths("keep") == [2, 1, 4]


def test_invalid_utterances_are_counted_against_the_budget(archive_with_labels: Path) -> None:
    text = (archive_with_labels / "a.mlf").read_text().replace("0 100000 sil", "100000 200000 sil")
    (archive_with_labels / "a.mlf").write_text(text)
    both = (
        features(archive_with_labels / "a.scp"),
        labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list"),
    )
    with pytest.raises(CorpusError, match=r"1 invalid utterance so far.*a.mlf, line 7.*does not begin at frame 0"):
        read(*both)
    assert [utterance["key"] for utterance in read(*both, max_errors=1)] == ["u0", "u2"]
    with MinibatchSource(list(both), randomize=False, max_sweeps=1, max_errors=1, frame_mode=True) as source:
        assert sum(minibatch["F"].num_samples for minibatch in source.minibatches(3)) == 7
        assert source.error_counts == {"invalid utterance": 1}


def test_an_entry_of_four_billion_frames_spoils_no_other_utterance(archive_with_labels: Path) -> None:
    for row in ("0 4294967294 sil", "5 4294967294 sil"):  # too long, or invalid as well
        text = f'#!MLF!#\n"u0"\n0 3 sil\n.\n"u1"\n{row}\n.\n"u2"\n0 4 aa\n.\n'
        (archive_with_labels / "a.mlf").write_text(text)
        frames = labels(
            archive_with_labels / "a.mlf", archive_with_labels / "states.list", times="frames", unequal_lengths="drop"
        )
        utterances = read(features(archive_with_labels / "a.scp"), frames, max_errors=1)
        assert [utterance["key"] for utterance in utterances] == ["u0", "u2"]


def test_frame_mode_delivers_each_frame_with_its_label(archive_with_labels: Path) -> None:
    wide = features(archive_with_labels / "a.scp", context=(1, 2))
    both = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list")
    whole = {utterance["key"]: utterance for utterance in read(wide, both)}
    seen = []
    with MinibatchSource([wide, both], max_sweeps=3, frame_mode=True) as source:
        for minibatch in source.minibatches(3):
            rows = zip(minibatch.keys_of_sequences, minibatch["F"].values, minibatch["L"].indices, strict=True)
            for key, row, label in rows:
                frames = whole[key]
                (at,) = np.flatnonzero((frames["F"] == row).all(axis=1) & (np.array(frames["L"]) == label))
                seen.append((key, int(at)))
    every = [(key, at) for key, utterance in whole.items() for at in range(len(utterance["L"]))]
    assert sorted(seen) == sorted(every * 3)
    assert seen[:8] != every


# ------------------------------------------------------------------------------------------------ damaged files


def readers(folder: Path, compatible: bool) -> dict[str, Callable[[], Any]]:
    options = {"compatible": compatible}

    def everything(*deserializers: Any) -> Any:
        return read(*deserializers, max_errors=100)

    text = labels(folder / "a.mlf", folder / "states.list", **options)
    binary = HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=folder / "a.bmlf", shape=3)), **options)
    plain = features(folder / "a.scp", **options)
    return {
        "a.ark": lambda: everything(plain),
        "c.fea": lambda: everything(features(folder / "c.scp", **options)),
        "a.scp": lambda: everything(plain),
        "a.mlf": lambda: everything(plain, text),
        "a.bmlf": lambda: everything(plain, binary),
        "states.list": lambda: everything(plain, text),
    }


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("name", ["a.ark", "c.fea", "a.scp", "a.mlf", "a.bmlf", "states.list"])
def test_every_prefix_and_every_flipped_bit_is_data_or_a_located_error(
    name: str, compatible: bool, archive_with_labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(archive_with_labels)  # short paths: fewer bits to flip
    htk.write_features("c.fea", np.arange(6).reshape(3, 2), compressed=True)
    Path("c.scp").write_text("c=c.fea[0,2]\n")
    Path("a.scp").write_text("u0=a.ark[0,2]\nu1=a.ark[3,3]\n")
    reader = readers(Path(), compatible)[name]
    data = Path(name).read_bytes()
    assert reader()
    outcomes = set()
    # In `make test` one of the two readings tries each damage.
    for bad in [*damaged(data)][compatible % step(2) :: step(2)]:
        Path(name).write_bytes(bad)
        try:
            reader()
            outcomes.add("data")
        except FormatError as error:
            assert error.path is not None
            outcomes.add("located")
        except (CntkIoError, OSError) as error:
            assert str(error)
            outcomes.add("refused")
        except ValueError as error:  # a path with a null byte in it
            assert "null byte" in str(error)
    assert "located" in outcomes or name == "states.list"
    assert "data" in outcomes


def test_refuses_to_write_what_the_formats_cannot_express(tmp_path: Path) -> None:
    for options in ({"kind": "WAVEFORM"}, {"kind": "MFCC_V"}, {"kind": "X"}, {"period": -1}):
        with pytest.raises(ConfigError):
            htk.encode_features(np.zeros((1, 1)), **options)
    for values in (np.zeros((0, 1)), np.zeros(3), np.zeros((1, 20_000))):
        with pytest.raises(ConfigError):
            htk.encode_features(values)
    with pytest.raises(ConfigError, match="not finite"):
        htk.encode_features(np.full((1, 1), np.nan), compressed=True)
    with pytest.raises(ConfigError, match="cannot be written in a list"):
        htk.write_archive(tmp_path / "a", tmp_path / "b", [("a=b", np.zeros((1, 1)))])
    for kind in ("MFCC_K", "MFCC_C"):
        with pytest.raises(ConfigError, match="archives have neither compression nor checksums"):
            htk.write_archive(tmp_path / "a", tmp_path / "b", [("a", np.zeros((1, 1)))], kind=kind)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="class 1 has no name; expected at least 2 names, not 1"):
        mlf.write_mlf(tmp_path / "a.mlf", [("u", np.array([1]))], ["x"])
    with pytest.raises(ConfigError):
        mlf.write_mapping(tmp_path / "a.list", ["x", "x"])


def test_refuses_to_write_more_frames_than_the_header_of_an_archive_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit of the format, 2^31 - 1, would take gigabytes.
    monkeypatch.setattr("cntkio.formats.htk.writer.MOST_FRAMES", 3)
    utterances = [("u1", np.zeros((2, 1))), ("u2", np.zeros((1, 1))), ("u3", np.zeros((1, 1)))]
    assert htk.write_archive(tmp_path / "a", tmp_path / "a.scp", utterances[:2])[-1] == ("u2", 2, 2)
    with pytest.raises(ConfigError, match="utterance u3: 4 frames with those before it; .* room for 3: write several"):
        htk.write_archive(tmp_path / "b", tmp_path / "b.scp", utterances)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.scp"]


@pytest.mark.parametrize("kind", [0, 5, 10, 13, 63, 0o40006])
@pytest.mark.parametrize("order", "><")
@pytest.mark.parametrize("end", [b"", b"xy"])
def test_a_file_of_any_kind_is_read_if_its_size_fits(
    kind: int, order: str, end: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    content = struct.pack(order + "iIHH", 3, 0, 8, kind) + values.astype(order + "f4").tobytes() + end
    (tmp_path / "a.fea").write_bytes(content)
    (tmp_path / "a.scp").write_text(f"u1={tmp_path / 'a.fea'}[0,2]\n", encoding="utf-8")
    streams = StreamDefs(x=StreamDef(scp=str(tmp_path / "a.scp"), shape=2))

    def read(**options: Any) -> Any:
        with MinibatchSource(HTKFeatureDeserializer(streams, **options), randomize=False) as source:
            return source.next_minibatch(3)["x"].values

    assert read().tolist() == values.tolist()
    assert "is not for float vectors, but the file has the size of float vectors" in caplog.text
    for options in ({"strict": True}, {"compatible": True}):
        with pytest.raises(FormatError, match="kind|qualifier"):
            read(**options)
    (tmp_path / "a.fea").write_bytes(content + b"1")
    with pytest.raises(FormatError, match="expected a kind of float vectors"):
        read()


def test_files_of_many_kinds_make_one_stream(tmp_path: Path) -> None:
    values = np.array([[1, -2], [3, 4]], np.float32)
    htk.write_features(tmp_path / "big.fea", values, kind="MFCC")
    htk.write_features(tmp_path / "little.fea", values, kind="MFCC", big_endian=False, period=0)
    htk.write_features(tmp_path / "packed.fea", values, kind="MFCC", compressed=True)
    guid = struct.pack(">iIHH", 2, 100_000, 8, 12) + bytes(16) + values.astype(">f4").tobytes()
    (tmp_path / "guid.fea").write_bytes(guid)
    names = ("big", "little", "packed", "guid")
    lists = []
    for name in names:
        lists.append(tmp_path / f"{name}.scp")
        lists[-1].write_text(f"{name}=.../{name}.fea\n")
    assert [utterance["key"] for utterance in read(features(lists))] == list(names)
    for utterance in read(features(lists)):
        np.testing.assert_allclose(utterance["F"], values, atol=1e-4)
    with pytest.raises(FormatError, match=r"little.fea.*utterance|sequence little.*frame shift of 0"):
        read(features(lists, strict=True))


def test_a_compressed_file_of_any_name_keeps_its_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.array([[1, -40], [5, 2]], np.float32)
    htk.write_features("big", values, kind="MFCC", compressed=True)
    htk.write_features("plain", values, kind="MFCC")
    Path("all.scp").write_text("a=big[0,1]\nb=plain[0,1]\n")
    for utterance in read(features(Path("all.scp"))):
        np.testing.assert_allclose(utterance["F"], values, atol=1e-2)


def test_options_by_cntks_names_are_kept_by_copies_and_shown(archive_with_labels: Path) -> None:
    text = labels(archive_with_labels / "a.mlf", None)
    binary = HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=str(archive_with_labels / "a.bmlf"), shape=3)))
    for deserializer in (features(archive_with_labels / "a.scp"), text, binary):
        deserializer["DefinesMBSize"] = "T"
        assert deserializer["definesMBSize"] is True
        for copy in (dataclasses.replace(deserializer), pickle.loads(pickle.dumps(deserializer))):
            assert "defines_mb_size=True" in repr(copy)
            assert copy.parts()[0].open().streams[0].defines_mb_size
        with pytest.raises(ConfigError, match="expected a truth value"):
            deserializer["definesMBSize"] = "yes"


def test_an_option_of_an_older_pickle_is_kept(archive_with_labels: Path) -> None:
    older = {
        key: value for key, value in vars(features(archive_with_labels / "a.scp")).items() if key != "defines_mb_size"
    }
    for was_set in (False, True):
        deserializer = HTKFeatureDeserializer.__new__(HTKFeatureDeserializer)
        deserializer.__setstate__({**older, "_defines_mb_size": was_set})
        assert deserializer.defines_mb_size == was_set
        assert deserializer.open().streams[0].defines_mb_size == was_set


def test_a_deserializer_prints_as_the_call_that_creates_it(archive_with_labels: Path) -> None:
    made = features(str(archive_with_labels / "a.scp"), context=(1, 1), prefix="", strict=True)
    stream = f"StreamDef(shape=2, context=(1, 1), scp={str(archive_with_labels / 'a.scp')!r})"
    assert repr(made) == f"HTKFeatureDeserializer(StreamDefs(F={stream}), strict=True)"
    assert repr(eval(repr(made))) == repr(made)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dimension": 3}, "key 'dimension' is unknown; known are contextWindow, definesMBSize, dim"),
        ({"definesMBSize": "yes"}, "defines_mb_size is 'yes'; expected a truth value"),
        ({"maxSequenceSize": "x"}, "max_sequence_length is 'x'; expected a whole number"),
        ({"scpFile": None}, "no scp files specified"),
        ({"dim": 0}, "expected 1 to"),
        ({"contextWindow": 2}, "expected (left, right), or one odd total number of frames"),
    ],
)
def test_refuses_impossible_options_of_a_stream(options: dict[str, Any], error: str, archive_with_labels: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        features(archive_with_labels / "a.scp", stream_options={"F": options})
    assert error in str(caught.value)


@pytest.mark.parametrize("form", [str, Path, os.fsencode, lambda path: [path], lambda path: [str(path)]])
def test_a_file_or_a_sequence_lists_the_label_files(form: Callable[[Path], Any], archive_with_labels: Path) -> None:
    listed = form(archive_with_labels / "a.mlf")
    if not isinstance(listed, list):
        (archive_with_labels / "files.txt").write_text(f"{archive_with_labels / 'a.mlf'}\n\n")
        listed = form(archive_with_labels / "files.txt")
    streams = StreamDefs(L=StreamDef(shape=3))
    deserializer = HTKMLFDeserializer(
        archive_with_labels / "states.list", streams, stream_options={"L": {"mlfFileList": listed}}
    )
    assert deserializer.open().table.keys.tolist() == ["u0", "u1", "u2"]


@pytest.mark.parametrize("wrong", [5, [5], 0.5])
def test_refuses_files_of_a_stream_that_are_not_paths(wrong: Any) -> None:
    options = {"L": {"mlfFileList": wrong}}
    with pytest.raises(ConfigError, match=r"^mlfFileList(\[0\])? is .*5; expected a path"):
        HTKMLFDeserializer(None, StreamDefs(L=StreamDef(shape=3)), stream_options=options)
    with pytest.raises(ConfigError, match=r"^mlf(\[0\])? is .*5; expected a path"):
        labels(wrong, None)
    with pytest.raises(ConfigError, match=r"^scp(\[0\])? is .*5; expected a path"):
        features(wrong)


def test_options_of_a_stream_by_cntks_keys_replace_its_own(archive_with_labels: Path) -> None:
    options = {"definesMBSize": "true", "ContextWindow": "1:0", "maxSequenceSize": "3", "type": "real"}
    opened = features(archive_with_labels / "a.scp", stream_options={"F": options}).open()
    assert opened.streams[0].defines_mb_size and opened.streams[0].dim == 4
    assert opened.table.keys.tolist() == ["u0", "u1"]


def test_a_missing_file_of_a_list_suggests_the_nearest_name(archive_with_labels: Path) -> None:
    (archive_with_labels / "b.scp").write_text("u0=.../a.arc[0,2]\n")
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*a\.ark'\?"):
        features(archive_with_labels / "b.scp").open()
    with pytest.raises(FileNotFoundError, match=r"did you mean '.*states\.list'\?"):
        labels(archive_with_labels / "a.mlf", archive_with_labels / "state.list").open()


@pytest.mark.parametrize("key", ["input", "INPUT", "streams"])
def test_streams_are_read_by_item(key: str) -> None:
    features = StreamDefs(x=StreamDef(scp="a.scp", shape=2, context=(1, 1)))
    labels = StreamDefs(y=StreamDef(mlf="a.mlf", shape=3))
    assert HTKFeatureDeserializer(features)[key] == features
    assert HTKMLFDeserializer("states.list", labels)[key]["y"].mlf == "a.mlf"
    assert HTKMLFBinaryDeserializer(labels)[key]["y"]["dim"] == 3


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_leading_star_matches_utterances_in_any_folder(archive_with_labels: Path, is_cached: bool) -> None:
    lines = [line.replace("u", "speaker/u", 1) for line in (archive_with_labels / "a.scp").read_text().splitlines()]
    (archive_with_labels / "a.scp").write_text("\n".join(lines))
    text = (archive_with_labels / "a.mlf").read_text()
    (archive_with_labels / "a.mlf").write_text(
        text.replace('"u0', '"*/u0').replace('"u2', '"*/u2') + '"speaker/u2"\n0 4 b\n.\n'
    )
    for _ in range(2):
        deserializer = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list", cache_index=is_cached)
        utterances = read(features(archive_with_labels / "a.scp"), deserializer)
        assert [(utterance["key"], utterance["L"]) for utterance in utterances] == [
            ("speaker/u0", [0, 0, 2]),
            ("speaker/u2", [2, 2, 2, 2]),  # the entry with exactly this key
        ]


def test_a_leading_star_matches_nothing_for_a_compatible_reader(archive_with_labels: Path) -> None:
    (archive_with_labels / "a.scp").write_text((archive_with_labels / "a.scp").read_text().replace("u", "speaker/u", 1))
    (archive_with_labels / "a.mlf").write_text((archive_with_labels / "a.mlf").read_text().replace('"u', '"*/u'))
    deserializer = labels(archive_with_labels / "a.mlf", archive_with_labels / "states.list", compatible=True)
    keys = [utterance["key"] for utterance in read(features(archive_with_labels / "a.scp"), deserializer)]
    assert keys == ["u1", "u2"]


@pytest.mark.parametrize(("compatible", "first"), [(False, b"u1"), (True, b"\xef\xbb\xbfu1")])
def test_a_byte_order_mark_of_a_list_is_skipped(compatible: bool, first: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.scp"
    path.write_text("\ufeffu1=x.ark[0,9]\nu2=x.ark[10,19]\n", encoding="utf-8")

    listed = htk.read_list(path, compatible=compatible)

    assert listed.keys.tolist() == [first, b"u2"]


@pytest.mark.parametrize(
    "line", ["u=.../u[1].mfc", "u=.../u[1].mfc[0,1]", "u = .../u[1].mfc [ 0, 1 ]", "'u'='.../u[1].mfc'"]
)
def test_a_path_with_brackets_is_read_without_quotes(line: str, tmp_path: Path) -> None:
    htk.write_features(tmp_path / "u[1].mfc", np.arange(4).reshape(2, 2))
    (tmp_path / "a.scp").write_text(line)

    (utterance,) = read(features(tmp_path / "a.scp"))

    assert utterance["key"] == "u"


def test_a_wrong_range_suggests_quotes_if_the_list_may_have_them(tmp_path: Path) -> None:
    (tmp_path / "a.scp").write_text("u=x[1]\n")
    for compatible, advice in ((False, ", or quotes around a path that ends in a bracket"), (True, "")):
        with pytest.raises(FormatError, match=rf"line 1, .* with a comma{advice}: 'u=x\[1\]'") as caught:
            htk.read_list(tmp_path / "a.scp", compatible=compatible)
        assert caught.value.kind == "bad range"


# A file with very many frames is compared with its size at opening, before it is read.
@pytest.mark.parametrize("ranged", ["", "[0,1]", "[0,2000000]"])
def test_a_missing_feature_file_names_list_line_utterance_and_prefix(tmp_path: Path, ranged: str) -> None:
    htk.write_features(tmp_path / "u1.mfc", np.zeros((2, 2)))
    first = "[0,1]" if ranged else ""
    (tmp_path / "a.scp").write_text(f"u1=u1.mfc{first}\r\n\r\nu2=gone/x.chunk{ranged}\n")
    with pytest.raises(FileNotFoundError) as caught:
        read(features(tmp_path / "a.scp", prefix=str(tmp_path)))
    assert f"(utterance u2 of {tmp_path}/a.scp, line 3, with the prefix {str(tmp_path)!r})" in str(caught.value)
    assert caught.value.filename == f"{tmp_path}/gone/x.chunk"


def test_missing_whole_files_of_a_list_are_refused_in_its_order(tmp_path: Path) -> None:
    # The list names the first file before the second, but the whole of the first after the whole of the second.
    (tmp_path / "a.scp").write_text("u1=.../a.mfc[0,1]\nu2=.../b.mfc\nu3=.../a.mfc\n")
    refused: list[Exception] = []
    listed = htk.read_list(tmp_path / "a.scp", refuse=refused.append)
    assert listed.keys.tolist() == [b"u1"]
    utterances = [re.search(r"utterance (.*) of .*a.scp, (line \d)", str(error)) for error in refused]
    assert [found and found.groups() for found in utterances] == [("u2", "line 2"), ("u3", "line 3")]


def test_a_header_that_promises_one_frame_too_many_fails_at_opening(tmp_path: Path) -> None:
    htk.write_features(tmp_path / "u1.mfc", np.zeros((3, 2)))
    whole = (tmp_path / "u1.mfc").read_bytes()
    (tmp_path / "u1.mfc").write_bytes(whole[:-1])
    (tmp_path / "a.scp").write_text(f"u1={tmp_path}/u1.mfc\n")
    with pytest.raises(
        FormatError, match=r"u1.mfc, .*sequence u1.*: the header promises 3 frames of 8 bytes, .* has 35"
    ):
        features(tmp_path / "a.scp").open()


def test_the_cost_of_an_utterance_does_not_depend_on_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frames_computed(count: int) -> int:
        """Return how many ends of utterances are computed to read lists of this many files of one utterance."""
        (tmp_path / "a.scp").write_text("".join(f"u{number}={tmp_path}/u1.mfc[0,1]\n" for number in range(count)))
        computed = 0
        ends_of = Listed.ends_of

        def counted(listed: Listed, which: Any) -> Any:
            nonlocal computed
            ends = ends_of(listed, which)
            computed += np.size(ends)
            return ends

        with monkeypatch.context() as patched:
            patched.setattr(Listed, "ends_of", counted)
            archive_with_labels = features(tmp_path / "a.scp").open()
            archive_with_labels.load(0)
        return computed

    htk.write_features(tmp_path / "u1.mfc", np.zeros((2, 2)))
    assert frames_computed(400) <= 4 * frames_computed(100) + 100


CLAIM = struct.pack(">iIHH", 2**31 - 1, 100_000, 4, 9) + bytes(16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("u=.../a.mfc", "sequence u: the header promises 2147483647 frames of 4 bytes, but the file has 28 bytes"),
        ("u=.../a.mfc[0,2147483645]", "sequence u, stream 'F': frames up to 2147483645 .*, but the file has 28 bytes"),
        ("t=.../a.mfc[0,1]\nu=.../a.mfc[5,70000000]", "sequence u, .* up to 70000000 are wanted, but the file has 28"),
    ],
)
def test_refuses_lists_and_headers_that_claim_more_frames_than_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.mfc").write_bytes(CLAIM)
    (tmp_path / "a.scp").write_text(text)
    before = peak_memory()
    with pytest.raises(FormatError, match=message):
        MinibatchSource(features(tmp_path / "a.scp", 1), frame_mode=True, max_sweeps=1)
    assert peak_memory() - before < 200_000_000

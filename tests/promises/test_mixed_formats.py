"""Corpora with the same streams are mixed, whatever their formats are: the data are as if all had one format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    Budget,
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    KaldiDeserializer,
    MinibatchSource,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    StreamInformation,
    packed,
    write_cbf,
    write_ctf,
    write_kaldi,
)
from cntkio.formats import htk, mlf
from cntkio.formats.user import UserDeserializer
from scipy.sparse import csr_array
from support.rounds import step

pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from cntkio.arrow import ArrowDeserializer, write_arrow, write_parquet

DIM = 3
NAME = "x"
LENGTHS = ([2, 1, 3, 1, 1, 4, 2], [1, 5, 1, 2, 2])
KEYS = [[f"{part}u{number}" for number in range(len(lengths))] for part, lengths in zip("ab", LENGTHS, strict=True)]


def frames_of(part: int, dtype: str) -> list[np.ndarray]:
    """Return the frames of the utterances of a part, whole numbers that every format keeps."""
    starts = 100 * (part + 1) + np.cumsum([0, *LENGTHS[part]])
    return [np.arange(DIM * first, DIM * last).reshape(-1, DIM).astype(dtype) for first, last in pairwise(starts)]


def classes_of(part: int) -> list[np.ndarray]:
    return [(np.arange(length) * 7 + part + length) % DIM for length in LENGTHS[part]]


class InPython(UserDeserializer):
    """A part that a program has in its memory."""

    timeline = "global"

    def __init__(self, part: int, sequences: list[Any], info: StreamInformation) -> None:
        super().__init__()
        self._part, self._sequences, self._info = part, sequences, info

    def stream_infos(self) -> list[StreamInformation]:
        return [self._info]

    def num_chunks(self) -> int:
        return 1

    def chunk_lengths(self, chunk_id: int) -> list[int]:
        return [x.shape[0] for x in self._sequences]

    def get_keys(self, chunk_id: int) -> list[str]:
        return KEYS[self._part]

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        return {NAME: self._sequences}


def in_python(part: int, sequences: list[Any], form: str, dtype: Any, shape: Any) -> InPython:
    return InPython(part, sequences, StreamInformation(NAME, 0, form, dtype, shape))


Make = Callable[[Path, int], Any]


def of_cntk(dtype: str, is_sparse: bool, sequences: Callable[[int], list[Any]]) -> dict[str, Make]:
    """Return the formats that keep any stream."""
    form, shape = "sparse" if is_sparse else "dense", DIM

    def written(path: Path, part: int, write: Callable[..., None], **options: Any) -> str:
        write(path, in_python(part, sequences(part), form, dtype, shape), **options)
        return str(path)

    def documented(path: Path, part: int) -> CBFDeserializer:
        return CBFDeserializer(written(path, part, write_cbf, layout="documented"))

    streams = StreamDefs({NAME: StreamDef(field=NAME, shape=shape, is_sparse=is_sparse)})
    return {
        "ctf": lambda path, part: CTFDeserializer(written(path, part, write_ctf, renumber=True), streams, dtype=dtype),
        "cbf": lambda path, part: CBFDeserializer(written(path, part, write_cbf)),
        "copied cbf": lambda path, part: CBFDeserializer(written(path, part, write_cbf), memory_map=False),
        "parquet": lambda path, part: ArrowDeserializer(written(path, part, write_parquet)),
        "arrow": lambda path, part: ArrowDeserializer(written(path, part, write_arrow)),
        "python": lambda path, part: in_python(part, sequences(part), form, dtype, shape),
        # Its dense sequences have one sample each.
        **({"documented cbf": documented} if is_sparse or len(sequences(0)[0]) == 1 else {}),
    }


def of_frames(dtype: str) -> dict[str, Make]:
    def htk_lists(path: Path, part: int) -> HTKFeatureDeserializer:
        utterances = zip(KEYS[part], frames_of(part, "float32"), strict=True)
        htk.write_archive(path.with_suffix(".ark"), path.with_suffix(".scp"), list(utterances))
        streams = StreamDefs({NAME: StreamDef(scp=path.with_suffix(".scp"), shape=DIM)})
        return HTKFeatureDeserializer(streams, dtype=dtype)

    def kaldi(path: Path, part: int) -> KaldiDeserializer:
        write_kaldi(path, {NAME: frames_of(part, dtype)})
        return KaldiDeserializer(path, stream=NAME, dtype=dtype)

    return {**of_cntk(dtype, False, lambda part: frames_of(part, dtype)), "htk": htk_lists, "kaldi": kaldi}


def one_hot(part: int, dtype: str) -> list[Any]:
    return [csr_array(np.eye(DIM, dtype=dtype)[classes]) for classes in classes_of(part)]


def label_file(path: Path, part: int, **options: Any) -> Any:
    mlf.write_mlf(path, list(zip(KEYS[part], classes_of(part), strict=True)), ["a", "b", "c"])
    mlf.write_mapping(path.with_suffix(".states"), ["a", "b", "c"])
    streams = StreamDefs({NAME: StreamDef(mlf=str(path), shape=DIM)})
    return cntkio.HTKMLFDeserializer(path.with_suffix(".states"), streams, **options)


def binary_labels(path: Path, part: int, **options: Any) -> Any:
    mlf.write_binary_mlf(path, list(zip(KEYS[part], classes_of(part), strict=True)))
    return cntkio.HTKMLFBinaryDeserializer(StreamDefs({NAME: StreamDef(mlf=str(path), shape=DIM)}), **options)


def alignments(path: Path, part: int, **options: Any) -> KaldiDeserializer:
    lines = (
        f"{key} {' '.join(map(str, classes))}\n" for key, classes in zip(KEYS[part], classes_of(part), strict=True)
    )
    path.write_text("".join(lines))
    return KaldiDeserializer(path, stream=NAME, shape=DIM, **options)


def of_classes(dtype: str) -> dict[str, Make]:
    labels = {"mlf": label_file, "binary mlf": binary_labels, "alignments": alignments}
    made = {name: (lambda path, part, make=make: make(path, part, dtype=dtype)) for name, make in labels.items()}
    return {**of_cntk(dtype, True, lambda part: one_hot(part, dtype)), **made}


def of_ids() -> dict[str, Make]:
    def python(path: Path, part: int) -> InPython:
        return in_python(part, [classes.astype("int32") for classes in classes_of(part)], "dense", "int32", ())

    labels = {"mlf": label_file, "binary mlf": binary_labels, "alignments": alignments}
    ids = {name: (lambda path, part, make=make: make(path, part, as_class_ids=True)) for name, make in labels.items()}
    return {**ids, "python": python}


STREAMS: dict[str, dict[str, Make]] = {
    "frames": of_frames("float32"),
    "frames in double precision": of_frames("float64"),
    "classes": of_classes("float32"),
    "classes in double precision": of_classes("float64"),
    "sparse": of_cntk("float32", True, lambda part: [csr_array(x % 5) for x in frames_of(part, "float32")]),
    "class ids": of_ids(),
    "one sample each": of_cntk("float32", False, lambda part: [x[:1] for x in frames_of(part, "float32")]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], Any]:
    """Return a function that writes the files of a part in a format, and returns its deserializer."""
    known: dict[tuple[str, str, int], Any] = {}

    def make(stream: str, form: str, part: int) -> Any:
        key = (stream, form, part)
        if key not in known:
            known[key] = STREAMS[stream][form](tmp_path_factory.mktemp("part") / "data", part)
        return known[key]

    return make


def mixture(first: Any, second: Any) -> SequenceMixture:
    """Return a mixture of two parts: three sequences of the first to two of the second."""
    return SequenceMixture({"a": (first, 3), "b": (second, 2)}, stop="all")


def plain(data: Any) -> list[Any]:
    arrays = (getattr(data, name, None) for name in ("values", "offsets", "indices", "indptr"))
    return [None if array is None else (array.dtype.str, array.tolist()) for array in arrays]


def minibatches(source: SequenceMixture) -> Iterator[Any]:
    while (minibatch := source.read(9)) is not None:
        yield minibatch


def everything(source: SequenceMixture) -> list[Any]:
    """Return what a mixture delivers: ragged, padded, and in packed rows."""
    with source:
        found = []
        for minibatch in minibatches(source):
            data, is_sparse = minibatch[NAME], minibatch[NAME].stream.is_sparse
            found += [plain(data), data.mask.tolist(), data.asarray().tolist(), minibatch.source_of_sequences.tolist()]
            if not is_sparse:
                rows = packed(minibatch, 16)
                found.append([rows.values[NAME].tolist(), rows.segment_ids.tolist(), rows.position_ids.tolist()])
    return found


PAIRS = [(stream, form) for stream, formats in STREAMS.items() for form in formats]


@pytest.mark.parametrize(("stream", "form"), PAIRS)
def test_a_mixture_of_two_formats_is_as_a_mixture_of_one(made: Any, stream: str, form: str) -> None:
    reference = next(iter(STREAMS[stream]))
    expected = everything(mixture(made(stream, reference, 0), made(stream, reference, 1)))
    for other in list(STREAMS[stream])[:: step(3)]:
        assert everything(mixture(made(stream, form, 0), made(stream, other, 1))) == expected, other


WRITERS: dict[str, Callable[..., None]] = {
    "ctf": write_ctf,
    "cbf": write_cbf,
    "documented cbf": lambda path, data: write_cbf(path, data, layout="documented"),
    "parquet": write_parquet,
    "arrow": write_arrow,
    "kaldi": write_kaldi,
}


# An archive has no sparse samples.
STREAMS_OF_WRITERS = [("one sample each", name) for name in WRITERS] + [
    ("classes", name) for name in list(WRITERS)[:-1]
]


@pytest.mark.parametrize(("stream", "name"), STREAMS_OF_WRITERS)
def test_writers_take_a_mixture_of_two_formats(made: Any, tmp_path: Path, stream: str, name: str) -> None:
    written = []
    for number, form in enumerate(("cbf", "ctf")):
        # With words as keys in both, so that the keys are the same.
        with mixture(made(stream, "python", 0), made(stream, form, 1)) as source:
            WRITERS[name](tmp_path / str(number), source)
        written.append((tmp_path / str(number)).read_bytes())
    assert written[0] == written[1]


def test_a_plan_of_two_formats_agrees_with_the_minibatches(made: Any) -> None:
    with mixture(made("frames", "htk", 0), made("frames", "cbf", 1)) as source:
        planned = source.plan(9).steps(99)
        delivered = [(len(one.keys_of_sequences), one[NAME].num_samples) for one in minibatches(source)]
    assert list(zip(planned.num_sequences.tolist(), planned.num_samples.tolist(), strict=True)) == delivered


def test_a_rare_part_of_another_format_comes_in_its_turn(made: Any) -> None:
    parts = {"often": (made("frames", "ctf", 0), 999), "rarely": (made("frames", "cbf", 1), 1)}
    with SequenceMixture(parts, stop="forever") as source:
        seen = set[str]()
        for _ in range(60):
            minibatch = source.read(Budget(sequences=50))
            assert minibatch is not None
            seen |= set(minibatch.source_of_sequences.tolist())
    assert seen == {"often", "rarely"}


@pytest.mark.parametrize("options", [{}, {"frame_mode": True}, {"truncation_length": 2}])
def test_binary_files_of_both_layouts_are_one_corpus(tmp_path: Path, options: dict[str, Any]) -> None:
    def keys_and_values(*layouts: Any) -> list[Any]:
        for part, layout in enumerate(layouts):
            x = [frame[:1] for frame in frames_of(part, "float32")]
            write_cbf(tmp_path / f"{part}.cbf", in_python(part, x, "dense", "float32", DIM), layout=layout)
        deserializer = CBFDeserializer([tmp_path / f"{part}.cbf" for part in range(len(layouts))])
        with MinibatchSource(deserializer, max_sweeps=2, **options) as source:
            return [(one.keys_of_sequences.tolist(), one[NAME].values.tolist()) for one in source.minibatches(4)]

    assert keys_and_values("documented", "2.x") == keys_and_values("2.x", "2.x")

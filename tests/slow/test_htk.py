"""The readers of HTK features and labels agree with their slow twins on valid and broken input."""

import contextlib
import logging
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    ConfigError,
    CorpusError,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.damage import damaged
from support.rounds import rounds

from slow import htk as slow_htk

NAMES = [b"sil", b"aa", b"b c", b"\xc3\xa9"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run each test in a folder of its own, for short paths, and without warnings on the screen."""
    monkeypatch.chdir(tmp_path_factory.mktemp("slow_htk"))
    logger = logging.getLogger("cntkio")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


# -------------------------------------------------------------------------------------------------------- features

SOUND_KINDS = [1, 6, 7, 9, 11, 12, 9 | 0o100, 9 | 0o10000, 9 | 0o2000, 6 | 0o2000, 12 | 0o2000]
OTHER_KINDS = [0, 5, 10, 13, 9 | 0o40000]


@st.composite
def feature_files(draw: st.DrawFn, dim: int) -> bytes:
    def usually(sound: Any, *others: Any) -> Any:
        return draw(st.sampled_from(others)) if is_damaged and draw(st.booleans()) else sound

    is_damaged = draw(st.sampled_from([False, False, False, True]))
    order = draw(st.sampled_from("><"))
    kind = usually(draw(st.sampled_from(SOUND_KINDS)), *OTHER_KINDS)
    is_compressed, num_frames = bool(kind & 0o2000), usually(draw(st.integers(2, 5)), 0, 1)
    size = dim * (2 if is_compressed else 4)
    count = num_frames + (4 if is_compressed else 0) + usually(0, -1, 1, -100)
    period = draw(st.sampled_from([0, 100_000, 256, 0xFFFFFFFF]))
    header = struct.pack(order + "iIHH", count, period, usually(size, 0, size + 1, size + 2, size + 4), kind)
    data = draw(st.binary(min_size=num_frames * size, max_size=num_frames * size))
    if is_compressed:
        scales = st.lists(st.floats(width=32), min_size=2 * dim, max_size=2 * dim)
        data = struct.pack(f"{order}{2 * dim}f", *draw(scales)) + data
    whole = header + (bytes(16) if kind == 12 else b"") + data + draw(st.sampled_from([b"", b"", b"xy"]))
    return whole[: usually(len(whole), len(whole) - 1, 12, 11, 0)]


def lines(ids: list[str], paths: list[str], ranges: list[str]) -> st.SearchStrategy[str]:
    ends = ["\n", "\n", "\r\n", "\r", " \n", "\n\n"]
    parts = (["", "", " ", "\t"], ids, paths, ranges, ends)
    return st.tuples(*(st.sampled_from(part) for part in parts)).map("".join)


SOUND_LINES = lines(
    ["u1=", "u2 = ", "u3.mfc=", "v.1/u1.x=", "'u4'=", '"u5" =', "u6\t=", ""],
    ["a.fea", "b.fea", "'a.fea'", ".../b.fea", '"b.fea" ', "...\\a.fea", "a[1].fea"],
    ["", "[0,0]", "[0,1]", "[1,1]", " [ 0 , 1 ]", "\t[00,1] "],
)
OTHER_LINES = lines(
    ["u1=", '"u6=', "=", "", "'u4"],
    ["a.fea", "missing", "", "'a.fea"],
    ["[2,1]", "[0,9]", "[0]", "[x,1]", "[0,1", "[0,1]", "[0,1]x"],
)
LINES = st.sampled_from([SOUND_LINES] * 9 + [OTHER_LINES]).flatmap(lambda some: some)


def as_bytes(key: str) -> bytes:
    """Return the bytes of a key that a user sees, where bytes that are not UTF-8 are escaped."""
    return re.sub(rb"\\x([89a-f][0-9a-f])", lambda found: bytes([int(found[1], 16)]), key.encode())


def fast_features(dim: int, left: int, right: int) -> Any:
    streams = StreamDefs(F=StreamDef(scp="a.scp", shape=dim, context=(left, right)))
    found = {}
    with MinibatchSource(HTKFeatureDeserializer(streams), randomize=False, max_sweeps=1) as source:
        for minibatch in source.minibatches(1):
            rows = [frame.tobytes() for frame in minibatch["F"].values.astype(">f4")]
            found[as_bytes(minibatch.keys_of_sequences[0])] = [
                [row[at : at + 4] for at in range(0, len(row), 4)] for row in rows
            ]
    return found


def same_numbers(found: Any) -> Any:
    """Replace every NaN by a word, because values computed from compressed features may be any NaN."""
    if isinstance(found, bytes):
        return "nan" if np.isnan(np.frombuffer(found, ">f4")[0]) else found
    return [same_numbers(one) for one in found] if isinstance(found, list) else found


@settings(max_examples=rounds(400))
@given(
    dim=st.sampled_from([1, 1, 2, 3]),
    data=st.data(),
    text=st.lists(LINES, min_size=1, max_size=4).map("".join),
    context=st.sampled_from([(0, 0), (0, 0), (1, 2), (3, 0)]),
)
def test_features_agree_with_the_slow_twin(dim: int, data: st.DataObject, text: str, context: tuple[int, int]) -> None:
    other = data.draw(st.sampled_from([dim] * 9 + [dim + 1]))
    files = {b"a.fea": data.draw(feature_files(dim)), b"b.fea": data.draw(feature_files(other))}
    files[b"a[1].fea"] = files[b"b.fea"]
    for name, content in files.items():
        Path(name.decode()).write_bytes(content)
    Path("a.scp").write_bytes(text.encode())

    def read(path: bytes) -> bytes:
        with contextlib.suppress(KeyError):
            return files[path.removeprefix(b"./")]
        raise slow_htk.Refused("no such file")

    try:
        expected: Any = slow_htk.corpus(slow_htk.scp(text.encode(), b"."), read, *context)
        found_dim = len(next(iter(expected.values()))[0]) // (1 + sum(context))
        # Without a context, an odd multiple of the dimension implies a window.
        if found_dim != dim:
            expected = "refused"
    except slow_htk.Refused:
        expected = "refused"
    try:
        found: Any = fast_features(dim, *context)
    except (FormatError, CorpusError, ConfigError, FileNotFoundError):
        found = "refused"
    event("refused" if expected == "refused" else "data")
    if found == "refused" or expected == "refused":
        assert found == expected
    else:
        assert {key: same_numbers(one) for key, one in found.items()} == {
            key: same_numbers(one) for key, one in expected.items()
        }


# ---------------------------------------------------------------------------------------------------------- labels


ROWS = st.builds(
    "{}{}{}{}{}{}{}".format,
    st.sampled_from(
        ["0", "1", "2", "100000", "300000", "0.0", "1e5", "+1", "-1", "x", "50000", "99999999999999999999"]
    ),
    st.sampled_from([" ", "  ", "\t"]),
    st.sampled_from(["1", "2", "3", "100000", "300000", "5e4", "400000x", "0", "", "149999", "1e30"]),
    st.sampled_from([" ", "\t "]),
    st.sampled_from(["sil", "aa", '"b c"', "'b\\040c'", "'\\303\\251'", "zz", "", '"aa', "'b\\ c' 3"]),
    st.sampled_from(["", " 1.5", " 0", " 3", "\t7 x", " 3q"]),
    st.sampled_from(["\n", "\r\n", " \n"]),
)
SOUND_ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["sil", "aa", "'b c' -1.5 x"])), max_size=4)


@st.composite
def entries(draw: st.DrawFn) -> str:
    sound = ['"u1.lab"\n', '"*/u2.rec"\n', '"v.1/u3"\r\n', ' "u4"\n', '"u5 x.y" \n', '\n"v.1/u6"\n']
    key = draw(st.sampled_from([*sound, *sound, "u7\n", '"u8*"\n', '""\n', '"u9.\n']))
    if draw(st.sampled_from([True, True, True, False])):
        unit, ends, rows = draw(st.sampled_from([1, 100_000])), [0], []
        for length, label in draw(SOUND_ROWS):
            ends.append(ends[-1] + length)
            rows.append(f"{ends[-2] * unit} {ends[-1] * unit} {label}\n")
        body = "".join(rows)
    else:
        body = "".join(draw(st.lists(ROWS, max_size=3)))
    return key + body + draw(st.sampled_from([".\n"] * 9 + [".\r\n", ".\n\n", ". \n", "", ".\n#!MLF!#\n"]))


def fast_labels(names: list[bytes] | None, dim: int) -> Any:
    mapping = None
    if names is not None:
        mapping = "states.list"
        Path(mapping).write_bytes(b"\n".join(names))
    corpus = HTKMLFDeserializer(mapping, StreamDefs(L=StreamDef(mlf="a.mlf", shape=dim))).open()
    traits, found = corpus.index.utterances, {}
    for number, key in enumerate(map(as_bytes, corpus.table.keys.tolist())):
        if traits.broken is not None and traits.broken[number]:
            assert str(traits.complaint(number)).startswith("a.mlf, line ")
            found[key] = "broken"
        elif traits.invalid is not None and traits.invalid[number]:
            found[key] = "invalid"
        else:
            frames, classes = corpus.index.layout.rows(number)
            found[key] = np.repeat(classes, frames).tolist()
    return found


@settings(max_examples=rounds(600))
@given(
    header=st.sampled_from(["#!MLF!#\n"] * 8 + ["\ufeff#!MLF!# \n", "\n\n#!MLF!#\r\n", "", "x\n"]),
    body=st.lists(entries(), max_size=4).map("".join),
    names=st.sampled_from([NAMES, NAMES, None]),
    dim=st.sampled_from([4, 4, 2]),
)
def test_labels_agree_with_the_slow_twin(header: str, body: str, names: list[bytes] | None, dim: int) -> None:
    text = (header + body).encode()
    Path("a.mlf").write_bytes(text)
    try:
        expected: Any = slow_htk.mlf(text, names, dim)
    except slow_htk.Refused:
        expected = "refused"
    try:
        found: Any = fast_labels(names, dim)
    except FormatError as error:
        assert error.path == "a.mlf"
        found = "refused"
    except CorpusError:
        found = "refused"
    if isinstance(found, dict) and isinstance(expected, dict):
        for key, one in expected.items():
            if one == "broken or invalid":
                assert found[key] in ("broken", "invalid")
                expected = {**expected, key: found[key]}
    event("refused" if expected == "refused" else ", ".join(sorted({str(type(one)) for one in expected.values()})))
    assert found == expected


def test_a_class_outside_the_stream_is_found_among_plain_lines() -> None:
    plain = "".join(f"{frame} {frame + 1} sil\n" for frame in range(20))
    text = f'#!MLF!#\n"u1"\n{plain}20 21 aa\n21 22 {NAMES[3].decode()}\n.\n"u2"\n{plain}.\n'.encode()
    Path("a.mlf").write_bytes(text)
    found = fast_labels(NAMES, 2)
    assert found == slow_htk.mlf(text, NAMES, 2)
    assert found[b"u1"] == "broken" and len(found[b"u2"]) == 20


# --------------------------------------------------------------------------------------------------- damaged files


def test_damaged_labels_agree_with_the_slow_twin() -> None:
    text = b'#!MLF!#\n"*/u1.lab"\n0 200000 sil 1\n200000 300000 \'b c\'\n.\n"u2"\n0 2 aa\n2 2 sil\n.\n'
    outcomes = set()
    for bad in damaged(text):
        Path("a.mlf").write_bytes(bad)
        try:
            expected: Any = slow_htk.mlf(bad, NAMES, 4)
        except slow_htk.Refused:
            expected = "refused"
        try:
            found: Any = fast_labels(NAMES, 4)
        except (FormatError, CorpusError):
            found = "refused"
        assert found == expected, bad
        outcomes.add(expected if isinstance(expected, str) else "data")
    assert outcomes == {"refused", "data"}


def test_damaged_features_agree_with_the_slow_twin() -> None:
    values = struct.pack(">6f", *range(6))
    plain = struct.pack(">iIHH", 3, 100_000, 8, 6 | 0o100) + values
    packed = struct.pack("<iIHH", 6, 100_000, 4, 9 | 0o2000) + struct.pack("<4f4h", 2, 3, 1, 0.5, 1, -2, 3, 4)
    Path("a.scp").write_text("u1=a.fea\nu2=a.fea[1,1]\n")
    outcomes = set()
    for whole in (plain, packed):
        for bad in damaged(whole):
            Path("a.fea").write_bytes(bad)
            try:
                expected: Any = slow_htk.corpus(slow_htk.scp(Path("a.scp").read_bytes(), b"."), lambda _, bad=bad: bad)
                expected = {key: same_numbers(one) for key, one in expected.items()}
            except slow_htk.Refused:
                expected = "refused"
            if expected != "refused" and len(expected[b"u1"][0]) not in (2, 6):  # 6 implies a window
                expected = "refused"
            try:
                found: Any = {key: same_numbers(one) for key, one in fast_features(2, 0, 0).items()}
            except FormatError as error:
                assert error.path in ("a.fea", "a.scp")
                found = "refused"
            except ConfigError:
                found = "refused"
            assert found == expected, bad
            outcomes.add(expected if isinstance(expected, str) else "data")
    assert outcomes == {"refused", "data"}

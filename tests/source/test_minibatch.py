"""A minibatch as a mapping, and the arrays of its streams."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import ConfigError, MinibatchSourceFromData, StreamInformation, _core, read_ctf
from cntkio.formats.table import Column
from support.builders import corpus_text, source_of
from support.rounds import rounds
from support.threads import together


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.ctf"
    file.write_bytes(corpus_text([1 + key % 4 for key in range(60)]))
    return file


def test_a_minibatch_is_addressed_by_stream_and_by_name(path: Path) -> None:
    with source_of(path, randomize=False) as source:
        minibatch = source.next_minibatch(7)
        assert minibatch["x"] is minibatch[source.streams.x] is minibatch[source["x"]] is minibatch[source.streams["x"]]
        assert "x" in minibatch and source.streams.x in minibatch and "y" not in minibatch
        with pytest.raises(KeyError, match="no stream 'y'; there are: 's', 'x'"):
            minibatch["y"]
        with pytest.raises(ConfigError, match="no stream has the name 'y'; there are: 's', 'x'"):
            source.stream_info("y")
        mapped = source.next_minibatch(7, input_map={"features": source.streams.x, 5: source.streams.s})
        assert list(mapped) == ["features", 5]
        assert source.stream_infos() == [source.streams.s, source.streams.x]


def test_a_minibatch_is_a_mapping_of_names(path: Path) -> None:
    def names_of(**streams: Any) -> list[str]:
        return list(streams)

    with source_of(path, randomize=False) as source:
        minibatch = source.next_minibatch(7)
        x, s = minibatch["x"], minibatch["s"]
        assert isinstance(minibatch, Mapping)
        assert list(minibatch) == list(minibatch.keys()) == names_of(**minibatch) == ["s", "x"]
        assert list(minibatch.items()) == [("s", s), ("x", x)] and list(minibatch.values()) == [s, x]
        assert dict(minibatch) == {"s": s, "x": x} == minibatch and len(minibatch) == 2
        assert "x" in minibatch and minibatch.get("x") is x
        assert "y" not in minibatch and minibatch.get("y", 5) == 5 and minibatch.get("y") is None


def test_a_minibatch_takes_descriptions_of_its_own_streams_alone(path: Path) -> None:
    with source_of(path, randomize=False) as source:
        minibatch = source.next_minibatch(7)
        own = source.streams.x
        equal = StreamInformation(own.name, own.stream_id, own.storage_format, own.dtype, own.shape)
        other = StreamInformation(own.name, own.stream_id, own.storage_format, own.dtype, (7,))
        for info in (own, equal):
            assert info in minibatch and minibatch[info] is minibatch.get(info) is minibatch["x"]
        assert other not in minibatch and minibatch.get(other, 5) == 5
        with pytest.raises(KeyError, match="stream 'x' is StreamInformation.* not StreamInformation"):
            minibatch[other]
        assert [minibatch[info] for info in source.streams.values()] == list(minibatch.values())


def test_the_end_of_the_data_is_an_empty_mapping(path: Path) -> None:
    with source_of(path, max_sweeps=1) as source:
        assert source.next_minibatch(1000)
        assert not source.next_minibatch(1000) and source.next_minibatch(1000) == {}


def test_every_kind_of_minibatch_is_a_mapping_of_names(path: Path) -> None:
    minibatches = [read_ctf(path), MinibatchSourceFromData({"s": np.ones(3), "x": np.ones(3)}).next_minibatch(2)]
    with source_of(path, truncation_length=2) as source:
        minibatches.append(source.next_minibatch(4))
    for minibatch in minibatches:
        assert list(minibatch) == ["s", "x"] and dict(minibatch)["x"] is minibatch.get("x") is minibatch["x"]
        assert minibatch["x"].stream in minibatch and minibatch["x"] is minibatch[minibatch["x"].stream]


def test_values_can_be_changed_in_place(path: Path) -> None:
    with source_of(path, randomize=False) as source:
        data = source.next_minibatch(7)["x"]
        expected = data.values / 2
        data.values /= 2
        assert np.array_equal(data.values, expected) and data.arrays.values is data.values


def test_threads_that_first_ask_for_arrays_together_get_the_same_objects(path: Path) -> None:
    with source_of(path, randomize=False, max_sweeps=1) as source:
        minibatches = [*iter(lambda: source.next_minibatch(3), {})]
    assert len(minibatches) > 4
    for data in (data for minibatch in minibatches for data in minibatch.values()):
        first, *others = together(4, lambda _, data=data: data.arrays)
        assert all(array is same for other in others for array, same in zip(other, first, strict=True))


def test_threads_together_pack_each_minibatch_once() -> None:
    count = 4000
    firsts, values = np.arange(count + 1, dtype=np.uint32), np.arange(16 * count, dtype=np.float32)
    chunk = _core.Chunk.from_columns(count, [Column(firsts, values, 16, None)])
    bounds = list(range(count + 1))
    indices = np.arange(count, dtype=np.uint32)
    request = _core.PackRequest([chunk], np.zeros(count, np.uint32), indices, [(0, False, 0)], bounds)
    for _ in range(rounds(150)):
        (packed,), _ = _core.pack([request], 4)
        minibatches = list(zip(*_core.places(packed, 0)[:2], strict=True))
        assert len(minibatches) == count
    assert [several.arrays(0, number)[0][0] for several, number in minibatches] == values[::16].tolist()


def test_small_minibatches_are_what_each_alone_is() -> None:
    """The core gathers several together, and separates the arrays of each when one of them is first asked for."""
    random = np.random.default_rng(0)
    count = 700
    firsts = np.append(0, np.cumsum(random.integers(0, 4, count))).astype(np.uint32)
    num_samples = int(firsts[-1])
    entry_firsts = np.append(0, np.cumsum(random.integers(0, 5, num_samples))).astype(np.uint32)
    indices = random.integers(0, 90, entry_firsts[-1]).astype(np.int32)
    dense = Column(firsts, random.random(3 * num_samples, np.float32), 3, None)
    sparse = Column(firsts, random.random(len(indices)), 90, (entry_firsts, indices))
    chunk = _core.Chunk.from_columns(count, [dense, sparse])
    order = random.permutation(count).astype(np.uint32)
    bounds = np.sort(np.concatenate([[0, 0, count, count], random.integers(0, count, 300)])).tolist()
    streams = [(0, False, 0), (1, True, 1)]
    request = _core.PackRequest([chunk], np.zeros(count, np.uint32), order, streams, bounds)
    (packed,), num_bytes = _core.pack([request], 2)
    assert 1 < len(packed) < len(bounds) - 1 and num_bytes > 0
    longest = [[count for several in packed for count in several.longest(stream)] for stream in (0, 1)]
    of_streams = [_core.places(packed, stream) for stream in (0, 1)]
    for number, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        own = order[first:last]
        request = _core.PackRequest([chunk], np.zeros(len(own), np.uint32), own, streams, [0, len(own)])
        ((alone,),), _ = _core.pack([request], 2)
        for stream in (1, 0) if number % 2 else (0, 1):
            several, place, num_samples = (each[number] for each in of_streams[stream])
            assert several.num_sequences(place) == alone.num_sequences() == len(own)
            assert longest[stream][number] == alone.longest(stream)[0]
            assert num_samples == _core.places([alone], stream)[2][0]
            values, offsets, entries = several.arrays(stream, place)
            expected_values, expected_offsets, expected_entries = alone.arrays(stream)
            assert values.dtype == expected_values.dtype and np.array_equal(values, expected_values)
            assert np.array_equal(offsets, expected_offsets) and (entries is None) == (expected_entries is None)
            for found, expected in zip(entries or (), expected_entries or (), strict=True):
                assert np.array_equal(found, expected)
            assert alone.arrays(stream)[0] is expected_values
            assert not len(values) or np.shares_memory(several.arrays(stream, place)[0], values)

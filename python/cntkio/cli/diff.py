"""The verb `diff`: how two corpora differ in streams, keys, lengths and values. (docs/cli.md)

A pass over each corpus keeps a hash of each sequence of each stream, so memory is bounded by a few chunks and the
hashes. Only the sequences that are printed are compared value by value.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.cli.inspect import SequencesOf, in_words
from cntkio.cli.show import BAD_DATA, FINE, Facts, described, form_of, in_minibatches, inputs_of, surveyed
from cntkio.corpora import Described
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.formats.contract import Corpus
from cntkio.minibatch import MinibatchData
from cntkio.streams import StreamInformation

_SAMPLES_AT_ONCE = 1 << 16


_Array = npt.NDArray[Any]
_Dtypes = dict[str, np.dtype[Any]]
_Streams = dict[str, StreamInformation]
_Data = dict[str, MinibatchData]


class _Side(NamedTuple):
    """A corpus.

    Attributes:
        corpora: What it consists of, opened.
        hashes: For each stream whose values can be compared, uint64 [2, sequences]: number of samples, and a hash.
    """

    name: str
    corpora: Sequence[Corpus]
    streams: _Streams
    keys: _Array
    hashes: dict[str, npt.NDArray[np.uint64]]


def diff(options: Namespace) -> int:
    """Compare two corpora, and print how they differ."""
    with inputs_of(options) as files:
        both = [one for file in files for one in described(options, file)]
        if len(both) != 2:
            raise ConfigError("a configuration with several readers cannot be compared; expected one reader")
        with both[0].opened() as first, both[1].opened() as second:
            opened = (first, second)
            streams = [{info.name: info for corpus in corpora for info in corpus.streams} for corpora in opened]
            common = [name for name in streams[0] if name in streams[1] and _are_alike(*(of[name] for of in streams))]
            # A value that differs only because one corpus rounds it to float32 is not a difference.
            dtypes = {name: min((of[name].dtype for of in streams), key=attrgetter("itemsize")) for name in common}
            sides = [_side(options, *each, dtypes) for each in zip(both, opened, streams, strict=True)]
            facts = Facts(first=sides[0].name, second=sides[1].name)
            is_equal = _compare(options, facts, sides)
            facts.show(as_json=options.json)
    return FINE if is_equal else BAD_DATA


def _are_alike(first: StreamInformation, second: StreamInformation) -> bool:
    """Return whether values can be compared. Two files may need different dimensions for one sparse stream."""
    return first.is_sparse == second.is_sparse and (first.is_sparse or first.dim == second.dim)


def _side(options: Namespace, one: Described, corpora: Sequence[Corpus], streams: _Streams, dtypes: _Dtypes) -> _Side:
    keys: list[_Array] = []
    hashes = {name: [np.empty((2, 0), np.uint64)] for name in dtypes}
    for block_keys, data in _blocks(options, one, corpora):
        keys.append(block_keys)
        for name, dtype in dtypes.items():
            lengths = np.diff(data[name].offsets).astype(np.uint64)
            hashes[name].append(np.stack([lengths, _hashes(data[name], dtype)]))
    # A corpus without sequences has no block, and so no keys that would give the type.
    all_keys = np.concatenate(keys) if keys else np.empty(0, np.uint64)
    of_streams = {name: np.concatenate(parts, axis=1) for name, parts in hashes.items()}
    return _Side(one.input.name, corpora, streams, all_keys, of_streams)


def _blocks(options: Namespace, one: Described, corpora: Sequence[Corpus]) -> Iterator[tuple[_Array, _Data]]:
    """Yield the keys and the data of some sequences at a time, in order; corpora that are joined by a source."""
    if len(corpora) == 1:
        for block in surveyed(options, corpora[0]):
            yield block.keys[:], block.streams
        return
    with one.open() as source:
        for minibatch in in_minibatches(options, source, _SAMPLES_AT_ONCE, 1):
            yield minibatch.keys_of_sequences, {info.name: minibatch[info] for info in source.stream_infos()}


def _hashes(data: MinibatchData, dtype: np.dtype[Any]) -> npt.NDArray[np.uint64]:
    """Return a hash of each sequence. Zeros of both signs are equal."""
    found = np.zeros(data.num_sequences, np.uint64)
    # Adding 0 turns -0 into 0.
    offsets, values = np.asarray(data.offsets, np.int64), np.asarray(data.values, dtype) + dtype.type(0)
    if data.indptr is None or data.indices is None:
        return _hashed(values, offsets * (values.size // max(len(values), 1)), found)
    # The numbers of entries are part of the hash: the same entries may be divided among samples differently.
    found = _hashed(np.diff(data.indptr).astype(np.int32), offsets, found)
    bounds = np.asarray(data.indptr, np.int64)[offsets]
    # Each hash is the seed of the next, so the result depends on all three.
    return _hashed(data.indices, bounds, _hashed(values, bounds, found))


def _hashed(values: _Array, bounds: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    flat = np.ascontiguousarray(values).reshape(-1)
    return _core.hashes(flat.view(np.uint8), flat.itemsize, bounds, seeds, num_threads())


def _compare(options: Namespace, facts: Facts, sides: Sequence[_Side]) -> bool:
    """Add the differences to the facts, and return whether there are none."""
    first, second = sides
    by, at = _partners(options, first.keys, second.keys)
    facts.add("compared by", by)
    only = [np.setdiff1d(np.arange(len(side.keys)), of) for side, of in zip(sides, at, strict=True)]
    facts.add("sequences", len(at[0]), f"{len(at[0]):,} in both")
    for side, rest, name in zip(sides, only, ("only in first", "only in second"), strict=True):
        if len(rest):
            shown = ", ".join(map(str, side.keys[rest[: options.differences]].tolist()))
            rest_shown = f": {shown}" if shown else ""
            facts.add(name, len(rest), f"{counted(len(rest), 'sequence')}{rest_shown}")
    # The indices in the first corpus ascend, so the order is the same if the indices in the second ascend, too.
    is_same_order = bool((np.diff(at[1]) > 0).all())
    if not is_same_order:
        facts.add("order", "different")
    is_equal = is_same_order and not any(map(len, only))
    differs = np.zeros(len(at[0]), np.bool_)
    for name in first.streams | second.streams:
        forms = [form_of(side.streams[name]) if name in side.streams else "missing" for side in sides]
        is_equal = is_equal and forms[0] == forms[1]
        if name not in first.hashes:
            facts.add_item("streams", {"name": name, "forms": forms}, f"stream {name}", ", but ".join(forms))
            continue
        of_both = first.hashes[name][:, at[0]] != second.hashes[name][:, at[1]]
        of_stream = of_both.any(axis=0)
        differs |= of_stream
        count, num_lengths = int(of_stream.sum()), int(of_both[0].sum())
        some = f"{counted(count, 'sequence')} differ{'s' * (count == 1)}, {num_lengths:,} of them in length"
        text = some if count else "equal"
        dtypes = [str(side.streams[name].dtype) for side in sides]
        for facts_of_both in (dtypes, forms):
            text += f" ({', but '.join(facts_of_both)})" if len(set(facts_of_both)) > 1 else ""
        facts.add_item("streams", {"name": name, "different": count, "lengths": num_lengths}, f"stream {name}", text)
    _add_first(options, facts, sides, [of[differs] for of in at])
    return is_equal and not differs.any()


def _partners(options: Namespace, first: _Array, second: _Array) -> tuple[str, list[npt.NDArray[np.int64]]]:
    """Return what sequences are compared by, and the indices of the sequences that are in both corpora."""
    are_alike = (first.dtype.kind in "ui") == (second.dtype.kind in "ui")
    is_unique = all(len(np.unique(keys)) == len(keys) for keys in (first, second))
    if options.by == "key" and not (are_alike and is_unique):
        raise ConfigError("the keys are not unique numbers, or unique names, in both; expected --by index", key="by")
    if options.by != "index" and are_alike and is_unique:
        _, *at = np.intersect1d(first, second, assume_unique=True, return_indices=True)
        if len(at[0]) or options.by == "key":
            # `intersect1d` sorts by key, but differences are printed in the order of the first corpus.
            order = np.argsort(at[0])
            return "key", [of[order] for of in at]
    both = np.arange(min(len(first), len(second)))
    return "index", [both, both]


def _add_first(options: Namespace, facts: Facts, sides: Sequence[_Side], at: Sequence[npt.NDArray[np.int64]]) -> None:
    """Add the first differences of the first sequences that differ."""
    readers = [SequencesOf(side.corpora) for side in sides]
    for indices in zip(*(of[: options.differences].tolist() for of in at), strict=True):
        key = sides[0].keys[indices[0]].item()
        data = [
            # In joined corpora, each corpus has its own index for a sequence, so only the key finds it.
            reader.streams(side.keys[index] if len(side.corpora) > 1 else index)
            for reader, side, index in zip(readers, sides, indices, strict=True)
        ]
        for name in sides[0].hashes:
            found = _difference(*(of[name] for of in data))
            if found is not None:
                sample, value, texts = found
                fields = {
                    "key": key, "stream": name, "sample": sample, "value": value, "first": texts[0], "second": texts[1],
                }  # fmt: skip
                place = "" if sample is None else f", sample {sample}"
                place += "" if value is None else f", value {value}"
                facts.add_item("differences", fields, f"  {key}", f"{name}{place}: {texts[0]}, but {texts[1]}")


def _difference(first: MinibatchData, second: MinibatchData) -> tuple[int | None, int | None, list[str]] | None:
    """Return the first sample of a sequence that differs, its value if the stream is dense, and the texts of both.

    If the sequences differ in length, no sample is named.
    """
    both = (first, second)
    if first.num_samples != second.num_samples:
        return None, None, [counted(data.num_samples, "sample") for data in both]
    if first.indptr is None or second.indptr is None or first.indices is None or second.indices is None:
        values = [data.values.reshape(data.num_samples, -1) for data in both]
        # NaN is not equal to itself, but two corpora with NaN at the same place do not differ.
        differs = np.argwhere((values[0] != values[1]) & ~(np.isnan(values[0]) & np.isnan(values[1])))
        if not len(differs):
            return None
        sample, value = differs[0].tolist()
        return sample, value, [f"{of[sample, value]:.9g}" for of in values]
    counts = np.diff(first.indptr) != np.diff(second.indptr)
    sample = int(counts.argmax()) if counts.any() else first.num_samples
    end = int(first.indptr[sample])  # before it, samples have as many entries in both
    entries = (first.indices[:end] != second.indices[:end]) | (first.values[:end] != second.values[:end])
    if entries.any():
        # `right` passes over empty samples, which begin at the same entry.
        sample = int(np.searchsorted(first.indptr, entries.argmax(), side="right")) - 1
    return (sample, None, [in_words(data, sample) for data in both]) if sample < first.num_samples else None

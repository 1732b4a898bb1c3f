"""`Sequences`: a corpus whose sequences are read by index, in any order. (docs/random-access.md)

::

    chunks    | 0                       | 1                |     a source loads whole chunks, in its own order
    parts     | 0      | 1      | 2     | 3      | 4       |     here only the parts with the requested sequences
    kept        part 1, part 4                                 the parts that were used last, as many as fit

Invariant: what is kept changes time only. So the errors of a sequence are its own: a part with errors is loaded again
sequence by sequence, and the errors of each sequence count once.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import ForkLock, Workers, num_threads
from cntkio.arguments import suggests_keywords, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import CntkIoError, ConfigError, CorpusError
from cntkio.formats.contract import Corpus, Deserializer, Loaded
from cntkio.formats.report import NUM_IN_FULL, first_few
from cntkio.layouts import check_layout, classes_of, no_class
from cntkio.minibatch import Arrays, Minibatch, MinibatchData, Origin
from cntkio.source.arrangement import sound_sequences
from cntkio.source.source import MinibatchSource
from cntkio.storage.spans import span_at
from cntkio.streams import packed_columns
from cntkio.timeline import ChunkRefs

SampleLayout = Literal["dense", "ids"]
"""Form of the samples of a stream: vectors, or the class of each sample."""


class _Parts:
    """The parts of the chunks of one corpus. A part has a number as its id, and so has a sequence that is loaded alone.

    Args:
        partners: The sequence of the corpus for each sequence of the joined table; None: the same.
        limit: Bytes of the parts that are kept.
    """

    def __init__(self, corpus: Corpus, partners: npt.NDArray[np.uint32] | None, limit: int) -> None:
        self._corpus, self._partners, self._limit = corpus, partners, limit
        index, self._chunk_starts = corpus.index, corpus.table.chunk_starts
        self._are_divisible, self._starts = bool(index.loads_parts and index.part_in_bytes), self._chunk_starts
        if self._are_divisible and index.num_bytes:
            # About equal in bytes; equal in sequences, because few formats know the bytes of each.
            per_part = max(index.part_in_bytes * corpus.table.num_sequences // index.num_bytes, 1)
            self._starts = np.union1d(self._starts, np.arange(0, corpus.table.num_sequences, per_part))
        self._divided = np.zeros(0, np.int64)  # parts of which each sequence is loaded alone
        self._paid = set[int]()  # ids whose errors have counted
        self._kept, self._num_kept = OrderedDict[int, _core.Chunk](), 0
        self._lock = ForkLock()

    def take(self, sequences: npt.NDArray[np.int64]) -> tuple[ChunkRefs, list[_core.Chunk]]:
        """Return the parts with these sequences of the joined table, and where in them the sequences are."""
        new = dict[int, Loaded]()
        while True:
            refs = self._refs(sequences)
            found = [new[part_id].chunk if part_id in new else self._kept.get(part_id) for part_id in refs.chunk_ids]
            chunks = [chunk for chunk in found if chunk is not None]
            if len(chunks) == len(found):
                break
            missing = [part_id for part_id, chunk in zip(refs.chunk_ids, found, strict=True) if chunk is None]
            # Parts that were divided just now are left out: in the next round, their sequences have other references.
            new.update((part_id, loaded) for part_id, loaded in self._load_all(missing) if loaded is not None)
        with self._lock.inner:
            # Once all are loaded, so that errors count in the order of the sequences.
            for part_id, loaded in new.items():
                if loaded.findings is not None and part_id not in self._paid:
                    self._corpus.account_for(loaded)
                    self._paid.add(part_id)
                if self._kept.setdefault(part_id, loaded.chunk) is loaded.chunk:
                    self._num_kept += loaded.chunk.num_bytes
            for part_id in refs.chunk_ids:
                if part_id in self._kept:
                    self._kept.move_to_end(part_id)
            while self._num_kept > self._limit:
                self._num_kept -= self._kept.popitem(last=False)[1].num_bytes
        return refs, chunks

    def _refs(self, sequences: npt.NDArray[np.int64]) -> ChunkRefs:
        refs = ChunkRefs.found(_core.find_chunks(sequences, self._partners, self._starts))
        if not len(self._divided) or not np.isin(self._divided, refs.chunk_ids).any():
            return refs
        own = sequences if self._partners is None else self._partners[sequences].astype(np.int64)
        parts = span_at(self._starts, own)
        is_divided = np.isin(parts, self._divided)
        # The complement of a sequence is negative, so it differs from the ids of all parts.
        return ChunkRefs.of(np.where(is_divided, ~own, parts), np.where(is_divided, 0, own - self._starts[parts]))

    def _load_all(self, part_ids: Sequence[int]) -> Iterable[tuple[int, Loaded | None]]:
        if len(part_ids) == 1:
            return [(part_ids[0], self._load(part_ids[0]))]
        with Workers(min(len(part_ids), self._corpus.index.loads_at_once), "cntkio-load") as workers:
            jobs = [workers.do(self._load, part_id) for part_id in part_ids]
            return [(part_id, job.result()) for part_id, job in zip(part_ids, jobs, strict=True)]

    def _load(self, part_id: int) -> Loaded | None:
        """Load a part, or a sequence alone. None: the part has errors, and was divided."""
        first, last = (~part_id, ~part_id + 1) if part_id < 0 else self._starts[part_id : part_id + 2].tolist()
        chunk_id = int(span_at(self._chunk_starts, first))
        begin, end = self._chunk_starts[chunk_id : chunk_id + 2].tolist()
        sequences = None if (first, last) == (begin, end) else np.arange(first - begin, last - begin, dtype=np.uint32)
        must_be_whole = last - first == 1 or not self._are_divisible
        try:
            loaded = self._corpus.load(chunk_id, sequences)
            if must_be_whole or loaded.findings is None:
                return loaded
        except (CntkIoError, OSError):
            if must_be_whole:
                raise
        with self._lock.inner:
            self._divided = np.union1d(self._divided, part_id)
        return None


@suggests_keywords
class Sequences(Displayed):
    """The sequences of one or several deserializers by index: ``sequences[i]`` and ``sequences[[i, j]]``.

    The order is that of a source with ``randomize=False``. It is a map-style data set of PyTorch and a random-access
    data source of Grain. It may be used from several threads, pickled, and forked.

    Args:
        deserializers: One, or several whose sequences are joined by key. The first gives the order.
        layout: Form of the samples of a single sequence: ``"dense"`` (the default) or, for a one-hot stream, ``"ids"``.
            A form for all streams, or a mapping from stream names.
        cache_in_bytes: Approximate bytes of parsed data that are kept for later calls.
        max_errors: Number of sequences that deserializers may mark as invalid; they are left out. Errors in a text
            count for the option of its deserializer, when the sequence is first read.

    Attributes:
        streams: The streams by name, as attributes and as items.
        left_out: For each deserializer the number of its sequences that the join left out.

    Raises:
        ConfigError: An option is not possible, or a deserializer has an order of its own.
        CorpusError, FormatError, OSError: As for `MinibatchSource`, or more than `max_errors` sequences are invalid.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import CTFDeserializer, StreamDef, StreamDefs
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("7 |x 1 2\\n7 |x 3 4\\n9 |x 5 6\\n")
        >>> sequences = Sequences(CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=2))))
        >>> len(sequences), sequences.keys.tolist(), sequences.lengths.tolist(), sequences.index_of(9)
        (2, [7, 9], [2, 1], 1)
        >>> sequences[0]["x"].tolist(), sequences[[1, 0]]["x"].offsets.tolist()
        ([[1.0, 2.0], [3.0, 4.0]], [0, 1, 3])
    """

    def __init__(
        self,
        deserializers: Deserializer | Sequence[Deserializer],
        *,
        layout: SampleLayout | Mapping[str, SampleLayout] | None = None,
        cache_in_bytes: int = 256 << 20,
        max_errors: int = 0,
    ) -> None:
        arguments = locals()  # as the first statement, so that the arguments are the only names
        self._arguments = {name: value for name, value in arguments.items() if name != "self"}
        whole_number("cache_in_bytes", cache_in_bytes, least=0)
        self._source = MinibatchSource(deserializers, randomize=False, max_errors=max_errors, read_ahead_in_bytes=0)
        corpora, self._arrangement = self._source.assembly.corpora, self._source.assembly.arrangement
        self._name = " and ".join(corpus.name for corpus in corpora)
        if corpora[0].index.joins == "alone":
            own = f"{self._name} has a timeline of its own, whose sequences are not known until all chunks are fetched"
            raise ConfigError(f"{own}; with timeline='global' they are known at once", key="timeline")
        # None: the index of a sequence is its index in the table.
        self._sound = sound_sequences(corpora, self._arrangement, max_errors)
        table_keys = self._arrangement.table.keys
        self._keys = table_keys if self._sound is None else table_keys.only(self._sound)
        self.streams, self.left_out = self._source.streams, self._source.left_out
        check_layout(layout, list(self.streams), ("dense", "ids"))
        layouts = layout if isinstance(layout, Mapping) else dict.fromkeys(self.streams, layout)
        self._with_ids = {name for name, own in layouts.items() if own == "ids"}
        infos = iter(self.streams.values())
        layouts_of = [[*islice(infos, len(corpus.streams))] for corpus in corpora]
        self._columns = [*map(packed_columns, layouts_of)]
        # Each stream, its corpus, and its column there.
        self._places = [
            (info, number, column) for number, of in enumerate(layouts_of) for column, info in enumerate(of)
        ]
        partners, share = self._arrangement.partners or (None,), int(cache_in_bytes) // len(corpora)
        self._parts = [_Parts(*own, share) for own in zip(corpora, partners, strict=True)]

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keys(self) -> npt.NDArray[Any]:
        """The key of each sequence: uint64, or text, `[len(sequences)]`. A new array each time."""
        return np.array(self._keys)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of samples that each sequence counts for, `[len(sequences)]`. A new array each time."""
        lengths = self._arrangement.table.lengths
        return (lengths if self._sound is None else lengths[self._sound]).astype(np.int64)

    def index_of(self, key: int | str) -> int:
        """Return the index of the first sequence with a key. If no sequence has the key, raise `KeyError`."""
        places = self._keys.places_of(key)
        if not len(places):
            shown = first_few(self._keys[:NUM_IN_FULL], len(self))
            raise KeyError(f"{self._name}: no sequence has the key {key!r}; the keys are {shown}")
        return int(places[0])

    def _description(self) -> Description:
        counts = f"{counted(len(self), 'sequence')} of {counted(int(self.lengths.sum()), 'sample')}"
        rows = [(info.name, info.form) for info in self.streams.values()]
        return Description(f"Sequences of {self._name}: {counts}", ("stream", "samples are"), rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a sequence, or a minibatch of several.

        Args:
            index: A whole number, negative from the end; or a slice, or a list or an array of whole numbers.

        Returns:
            For a number, a dict of each stream's samples: `[samples, *sample shape]` in the stream's type, where values
            of repeated indices of a sparse stream are summed; with the layout ``"ids"`` `[samples]`, int32, or the type
            of a stream of whole numbers. Otherwise a `Minibatch` in the order of the indices.

        Raises:
            IndexError: There is no such sequence.
            TypeError: The index has another type.
            FormatError: The sequence breaks its format, beyond the deserializer's `max_errors`.
            CorpusError: A file has changed, or the object is closed.
            ConfigError: A sample of a stream with the layout ``"ids"`` has no class.
        """
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        # An array of a single number would take a tenth of the time of a sequence.
        if type(index) is not int:
            numbers = _numbers(index)
            if numbers.ndim:
                return self._minibatch(self._in_table(numbers))
            index = int(numbers)
        place = np.array([self._place(index)])
        return self._arrays(place if self._sound is None else self._sound[place])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, npt.NDArray[Any]]]:
        """Return several sequences, each as ``sequences[i]``: what PyTorch passes to a loader's collate function."""
        return self._arrays(self._in_table(_numbers(indices)))

    def _place(self, index: int) -> int:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"{self._name}: index {index} is out of range; expected {-count} to {count - 1}")
        return index % count

    def _in_table(self, numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Return indices that may be negative as sequences of the table."""
        for number in (int(numbers.min()), int(numbers.max())) if len(numbers) else ():
            self._place(number)
        places = numbers.astype(np.int64) % len(self)
        return places if self._sound is None else self._sound[places]

    def _packed(self, sequences: npt.NDArray[np.int64]) -> list[_core.Packed]:
        """Pack sequences of the table. Return what was packed of each corpus."""
        if not self._parts:
            raise CorpusError(f"the sequences of {self._name} are closed; open them again")
        requests, bounds = [], [0, len(sequences)]
        for number, (parts, columns) in enumerate(zip(self._parts, self._columns, strict=True)):
            refs, chunks = parts.take(sequences)
            places, samples = (refs.chunk_indices, refs.indices_in_chunk), self._arrangement.repeated(number, sequences)
            requests.append(_core.PackRequest(chunks, *places, columns, bounds, samples))
        # To ask for the number of threads takes as long as to pack a few samples.
        return [packed for (packed,) in _core.pack(requests, num_threads() if len(sequences) > 1 else 1)[0]]

    def _minibatch(self, sequences: npt.NDArray[np.int64]) -> Minibatch:
        origin = Origin(self._arrangement.table.keys.__getitem__, sequences, self._arrangement.files_of)
        (minibatch,), packed = Minibatch.several(origin, [0, len(sequences)]), self._packed(sequences)
        for info, number, column in self._places:
            minibatch[info.name] = MinibatchData.of(info, packed[number], column, False)
        return minibatch

    def _arrays(self, sequences: npt.NDArray[np.int64]) -> list[dict[str, npt.NDArray[Any]]]:
        found: list[dict[str, npt.NDArray[Any]]] = [{} for _ in range(len(sequences))]
        of_corpora = self._packed(sequences)
        for info, number, column in self._places:
            packed = of_corpora[number]
            values, offsets, entries = packed.arrays(column)
            if info.name in self._with_ids:
                samples, wrong = classes_of(info, Arrays(values, offsets, *(entries or ())))
                if wrong is not None:
                    data = MinibatchData.of(info, packed, column, False)
                    raise ConfigError(no_class(data, wrong, self._arrangement.table.keys[sequences]), key="layout")
            elif entries is not None:
                samples = MinibatchData.of(info, packed, column, False).samples()
            else:
                samples = values.reshape(-1, *info.shape)
            if len(found) == 1:  # a view of all samples would take a twentieth of the time
                found[0][info.name] = samples
                continue
            for own, (begin, end) in zip(found, pairwise(offsets.tolist()), strict=True):
                own[info.name] = samples[begin:end]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "state": self._source.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["arguments"])  # type: ignore[misc]
        # Refuses other content, in which the same indices would mean other sequences.
        self._source.load_state_dict(state["state"])

    def close(self) -> None:
        """Release memory, and close the files. Nothing can be read afterwards."""
        self._parts = []
        self._source.close()

    def __enter__(self) -> Sequences:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _numbers(index: Any) -> npt.NDArray[np.integer[Any]]:
    """Return an index as an array, without an axis for a single number."""
    with contextlib.suppress(ValueError):  # lists of different lengths
        numbers = np.asarray(index)
        # NumPy makes an empty list an array of doubles.
        if numbers.ndim < 2 and (numbers.dtype.kind in "iu" or not numbers.size):
            return numbers
    raise TypeError(f"the index is {index!r:.100}; expected a whole number, a slice, or a list of whole numbers")

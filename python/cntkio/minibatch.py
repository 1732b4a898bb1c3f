"""Results of a read: a `Minibatch`, and a `MinibatchData` for each of its streams. (docs/timeline.md, "Packing")

The packer's arrays are ragged: the samples of all sequences, concatenated, and the offset of each sequence. All other
forms (padded, masked, one array for each sequence, matrices) are created from these on access. The arrays belong to the
minibatch: later reads do not change them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import did_you_mean, there_are, whole_number
from cntkio.displays import Description, Displayed, counted
from cntkio.errors import ConfigError
from cntkio.streams import StreamInformation, cntk_name

_STREAM_COLUMNS = ("stream", "samples are", "here")


_Result = TypeVar("_Result")


class Results(Iterator[_Result]):
    """The results of repeated calls of `read`, until it returns None. Several threads may take them.

    Example:
        >>> numbers = [2, 1]
        >>> list(Results(lambda: numbers.pop() if numbers else None))
        [1, 2]
    """

    def __init__(self, read: Callable[[], _Result | None]) -> None:
        self._read: Callable[[], _Result | None] | None = read

    def __next__(self) -> _Result:
        read = self._read
        result = None if read is None else read()
        if result is None:
            self._read = None
            raise StopIteration
        return result


class Arrays(NamedTuple):
    """The arrays of one stream of a minibatch; `MinibatchData` documents them."""

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    indptr: npt.NDArray[np.int64] | None = None
    indices: npt.NDArray[np.int32] | None = None


class _OneStream:
    """What the data of a stream have in common, whether sequences are whole or cut into parts."""

    __slots__ = ()
    stream: StreamInformation
    num_samples: int
    number_of_sequences = cntk_name("num_sequences")
    number_of_samples = cntk_name("num_samples")
    sweep_end = cntk_name("end_of_sweep")

    @property
    def num_sequences(self) -> int:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.num_sequences

    def describe(self) -> list[str]:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__}: {counted(self.num_sequences, 'sequence')}"
        return Description(title, _STREAM_COLUMNS, [self.describe()]).html()


class MinibatchData(_OneStream):
    """A stream of a minibatch.

    A source written in Python creates it from arrays or, as in CNTK, from a `Value` and its sequences and samples:
    ``MinibatchData(value, num_sequences, num_samples, sweep_end)``.

    Attributes:
        stream: The stream's description.
        num_samples: Number of samples of this stream.
        end_of_sweep: True if the minibatch reaches or crosses the end of a sweep.
    """

    __slots__ = ("__dict__", "_arrays", "_index", "_number", "_packed", "end_of_sweep", "num_samples", "stream")
    _arrays: Arrays | None  # None until the first access
    _packed: _core.Packed | None  # the packer's result
    _index: int  # the index of this stream in the packer's result
    _number: int  # the index of this minibatch in the packer's result

    @overload
    def __init__(
        self,
        stream: StreamInformation,
        values: npt.NDArray[Any],
        offsets: npt.NDArray[np.int64],
        indptr: npt.NDArray[np.int64] | None = None,
        indices: npt.NDArray[np.int32] | None = None,
        end_of_sweep: bool = False,
    ) -> None: ...

    @overload
    def __init__(self, value: Value, num_sequences: int, num_samples: int, sweep_end: bool) -> None: ...

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        is_value = "value" in keywords or (len(arguments) > 0 and isinstance(arguments[0], Value))
        if len(arguments) + len(keywords) < 3:
            forms = "(stream, values, offsets), or (value, num_sequences, num_samples, sweep_end)"
            raise TypeError(f"MinibatchData needs {forms}; a stream of a minibatch is minibatch['name']")
        (self._set_value if is_value else self._set_arrays)(*arguments, **keywords)

    def _set_value(self, value: Value, num_sequences: int, num_samples: int, sweep_end: bool) -> None:
        if (num_sequences, num_samples) != (value.num_sequences, value.num_samples):
            given = f"num_sequences is {num_sequences} and num_samples is {num_samples}"
            found = f"the value has {value.num_sequences} sequences and {value.num_samples} samples"
            key = "num_samples" if num_sequences == value.num_sequences else "num_sequences"
            raise ConfigError(f"{given}, but {found}", key=key)
        self._set_arrays(value.stream, *value.arrays, bool(sweep_end))

    def _set_arrays(
        self,
        stream: StreamInformation,
        values: npt.NDArray[Any],
        offsets: npt.NDArray[np.int64],
        indptr: npt.NDArray[np.int64] | None = None,
        indices: npt.NDArray[np.int32] | None = None,
        end_of_sweep: bool = False,
    ) -> None:
        self.stream, self.end_of_sweep, self.num_samples = stream, end_of_sweep, int(offsets[-1])
        self._packed, self._index, self._number = None, 0, 0
        self._arrays = Arrays(_in_shape(values, stream), offsets, indptr, indices)

    @classmethod
    def of(cls, stream: StreamInformation, packed: _core.Packed, index: int, end_of_sweep: bool) -> MinibatchData:
        """Make the view of a stream of a minibatch that was packed alone. Array objects are created on first access."""
        minibatches: list[dict[str, MinibatchData]] = [{}]
        cls.fill(minibatches, stream, [packed], index, [end_of_sweep])
        return minibatches[0][stream.name]

    @classmethod
    def fill(
        cls,
        minibatches: Sequence[dict[str, MinibatchData]],
        stream: StreamInformation,
        packed: Sequence[_core.Packed],
        index: int,
        ends_of_sweep: Sequence[bool],
    ) -> None:
        """Add a stream to several minibatches, as views of the packer's results."""
        new, name = cls.__new__, stream.name
        each = zip(minibatches, *_core.places(packed, index), ends_of_sweep, strict=True)
        for minibatch, of_several, number, num_samples, end_of_sweep in each:
            data = minibatch[name] = new(cls)
            data.stream, data.end_of_sweep, data.num_samples = stream, end_of_sweep, num_samples
            data._packed, data._index, data._number, data._arrays = of_several, index, number, None

    @property
    def arrays(self) -> Arrays:
        """`values`, `offsets`, `indptr` and `indices`. They are created together, on first access."""
        if self._arrays is None:
            assert self._packed is not None
            values, offsets, entries = self._packed.arrays(self._index, self._number)
            arrays = Arrays(_in_shape(values, self.stream), offsets, *(entries or ()))
            # Several threads may be here at once. All return the arrays that the first of them made.
            self._arrays = self.__dict__.setdefault("arrays", arrays)
        return self._arrays

    @property
    def values(self) -> npt.NDArray[Any]:
        """Dense: all samples, `[num_samples, *sample shape]`. Sparse: the value of each entry, `[num_entries]`."""
        return self.arrays.values

    @values.setter
    def values(self, values: npt.NDArray[Any]) -> None:
        self._arrays = self.arrays._replace(values=values)  # so that `data.values /= 255` is possible

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Start of each sequence's samples, then the end of the last; int64, `[num_sequences + 1]`."""
        return self.arrays.offsets

    @property
    def indptr(self) -> npt.NDArray[np.int64] | None:
        """Sparse: start of each sample's entries, then the end of the last; int64, `[num_samples + 1]`. Dense: None."""
        return self.arrays.indptr

    @property
    def indices(self) -> npt.NDArray[np.int32] | None:
        """Sparse: the index of each entry, as in the file, neither sorted nor summed; int32. Dense: None."""
        return self.arrays.indices

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Keep the arrays alone, not the packer's result with the other streams."""
        state = {"stream": self.stream, "num_samples": self.num_samples, "end_of_sweep": self.end_of_sweep}
        return None, {**state, "_arrays": self.arrays, "_packed": None, "_index": 0, "_number": 0}

    def __repr__(self) -> str:
        counts = f"num_sequences={self.num_sequences}, num_samples={self.num_samples}"
        return f"MinibatchData({self.stream.name!r}, {self.stream.form}, {counts})"

    def describe(self) -> list[str]:
        """Return cells for a table of streams: name, form, and number of samples."""
        return [self.stream.name, self.stream.form, counted(self.num_samples, "sample")]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1 if self._packed is None else self._packed.num_sequences(self._number)

    @property
    def is_sparse(self) -> bool:
        """True if samples are lists of index and value."""
        return self.stream.is_sparse

    @functools.cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of samples of each sequence, `[num_sequences]`."""
        return np.diff(self.offsets)

    @property
    def num_steps(self) -> int:
        """Number of samples of the longest sequence."""
        return int(self.lengths.max(initial=0))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the padded array: `(num_sequences, num_steps, *sample shape)`."""
        return (self.num_sequences, self.num_steps, *self.stream.shape)

    @functools.cached_property
    def mask(self) -> npt.NDArray[np.int8]:
        """2 at each sequence's first sample, 1 at its other samples, 0 at padding; `[num_sequences, num_steps]`."""
        mask = (np.arange(self.num_steps) < self.lengths[:, None]).astype(np.int8)
        mask[:, :1] *= 2
        return mask

    @property
    def data(self) -> Any:
        """CNTK's `Value` of this stream: itself, or None for a minibatch without sequences."""
        return self if self.num_sequences else None

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the padded array, for functions of NumPy."""
        padded = np.asarray(self.asarray(), dtype)
        return padded.copy() if copy else padded

    def masked_count(self) -> int:
        """Return the number of cells of the padded array that are padding."""
        return self.num_sequences * self.num_steps - self.num_samples

    def erase(self) -> None:
        """Do nothing. CNTK programs had to erase a minibatch before they read the next; here it stays valid."""

    def asarray(self) -> npt.NDArray[Any]:
        """Return the padded array, of `shape`; it is a view of `values` if there is nothing to pad.

        A sparse stream becomes a dense array, in which values of repeated indices are summed.
        """
        num_cells = self.num_sequences * self.num_steps
        if self.num_samples == num_cells:
            return self.samples().reshape(self.shape)
        if self.indices is None:
            return _core.pad(self.values.reshape(-1), self.offsets, self.num_steps, self.stream.dim).reshape(self.shape)
        return self._in_cells(np.flatnonzero(self.mask), num_cells).reshape(self.shape)

    def samples(self) -> npt.NDArray[Any]:
        """Return all samples as vectors, `[num_samples, *sample shape]`; in a sparse stream, as in `asarray`."""
        if self.indices is None:
            return self.values
        return self._in_cells(np.arange(self.num_samples), self.num_samples).reshape(-1, *self.stream.shape)

    def _in_cells(self, cells: npt.NDArray[np.int64], num_cells: int) -> npt.NDArray[Any]:
        """Return vectors, flat: each sample of a sparse stream in its cell, and zeros in the other cells."""
        assert self.indptr is not None and self.indices is not None
        vectors = np.zeros(num_cells * self.stream.dim, self.values.dtype)
        # NumPy takes several times as long with an array of indices for each axis.
        firsts = np.repeat(cells * self.stream.dim, self.indptr[1:] - self.indptr[:-1])
        np.add.at(vectors, firsts + self.indices, self.values)
        return vectors

    def tocsr(self) -> Any:
        """Return all samples of a sparse stream as a `scipy.sparse.csr_array` `[num_samples, dim]` over its arrays.

        Entries stay in the order of the file; `sum_duplicates()` of the result sorts and sums them.

        Raises:
            ConfigError: The stream is dense.
            ImportError: SciPy is not installed.
        """
        if self.indices is None or self.indptr is None:
            raise ConfigError(f"stream {self.stream.name!r} is dense; its samples are in `values`")
        return _csr(self.values, self.indices, self.indptr, self.stream.dim)

    def as_sequences(self, variable: object = None) -> list[Any]:
        """Return an array for each sequence, without padding.

        Args:
            variable: Not used; CNTK needs one for sparse streams.

        Returns:
            Dense: views `[samples, *sample shape]`. Sparse: `scipy.sparse.csr_array`s `[samples, dim]`.
        """
        pairs = itertools.pairwise(self.offsets.tolist())
        if self.indices is None or self.indptr is None:
            return [self.values[begin:end] for begin, end in pairs]
        matrices = []
        for begin, end in pairs:
            indptr = self.indptr[begin : end + 1]
            entries = slice(indptr[0], indptr[-1])
            matrices.append(_csr(self.values[entries], self.indices[entries], indptr - indptr[0], self.stream.dim))
        return matrices


class Value(MinibatchData):
    """Data of a stream, for sources written in Python: the part of CNTK's `Value` that they need.

    Args:
        batch: A list of sequences, each an array ``[samples, *shape]`` or a SciPy matrix ``[samples, dim]``; an array
            ``[sequences, samples, *shape]``; an array or a matrix ``[sequences, dim]`` of sequences of one sample.
        seq_starts: Not used: no sequence continues a sequence of an earlier minibatch.
        device: Not used.

    Raises:
        ConfigError: The batch is empty, or its sequences have different shapes.

    Example:
        >>> Value([[[1, 2]], [[3, 4], [5, 6]]]).shape
        (2, 2, 2)
        >>> words = Value.one_hot([[3, 1], [4]], num_classes=5)
        >>> words.shape, words.indices.tolist()
        ((2, 2, 5), [3, 1, 4])
    """

    ONE_HOT_SKIP = 2**32 - 1

    def __init__(self, batch: Any, seq_starts: object = None, device: object = None) -> None:
        is_matrix = hasattr(batch, "tocsr")
        if isinstance(batch, str | bytes) or not (is_matrix or hasattr(batch, "__len__")):
            raise ConfigError(f"batch is {batch!r}; expected an array, or a list of sequences", key="batch")
        num_sequences = batch.shape[0] if is_matrix else len(batch)
        if not num_sequences:
            raise ConfigError("the batch has no sequences; expected at least one", key="batch")
        if is_matrix:
            self._set_matrix(batch.tocsr(), np.arange(num_sequences + 1))
            return
        if hasattr(batch[0], "tocsr"):
            from scipy import sparse

            lengths = [matrix.shape[0] for matrix in batch]
            self._set_matrix(sparse.vstack(batch, format="csr"), np.cumsum([0, *lengths]))
            return
        if isinstance(batch, np.ndarray) and batch.ndim < 3:
            batch = batch.reshape(len(batch), 1, -1)
        sequences = [_in_floats(np.asarray(sequence)) for sequence in batch]
        shapes = {sequence.shape[1:] for sequence in sequences}
        if len(shapes) > 1 or sequences[0].ndim == 0:
            raise ConfigError(f"the samples have the shapes {sorted(shapes)}; expected one shape", key="batch")
        offsets = np.cumsum([0, *map(len, sequences)])
        values = np.concatenate(sequences)
        shape = values.shape[1:] or (1,)
        self._set_arrays(StreamInformation("", 0, "dense", values.dtype, shape), values, offsets)

    def _set_matrix(self, matrix: Any, offsets: npt.NDArray[np.int64]) -> None:
        info = StreamInformation("", 0, "sparse", np.float32, (matrix.shape[1],))
        values, indices = _in_floats(matrix.data), matrix.indices.astype(np.int32, copy=False)
        self._set_arrays(info, values, offsets, matrix.indptr.astype(np.int64), indices)

    @classmethod
    def one_hot(
        cls, batch: Sequence[Iterable[int]], num_classes: int, dtype: npt.DTypeLike | None = None, device: object = None
    ) -> Value:
        """Return a sparse value whose samples each have a single 1.

        Args:
            batch: For each sequence the class of each sample; `ONE_HOT_SKIP` makes a sample of zeros.
            num_classes: Number of classes.
            dtype: float32 (None) or float64.
            device: Not used.

        Raises:
            ConfigError: A class is not in ``0 .. num_classes - 1``.
        """
        num_classes = whole_number("num_classes", num_classes)
        try:
            lists = [np.asarray(list(sequence)) for sequence in batch]
        except TypeError:
            message = f"batch is {batch!r}; expected a list of classes for each sequence"
            raise ConfigError(message, key="batch") from None
        if any(classes.dtype.kind not in "iu" and len(classes) for classes in lists):
            raise ConfigError("a class is not a whole number; expected integers, or ONE_HOT_SKIP", key="batch")
        classes = np.concatenate([np.empty(0, np.int64), *(classes.astype(np.int64) for classes in lists)])
        is_one = classes != cls.ONE_HOT_SKIP
        is_beyond = (classes[is_one] < 0) | (classes[is_one] >= num_classes)
        if is_beyond.any():
            message = f"class {classes[is_one][is_beyond][0]}; expected 0 to {num_classes - 1}, or ONE_HOT_SKIP"
            raise ConfigError(message, key="batch")
        value = cls.__new__(cls)
        kind = np.dtype(np.float32 if dtype is None else dtype)
        stream = StreamInformation("", 0, "sparse", kind, (num_classes,))
        offsets, indptr = np.cumsum([0, *map(len, lists)]), np.append(0, np.cumsum(is_one))
        value._set_arrays(stream, np.ones(int(is_one.sum()), kind), offsets, indptr, classes[is_one].astype(np.int32))
        return value


def _in_shape(values: npt.NDArray[Any], stream: StreamInformation) -> npt.NDArray[Any]:
    return values if stream.is_sparse else values.reshape(-1, *stream.shape)


def _in_floats(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise ConfigError(f"values of the type {values.dtype}; expected numbers", key="batch")
    return values.astype(np.float64 if values.dtype == np.float64 else np.float32, copy=False)


def _csr(values: npt.NDArray[Any], indices: npt.NDArray[np.int32], indptr: npt.NDArray[np.int64], dim: int) -> Any:
    try:
        from scipy import sparse
    except ModuleNotFoundError as error:
        message = "matrices need scipy, which is not installed: pip install scipy"
        advice = "values, indices and indptr hold the same data"
        raise ModuleNotFoundError(f"{message}; {advice}", name=error.name) from None

    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)  # SciPy wants one type for both
    return sparse.csr_array((values, indices, indptr), shape=(len(indptr) - 1, dim))


class TruncatedMinibatchData(_OneStream):
    """A stream of a truncated minibatch: samples `[slots, steps]`, for backpropagation through time.

    Attributes:
        stream: The stream's description; dense.
        values: The samples, `[num_slots, num_steps, *sample shape]`; zeros at empty steps.
        mask: 2 at a sequence's first sample, 1 at its other samples, 0 at empty steps; int8, `[num_slots, num_steps]`.
        continues: True for slots that continue a sequence of the previous minibatch; bool, `[num_slots]`.
        end_of_sweep: True if a sequence ends in this minibatch whose read reached or crossed the end of a sweep.
        parts: For each part of a sequence its slot, the step of the sequence's first sample (below 0 if that was in an
            earlier minibatch) and the step after its last (above `num_steps` if it continues); int64, `[parts, 3]`.
        num_samples: Number of samples.
    """

    def __init__(
        self,
        stream: StreamInformation,
        values: npt.NDArray[Any],
        mask: npt.NDArray[np.int8],
        parts: npt.NDArray[np.int64],
        end_of_sweep: bool,
    ) -> None:
        self.stream, self.mask, self.parts, self.end_of_sweep = stream, mask, parts, end_of_sweep
        self.values = values.reshape(*mask.shape, *stream.shape)
        self.continues = np.zeros(len(mask), np.bool_)
        self.continues[parts[parts[:, 1] < 0, 0]] = True
        self.num_samples = int((np.minimum(parts[:, 2], mask.shape[1]) - np.maximum(parts[:, 1], 0)).sum())

    def __repr__(self) -> str:
        num_slots, num_steps = self.mask.shape
        return f"TruncatedMinibatchData({self.stream.name!r}, {self.stream.form}, {num_slots=}, {num_steps=})"

    def describe(self) -> list[str]:
        """Return cells for a table of streams: name, form, and number of slots and steps."""
        num_slots, num_steps = self.mask.shape
        slots, steps = counted(num_slots, "slot"), counted(num_steps, "step")
        return [self.stream.name, self.stream.form, f"{slots} of {steps}"]

    @property
    def is_sparse(self) -> bool:
        """False: the samples are dense."""
        return False

    @property
    def num_sequences(self) -> int:
        """Number of sequences with a sample in this minibatch."""
        return len(self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """`(num_slots, num_steps, *sample shape)`."""
        return self.values.shape

    @property
    def data(self) -> Any:
        """CNTK's `Value` of this stream: itself."""
        return self

    def asarray(self) -> npt.NDArray[Any]:
        """Return `values`."""
        return self.values

    def as_sequences(self, variable: object = None) -> list[Any]:
        """Return a view `[samples, *sample shape]` of each part, in the order of `parts`; `variable` is not used."""
        num_steps = self.mask.shape[1]
        return [self.values[slot, max(begin, 0) : min(end, num_steps)] for slot, begin, end in self.parts.tolist()]


Data = MinibatchData | TruncatedMinibatchData


def check_input_map(input_map: Any) -> None:
    """Check that the argument `input_map` of `next_minibatch` is a mapping."""
    if not isinstance(input_map, Mapping):
        expected = "a mapping of your keys to streams, such as {'features': source.streams.features}"
        raise ConfigError(f"input_map is {input_map!r}; expected {expected}", key="input_map")


def checked_minibatch(minibatch: Any) -> Minibatch:
    """Return an argument that is a minibatch, or a mapping of keys or stream descriptions to data.

    The sequences of a mapping have no keys, so they are numbered from 0.
    """
    if isinstance(minibatch, Minibatch):
        return minibatch
    if not isinstance(minibatch, Mapping):
        found = f"of the type {type(minibatch).__name__}; expected the result of next_minibatch or read_ctf"
        raise ConfigError(f"the minibatch is {found}", key="minibatch")
    for key, data in minibatch.items():
        if not isinstance(data, Data):
            found = f"the minibatch has {key!r} of the type {type(data).__name__}"
            raise ConfigError(f"{found}; expected MinibatchData, as next_minibatch returns", key="minibatch")
    named = {key.name if isinstance(key, StreamInformation) else key: data for key, data in minibatch.items()}
    num_sequences = next((data.num_sequences for data in named.values()), 0)
    return Minibatch(named, lambda: np.arange(num_sequences, dtype=np.uint64))


FilesOf: TypeAlias = Callable[[npt.NDArray[np.int64]], tuple[npt.NDArray[np.str_], npt.NDArray[np.int64]]]
"""Returns the names of files and, for each sequence of the source's table, the index of its file."""


class Origin(NamedTuple):
    """The sequences of several minibatches of a source, which finds their keys and files on request.

    Attributes:
        keys: Returns the keys of sequences of the table.
        sequences: The indices of the sequences in the table.
        files: Finds their files; None: they are not known.
    """

    keys: Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]
    sequences: npt.NDArray[np.int64]
    files: FilesOf | None


def _constant(value: Any, _: object) -> Any:
    return value


class SliceOfRows(NamedTuple):
    """All sequences of packed rows, for a minibatch that holds only the sequences of a rank's slices.

    Attributes:
        whole: All sequences, with their keys and without streams.
        lengths: The samples of each, as the index counts them, uint32.
        is_held: Whether the minibatch holds it, bool.
        part: Index and number of the ranks that share the rows.
        row_length: Samples of a row.
    """

    whole: Minibatch
    lengths: npt.NDArray[np.uint32]
    is_held: npt.NDArray[np.bool_]
    part: tuple[int, int]
    row_length: int


SourceNames: TypeAlias = str | npt.NDArray[np.str_] | None
"""In a mixture, the name of the part, or the name of the part of each sequence; None: the source is not a mixture."""


def sources_of(names: SourceNames, num_sequences: int) -> npt.NDArray[np.str_]:
    """Return the name of the part that each sequence of a minibatch comes from, if they come from a mixture."""
    if names is None:
        raise ConfigError("the minibatch does not come from a Mixture")
    return np.full(num_sequences, names) if isinstance(names, str) else names


def indices_in_table(minibatch: Minibatch) -> npt.NDArray[np.int64]:
    """Return the index of each sequence in the table of the source that has just read a minibatch."""
    return minibatch._sequences


class Minibatch(Displayed, dict[str, MinibatchData]):
    """The streams of a minibatch by name; empty when the data have ended.

    ``[]``, ``get`` and ``in`` also take the `StreamInformation` of a stream, which must equal the description of the
    stream of that name. In all other respects it is a dict of names and `MinibatchData` (`TruncatedMinibatchData` in
    truncated mode).

    Example:
        >>> import cntkio, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1 2\\n|x 3 4\\n")
        >>> corpus = cntkio.read_ctf(path)
        >>> list(corpus)
        ['x']
        >>> corpus["x"].values
        array([[1., 2.],
               [3., 4.]], dtype=float32)
        >>> corpus[corpus["x"].stream] is corpus["x"]
        True
    """

    # Few objects, because Python's collection of garbage looks at each of them.
    __slots__ = ("_first", "_last", "_origin", "slice", "source")
    _origin: Origin
    _first: int  # of the minibatch's sequences among those of the origin
    _last: int
    source: SourceNames
    slice: SliceOfRows | None  # None: it holds all its sequences

    def __init__(self, streams: Mapping[str, Any], keys: Callable[[], npt.NDArray[Any]]) -> None:
        super().__init__(streams)
        self._origin = Origin(lambda _: keys(), np.empty(0, np.int64), None)
        self._first = self._last = 0
        self.source = self.slice = None

    @classmethod
    def several(cls, origin: Origin, bounds: Iterable[int]) -> list[Minibatch]:
        """Make minibatches without streams.

        Args:
            origin: Their sequences.
            bounds: First sequence of each minibatch and, last, the number of sequences.
        """
        minibatches = []
        for first, last in itertools.pairwise(bounds):
            minibatch = cls.__new__(cls)
            minibatch._origin, minibatch._first, minibatch._last = origin, first, last
            minibatch.source = minibatch.slice = None
            minibatches.append(minibatch)
        return minibatches

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Keep keys and files as arrays: the functions that find them belong to the source."""
        keys, find = self.keys_of_sequences, self._origin.files
        found = None if find is None else functools.partial(_constant, find(self._sequences))
        origin = Origin(functools.partial(_constant, keys), self._sequences, found)
        own: Any = super().__getstate__()  # a subclass may have further attributes
        return None, {**own[1], "_origin": origin, "_first": 0, "_last": len(origin.sequences)}

    @property
    def _sequences(self) -> npt.NDArray[np.int64]:
        return self._origin.sequences[self._first : self._last]

    if TYPE_CHECKING:
        # At run time a description goes through `__missing__`. In truncated mode data are `TruncatedMinibatchData`.
        def __getitem__(self, stream: str | StreamInformation) -> MinibatchData: ...

    def __missing__(self, stream: object) -> Any:
        if isinstance(stream, StreamInformation):
            data = self[stream.name]
            if data.stream is stream or data.stream == stream:
                return data
            raise KeyError(f"stream {stream.name!r} is {data.stream}, not {stream}")
        raise KeyError(f"no stream {stream!r}{there_are(stream, self)}")

    def __contains__(self, stream: object) -> bool:
        if not isinstance(stream, StreamInformation):
            return super().__contains__(stream)
        return super().__contains__(stream.name) and bool(self[stream.name].stream == stream)

    def _description(self) -> Description:
        counts = [counted(self.num_sequences, "sequence")] + ["end of sweep"] * self.end_of_sweep
        rows = [data.describe() for data in self.values()]
        return Description(f"Minibatch: {', '.join(counts)}" if self else "Minibatch: empty", _STREAM_COLUMNS, rows)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def get(self, stream: str | StreamInformation, default: Any = None) -> Any:
        """Return the data of a stream, or a default if there is no such stream."""
        try:
            return self[stream]
        except KeyError:
            return default

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f"; write minibatch[{name!r}]" if name in self else did_you_mean(name, dir(type(self)))
            raise AttributeError(f"a minibatch has no attribute {name!r}{hint}")

    @property
    def keys_of_sequences(self) -> npt.NDArray[Any]:
        """The key of each sequence, in delivered order: uint64, or ``str`` (bytes that are not UTF-8 are escaped)."""
        return self._origin.keys(self._sequences)

    @property
    def files_of_sequences(self) -> npt.NDArray[np.str_]:
        """The file of each sequence in the first deserializer, in delivered order.

        Raises:
            ConfigError: The minibatch does not come from a source of files.
        """
        if self._origin.files is None:
            expected = "a minibatch that a source of files has read"
            raise ConfigError(f"the files of these sequences are not known; expected {expected}")
        names, which = self._origin.files(self._sequences)
        return names[which]

    @property
    def source_of_sequences(self) -> npt.NDArray[np.str_]:
        """The name of the part of a `Mixture` that each sequence comes from.

        Raises:
            ConfigError: The minibatch does not come from a mixture.
        """
        return sources_of(self.source, self.num_sequences)

    @property
    def num_sequences(self) -> int:
        """Number of sequences, the same in every stream."""
        return next((data.num_sequences for data in self.values()), 0)

    @property
    def end_of_sweep(self) -> bool:
        """True if the minibatch reaches or crosses the end of a sweep."""
        return any(data.end_of_sweep for data in self.values())

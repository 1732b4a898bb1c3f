"""Tensors of a minibatch, in the layouts of PyTorch. (docs/torch.md, "Layouts")

Invariant: a tensor shares the minibatch's memory wherever PyTorch supports its form.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt
import torch

from cntkio.arguments import suggests_keywords
from cntkio.displays import Description, Displayed, counted, shape_text
from cntkio.errors import CheckpointError, ConfigError
from cntkio.layouts import are_whole, check_layout, class_ids
from cntkio.minibatch import (
    Data,
    Minibatch,
    MinibatchData,
    SourceNames,
    TruncatedMinibatchData,
    checked_minibatch,
    sources_of,
)
from cntkio.rows import packed
from cntkio.streams import StreamInformation

Layout = Literal["ragged", "padded", "nested", "csr", "ids", "ragged_ids", "padded_ids", "nested_ids"]
"""Form of a stream's tensors. (docs/torch.md, "Layouts")"""

Tensors = TypeVar("Tensors")
"""Type of a stream's tensors, which the layout decides."""


with warnings.catch_warnings():
    # PyTorch warns once in a process that its CSR tensors are in beta state, so trigger and suppress the warning here.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    _empty = torch.zeros(1, dtype=torch.int32)
    torch.sparse_csr_tensor(_empty, _empty[1:], torch.zeros(0), (0, 0), check_invariants=False)


class Ragged:
    """The samples of all sequences, concatenated; unpacks into `values` and `offsets`.

    Attributes:
        values: Dense: `[num_samples, *sample shape]`. Sparse: `torch.sparse_csr`, `[num_samples, dim]`. Class ids:
            int32, `[num_samples]`.
    """

    __slots__ = ("_offsets", "values")
    _fields = ("values", "offsets")

    def __init__(self, values: torch.Tensor, offsets: torch.Tensor | MinibatchData) -> None:
        self.values = values
        self._offsets = offsets  # or the data from which to take them on first access: many callers need only values

    @property
    def offsets(self) -> torch.Tensor:
        """Start of each sequence, then the end of the last; int64, `[num_sequences + 1]`."""
        if isinstance(self._offsets, MinibatchData):
            self._offsets = _tensor(self._offsets.offsets)
        return self._offsets

    @property
    def lengths(self) -> torch.Tensor:
        """Samples of each sequence, int64, `[num_sequences]`."""
        return self.offsets.diff()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.values, self.offsets))

    def __repr__(self) -> str:
        return _size_text(self)


class Padded(NamedTuple):
    """Arrays with a row for each sequence.

    Attributes:
        values: `[num_sequences, steps, *sample shape]`, 0 at padding. Class ids: int32, `[num_sequences, steps]`.
            Without sequences `[1, 1, ...]`, see `PaddedEmpty`.
        lengths: Samples of each sequence, int64, `[num_sequences]`.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """True at samples, false at padding; bool, `[num_sequences, steps]`."""
        steps = torch.arange(self.values.shape[1], device=self.lengths.device)
        return steps < self.lengths[:, None]

    def __repr__(self) -> str:
        return _size_text(self)


class PaddedEmpty(Padded):
    """The padded arrays of a minibatch without sequences: one row of one step, zeros, of length 1, and masked.

    PyTorch's recurrent layers, `pack_padded_sequence`, transformers and losses accept these arrays, but not empty ones.
    """

    __slots__ = ()

    @property
    def mask(self) -> torch.Tensor:
        """False; bool, `[1, 1]`."""
        return torch.zeros((1, 1), dtype=torch.bool, device=self.lengths.device)


class Truncated(NamedTuple):
    """Arrays with a row for each slot of a truncated minibatch.

    Attributes:
        values: `[num_slots, num_steps, *sample shape]`.
        mask: 2 at a sequence's first sample, 1 at its other samples, 0 at empty steps; int8, `[num_slots, num_steps]`.
        continues: True for slots that continue a sequence of the previous minibatch; bool, `[num_slots]`.
    """

    values: torch.Tensor
    mask: torch.Tensor
    continues: torch.Tensor

    def __repr__(self) -> str:
        return _size_text(self)


def _size_text(tensors: Ragged | Padded | Truncated) -> str:
    """Return the kind and the shape of each tensor."""
    sizes = ", ".join(f"{name}={_size(tensor)}" for name, tensor in zip(tensors._fields, tensors, strict=True))
    return f"{type(tensors).__name__}({sizes})"


def _size(tensor: torch.Tensor) -> str:
    kind = {torch.sparse_csr: "csr ", torch.jagged: "nested "}.get(tensor.layout, "")
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{kind}{str(tensor.dtype).removeprefix('torch.')} {shape_text(map(str, tensor.shape))}{where}"


class TensorMinibatch(Displayed, Generic[Tensors]):
    """The streams of a minibatch as tensors, by name; each is created on first access, and kept.

    It behaves like a mapping but is not a `Mapping`, which `torch.utils.data` would rebuild without its attributes. For
    type checkers, `TensorMinibatch[Padded]` is a minibatch in which all streams are `Padded`.

    Attributes:
        passed: Position of the data set in a loader's worker after this minibatch (`cntkio.torch.workers`); else None.
        state: What `state_dict` returns; None: it raises an error.
    """

    __slots__ = ("_device", "_layout", "_minibatch", "_tensors", "passed", "state")

    def __init__(
        self, minibatch: Minibatch | _Finished, layout: Layout | Mapping[str, Layout] | None = None, device: Any = None
    ) -> None:
        self._minibatch, self._layout, self._device = minibatch, layout, device
        self.passed: object = None
        self.state: dict[str, Any] | None = None
        self._tensors: dict[str | StreamInformation, Any] = {}

    def __getitem__(self, stream: str | StreamInformation) -> Tensors:
        """Return the tensors of a stream, by its name or its `StreamInformation`."""
        tensors = self._tensors.get(stream)
        if tensors is None:
            # Kept under both keys, so that each access is one look-up and returns the same object.
            tensors = self[stream.name] if isinstance(stream, StreamInformation) else self._make(stream)
            self._tensors[stream] = tensors
        found: Tensors = tensors
        return found

    def _make(self, name: str) -> Any:
        data: Any = self._minibatch[name]
        if self._layout is None and self._device is None and type(data) is MinibatchData:
            if data.stream.storage_format == "dense":  # the common case, kept short for small minibatches
                array = data.values
                return Ragged(torch.from_numpy(array) if array.flags.writeable else _tensor(array), data)
        elif isinstance(self._minibatch, _Finished):
            return data
        tensors = _in_layout(data, self._layout.get(name) if isinstance(self._layout, Mapping) else self._layout)
        if self._device is None:
            return tensors
        return _built(_pieces_of(tensors), lambda tensor: tensor.to(self._device, non_blocking=True))

    def keys(self) -> list[str]:
        """Return the names of the streams."""
        return list(self._minibatch)

    def values(self) -> list[Tensors]:
        """Return the tensors of each stream."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Tensors]]:
        """Return the name and the tensors of each stream."""
        return [(name, self[name]) for name in self]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._minibatch)

    def __contains__(self, stream: object) -> bool:
        return (stream.name if isinstance(stream, StreamInformation) else stream) in self.keys()

    def _description(self) -> Description:
        counts = [counted(self.num_sequences, "sequence")] + ["end of sweep"] * self.end_of_sweep
        rows = [(name, self._size_of(name)) for name in self]
        return Description(f"TensorMinibatch: {', '.join(counts)}", ("stream", "tensors"), rows)

    def _size_of(self, name: str) -> str:
        try:
            tensors = self[name]
        except ConfigError as error:  # a layout that the stream cannot have
            return str(error)
        return _size(tensors) if isinstance(tensors, torch.Tensor) else repr(tensors)

    def _ipython_key_completions_(self) -> list[str]:
        return self.keys()

    @property
    def num_sequences(self) -> int:
        """Number of sequences, the same in every stream."""
        return self._minibatch.num_sequences

    @property
    def end_of_sweep(self) -> bool:
        """True if the minibatch reaches or crosses the end of a sweep."""
        return self._minibatch.end_of_sweep

    @property
    def keys_of_sequences(self) -> npt.NDArray[Any]:
        """The key of each sequence, in delivered order: uint64, or text."""
        return self._minibatch.keys_of_sequences

    @property
    def source_of_sequences(self) -> npt.NDArray[np.str_]:
        """The name of the part of a mixture that each sequence comes from.

        Raises:
            ConfigError: The minibatch does not come from a mixture.
        """
        return sources_of(self._minibatch.source, self.num_sequences)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the data set after this minibatch, however far a trainer has read ahead.

        Raises:
            CheckpointError: No trainer that reads ahead delivered it: then the data set itself has this state.
        """
        if self.state is None:
            what = "only minibatches that a trainer reads ahead have states of their own (docs/trainers.md)"
            raise CheckpointError(f"{what}; use the state_dict() of the data set")
        return self.state

    def to(self, device: Any, non_blocking: bool = True) -> TensorMinibatch[Tensors]:
        """Return the minibatch with its tensors on a device."""
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> TensorMinibatch[Tensors]:
        """Return the minibatch in pinned memory, which a GPU can copy; ``DataLoader(pin_memory=True)`` calls this."""
        return self._changed(lambda tensor: tensor.pin_memory())

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TensorMinibatch[Tensors]:
        finished, (pieces, *rest) = self.__reduce__()
        changed = finished({name: _built(piece, change) for name, piece in pieces.items()}, *rest)
        changed.state = self.state
        return changed

    def __reduce__(self) -> tuple[Callable[..., TensorMinibatch[Any]], tuple[Any, ...]]:
        # Tensors of a worker reach the main process in shared memory; arrays would be copied.
        pieces = {name: _pieces_of(tensors) for name, tensors in self.items()}
        facts = self.keys_of_sequences, self.num_sequences, self.end_of_sweep, self.passed, self._minibatch.source
        return _finished, (pieces, *facts)


class _Finished(dict[str, Any]):
    """A minibatch whose tensors all exist: tensors by stream name."""

    keys_of_sequences: npt.NDArray[Any]
    num_sequences: int
    end_of_sweep: bool
    source: SourceNames


def _finished(pieces: dict[str, Any], *facts: Any) -> TensorMinibatch[Any]:
    """Put a minibatch together from the arguments that `TensorMinibatch.__reduce__` returns."""
    whole = _Finished({name: _built(piece) for name, piece in pieces.items()})
    tensors: TensorMinibatch[Any] = TensorMinibatch(whole)
    whole.keys_of_sequences, whole.num_sequences, whole.end_of_sweep, tensors.passed, whole.source = facts
    return tensors


@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, *, layout: Literal["ragged", "ragged_ids"]
) -> TensorMinibatch[Ragged]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, *, layout: Literal["padded", "padded_ids"]
) -> TensorMinibatch[Padded]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, *, layout: Literal["csr", "ids", "nested", "nested_ids"]
) -> TensorMinibatch[torch.Tensor]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, layout: Layout | Mapping[str, Layout] | None = None
) -> TensorMinibatch[Any]: ...
@suggests_keywords
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, layout: Layout | Mapping[str, Layout] | None = None
) -> TensorMinibatch[Any]:
    """Convert a minibatch to tensors. (docs/torch.md, "Layouts")

    Args:
        minibatch: A minibatch of a source, also of a `UserMinibatchSource` or with an `input_map`, whose keys are kept;
            or the result of `cntkio.read_ctf`.
        device: Device of the tensors; None: they share the minibatch's own memory.
        layout: One layout for all streams, or a mapping from stream names to layouts; the default is ``"ragged"``.
            Truncated minibatches have a single layout. These layouts copy nothing, except for the sample offsets of
            sparse streams (PyTorch needs them in the type of the indices), and for sparse streams whose indices repeat
            or descend within a sample:

            - ``"ragged"``: `Ragged`. Values of a sparse stream are a `torch.sparse_csr` matrix.
            - ``"csr"``: the `torch.sparse_csr` matrix of a sparse stream, `[num_samples, dim]`.
            - ``"nested"``: a nested tensor of a dense stream with the layout `torch.jagged`,
              `[num_sequences, (steps), *sample shape]`.
            - ``"ids"``: the class of each sample of a one-hot stream, int32, `[num_samples]`. ``"ragged_ids"`` and
              ``"nested_ids"``: the same classes in that layout. (Dense streams are copied.)

            These layouts copy if sequences differ in length:

            - ``"padded"``: `Padded`. A sparse stream becomes dense. ``"padded_ids"``: the same with classes. A
              minibatch without sequences has one masked step, as `PaddedEmpty`.

    Raises:
        ConfigError: A layout or a stream of this name does not exist, the stream cannot have the layout, or it is not
            one-hot. Names are checked immediately, layouts when the stream is accessed.

    Example:
        >>> import cntkio, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("7 |word 3:1 |x 1 0\\n7 |word 5:1 |x 0 1\\n9 |word 4:1 |x 1 0\\n")
        >>> tensors = convert(cntkio.read_ctf(path), layout={"word": "padded_ids", "x": "padded"})
        >>> tensors["word"].values.tolist(), tensors["word"].mask.tolist()
        ([[3, 5], [4, 0]], [[True, True], [True, False]])
        >>> tensors["x"].values.shape
        torch.Size([2, 2, 2])
    """
    checked = checked_minibatch(minibatch)
    check_layout(layout, list(checked), get_args(Layout))
    return TensorMinibatch(checked, layout, device)


def in_rows(
    minibatch: Minibatch, length: int, rows: int | None, device: Any = None, part: tuple[int, int] = (0, 1)
) -> TensorMinibatch[torch.Tensor]:
    """Return the arrays of `cntkio.packed` as tensors, by the names of streams and of attributes of `PackedRows`.

    Args:
        part: As for `cntkio.packed`.
    """
    found = packed(minibatch, length, rows=rows, part=part)
    streams = {**found.of_sequences, **found.values}
    of_cells = {name: getattr(found, name) for name in ("segment_ids", "position_ids", "cu_seqlens")}
    if same := [name for name in of_cells if name in streams]:
        raise ConfigError(f"layout='rows' has tensors of its own named {same[0]!r}, like a stream", key="layout")
    tensors = {name: _tensor(array) for name, array in {**streams, **of_cells}.items()}
    # `segment_ids` number all sequences of the rows, of which a rank may hold only those in its slices.
    keys = (minibatch if minibatch.slice is None else minibatch.slice.whole).keys_of_sequences
    facts = keys, len(keys), minibatch.end_of_sweep, None, minibatch.source
    delivered = _finished(tensors, *facts)
    return delivered if device is None else delivered.to(device)


class Collate:
    """Turns batches of rows into tensors: for Ray's `iter_torch_batches(collate_fn=...)`. It needs pyarrow.

    A row is a sequence, as in the tables of `cntkio.arrow.RecordBatches` and the data sets of `cntkio.ray`.

    Args:
        shapes: As for `cntkio.arrow.read`: the schema of the corpus, or the shapes of samples.
        one_hot: As for `cntkio.arrow.read`.
        layout: As for `convert`.
        device: As for `convert`.

    Example:
        >>> import numpy as np
        >>> words = np.empty(2, object)  # sequences of different lengths, as in Ray's NumPy batches
        >>> words[:] = [np.array([3, 5]), np.array([4])]
        >>> tensors = Collate(one_hot={"w": 9}, layout="padded_ids")({"key": np.array([7, 9]), "w": words})
        >>> tensors["w"].values.tolist(), tensors.keys_of_sequences.tolist()
        ([[3, 5], [4, 0]], [7, 9])
    """

    def __init__(
        self,
        shapes: Any = None,
        *,
        one_hot: Mapping[str, int] | None = None,
        layout: Layout | Mapping[str, Layout] | None = None,
        device: Any = None,
    ) -> None:
        self._shapes, self._one_hot, self._layout, self._device = shapes, one_hot, layout, device

    def __call__(self, batch: Any) -> TensorMinibatch[Any]:
        """Return the tensors of a batch: an Arrow table, or a mapping of names to columns of NumPy.

        Raises:
            ConfigError: A column is not a stream, its shape is unknown, or a layout does not fit.
            CorpusError: Samples of a column differ in size, or an index is beyond the dimension.
        """
        # Imported late, because pyarrow is optional.
        from cntkio.arrow import read_minibatch

        return convert(read_minibatch(batch, shapes=self._shapes, one_hot=self._one_hot), self._device, self._layout)


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the memory of an array."""
    if not array.flags.writeable:
        # PyTorch has no read-only tensors, so the memory is declared writable, by an object that keeps the array alive.
        interface = array.__array_interface__
        writable = {**interface, "data": (interface["data"][0], False)}
        array = np.asarray(SimpleNamespace(__array_interface__=writable, array=array))
    return torch.from_numpy(array)


def _in_layout(data: Data, layout: Layout | None) -> Any:
    name = data.stream.name
    if isinstance(data, TruncatedMinibatchData):
        if layout not in (None, "padded"):
            what = f"stream {name!r}: truncated minibatches have the layout 'padded', not {layout!r}"
            raise ConfigError(what, key="layout")
        return Truncated(_tensor(data.values), _tensor(data.mask), _tensor(data.continues))
    # Layers and losses of PyTorch refuse arrays without sequences (`PaddedEmpty`).
    if layout in ("padded", "padded_ids") and not data.num_sequences:
        is_ids = layout == "padded_ids"
        dtype = torch.int32 if is_ids and not are_whole(data.stream) else _tensor(data.values).dtype
        values = torch.zeros((1, 1) if is_ids else (1, 1, *data.stream.shape), dtype=dtype)
        return PaddedEmpty(values, torch.ones(1, dtype=torch.int64))
    if layout == "padded":
        return Padded(_tensor(data.asarray()), _tensor(data.lengths))
    if layout == "csr":
        return _csr(data)
    if layout is None or layout == "ragged":
        return Ragged(_csr(data) if data.is_sparse else _tensor(data.values), data)
    if layout == "nested" and data.is_sparse:
        raise ConfigError(f"stream {name!r} is sparse: PyTorch has no nested sparse tensors", key="layout")
    values = _tensor(data.values if layout == "nested" else class_ids(data))
    if layout == "ids":
        return values
    if layout == "ragged_ids":
        return Ragged(values, data)
    if layout == "padded_ids":
        lengths = _tensor(data.lengths)
        # Sequences of equal length need no padding, and so no copy.
        if data.num_samples == data.num_sequences * data.num_steps:
            return Padded(values.reshape(data.num_sequences, data.num_steps), lengths)
        padded = Padded(values.new_zeros((data.num_sequences, data.num_steps)), lengths)
        padded.values[padded.mask] = values
        return padded
    return _nested(values, _tensor(data.offsets))


def _csr(data: MinibatchData) -> torch.Tensor:
    if data.indices is None or data.indptr is None:
        what = f"stream {data.stream.name!r} is dense: it has no layout 'csr'; use 'ragged' for its samples"
        raise ConfigError(what, key="layout")
    indptr, indices, num_entries = data.indptr, data.indices, len(data.indices)
    if num_entries >= 2**31:
        # PyTorch wants both index arrays in one type, and the row starts count up to the number of entries.
        indices = indices.astype(np.int64)
    parts = (_tensor(indptr.astype(indices.dtype)), _tensor(indices), _tensor(data.values))
    shape = (data.num_samples, data.stream.dim)
    is_descending = indices[1:] <= indices[:-1]
    begins = indptr[1:-1]
    # A sample that begins at either end of the entries does not begin between two of them.
    begins = begins[(begins > 0) & (begins < num_entries)]
    is_descending[begins - 1] = False  # a descent where a sample begins is allowed
    if not is_descending.any():
        return _matrix(*parts, shape)
    rows = np.repeat(np.arange(data.num_samples), np.diff(indptr))
    # PyTorch allows only ascending indices in a row; `coalesce` sorts them, and sums the values of equal indices.
    cells = torch.stack([_tensor(rows), parts[1].long()])
    summed = torch.sparse_coo_tensor(cells, parts[2], size=shape, check_invariants=False).coalesce()
    counts = torch.bincount(summed.indices()[0], minlength=shape[0])
    begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(parts[1].dtype)
    return _matrix(begins, summed.indices()[1].to(parts[1].dtype), summed.values(), shape)


def _matrix(begins: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return torch.sparse_csr_tensor(begins, indices, values, size=shape, check_invariants=False)


def _nested(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    return nested


def _pieces_of(tensors: Any) -> Any:
    """Take tensors of any layout apart: into a function and its arguments, which may be pieces of other tensors.

    A strided tensor stays whole. PyTorch's own ways to move and pickle CSR and nested tensors warn, or do not exist.
    """
    if isinstance(tensors, Ragged | Padded | Truncated):
        return partial(type(tensors), *map(_pieces_of, tensors))
    if tensors.layout == torch.sparse_csr:
        parts = tensors.crow_indices(), tensors.col_indices(), tensors.values()
        return partial(_matrix, *parts, tuple(tensors.shape))
    if tensors.is_nested:
        return partial(_nested, tensors.values(), tensors.offsets())
    return tensors


def _built(piece: Any, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
    """Put the tensors of a piece together; `change` is applied to each strided tensor of it."""
    if isinstance(piece, partial):
        return piece.func(*(_built(argument, change) for argument in piece.args))
    return change(piece) if change is not None and isinstance(piece, torch.Tensor) else piece

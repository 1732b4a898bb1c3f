"""Minibatches as PyTorch tensors, and a source as a PyTorch data set. (docs/torch.md)

::

    MinibatchSource ── read(size, partition) ──> Minibatch ── convert ──> TensorMinibatch
                              ^                                 tensors over the same memory, created on access
            rank of world size, worker of workers

Invariants: the timeline decides which data come in which order. A tensor shares the minibatch's memory wherever PyTorch
supports its form. A data set has no position of its own: its state is its source's state, with rank and worker.
"""

from __future__ import annotations

import json
import logging
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from cntkio.errors import CheckpointError, ConfigError
from cntkio.layouts import check_layout, class_ids
from cntkio.minibatch import Data, Minibatch, MinibatchData, TruncatedMinibatchData
from cntkio.source import MinibatchSource
from cntkio.streams import StreamInformation
from cntkio.timeline import BalancedPartition, Partition

__all__ = ["Layout", "MinibatchDataset", "Padded", "Ragged", "TensorMinibatch", "Truncated", "convert"]

logger = logging.getLogger("cntkio")

Layout = Literal["ragged", "padded", "nested", "csr", "ids", "ragged_ids", "padded_ids", "nested_ids"]
"""Form of a stream's tensors. (docs/torch.md, "Layouts")"""

_LARGEST_SIZE = 2**31 - 1
_STATE_VERSION = 1
_LONGEST_STATE = 1 << 16
_CONSTANT = ("version", "settings", "data", "order")  # what all states of one source share

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

    def __init__(self, values: torch.Tensor, offsets: torch.Tensor | MinibatchData) -> None:
        self.values = values
        self._offsets = offsets  # or the data to take them from on first access: many callers need only values

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
        return f"Ragged(values={self.values!r}, offsets={self.offsets!r})"


class Padded(NamedTuple):
    """One row for each sequence.

    Attributes:
        values: `[num_sequences, steps, *sample shape]`, 0 at padding. Class ids: int32, `[num_sequences, steps]`.
        lengths: Samples of each sequence, int64, `[num_sequences]`.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """True at samples, false at padding; bool, `[num_sequences, steps]`."""
        steps = torch.arange(self.values.shape[1], device=self.lengths.device)
        return steps < self.lengths[:, None]


class Truncated(NamedTuple):
    """One row for each slot of a truncated minibatch.

    Attributes:
        values: `[num_slots, num_steps, *sample shape]`.
        mask: 2 at a sequence's first sample, 1 at its other samples, 0 at empty steps; int8, `[num_slots, num_steps]`.
        continues: True for slots that continue a sequence of the previous minibatch; bool, `[num_slots]`.
    """

    values: torch.Tensor
    mask: torch.Tensor
    continues: torch.Tensor


class TensorMinibatch:
    """The streams of a minibatch as tensors, by name; each is created on first access, and kept.

    It behaves like a mapping but is not a `Mapping`, which `torch.utils.data` would rebuild without its attributes.
    """

    __slots__ = ("_device", "_layout", "_minibatch", "_passed", "_tensors")

    def __init__(
        self,
        minibatch: Minibatch | _Finished,
        layout: Layout | Mapping[str, Layout] | None = None,
        device: Any = None,
    ) -> None:
        self._minibatch = minibatch
        self._layout = layout
        self._device = device
        self._passed: _Passed | None = None
        self._tensors: dict[str | StreamInformation, Any] = {}

    def __getitem__(self, stream: str | StreamInformation) -> Any:
        """The tensors of a stream, by its name or its `StreamInformation`."""
        tensors = self._tensors.get(stream)
        if tensors is None:
            tensors = self._tensors[stream] = self._make(stream) if isinstance(stream, str) else self[stream.name]
        return tensors

    def _make(self, name: str) -> Any:
        data: Any = self._minibatch[name]
        if self._layout is None and self._device is None and type(data) is MinibatchData:
            if data.stream.storage_format == "dense":  # the common case, kept short for small minibatches
                array = data.values
                return Ragged(torch.from_numpy(array) if array.flags.writeable else _tensor(array), data)
        elif isinstance(self._minibatch, _Finished):
            return data
        return self._converted(name, data)

    def _converted(self, name: str, data: Data) -> Any:
        layout = self._layout
        tensors = _in_layout(data, layout if layout is None or isinstance(layout, str) else layout.get(name))
        if self._device is None:
            return tensors
        return _Pieces.of(tensors).changed(lambda tensor: tensor.to(self._device, non_blocking=True)).build()

    def keys(self) -> list[str]:
        """Return the names of the streams."""
        return list(self._minibatch)

    def values(self) -> list[Any]:
        """Return the tensors of each stream."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Any]]:
        """Return the name and the tensors of each stream."""
        return [(name, self[name]) for name in self]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._minibatch)

    def __contains__(self, stream: object) -> bool:
        return (stream.name if isinstance(stream, StreamInformation) else stream) in self.keys()

    def __repr__(self) -> str:
        return f"TensorMinibatch({', '.join(self)}; num_sequences={self.num_sequences})"

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

    def to(self, device: Any, non_blocking: bool = True) -> TensorMinibatch:
        """Return the minibatch with its tensors on a device."""
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> TensorMinibatch:
        """Return the minibatch in pinned memory, which a GPU can copy; ``DataLoader(pin_memory=True)`` calls this."""
        return self._changed(lambda tensor: tensor.pin_memory())

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TensorMinibatch:
        pieces = {name: pieces.changed(change) for name, pieces in self._pieces().items()}
        return _finished(pieces, self.keys_of_sequences, self.num_sequences, self.end_of_sweep, self._passed)

    def _pieces(self) -> dict[str, _Pieces]:
        return {name: _Pieces.of(tensors) for name, tensors in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        # Tensors of a worker reach the main process in shared memory; arrays would be copied.
        arguments = (self._pieces(), self.keys_of_sequences, self.num_sequences, self.end_of_sweep, self._passed)
        return _finished, arguments


class _Passed(NamedTuple):
    """Position of a worker's data set after a minibatch.

    Attributes:
        token: Tells data sets apart.
        worker: The worker's share of the data.
        num_workers: Number of workers.
        iteration: Number of the iteration in this worker.
        epoch: Its epoch.
        origin: Number of the loaded state from which the iteration resumed; 0: from the start of the epoch; None: from
            a state of this worker only, which the loader had kept.
        position: The changing part of the source's state.
    """

    token: str
    worker: int
    num_workers: int
    iteration: int
    epoch: int
    origin: int | None
    position: dict[str, Any]


class _Workers:
    """Positions of all workers' data sets after the minibatches that a loader delivered.

    Attributes:
        positions: For each worker the changing part of its source's state; None: nothing was delivered.
        next_worker: The worker whose minibatch comes next.
    """

    def __init__(self, iterator: weakref.ref[Any], passed: _Passed, begin: Mapping[str, Any] | None) -> None:
        self._iterator, self._iteration = iterator, passed.iteration
        self.epoch, self.origin = passed.epoch, passed.origin
        self.positions = [None] * passed.num_workers if begin is None else list(begin["workers"])
        self.next_worker = 0

    def covers(self, iterator: object, passed: _Passed) -> bool:
        """Return whether a minibatch belongs to the same iteration as those before."""
        return self._iterator() is iterator and self._iteration == passed.iteration

    def pass_on(self, passed: _Passed) -> None:
        """Take up that a minibatch was delivered."""
        self.positions[passed.worker] = passed.position
        self.next_worker = (passed.worker + 1) % passed.num_workers


class _Finished(dict[str, Any]):
    """A minibatch whose tensors all exist: tensors by stream name."""

    keys_of_sequences: npt.NDArray[Any]
    num_sequences: int
    end_of_sweep: bool


_arrived: set[str] = set()
"""Tokens of data sets from whose workers minibatches have arrived in this process."""


def _finished(
    pieces: dict[str, _Pieces],
    keys: npt.NDArray[Any],
    num_sequences: int,
    end_of_sweep: bool,
    passed: _Passed | None = None,
) -> TensorMinibatch:
    minibatch = _Finished({name: piece.build() for name, piece in pieces.items()})
    minibatch.keys_of_sequences = keys
    minibatch.num_sequences = num_sequences
    minibatch.end_of_sweep = end_of_sweep
    tensors = TensorMinibatch(minibatch)
    tensors._passed = passed
    if passed is not None:
        _arrived.add(passed.token)
    return tensors


def convert(
    minibatch: Minibatch, device: Any = None, layout: Layout | Mapping[str, Layout] | None = None
) -> TensorMinibatch:
    """Convert a minibatch to tensors. (docs/torch.md, "Layouts")

    Args:
        minibatch: A minibatch of a source, or the result of `cntkio.read_ctf`.
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

            - ``"padded"``: `Padded`. A sparse stream becomes dense. ``"padded_ids"``: the same with classes.

    Raises:
        ConfigError: A layout or a stream of this name does not exist, the stream cannot have the layout, or it is not
            one-hot. The first two are raised at once, the others on access to the stream.

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
    check_layout(layout, list(minibatch), get_args(Layout))
    return TensorMinibatch(minibatch, layout, device)


class _Memory:
    """The memory of a read-only array, declared writable: PyTorch has no read-only tensors."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array  # kept alive for as long as the tensor


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the memory of an array."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Memory(array)))


def _in_layout(data: Data, layout: Layout | None) -> Any:
    name = data.stream.name
    if isinstance(data, TruncatedMinibatchData):
        if layout not in (None, "padded"):
            raise ConfigError(
                f"stream {name!r}: truncated minibatches have the layout 'padded', not {layout!r}", key="layout"
            )
        return Truncated(_tensor(data.values), _tensor(data.mask), _tensor(data.continues))
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
        if data.num_samples == data.num_sequences * data.num_steps:
            return Padded(values.reshape(data.num_sequences, data.num_steps), lengths)
        padded = Padded(values.new_zeros((data.num_sequences, data.num_steps)), lengths)
        padded.values[padded.mask] = values
        return padded
    return _nested(values, _tensor(data.offsets))


def _csr(data: MinibatchData) -> torch.Tensor:
    if data.indices is None or data.indptr is None:
        raise ConfigError(
            f"stream {data.stream.name!r} is dense: it has no layout 'csr'; use 'ragged' for its samples", key="layout"
        )
    indptr, indices = data.indptr, data.indices
    num_entries = len(indices)
    if num_entries >= 2**31:
        indices = indices.astype(np.int64)
    parts = (_tensor(indptr.astype(indices.dtype)), _tensor(indices), _tensor(data.values))
    shape = (data.num_samples, data.stream.dim)
    is_descending = indices[1:] <= indices[:-1]
    begins = indptr[1:-1]
    begins = begins[(begins > 0) & (begins < num_entries)]
    is_descending[begins - 1] = False  # a descent where a sample begins is allowed
    if not is_descending.any():
        return _matrix(*parts, shape)
    rows = np.repeat(np.arange(data.num_samples), np.diff(indptr))
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


class _Pieces(NamedTuple):
    """Tensors of a stream as a function and its arguments: strided tensors, numbers, and pieces of other tensors.

    PyTorch's own ways to move and pickle CSR and nested tensors warn, or do not exist.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, tensors: Any) -> _Pieces:
        """Take tensors of any layout apart."""
        if isinstance(tensors, Ragged | Padded | Truncated):
            return cls(type(tensors), tuple(map(cls.of, tensors)))
        if tensors.layout == torch.sparse_csr:
            return cls(_matrix, (tensors.crow_indices(), tensors.col_indices(), tensors.values(), tuple(tensors.shape)))
        if tensors.is_nested:
            return cls(_nested, (tensors.values(), tensors.offsets()))
        return cls(_itself, (tensors,))

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> _Pieces:
        """Apply a function to each strided tensor."""

        def of(argument: Any) -> Any:
            if isinstance(argument, _Pieces):
                return argument.changed(change)
            return change(argument) if isinstance(argument, torch.Tensor) else argument

        return _Pieces(self.function, tuple(map(of, self.arguments)))

    def build(self) -> Any:
        """Put the tensors together."""
        return self.function(*(item.build() if isinstance(item, _Pieces) else item for item in self.arguments))


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _other_workers(saved: int, current: int) -> CheckpointError:
    return CheckpointError(
        f"the state does not fit this data set: num_workers: saved {saved}, here {current}",
        saved={"num_workers": saved},
        current={"num_workers": current},
    )


class MinibatchDataset(torch.utils.data.IterableDataset):
    """A source as a PyTorch data set, for ``DataLoader(batch_size=None)``. (docs/torch.md)

    Each iteration starts at the position that the source had when the data set was created, and ends at the end of the
    source's data (``max_sweeps=1``: one sweep). After `set_epoch` it delivers the following data of the timeline, so
    that each epoch has an order of its own. After `load_state_dict` the next iteration resumes there.

    Args:
        source: The source to read. From now on only the data set may read it.
        minibatch_size: Samples of all ranks together, as in CNTK. Workers do not divide it further: each makes whole
            minibatches of its rank.
        layout: As for `convert`.
        device: As for `convert`; None with workers or pinned memory.
        partition: ``"cntk"``: CNTK's rule, where each worker of each rank is a partition (docs/timeline.md,
            "Partitions"). ``"balanced"``: by sequence, with the same number of minibatches on each rank, independent of
            the number of workers (docs/timeline.md, "Balanced partitions").
        remainder: For balanced partitions, the rule for fewer sequences than ranks at the end of a sweep: ``"drop"`` or
            ``"repeat"``.
        rank: Index of this process; None: the rank of `torch.distributed`, or 0 if that is not initialized.
        world_size: Number of processes that share the data; given with `rank`.

    Raises:
        ConfigError: An argument is not possible.

    Example:
        >>> import cntkio, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ctf")
        >>> _ = path.write_text("|x 1 2\\n|x 3 4\\n|x 5 6\\n")
        >>> corpus = cntkio.CTFDeserializer(path, cntkio.StreamDefs(x=cntkio.StreamDef(field="x", shape=2)))
        >>> dataset = MinibatchDataset(cntkio.MinibatchSource(corpus, randomize=False, max_sweeps=1), 2)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)
        >>> [minibatch["x"].values.tolist() for minibatch in loader]
        [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    """

    def __init__(
        self,
        source: MinibatchSource,
        minibatch_size: int,
        *,
        layout: Layout | Mapping[str, Layout] | None = None,
        device: Any = None,
        partition: Literal["cntk", "balanced"] = "cntk",
        remainder: Literal["drop", "repeat"] = "drop",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if not isinstance(source, MinibatchSource):
            raise ConfigError(
                f"source is {type(source).__name__}; expected a MinibatchSource (a ReaderConfig's open() gives one)",
                key="source",
            )
        if type(minibatch_size) is not int or not 1 <= minibatch_size <= _LARGEST_SIZE:
            raise ConfigError(
                f"minibatch_size is {minibatch_size!r}; expected a whole number in 1..{_LARGEST_SIZE}",
                key="minibatch_size",
            )
        check_layout(layout, [stream.name for stream in source.stream_infos()], get_args(Layout))
        if partition not in ("cntk", "balanced"):
            raise ConfigError(f"partition is {partition!r}; expected 'cntk' or 'balanced'", key="partition")
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank} and world_size={world_size} are given together or not at all", key="rank")
        BalancedPartition(rank or 0, 1 if world_size is None else world_size, remainder)  # checks the values
        self.source = source
        self.minibatch_size = minibatch_size
        self.layout = layout
        self.device = device
        self.partition = partition
        self.remainder = remainder
        self._given = None if rank is None or world_size is None else (rank, world_size)
        self._start = source.state_dict()
        self._span = source.span
        # In shared memory, for workers that persist from epoch to epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._loaded: Mapping[str, Any] | None = None
        # A state for workers, in shared memory as well: its number, its length, and its text.
        self._sent = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._text = torch.zeros(_LONGEST_STATE, dtype=torch.uint8).share_memory_()
        self._taken_up = 0  # number of the last state that this process took up
        self._origin: int | None = 0
        self._shift = 0  # the first worker of the loader has this worker's share
        self._token = uuid.uuid4().hex
        self._workers: _Workers | None = None
        self._is_unknown = False  # true after a loader delivered something without a position
        self._begun: int | None = None  # the epoch of the source's position
        self._has_moved = False  # true once the source's span may have changed
        self._iteration = 0

    # ----------------------------------------------------------------------------------------------- iteration

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch of the next iteration: epoch k begins k times the source's limit after its start.

        A state that was loaded in the same epoch stays. You may call this while workers wait for the next iteration.

        Raises:
            ConfigError: `epoch` is below 0; or the source has no limit, or a timeline that cannot go there.
        """
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}; expected at least 0", key="epoch")
        if epoch and self._span is None:
            raise ConfigError(
                "epochs need a source that ends, for instance with max_sweeps=1, and without a user-defined "
                "deserializer on its own timeline",
                key="epoch",
            )
        if epoch != self.epoch:
            self._loaded = None
            self._send(None)
        self._epoch.fill_(epoch)

    def _rank(self) -> tuple[int, int]:
        if self._given is not None:
            return self._given
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def _worker(self) -> tuple[int, int]:
        worker = torch.utils.data.get_worker_info()
        return (0, 1) if worker is None else ((worker.id + self._shift) % worker.num_workers, worker.num_workers)

    def _request(self) -> tuple[int, Partition]:
        rank, world_size = self._rank()
        worker, num_workers = self._worker()
        if self.partition == "balanced":
            return self.minibatch_size, BalancedPartition(rank, world_size, self.remainder, worker, num_workers)
        share = Partition(rank * num_workers + worker, world_size * num_workers)
        if share.count > self.source.num_chunks and share.index == 0 and self.source.is_randomized:
            logger.warning(
                "%d partitions (ranks times workers) share %d chunks, so some are empty: make chunks smaller "
                "(chunk_size_in_bytes), or use partition='balanced'",
                share.count,
                self.source.num_chunks,
            )
        return min(self.minibatch_size * num_workers, _LARGEST_SIZE), share

    def _enter(self, epoch: int) -> None:
        """Move the source to the start of an epoch."""
        if self._span is not None and (epoch or self._has_moved):
            begin, end = self._span
            offset = epoch * (end - begin)
            number = self._start.get("epoch_number", 0) + epoch
            self.source.begin_epoch(begin + offset, end + offset, number=number)
            self._has_moved = True
        if epoch == 0:
            self.source.load_state_dict(self._start)
        self._begun = epoch

    def __iter__(self) -> Iterator[TensorMinibatch]:
        self._shift = 0
        number, sent = self._received()
        if sent is not None:
            self._begin_share(number, sent)
        elif self._loaded is not None:
            self._begin_loaded(self._loaded)
        else:
            self._origin = 0
            self._enter(self.epoch)
        if torch.utils.data.get_worker_info() is None:
            self._workers, self._is_unknown = None, False
            _arrived.discard(self._token)
        self._iteration += 1
        return self._minibatches(self._iteration, *self._request())

    def _begin_loaded(self, state: Mapping[str, Any]) -> None:
        """Resume from the state of one process."""
        num_workers = self._worker()[1]
        has_read = "minibatch_size" in state["source"]["timeline"]
        if has_read and state["num_workers"] != num_workers:
            raise _other_workers(state["num_workers"], num_workers)
        self._origin = None if has_read else 0
        self._resume(state)

    def _begin_share(self, number: int, state: Mapping[str, Any]) -> None:
        """Resume with this worker's share of the state of all workers."""
        info = torch.utils.data.get_worker_info()
        positions = state["workers"]
        if info is None or info.num_workers != len(positions):
            raise _other_workers(len(positions), 0 if info is None else info.num_workers)
        self._taken_up = self._origin = number
        self._shift = state["next_worker"]
        position = positions[self._worker()[0]]
        if position is None:
            self._loaded = None
            self._enter(state["epoch"])
        else:
            self._resume({"epoch": state["epoch"], "source": {**state["source"], **position}})

    def _minibatches(self, iteration: int, size: int, partition: Partition) -> Iterator[TensorMinibatch]:
        read, layout, device = self.source.read, self.layout, self.device
        keeps_empty = partition.count == 1 or isinstance(partition, BalancedPartition)
        is_worker = torch.utils.data.get_worker_info() is not None
        while True:
            if self._iteration != iteration:
                raise RuntimeError("this iteration has ended, because another iteration over the same data set began")
            minibatch = read(size, partition)
            if minibatch is None:
                return
            if keeps_empty or minibatch.num_sequences:
                tensors = TensorMinibatch(minibatch, layout, device)
                if is_worker:
                    tensors._passed = self._passed(iteration)
                yield tensors

    # ---------------------------------------------------------------------------------- workers of a loader

    def _passed(self, iteration: int) -> _Passed:
        """Say where this worker stands."""
        position = {name: value for name, value in self.source.state_dict().items() if name not in _CONSTANT}
        assert self._begun is not None
        return _Passed(self._token, *self._worker(), iteration, self._begun, self._origin, position)

    def _note(self, iterator: object, delivered: object) -> None:
        """Note in the main process what a loader with workers delivered; None: the end."""
        number = int(self._sent[0])
        if delivered is None:
            if self._workers is None:
                self._taken_up = number
                self._loaded = None
            return
        passed = delivered._passed if isinstance(delivered, TensorMinibatch) else None
        if passed is None:
            self._is_unknown = True
            return
        if self._workers is None or not self._workers.covers(iterator, passed):
            begin = None
            if passed.origin:
                begin = self._sent_state()
                self._taken_up = number
            self._is_unknown = passed.origin is None
            self._loaded = None
            self._workers = _Workers(weakref.ref(iterator), passed, begin)
        self._workers.pass_on(passed)

    def _send(self, state: Mapping[str, Any] | None) -> None:
        """Give a state to all workers, including workers that wait for the next iteration; None: withdraw it."""
        text = b"" if state is None else json.dumps(state).encode()
        if len(text) > _LONGEST_STATE:
            raise CheckpointError(f"the state has {len(text)} bytes; for workers, expected at most {_LONGEST_STATE}")
        self._text[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else 0
        self._sent += 1
        self._sent[1] = len(text)

    def _sent_state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = json.loads(bytes(self._text[: int(self._sent[1])].numpy()))
        return state

    def _received(self) -> tuple[int, Mapping[str, Any] | None]:
        """Return the number of the state for workers, and the state if this process has not taken it up."""
        number, length = self._sent.tolist()
        return number, None if number == self._taken_up or not length else self._sent_state()

    # ------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last minibatch, from which `load_state_dict` resumes: a small dict for JSON.

        With the workers of a ``DataLoader`` it is the state after the last minibatch that the loader delivered. It can
        be loaded for the same number of workers.

        Raises:
            CheckpointError: A loader delivered minibatches that do not tell where they come from: a ``collate_fn``
                changed them, or a ``StatefulDataLoader`` resumed, which has a state of its own.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        if self._is_unknown or (self._workers is None and self._token in _arrived):
            raise CheckpointError(
                "the loader's minibatches do not tell where all workers stand (a collate_fn changed them, or it is a "
                "StatefulDataLoader); use DataLoader(dataset, batch_size=None), or the loader's state_dict()"
            )
        if self._workers is not None:
            shared = {name: value for name, value in self._start.items() if name in _CONSTANT}
            return {
                "version": _STATE_VERSION,
                **self._description(),
                "worker": 0,
                "num_workers": len(self._workers.positions),
                "epoch": self._workers.epoch,
                "source": shared,
                "workers": list(self._workers.positions),
                "next_worker": self._workers.next_worker,
            }
        if self._begun is None:
            self._enter(self.epoch)
        position = {"epoch": self._begun, "source": self.source.state_dict()}
        return {"version": _STATE_VERSION, **self._description(), **position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next iteration where a `state_dict` was taken, in this or another process.

        Raises:
            CheckpointError: The state was taken with other settings, by another rank or worker, or from other data; all
                differences are named.
        """
        if state.get("version") != _STATE_VERSION or not isinstance(state.get("source"), Mapping):
            raise CheckpointError(
                f"not a state of a data set: its version is {state.get('version')!r}; expected {_STATE_VERSION}",
                saved=state.get("version"),
                current=_STATE_VERSION,
            )
        current = self._description()
        is_of_workers = "workers" in state
        if is_of_workers:
            self._check_workers(state)
            current = {name: value for name, value in current.items() if name not in ("worker", "num_workers")}
        different = [name for name, value in current.items() if state.get(name) != value]
        if different:
            raise CheckpointError(
                "the state does not fit this data set: "
                + "; ".join(f"{name}: saved {state.get(name)!r}, here {current[name]!r}" for name in different),
                saved={name: state.get(name) for name in different},
                current={name: current[name] for name in different},
            )
        if is_of_workers:
            for position in state["workers"]:
                if position is not None:
                    self._resume({"epoch": state["epoch"], "source": {**state["source"], **position}})
        else:
            self._resume(state)
        self._send(state if is_of_workers else None)
        self._loaded = dict(state)
        self._workers, self._is_unknown = None, False
        _arrived.discard(self._token)
        self._epoch.fill_(state["epoch"])
        self._iteration += 1

    def _check_workers(self, state: Mapping[str, Any]) -> None:
        positions, next_worker = state["workers"], state.get("next_worker")
        is_sound = (
            isinstance(positions, list)
            and len(positions) == state.get("num_workers")
            and all(position is None or isinstance(position, Mapping) for position in positions)
            and type(next_worker) is int
            and 0 <= next_worker < len(positions)
            and type(state.get("epoch")) is int
        )
        if not is_sound:
            raise CheckpointError("not a state of a data set: its 'workers' are damaged", saved=dict(state))

    def _description(self) -> dict[str, Any]:
        rank, world_size = self._rank()
        worker, num_workers = self._worker()
        return {
            "minibatch_size": self.minibatch_size,
            "partition": self.partition,
            "remainder": self.remainder,
            "rank": rank,
            "world_size": world_size,
            "worker": worker,
            "num_workers": num_workers,
        }

    def _resume(self, state: Mapping[str, Any]) -> None:
        if "epoch" not in state["source"] and self._has_moved:
            self._enter(0)
        self.source.load_state_dict(state["source"])
        self._has_moved |= "epoch" in state["source"]
        self._begun = state["epoch"]
        self._loaded = None

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker has no process group.
        return {**self.__dict__, "_given": self._rank(), "_workers": None}


class _Noted:
    """An iteration of a loader that tells the data set of the main process what was delivered."""

    def __init__(self, dataset: MinibatchDataset, iterator: Iterator[Any]) -> None:
        self._dataset, self._iterator = dataset, iterator

    def __iter__(self) -> _Noted:
        return self

    def __next__(self) -> Any:
        try:
            delivered = next(self._iterator)
        except StopIteration:
            self._dataset._note(self, None)
            raise
        self._dataset._note(self, delivered)
        return delivered


_iterate = torch.utils.data.DataLoader.__iter__


def _iterate_and_note(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """Iterate over a loader; a loader itself does not tell its data set what it has delivered."""
    iterator = _iterate(loader)
    is_noted = loader.num_workers > 0 and isinstance(loader.dataset, MinibatchDataset)
    return _Noted(loader.dataset, iterator) if is_noted else iterator


torch.utils.data.DataLoader.__iter__ = _iterate_and_note

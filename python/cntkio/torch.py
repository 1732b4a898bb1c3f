"""Minibatches as tensors of PyTorch, and a source as one of its data sets. (docs/torch.md)

::

    MinibatchSource ── read(size, partition) ──> Minibatch ── convert ──> TensorMinibatch
                              ^                                 tensors over the same memory, made when asked for
            rank of world size, worker of workers

Its law: what is delivered, and in which order, is the timeline's; a tensor is the minibatch's own memory wherever
PyTorch has a form for it. It keeps no place of its own: a data set's state is its source's, and whose it is.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from cntkio.errors import CheckpointError, ConfigError
from cntkio.minibatch import Data, Minibatch, MinibatchData, TruncatedMinibatchData
from cntkio.source import MinibatchSource
from cntkio.streams import StreamInformation
from cntkio.timeline import BalancedPartition, Partition

__all__ = ["Layout", "MinibatchDataset", "Padded", "Ragged", "TensorMinibatch", "Truncated", "convert"]

logger = logging.getLogger("cntkio")

Layout = Literal["ragged", "padded", "nested", "csr", "ids", "ragged_ids", "padded_ids", "nested_ids"]
"""What becomes of a stream. (docs/torch.md, "Layouts")"""

_LARGEST_SIZE = 2**31 - 1
_STATE_VERSION = 1

with warnings.catch_warnings():
    # PyTorch says once in a process that its CSR tensors are in beta state: when one is made, or comes from a worker.
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
    _nothing = torch.zeros(1, dtype=torch.int32)
    torch.sparse_csr_tensor(_nothing, _nothing[1:], torch.zeros(0), (0, 0), check_invariants=False)


class Ragged:
    """The samples of all sequences, one after the other; unpacks into `values` and `offsets`.

    Attributes:
        values: Dense: `[num_samples, *sample shape]`. Sparse: `torch.sparse_csr`, `[num_samples, dim]`. Class ids:
            int32, `[num_samples]`.
    """

    __slots__ = ("_offsets", "values")

    def __init__(self, values: torch.Tensor, offsets: torch.Tensor | MinibatchData) -> None:
        self.values = values
        self._offsets = offsets  # or whose they are: not all who want values want them

    @property
    def offsets(self) -> torch.Tensor:
        """Where each sequence begins and, last, where they end; int64, `[num_sequences + 1]`."""
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
        values: `[num_sequences, steps, *sample shape]`, and 0 behind each sequence's last sample. Class ids: int32,
            `[num_sequences, steps]`.
        lengths: Samples of each sequence, int64, `[num_sequences]`.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """Whether there is a sample, bool, `[num_sequences, steps]`."""
        steps = torch.arange(self.values.shape[1], device=self.lengths.device)
        return steps < self.lengths[:, None]


class Truncated(NamedTuple):
    """One row for each slot of a truncated minibatch.

    Attributes:
        values: `[num_slots, num_steps, *sample shape]`.
        mask: 2 at a sequence's first sample, 1 at its others, 0 where there are none; int8, `[num_slots, num_steps]`.
        continues: Whether a slot goes on with the sequence of the minibatch before, bool, `[num_slots]`.
    """

    values: torch.Tensor
    mask: torch.Tensor
    continues: torch.Tensor


class TensorMinibatch:
    """The streams of a minibatch as tensors, by name; each is made when it is asked for, and kept.

    It looks like a mapping but is none by type: `torch.utils.data` would take a mapping apart and lose the rest.
    """

    __slots__ = ("_device", "_layout", "_made", "_minibatch")

    def __init__(
        self,
        minibatch: Minibatch | _Finished,
        layout: Layout | Mapping[str, Layout] | None = None,
        device: Any = None,
    ) -> None:
        self._minibatch: Any = minibatch
        self._layout = layout
        self._device = device
        self._made: dict[str | StreamInformation, Any] = {}

    def __getitem__(self, stream: str | StreamInformation) -> Any:
        """The tensors of a stream, by its name or its `StreamInformation`."""
        made = self._made.get(stream)
        if made is None:
            made = self._made[stream] = self._make(stream) if isinstance(stream, str) else self[stream.name]
        return made

    def _make(self, name: str) -> Any:
        data = self._minibatch[name]
        if self._layout is None and self._device is None and type(data) is MinibatchData:
            if data.stream.storage_format == "dense":  # the common case, without what small minibatches would notice
                array = data.dense_values()
                return Ragged(torch.from_numpy(array) if array.flags.writeable else _tensor(array), data)
        elif isinstance(self._minibatch, _Finished):
            return data
        return self._converted(name, data)

    def _converted(self, name: str, data: Data) -> Any:
        layout = self._layout
        made = _laid_out(data, layout if layout is None or isinstance(layout, str) else layout.get(name))
        if self._device is None:
            return made
        return _put_together(_taken_apart(made, lambda tensor: tensor.to(self._device, non_blocking=True)))

    def keys(self) -> list[str]:
        """The names of the streams."""
        return [stream if isinstance(stream, str) else stream.name for stream in self._minibatch]

    def values(self) -> list[Any]:
        """The tensors of each stream."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Any]]:
        """Name and tensors of each stream."""
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
        number: int = self._minibatch.num_sequences
        return number

    @property
    def end_of_sweep(self) -> bool:
        """Whether the minibatch reaches or crosses the end of a sweep."""
        is_end: bool = self._minibatch.end_of_sweep
        return is_end

    @property
    def keys_of_sequences(self) -> npt.NDArray[Any]:
        """The key of each sequence, in delivered order: uint64, or text."""
        keys: npt.NDArray[Any] = self._minibatch.keys_of_sequences
        return keys

    def to(self, device: Any, non_blocking: bool = True) -> TensorMinibatch:
        """The same on a device."""
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> TensorMinibatch:
        """The same in memory from which a GPU can copy by itself; ``DataLoader(pin_memory=True)`` calls it."""
        return self._changed(lambda tensor: tensor.pin_memory())

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TensorMinibatch:
        return _finished(*self._parts(change))

    def _parts(self, change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
        parts = {name: _taken_apart(made, change) for name, made in self.items()}
        return parts, self.keys_of_sequences, self.num_sequences, self.end_of_sweep

    def __reduce__(self) -> tuple[Any, ...]:
        # Tensors of a worker reach the main process in shared memory, which arrays do not.
        return _finished, self._parts(lambda tensor: tensor)


class _Finished(dict[str, Any]):
    """Stands for a minibatch all of whose tensors are there."""

    keys_of_sequences: npt.NDArray[Any]
    num_sequences: int
    end_of_sweep: bool


def _finished(parts: dict[str, Any], keys: npt.NDArray[Any], num_sequences: int, end_of_sweep: bool) -> TensorMinibatch:
    minibatch = _Finished({name: _put_together(part) for name, part in parts.items()})
    minibatch.keys_of_sequences = keys
    minibatch.num_sequences = num_sequences
    minibatch.end_of_sweep = end_of_sweep
    return TensorMinibatch(minibatch)


def convert(
    minibatch: Minibatch, device: Any = None, layout: Layout | Mapping[str, Layout] | None = None
) -> TensorMinibatch:
    """Show a minibatch as tensors. (docs/torch.md, "Layouts")

    Args:
        minibatch: What a source has delivered, or `cntkio.read_ctf` has read.
        device: Where to; None: they stay in the minibatch's own memory.
        layout: For all streams, or for some of them by name; for those that are not named, and None: ``"ragged"``, and
            truncated minibatches as they are. Without a copy but for the sample offsets of sparse streams (PyTorch
            wants the type of the indices), and these where a sample's indices repeat or descend:

            - ``"ragged"``: `Ragged`. Values of a sparse stream are a `torch.sparse_csr` matrix.
            - ``"csr"``: the `torch.sparse_csr` matrix of a sparse stream, `[num_samples, dim]`.
            - ``"nested"``: a nested tensor of a dense stream with the layout `torch.jagged`,
              `[num_sequences, (steps), *sample shape]`.
            - ``"ids"``: for one-hot streams the class of each sample, int32, `[num_samples]`. ``"ragged_ids"`` and
              ``"nested_ids"``: these, laid out so. (With a copy where the stream is dense.)

            With a copy where sequences differ in length:

            - ``"padded"``: `Padded`. A sparse stream becomes dense. ``"padded_ids"``: the same of classes.

    Raises:
        ConfigError: There is no such layout or stream, the stream has no such layout, or it is not one-hot. All but the
            first two are raised where the stream is asked for.

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
    _check_layout(layout, [stream.name for stream in minibatch])
    return TensorMinibatch(minibatch, layout, device)


def _check_layout(layout: Layout | Mapping[str, Layout] | None, names: list[str]) -> None:
    if layout is None:
        return
    for name, one in ((None, layout),) if isinstance(layout, str) else layout.items():
        if one not in get_args(Layout):
            raise ConfigError(f"layout {one!r}; expected one of {', '.join(map(repr, get_args(Layout)))}", key="layout")
        if name is not None and name not in names:
            raise ConfigError(
                f"layout names the stream {name!r}; there are: {', '.join(map(repr, names)) or 'none'}", key="layout"
            )


class _Memory:
    """The memory of a read-only array, as NumPy may write to it: PyTorch has no tensors that are read-only."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array  # lives as long as what is made of this


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of an array."""
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Memory(array)))


def _laid_out(data: Data, layout: Layout | None) -> Any:
    name = data.stream.name
    if isinstance(data, TruncatedMinibatchData):
        if layout not in (None, "padded"):
            raise ConfigError(
                f"stream {name!r}: truncated minibatches have no layout {layout!r}, but 'padded'", key="layout"
            )
        return Truncated(_tensor(data.values), _tensor(data.mask), _tensor(data.continues))
    if layout == "padded":
        return Padded(_tensor(data.asarray()), _tensor(data.lengths))
    if layout == "csr":
        return _csr(data)
    if layout is None or layout == "ragged":
        return Ragged(_csr(data) if data.is_sparse else _tensor(data.values), data)
    if layout == "nested" and data.is_sparse:
        raise ConfigError(f"stream {name!r} is sparse: PyTorch has no nested tensors of sparse ones", key="layout")
    values = _tensor(data.values) if layout == "nested" else _ids(data)
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
            f"stream {data.stream.name!r} is dense: it has no layout 'csr'; 'ragged' gives its samples", key="layout"
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
    is_descending[begins - 1] = False  # there a sample begins
    if not is_descending.any():
        return _matrix(*parts, shape)
    rows = np.repeat(np.arange(data.num_samples), np.diff(indptr))
    places = torch.stack([_tensor(rows), parts[1].long()])
    summed = torch.sparse_coo_tensor(places, parts[2], size=shape, check_invariants=False).coalesce()
    counts = torch.bincount(summed.indices()[0], minlength=shape[0])
    begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(parts[1].dtype)
    return _matrix(begins, summed.indices()[1].to(parts[1].dtype), summed.values(), shape)


def _matrix(begins: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return torch.sparse_csr_tensor(begins, indices, values, size=shape, check_invariants=False)


def _nested(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
    return nested


def _taken_apart(made: Any, change: Callable[[torch.Tensor], Any] = lambda tensor: tensor) -> Any:
    """What a stream became, as a function and its arguments: strided tensors, changed, and numbers.

    PyTorch's own way for CSR and nested tensors warns, or is not there.
    """
    if isinstance(made, Ragged | Padded | Truncated):
        return type(made), [_taken_apart(tensor, change) for tensor in made]
    if made.layout == torch.sparse_csr:
        return _matrix, [*map(change, (made.crow_indices(), made.col_indices(), made.values())), tuple(made.shape)]
    if made.is_nested:
        return _nested, [change(made.values()), change(made.offsets())]
    return change(made)


def _put_together(parts: Any) -> Any:
    if isinstance(parts, tuple) and callable(parts[0]):
        return parts[0](*map(_put_together, parts[1]))
    return parts


def _ids(data: MinibatchData) -> torch.Tensor:
    """The class of each sample of a one-hot stream."""
    stream = data.stream
    if stream.dtype == np.int32:
        return _tensor(data.values.reshape(-1))
    if data.indices is None or data.indptr is None:
        samples = data.values.reshape(-1, stream.dim)
        ids = samples.argmax(axis=1).astype(np.int32)
        is_one_hot = (np.count_nonzero(samples, axis=1) == 1) & (samples[np.arange(len(samples)), ids] == 1)
    elif len(data.indices) == data.num_samples:
        ids = data.indices
        is_one_hot = (data.values == 1) & (np.diff(data.indptr) == 1)
    else:
        ids, is_one_hot = data.indices, np.diff(data.indptr) == 1
    if not is_one_hot.all():
        raise ConfigError(
            f"stream {stream.name!r} is not one-hot: sample {int(is_one_hot.argmin())} of the minibatch is not a "
            f"single entry of 1, and so it has no class; use another layout",
            key="layout",
        )
    return _tensor(ids)


class MinibatchDataset(torch.utils.data.IterableDataset):
    """A source as a data set of PyTorch, for ``DataLoader(batch_size=None)``. (docs/torch.md)

    Each iteration begins where the source stood when the data set was made, and ends where the source's data end
    (``max_sweeps=1``: one sweep); after `set_epoch` it takes what follows on the timeline, so that each epoch has an
    order of its own. After `load_state_dict` the next iteration goes on there.

    Args:
        source: Whose minibatches to deliver. It is the data set's from now on.
        minibatch_size: Samples of all ranks together, as in CNTK. Workers do not count: each makes whole minibatches of
            its rank.
        layout: As for `convert`.
        device: As for `convert`; None where workers or pinned memory are used.
        partition: ``"cntk"``: the engine's rule, where each rank's worker is a partition (docs/timeline.md,
            "Partitions"). ``"balanced"``: by sequence, equally many minibatches on each rank, which do not depend on
            the number of workers (docs/timeline.md, "Balanced partitions").
        remainder: Balanced, what is to become of fewer sequences than ranks at the end of a sweep: ``"drop"`` or
            ``"repeat"``.
        rank: Which of the processes this is; None: as `torch.distributed` says, and 0 where it was not initialized.
        world_size: How many processes share the data; given with `rank`.

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
        _check_layout(layout, [stream.name for stream in source.stream_infos()])
        if partition not in ("cntk", "balanced"):
            raise ConfigError(f"partition is {partition!r}; expected 'cntk' or 'balanced'", key="partition")
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank} and world_size={world_size} are given together or not at all", key="rank")
        BalancedPartition(rank or 0, 1 if world_size is None else world_size, remainder)  # refuses what is not possible
        self.source = source
        self.minibatch_size = minibatch_size
        self.layout = layout
        self.device = device
        self.partition = partition
        self.remainder = remainder
        self._given = None if rank is None or world_size is None else (rank, world_size)
        self._start = source.state_dict()
        self._span = source.span
        # Seen by workers that stay from epoch to epoch, too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._loaded: Mapping[str, Any] | None = None
        self._begun: int | None = None  # the epoch that the source is in
        self._has_moved = False  # whether its span may be another than at first
        self._iteration = 0

    # ----------------------------------------------------------------------------------------------- iteration

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration deliver this epoch: what lies so many times the source's limit behind its start.

        A state that was loaded in the same epoch stays. It may be called while workers wait for the next iteration.

        Raises:
            ConfigError: `epoch` is below 0; or the source has no limit, or a timeline that cannot go there.
        """
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}, but it is at least 0", key="epoch")
        if epoch and self._span is None:
            raise ConfigError(
                "epochs need a source that ends, by max_sweeps=1 for instance, and is not one of a user-defined "
                "deserializer on its own timeline",
                key="epoch",
            )
        if epoch != self.epoch:
            self._loaded = None
        self._epoch.fill_(epoch)

    def _rank(self) -> tuple[int, int]:
        if self._given is not None:
            return self._given
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    @staticmethod
    def _worker() -> tuple[int, int]:
        worker = torch.utils.data.get_worker_info()
        return (0, 1) if worker is None else (worker.id, worker.num_workers)

    def _request(self) -> tuple[int, Partition]:
        rank, world_size = self._rank()
        worker, num_workers = self._worker()
        if self.partition == "balanced":
            return self.minibatch_size, BalancedPartition(rank, world_size, self.remainder, worker, num_workers)
        share = Partition(rank * num_workers + worker, world_size * num_workers)
        if share.count > self.source.num_chunks and share.index == 0 and self.source.is_randomized:
            logger.warning(
                "%d partitions (ranks times workers) share %d chunks, and some get nothing: make chunks smaller "
                "(chunk_size_in_bytes), or use partition='balanced'",
                share.count,
                self.source.num_chunks,
            )
        return min(self.minibatch_size * num_workers, _LARGEST_SIZE), share

    def _enter(self, epoch: int) -> None:
        """Put the source where an epoch begins."""
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
        request = self._request()
        if self._loaded is not None:
            self._go_on(self._loaded)
        else:
            self._enter(self.epoch)
        self._iteration += 1
        return self._minibatches(self._iteration, *request)

    def _minibatches(self, iteration: int, size: int, partition: Partition) -> Iterator[TensorMinibatch]:
        read, layout, device = self.source.read, self.layout, self.device
        keeps_empty = partition.count == 1 or isinstance(partition, BalancedPartition)
        while True:
            if self._iteration != iteration:
                raise RuntimeError("this iteration is over: another one of the same data set has begun")
            minibatch = read(size, partition)
            if minibatch is None:
                return
            if keeps_empty or minibatch.num_sequences:
                yield TensorMinibatch(minibatch, layout, device)

    # ------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on behind the last minibatch: a small dict for JSON.

        It is that of this process. With workers, `torchdata`'s ``StatefulDataLoader`` asks each of them for its own.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        if self._begun is None:
            self._enter(self.epoch)
        place = {"epoch": self._begun, "source": self.source.state_dict()}
        return {"version": _STATE_VERSION, **self._description(), **place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a `state_dict` was taken, in this or another process.

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
        different = [name for name, value in current.items() if state.get(name) != value]
        if different:
            raise CheckpointError(
                "the state does not fit this data set: "
                + "; ".join(f"{name}: saved {state.get(name)!r}, here {current[name]!r}" for name in different),
                saved={name: state.get(name) for name in different},
                current={name: current[name] for name in different},
            )
        self._go_on(state)
        self._loaded = dict(state)
        self._epoch.fill_(state["epoch"])
        self._iteration += 1

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

    def _go_on(self, state: Mapping[str, Any]) -> None:
        if "epoch" not in state["source"] and self._has_moved:
            self._enter(0)
        self.source.load_state_dict(state["source"])
        self._has_moved |= "epoch" in state["source"]
        self._begun = state["epoch"]
        self._loaded = None

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned knows of no process group.
        return {**self.__dict__, "_given": self._rank()}

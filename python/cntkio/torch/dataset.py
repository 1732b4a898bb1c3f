"""A source as a PyTorch data set: epochs, shares of ranks and workers, and states. (docs/torch.md)

`gather_state_dict` makes a common state of all processes of a job. (docs/torch.md, "One state for a job")
"""

from __future__ import annotations

import json
import logging
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast, get_args

import torch
import torch.utils.data

from cntkio._threads import ForkLock
from cntkio.arguments import check_word, suggests_keywords, whole_number
from cntkio.displays import Description, Displayed
from cntkio.errors import CheckpointError, ConfigError
from cntkio.layouts import check_layout
from cntkio.minibatch import Minibatch, Results, checked_minibatch
from cntkio.mixture import Mixture
from cntkio.source import MinibatchSource
from cntkio.source.checkpoint import CONSTANT, changing, difference
from cntkio.timeline import GlobalPartition, Partition
from cntkio.timeline.budget import (
    Budget,
    Size,
    about_samples,
    check_schedules,
    row_length_of,
    size_from_json,
    size_text,
    size_to_json,
    times,
)
from cntkio.timeline.modes import check_deal
from cntkio.timeline.partition import WHOLE_ROWS
from cntkio.timeline.state import has_begun, has_ended, of_any_partition, position_after_reads
from cntkio.torch import ranks, trainers
from cntkio.torch.tensors import Layout, TensorMinibatch, in_rows
from cntkio.torch.workers import Passed, WatchedDataset, shares
from cntkio.user_source import UserMinibatchSource

logger = logging.getLogger("cntkio")

# CNTK cut larger sizes to 32 bits.
_LARGEST_SIZE = 2**31 - 1
_STATE_VERSION = 1
_PARTITIONS = ("cntk", "balanced", "global")


@suggests_keywords
class MinibatchDataset(Displayed, WatchedDataset):
    """A source as a PyTorch data set, for ``DataLoader(batch_size=None)``. (docs/torch.md)

    Each iteration starts at the position that the source had when the data set was created, and ends at the end of the
    source's data (``max_sweeps=1``: one sweep). After `set_epoch` it delivers the following data of the timeline, so
    that each epoch has an order of its own. After `load_state_dict` the next iteration resumes there.

    Args:
        source: The source or mixture to read. From now on only the data set may read it. A `UserMinibatchSource`
            divides its minibatches itself, so its partition is ``"cntk"``. It has no epochs, and a `Mixture` has none
            (docs/torch.md, "Epochs").
        minibatch_size: Samples of all ranks together, as in CNTK, or a `Budget` (docs/batches.md). Workers do not
            divide it further: each makes whole minibatches of its rank.
        layout: As for `convert`; or ``"rows"``: the tensors of `cntkio.packed`, by the names of streams and
            ``segment_ids``, ``position_ids``, ``cu_seqlens``, for a `Budget` with rows. A rank has its share of the
            rows, with global partitions rounded up.
        device: As for `convert`; must be None with workers or pinned memory.
        partition: ``"global"``: the sequences of each minibatch are dealt to all ranks, so that all ranks have the same
            number of minibatches, and a state continues on any number of ranks and workers (docs/timeline.md, "Global
            partitions"). ``"balanced"``: another deal of this kind, in which whole minibatches are dealt; its states
            fit the same number of ranks (docs/timeline.md, "Balanced partitions"). ``"cntk"``: CNTK's rule, where each
            worker of each rank is a partition (docs/timeline.md, "Partitions"). None: the partition of the state that
            is loaded; else ``"global"`` with several ranks or slices of rows, and ``"cntk"`` with one.
        remainder: For balanced partitions, the rule for fewer sequences than ranks at the end of a sweep: ``"drop"``
            (the default) or ``"repeat"``. For global partitions, the rule for fewer sequences than ranks in a
            minibatch: ``"empty"`` (the default) or ``"merge"``.
        deal: For global partitions, how sequences are dealt: ``"length"``, ``"area"`` or ``"chunk"``;
            ``"minibatch"`` is another spelling of ``partition="balanced"``.
        lanes: For global partitions, the number of lanes, in place of a deal (docs/clusters.md, "Lanes"); 0: none.
        rank: Index of this process; None: the rank that `torch.distributed`, Ray Train, the environment (``RANK``) or
            SLURM reports (docs/torch.md, "Ranks and workers"), or 0.
        world_size: Number of processes that share the data; required with `rank`.
        mesh: Place of this process in a mesh, in place of `rank` (docs/torch.md, "A mesh"): from `place_in_mesh`.

    Raises:
        ConfigError: An argument is invalid.

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
        source: MinibatchSource | Mixture | UserMinibatchSource,
        minibatch_size: Size,
        *,
        layout: Layout | Literal["rows"] | Mapping[str, Layout] | None = None,
        device: Any = None,
        partition: Literal["cntk", "balanced", "global"] | None = None,
        remainder: Literal["drop", "repeat", "empty", "merge"] | None = None,
        deal: Literal["length", "area", "chunk", "minibatch"] = "length",
        lanes: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: ranks.Place | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(source, MinibatchSource | Mixture | UserMinibatchSource):
            raise ConfigError(
                f"source is {type(source).__name__}; expected MinibatchSource(deserializer), a Mixture, or the result "
                f"of ReaderConfig.open()",
                key="source",
            )
        minibatch_size = _checked_size(minibatch_size, source)
        if layout != "rows":
            check_layout(layout, [stream.name for stream in source.stream_infos()], get_args(Layout))
        elif not row_length_of(minibatch_size):
            what = f"layout='rows' needs a size with rows, but minibatch_size is {size_text(minibatch_size)}"
            raise ConfigError(f"{what}; use Budget(rows=..., row_length=..., pool=...)", key="layout")
        if partition is not None:
            check_word("partition", partition, *_PARTITIONS)
            if partition != "cntk" and isinstance(source, UserMinibatchSource):
                what = f"a {type(source).__name__} divides its minibatches itself: leave partition out"
                raise ConfigError(f"partition={partition!r} needs a MinibatchSource; {what}", key="partition")
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank}, but world_size={world_size}; give both or neither", key="rank")
        # If no rank is given, each use asks for it: torch.distributed may be initialized after this data set is made.
        self._given = None if rank is None else ranks.checked(rank, world_size)
        self._slice = WHOLE_ROWS
        if mesh is not None:
            self._given, self._slice = ranks.taken(mesh, rank, row_length_of(minibatch_size) if layout == "rows" else 0)
        self.source = source
        self._source: Any = _UserSource(source) if isinstance(source, UserMinibatchSource) else source
        self.layout: Any = layout
        self.minibatch_size, self.device, self.lanes = minibatch_size, device, whole_number("lanes", lanes)
        self.deal: Literal["length", "area", "chunk", "minibatch"] = deal
        if deal == "minibatch" and partition in (None, "global"):
            partition, self.deal = "balanced", "length"
        # None stays None: a state that is loaded later decides then.
        self._partition, self._remainder = partition, remainder
        name, value = ("lanes", self.lanes) if self.lanes else ("deal", self.deal)
        if value != "length" and self.partition != "global":
            what = f"{name}={value!r} needs partition='global', but partition is {self.partition!r}"
            raise ConfigError(what, key=name)
        share = self._share_of(*self._rank(), 0, 1)  # checks the values
        if (deal == "chunk" or self.lanes) and isinstance(share, GlobalPartition):
            check_deal(share, minibatch_size, is_randomized=self._source.is_randomized, is_truncated=False)
        self._has_warned = self._is_agreed = False
        self._epochs = _Epochs(self._source)
        # It is in shared memory, because workers may persist from epoch to epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._origin: int | None = 0
        # A loader's worker k has the share of worker k plus this number, because a state may begin at any.
        self._shift = 0
        self._iteration = 0
        self._asked: tuple[Size, Partition] | None = None  # what the iteration of this process reads
        self._lock = ForkLock()

    @property
    def partition(self) -> Literal["cntk", "balanced", "global"]:
        """The rule that decides the share of each rank."""
        can_deal = not isinstance(self.source, UserMinibatchSource)
        is_shared = self._rank()[1] > 1 or self._slice != WHOLE_ROWS
        return self._partition or ("global" if can_deal and is_shared else "cntk")

    @property
    def remainder(self) -> Any:
        """The rule for fewer sequences than ranks."""
        return self._remainder or ("empty" if self.partition == "global" else "drop")

    def _tensors(self, minibatch: Minibatch) -> TensorMinibatch[Any]:
        size, (_, world_size) = self.minibatch_size, self._rank()
        if self.layout != "rows" or not isinstance(size, Budget) or size.rows is None:
            return TensorMinibatch(minibatch, self.layout, self.device)
        # A table has no one number of rows: each minibatch has as many as it fills.
        num_rows = None
        if isinstance(size.rows, int):
            num_rows = _rows_of_rank(size.rows, world_size, self.lanes, is_global=self.partition == "global")
        return in_rows(minibatch, row_length_of(size), num_rows, self.device, self._slice)

    def _description(self) -> Description:
        rank, world_size = self._rank()
        title = f"MinibatchDataset: minibatches of {size_text(self.minibatch_size)}, partition {self.partition!r}, "
        title += f"rank {rank} of {world_size}, epoch {self.epoch}"
        layouts = self.layout if isinstance(self.layout, Mapping) else {}
        default = self.layout if isinstance(self.layout, str) else "ragged"
        rows = [(info.name, info.form, layouts.get(info.name, default)) for info in self.source.stream_infos()]
        return Description(title, ("stream", "samples are", "layout"), rows)

    # ----------------------------------------------------------------------------------------------- iteration

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch of the next iteration: epoch k begins k times the source's limit after its start.

        A state that was loaded in the same epoch is kept. You may call this while workers wait for the next iteration.

        Raises:
            ConfigError: `epoch` is below 0; or the source has no limit, or a timeline that cannot go there.
        """
        if whole_number("epoch", epoch, least=0) and self._epochs.span is None:
            what = (
                "epochs need a MinibatchSource that ends (for instance with max_sweeps=1) and has no user-defined "
                "deserializer with a timeline of its own; a Mixture has no epochs, a SequenceMixture that ends has"
            )
            raise ConfigError(what, key="epoch")
        if epoch != self.epoch:
            self.loaded.withdraw()
        self._epoch.fill_(epoch)

    def set_ranks(self, rank: int, world_size: int) -> None:
        """Continue as another rank, or with another number of ranks, after the last minibatch. (docs/torch.md)

        All ranks call it between the same two steps. An iteration of this process continues, and the iteration of a
        loader with workers ends: a new iteration continues there. What was prepared for the old ranks is dropped. The
        data set no longer asks `torch.distributed` for its rank, nor compares its arguments with other ranks.

        Args:
            rank: Index of this process from now on.
            world_size: Number of processes that share the data from now on.

        Raises:
            ConfigError: A number is impossible; this is a worker; or the epoch has begun with a partition that depends
                on the number of ranks: ``"cntk"``, ``"balanced"``, or ``"global"`` with ``remainder="merge"``.
            CheckpointError: As for `state_dict`.

        Example:
            >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
            >>> path = "examples/alice/test.ctf"
            >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1)
            >>> dataset = MinibatchDataset(source, 512, rank=3, world_size=4)
            >>> minibatches = iter(dataset)
            >>> parts = [next(minibatches).num_sequences]
            >>> dataset.set_ranks(0, 1)
            >>> parts + [next(minibatches).num_sequences]
            [3, 15]
        """
        given = ranks.checked(rank, world_size)
        if torch.utils.data.get_worker_info() is not None:
            raise ConfigError("set_ranks was called in a worker; call it in the process with the loader", key="rank")
        state, is_known = self.state_dict(), isinstance(self.source, UserMinibatchSource) or self._partition is not None
        self._partition = self.partition if is_known else "global"
        is_global = self.partition == "global" and self.remainder != "merge"
        is_inside = self.delivered.num_steps is not None and state["epoch"] == self.epoch and _has_begun(state)
        if not is_global and given != self._rank() and is_inside:
            now = f"partition is {self.partition!r}, and remainder {self.remainder!r}"
            what = f"an epoch that has begun continues with other ranks only with partition='global', but {now}"
            raise ConfigError(f"{what}; use partition='global', or set_epoch before set_ranks", key="world_size")
        self._share_of(*given, 0, 1)  # checks the values
        is_of_workers = self.delivered.positions is not None and is_inside
        self.loaded.set_ranks(*given)
        if not is_global:
            self._iteration += 1
        elif is_of_workers:
            self.load_state_dict(state)
        elif self._asked is not None:
            self._asked = self._request()

    def _rank(self) -> tuple[int, int]:
        return self.loaded.ranks or self._given or ranks.discovered()

    def _worker(self) -> tuple[int, int]:
        worker = torch.utils.data.get_worker_info()
        return (0, 1) if worker is None else ((worker.id + self._shift) % worker.num_workers, worker.num_workers)

    def _share_of(self, rank: int, world_size: int, worker: int, num_workers: int) -> Partition:
        deal, lanes = (self.deal, self.lanes) if self.partition == "global" else ("minibatch", 0)
        share = GlobalPartition(rank, world_size, deal, self.remainder, worker, num_workers, lanes, self._slice)
        if self.partition == "cntk":
            return Partition(rank * num_workers + worker, world_size * num_workers)
        return share

    def _request(self) -> tuple[Size, Partition]:
        (rank, world_size), (worker, num_workers) = self._rank(), self._worker()
        share = self._share_of(rank, world_size, worker, num_workers)
        if not self._has_warned and worker == 0 == rank:
            self._has_warned = True
            # The value of an `HTKMLFReader` is a text.
            is_truncated = bool(self._epochs.start["settings"].get("truncation_length"))
            _warn(self._source, about_samples(self.minibatch_size), world_size, share, is_truncated=is_truncated)
        # Workers are partitions of CNTK, too, which share the size; but each makes whole minibatches of its rank.
        return (self.minibatch_size if share.is_balanced else times(self.minibatch_size, num_workers)), share

    def begin_iteration(self) -> None:
        self.reader = trainers.reader()
        if self.loaded.state is not None:
            trainers.check_start(self.reader)
        # Ranks that come and go begin iterations at different times, so they have nothing to compare.
        if self._is_agreed or self.loaded.ranks or self._rank()[1] == 1:
            return
        self._is_agreed = True
        state = self.loaded.state or {**self._settings(), "epoch": self.epoch, "source": self._epochs.start}
        # A state fits any deal, so it has none; but ranks with different deals would not share the data.
        facts = {**ranks.common_facts(state), "deal": self.deal, "lanes": self.lanes}
        ranks.agree([of_one["name"] for of_one in self._epochs.start["order"]["deserializers"]], *self._rank(), facts)

    def __iter__(self) -> Iterator[TensorMinibatch[Any]]:
        self._shift = 0
        worker = torch.utils.data.get_worker_info()
        if worker is None:  # for workers, the process with the loader has done this
            self.begin_iteration()
        else:  # the data set that a worker has may be wrapped
            trainers.reader()
        number, state = (0, self.loaded.state) if worker is None else self.loaded.receive()
        own = self.loaded.state if self.loaded.is_of_this_worker else None
        if own is not None:
            self._origin = None
            self._epochs.resume(own["epoch"], own["source"])
        elif state is not None:
            positions, self._shift = shares(state, 0 if worker is None else worker.num_workers)
            self._origin, position = number, positions[self._worker()[0]]
            if position is None:
                self._epochs.enter(state["epoch"])
            else:
                self._epochs.resume(state["epoch"], {**state["source"], **position})
        else:
            self._origin = 0
            self._epochs.enter(self.epoch)
        if worker is None:
            self.loaded.withdraw()
        else:
            self.loaded.take_up(number)
        # In a forked worker, too: the deliveries that its parent noted are not its own.
        begun = own or state
        self.delivered.begin_here(0 if begun is None else begun.get("steps"))
        self._iteration += 1
        iteration, self._asked = self._iteration, self._request()
        return Results(lambda: self._next(iteration))

    def _next(self, iteration: int) -> TensorMinibatch[Any] | None:
        with self._lock.inner:
            assert self._asked is not None
            size, partition = self._asked
            keeps_empty = partition.count == 1 or partition.is_balanced  # ranks may wait for each other's minibatches
            while True:
                if self._iteration != iteration:
                    message = "this iteration has ended, because another iteration over the same data set began"
                    raise RuntimeError(message)
                minibatch = self._source.read(size, partition)
                if minibatch is None:
                    self.delivered.num_steps = None
                    return None
                if keeps_empty or minibatch.num_sequences:
                    break
            self.delivered.count()
            passed = None
            if torch.utils.data.get_worker_info() is not None:
                position, epoch = changing(self._source.state_dict()), self._epochs.current
                assert epoch is not None
                facts = self.delivered.token, *self._worker(), iteration, epoch, self._origin, position
                passed = Passed(*facts)
            state = self.position() if self.reader.reads_ahead and passed is None else None
        tensors = self._tensors(minibatch)
        tensors.passed, tensors.state = passed, state
        return tensors

    # ------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last minibatch, from which `load_state_dict` resumes: a small dict for JSON.

        With the workers of a ``DataLoader`` it is the state after the last minibatch that the loader delivered, and it
        can be loaded only for the same number of workers. With balanced and global partitions it is the same on all
        ranks. With global partitions it can be loaded for any number of ranks and workers.

        Raises:
            CheckpointError: A loader delivered minibatches that do not tell where they come from: a ``collate_fn``
                changed them, or a ``StatefulDataLoader`` resumed, which has a state of its own. Or a trainer reads
                ahead, so that only a minibatch knows its state.
        """
        if self.reader.reads_ahead and self.loaded.state is None:
            what = f"{self.reader.name} reads ahead, so this state would skip a minibatch that has had no step"
            raise CheckpointError(f"{what}; save minibatch.state_dict() of the last step (docs/trainers.md)")
        return self.position()

    def position(self) -> dict[str, Any]:
        """Return the state after the last delivery, even if a trainer reads ahead."""
        with self._lock.inner:
            if self.loaded.state is not None:
                return dict(self.loaded.state)
            self.delivered.check()
            positions = self.delivered.positions
            if positions is None:
                if self._epochs.current is None:  # before the first iteration, the source has not moved to the epoch
                    self._epochs.enter(self.epoch)
                position: dict[str, Any] = {"epoch": self._epochs.current, "source": self._source.state_dict()}
            else:
                position = positions.state(is_global=self.partition == "global")
                position["source"] = {name: self._epochs.start[name] for name in CONSTANT if name in self._epochs.start}
            if self.partition == "cntk" and self.delivered.num_steps is not None:
                position["steps"] = self.delivered.num_steps
            return _sealed({**self._settings(), **position})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration resume where a `state_dict` was taken, in this or another process.

        It also accepts the states of a whole job, from `gather_state_dict` or `joined_states`.

        Raises:
            CheckpointError: The state was taken with other settings, by another rank or worker, or from other data; all
                differences are named.
        """
        if not isinstance(state, Mapping):
            raise CheckpointError(
                f"the state is {type(state).__name__}; expected a result of state_dict(); if it was saved as text, use "
                "json.loads"
            )
        state = _own_part(state, *self._rank(), self._epochs)
        _check_state(state)
        before = self._source.state_dict(), self._epochs.current, self._partition
        try:
            if self._partition is None and state.get("partition") in _PARTITIONS:
                self._partition = state["partition"]
            different = _different_settings(self._settings(), state, self._rank()[0])
            try:
                for position in state.get("workers", [{}]):
                    if position is not None:
                        self._epochs.resume(state.get("epoch", 0), {**state["source"], **position})
            except CheckpointError as error:  # the message then names all differences, also the source's
                if not different:
                    raise
                raise _refused(state, different, self.partition, error) from error
            if different:
                raise _refused(state, different, self.partition)
        except BaseException:  # a state of another worker may have moved the source
            self._source.load_state_dict(before[0])
            self._epochs.current, self._partition = before[1:]
            raise
        self.loaded.load(state)
        self._is_agreed = False
        self.delivered.begin_here()
        self._epoch.fill_(state["epoch"])
        self._iteration += 1  # ends an iteration that is under way: the source has moved

    def _settings(self) -> dict[str, Any]:
        rank, world_size = self._rank()
        worker, num_workers = self._worker()
        return {
            "minibatch_size": size_to_json(self.minibatch_size),
            "partition": self.partition, "remainder": self.remainder,
            "rank": rank if self.partition == "cntk" else 0, "world_size": world_size,
            "worker": worker, "num_workers": num_workers,
        }  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_given": self._rank()}  # a spawned worker has no process group


class _UserSource:
    """The part of `MinibatchSource` that a data set needs, for a `UserMinibatchSource`.

    Its timeline is unknown, so it has no epochs, and it divides its minibatches itself.
    """

    span = None
    is_randomized = False
    num_chunks = sys.maxsize  # a worker gets its share of each minibatch, so none is without data

    def __init__(self, source: UserMinibatchSource) -> None:
        self._source = source
        self._size: int | None = None  # the size of the last read

    def is_infinite(self) -> bool:
        return self._source.is_infinite()

    def read(self, size: int, partition: Partition) -> Minibatch | None:
        self._size = size
        return checked_minibatch(self._source.next_minibatch(size, partition.count, partition.index)) or None

    def state_dict(self) -> dict[str, Any]:
        """Return the checkpoint of the source as the state of a timeline."""
        name = type(self._source).__name__
        # As in states of a `MinibatchSource`, a size says that reading has begun.
        begun = {} if self._size is None else {"minibatch_size": self._size}
        return {
            "version": _STATE_VERSION,
            "settings": {"source": name},
            "data": [f"{info.name}: {info.form}" for info in self._source.stream_infos()],
            "order": {"deserializers": [{"name": name}]},
            "timeline": {"position": self._source.get_checkpoint_state(), **begun},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self.state_dict()
        different = {name: own[name] for name in ("settings", "data") if state.get(name) != own[name]}
        if different:
            saved = {name: state.get(name) for name in different}
            texts = [difference(name, saved[name], value) for name, value in different.items()]
            what = f"the state does not fit this source: {'; '.join(texts)}"
            raise CheckpointError(what, saved=saved, current=different)
        self._source.restore_from_checkpoint(state["timeline"]["position"])
        self._size = state["timeline"].get("minibatch_size")


class _Epochs:
    """The epochs of a source. The first begins where the source stands now; each is as long as the source's limit.

    Nothing else may move the source.

    Attributes:
        start: The state of the source at the start of the first epoch.
        current: The epoch in which the source stands; None: it has not been moved yet.
        span: Positions at which the first epoch begins and ends; None: it has no end that another epoch could follow.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.start = source.state_dict()
        self.current: int | None = None
        self.span = source.span
        self._has_moved = False  # true once the source's span may have changed

    def enter(self, epoch: int) -> None:
        """Move the source to the start of an epoch."""
        if self.span is not None and (epoch or self._has_moved):
            begin, end = self.span
            offset = epoch * (end - begin)
            number = self.start.get("epoch_number", 0) + epoch
            self._source.begin_epoch(begin + offset, end + offset, number=number)
            self._has_moved = True
        if epoch == 0:
            self._source.load_state_dict(self.start)
        self.current = epoch

    def resume(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Move the source to one of its states, in an epoch."""
        # A state without an epoch is of the source's own limits, which the first epoch has.
        if "epoch" not in state and self._has_moved:
            self.enter(0)
        self._source.load_state_dict(state)
        self._has_moved |= "epoch" in state
        self.current = epoch

    def has_ended_at(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state of the source is at the end of its epoch."""
        span = state.get("epoch", self.span)
        return bool(span) and has_ended(state["timeline"], span[1])


def _checked_size(size: Any, source: MinibatchSource | Mixture | UserMinibatchSource) -> Size:
    if isinstance(size, Budget):
        if isinstance(source, UserMinibatchSource):
            what = "minibatch_size is a Budget, which needs a MinibatchSource; a UserMinibatchSource decides itself"
            raise ConfigError(f"{what} how much a minibatch holds: give a number of samples", key="minibatch_size")
        return size
    number = whole_number("minibatch_size", size)
    if not 1 <= number <= _LARGEST_SIZE:
        what = f"minibatch_size is {number!r}; expected a whole number in 1..{_LARGEST_SIZE}"
        raise ConfigError(what, key="minibatch_size")
    return number


def _warn(source: Any, size: int, world_size: int, share: Partition, *, is_truncated: bool) -> None:
    """Warn of partitions that can leave ranks without data, or make them wait for each other forever."""
    if not share.is_balanced and world_size > 1 and not source.is_infinite():
        text = (
            "partition='cntk' can give the %d ranks different numbers of minibatches; if ranks wait for each other in "
            "each step, the job then hangs: use partition='global', or stop all ranks after the same number of steps"
        )
        logger.warning(text, world_size)
    if share.of_chunks.count > source.num_chunks and source.is_randomized:
        text = (
            "%d partitions (ranks times workers) share %d chunks, so some are empty: make chunks smaller "
            "(chunk_size_in_bytes), or use partition='global' with deal='length'"
        )
        logger.warning(text, share.count, source.num_chunks)
    elif isinstance(share, GlobalPartition) and share.remainder == "empty" and not is_truncated:
        num_sequences = max(size * source.num_sequences / source.num_samples, 1)
        if num_sequences < world_size:
            text = (
                "a minibatch of %d samples has about %.1f sequences for %d ranks, so about %.1f %% of the ranks' "
                "minibatches are empty: use a minibatch_size of at least %d, or remainder='merge'"
            )
            least = -(-world_size * source.num_samples // source.num_sequences)
            logger.warning(text, size, num_sequences, world_size, 100 * (1 - num_sequences / world_size), least)


def _rows_of_rank(num_rows: int, world_size: int, lanes: int, *, is_global: bool) -> int:
    """Return the largest number of rows of a rank, which all ranks have, so that they have one shape."""
    if lanes:
        return num_rows // lanes * -(-lanes // world_size)
    return -(-num_rows // world_size) if is_global else num_rows // world_size


def _own_part(state: Mapping[str, Any], rank: int, world_size: int, epochs: _Epochs) -> Mapping[str, Any]:
    """Return a rank's part of the states of a job."""
    states = state.get("ranks")
    if not isinstance(states, list) or not states:
        return state
    if len(states) == world_size:
        return cast(Mapping[str, Any], states[rank])
    parts = [state["source"] for state in states if "workers" not in state]
    is_inside = any(has_begun(part["timeline"]) for part in parts)
    if len(parts) < len(states) or (is_inside and not all(map(epochs.has_ended_at, parts))):
        what = (
            f"the states are of {len(states)} ranks, but this job has {world_size}. With partition='cntk', another "
            f"number of ranks delivers other minibatches, so it can only start at the beginning of an epoch: use "
            f"set_epoch, or resume with {len(states)} ranks"
        )
        saved, current = {"world_size": len(states)}, {"world_size": world_size}
        raise CheckpointError(what, saved=saved, current=current)
    # At either end of an epoch, only the position of a timeline matters to other ranks.
    source = {**parts[0], "timeline": of_any_partition(parts[0]["timeline"])}
    return _sealed({**states[0], "rank": rank, "world_size": world_size, "source": source})


def _different_settings(current: dict[str, Any], state: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the settings of a data set of this rank that differ from the settings of a state."""
    ignored = {"worker", "num_workers"} if "workers" in state else set()
    if current["partition"] == "global" == state.get("partition"):
        ignored = {"rank", "worker", "num_workers"}
        if current["remainder"] != "merge":  # the number of ranks decides which minibatches are merged
            ignored.add("world_size")
    elif current["partition"] == "balanced" == state.get("partition"):
        ignored.add("rank")
    else:
        current = {**current, "rank": rank}
    if _has_later_schedules(state, current["minibatch_size"]):
        ignored = {*ignored, "minibatch_size"}
    return {name: value for name, value in current.items() if name not in ignored and state.get(name) != value}


def _has_later_schedules(state: Mapping[str, Any], size: Any) -> bool:
    """Return whether a size differs from that of a state only in limits that change, and only after the state.

    Raises:
        CheckpointError: A limit differs before.
    """
    saved = state.get("minibatch_size")
    if not isinstance(saved, Mapping) or not isinstance(size, Mapping) or saved == size:
        return False
    former, now = size_from_json(saved), size_from_json(size)
    changing = {*former.schedules, *now.schedules, "between"}
    if not changing - {"between"} or any(saved.get(name) != size.get(name) for name in {*saved, *size} - changing):
        return False
    timelines = [one["timeline"] for one in state.get("workers", [state["source"]]) if one is not None]
    try:
        check_schedules(former, now, max(map(position_after_reads, timelines), default=0))
    except ConfigError as error:
        raise CheckpointError(f"the state does not fit: {error}", saved=saved, current=size) from error
    return True


def _has_begun(state: Mapping[str, Any]) -> bool:
    """Return whether a minibatch of its epoch comes before a state."""
    positions = state.get("workers", [state["source"]])
    return any(position is not None and has_begun(position["timeline"]) for position in positions)


def _check_state(state: Mapping[str, Any]) -> None:
    """Refuse a state that is not of a data set, or is incomplete."""
    is_whole = isinstance(state.get("source"), Mapping)
    # The state of a source has a version, too, so this comes before the check of the version.
    if not is_whole and "settings" in state:
        raise CheckpointError("this is the state of a source; expected the state_dict() of a MinibatchDataset")
    if state.get("version") != _STATE_VERSION:
        saved = state.get("version")
        what = f"not a state of a data set: its version is {saved!r}; expected {_STATE_VERSION}"
        raise CheckpointError(what, saved=saved, current=_STATE_VERSION)
    if not is_whole or ("check_sum" in state and state["check_sum"] != _sealed(state)["check_sum"]):
        what = (
            "the state is damaged or incomplete. torch.distributed.checkpoint restores only the keys that a new data "
            "set's state has; save the text json.dumps(dataset.state_dict()) with it"
        )
        raise CheckpointError(what, saved=dict(state))
    if "workers" not in state:
        return
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


def _refused(
    state: Mapping[str, Any], different: Mapping[str, Any], partition: str, error: CheckpointError | None = None
) -> CheckpointError:
    """Return the error of a state with other settings, with the differences that the source found."""
    saved, current = {name: state.get(name) for name in different}, dict(different)
    texts = [difference(name, saved[name], value) for name, value in different.items()]
    message = "the state does not fit this data set: " + "; ".join(texts)
    if error is not None and isinstance(error.saved, Mapping) and isinstance(error.current, Mapping):
        message += f"; {str(error).removeprefix('the state does not fit this source: ')}"
        saved, current = {**saved, **error.saved}, {**current, **error.current}
    return CheckpointError(message + ranks.advice(list(different), partition), saved=saved, current=current)


def _sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in state.items() if name != "check_sum"} | {"version": _STATE_VERSION}
    # Sorted, because a state may come back from a file with its keys in another order.
    return {**content, "check_sum": zlib.crc32(json.dumps(content, sort_keys=True).encode())}


def gather_state_dict(dataset: MinibatchDataset) -> dict[str, Any]:
    """Return the state of the whole job, the same on every rank; each rank's `load_state_dict` takes it.

    With ``partition="balanced"`` it is the data set's own state. With ``"cntk"`` each rank has its own position, so the
    states of all ranks are gathered: every rank of `torch.distributed` must call this function.

    Args:
        dataset: The data set of this rank.

    Raises:
        CheckpointError: The states of other ranks are needed, and `torch.distributed` is not initialized with them.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/test.ctf"
        >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1)
        >>> sorted(gather_state_dict(MinibatchDataset(source, 512, partition="balanced", rank=1, world_size=2)))[:3]
        ['check_sum', 'epoch', 'minibatch_size']
    """
    if not isinstance(dataset, MinibatchDataset):
        raise CheckpointError(f"the data set is a {type(dataset).__name__}; expected a MinibatchDataset")
    state = dataset.state_dict()
    world_size = state["world_size"]
    if dataset.partition != "cntk" or world_size == 1:
        return state
    if ranks.group_size() != world_size:
        what = f"with partition='cntk' each of the {world_size} ranks has a state of its own"
        what = f"{what}, and torch.distributed is not initialized with {world_size} ranks"
        raise CheckpointError(f"{what}; save each rank's state_dict(), and combine them with joined_states")
    states: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(states, state)
    return ranks.joined_states(states)


class JobState:
    """The state of a job as one text for `torch.distributed.checkpoint`: it takes the place of the data set there.

    The text has the same key on all ranks, so it is saved once. With ``partition="global"`` it loads on any number of
    ranks; with other partitions see `gather_state_dict`, which makes it.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/test.ctf"
        >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)), max_sweeps=1)
        >>> job = JobState(MinibatchDataset(source, 512, partition="global", rank=1, world_size=2))
        >>> saved = job.state_dict()
        >>> sorted(saved), type(saved["data"]).__name__
        (['data'], 'str')
        >>> job.load_state_dict(saved)
    """

    def __init__(self, dataset: MinibatchDataset) -> None:
        self._dataset = dataset

    def state_dict(self) -> dict[str, str]:
        """Return the state of all ranks; with ``partition="cntk"`` all ranks must call it.

        Raises:
            CheckpointError: As for `gather_state_dict`.
        """
        return {"data": json.dumps(gather_state_dict(self._dataset))}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Let the next iteration resume there, on this rank.

        Raises:
            CheckpointError: The state has no such text, or as for `MinibatchDataset.load_state_dict`.
        """
        text = state.get("data") if isinstance(state, Mapping) else state
        try:
            found = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            found = None
        if found is None:
            what = f"not the state of a JobState: 'data' is {text!r:.80}; expected the text of its state_dict()"
            raise CheckpointError(what, saved=text)
        self._dataset.load_state_dict(found)

"""`Packer`: fills selected minibatches with the data of their chunks.

A single call of the core gathers the streams of all minibatches of a hand-over. It returns small minibatches together,
and lets the caller take a larger minibatch while it gathers the next. Each truncated minibatch is packed alone: the
parts of its sequences are spread over cells of slots and steps.

Invariant: packing changes nothing except for the minibatches. One thread at a time may use a packer.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import Wording
from cntkio.displays import counted
from cntkio.errors import CorpusError
from cntkio.minibatch import MinibatchData, TruncatedMinibatchData
from cntkio.source.pipeline import HandOver, Packed, PackOrder, Prepared
from cntkio.streams import NUMBER_TYPES, StreamInformation, packed_columns

# Bytes of the minibatches that are packed before the caller takes them, for each thread. The memory of more of them
# does not stay in the cache.
_BYTES_AHEAD_PER_THREAD = 4 << 20


@dataclasses.dataclass(eq=False)
class Packer:
    """Packs hand-overs. In frame mode, sequences of more than one sample are refused.

    The layouts are the streams of each corpus, as the source shows them.
    """

    layouts: Sequence[Sequence[StreamInformation]]
    frame_mode: bool
    wording: Wording

    @functools.cached_property
    def columns(self) -> list[list[tuple[int, bool, int]]]:
        """The columns of each corpus, as the core takes them."""
        return [*map(packed_columns, self.layouts)]

    def pack(self, hand_over: HandOver) -> Packed:
        """Fill the minibatches of a hand-over, up to the first one that has an error."""
        if any(order.parts is not None for order in hand_over.orders):
            return self._pack_truncated(hand_over)
        packed, num_bytes = _core.pack(self._requests(hand_over), num_threads())
        for order, of_order in zip(hand_over.orders, packed, strict=True):
            for index, info in enumerate(self.layouts[order.corpus_index]):
                MinibatchData.fill(order.minibatches, info, of_order, index, order.ends_of_sweep)
        misfits = self._misfits(hand_over, packed) if self.frame_mode else ()
        num_sound, error = min(misfits, default=(hand_over.num_minibatches, None), key=operator.itemgetter(0))
        return Packed(num_bytes, num_sound, error)

    def pack_in_turn(self, hand_over: HandOver) -> tuple[PackedInTurn, int] | None:
        """Begin to fill the minibatches of a hand-over one by one; None: only `pack` can fill them.

        An error is raised where the caller takes the minibatch. The number is the approximate size of all in bytes.
        """
        orders = hand_over.orders
        if any(order.parts is not None or (self.frame_mode and order.samples is None) for order in orders):
            return None
        packing = _core.Packing(
            self._requests(hand_over),
            [order.first for order in orders],
            hand_over.num_minibatches,
            num_threads(),
            _BYTES_AHEAD_PER_THREAD,
        )
        return PackedInTurn(packing, hand_over, self.layouts), packing.num_bytes

    def _requests(self, hand_over: HandOver) -> list[_core.PackRequest]:
        requests = []
        for order in hand_over.orders:
            columns = self.columns[order.corpus_index]
            indices = order.refs.chunk_indices, order.refs.indices_in_chunk
            requests.append(_core.PackRequest(order.chunks, *indices, columns, order.bounds, order.samples))
        return requests

    def _misfits(
        self, hand_over: HandOver, packed: Sequence[Sequence[_core.Packed]]
    ) -> Iterator[tuple[int, CorpusError]]:
        """Return for each stream the first minibatch that has a sequence of more than one sample, and the error."""
        for order, of_order in zip(hand_over.orders, packed, strict=True):
            for index, info in enumerate(self.layouts[order.corpus_index]):
                longest = [count for together in of_order for count in together.longest(index)]
                number = next((number for number, count in enumerate(longest) if count > 1), None)
                if number is not None:
                    minibatch = order.minibatches[number]
                    key = str(minibatch.keys_of_sequences[int(minibatch[info.name].lengths.argmax())])
                    advice = f"{self.wording.setting('frame_mode', False)} reads sequences"
                    found = f"sequence {key}, stream {info.name!r}: {longest[number]} samples"
                    error = CorpusError(f"{found}; frame mode takes at most one ({advice})")
                    yield order.first + number, error

    # ------------------------------------------------------------------------------------ truncated minibatches

    def _pack_truncated(self, hand_over: HandOver) -> Packed:
        for order in hand_over.orders:
            try:
                order.minibatches[0].update(self._spread(order))
            except CorpusError as error:
                return Packed(None, order.first, error)
        return Packed(None, hand_over.num_minibatches, None)

    def _spread(self, order: PackOrder) -> dict[str, Any]:
        """Spread the parts of sequences over slots and steps."""
        streams, parts = self.layouts[order.corpus_index], order.parts
        assert parts is not None
        num_cells = parts.num_slots * parts.num_steps
        cells = parts.slot * parts.num_steps + parts.step
        columns = [(column, info.dim, NUMBER_TYPES.index(info.dtype)) for column, info in enumerate(streams)]
        num_bytes = num_cells * (1 + sum(info.dim * info.dtype.itemsize for info in streams))
        try:
            # Where the system promises more memory than it has, the first use of the arrays would end the process.
            # Windows promises no more than it has.
            if sys.platform != "win32" and num_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                raise MemoryError
            spread, misfit = _core.spread(order.chunks, order.refs, parts, cells, columns, num_cells)
            mask = np.zeros((parts.num_slots, parts.num_steps), np.int8)
        except MemoryError:
            raise MemoryError(
                f"no memory for a minibatch of {parts.num_slots:,} slots of {counted(parts.num_steps, 'step')} "
                f"({num_bytes:,} bytes); sequences fill {len(np.unique(parts.slot)):,} of the slots. The number of "
                "slots is the number of requested samples, divided by the truncation length: request fewer samples"
            ) from None
        if misfit is not None:
            key = str(order.minibatches[0].keys_of_sequences[misfit.sequence])
            where = f"sequence {key}, stream {streams[misfit.stream].name!r}"
            length = parts.lengths[misfit.sequence]
            found = f"{counted(misfit.num_samples, 'sample')}, but the sequence counts for {length}"
            raise CorpusError(f"{where}: {found}; truncation needs the same number in every stream")
        # A request may ask for any number of slots: memory is used only up to the last slot with a sample.
        used = mask[: int(parts.slot.max(initial=-1)) + 1].reshape(-1)
        # Parts that begin at or before a cell, less the parts that end there: 1 at a cell with a sample.
        covered = np.zeros(len(used) + 1, np.int64)
        np.add.at(covered, cells, 1)
        np.add.at(covered, cells + parts.num_samples, -1)
        used[:] = np.cumsum(covered[:-1])
        used[cells[parts.first_sample == 0]] = 2
        begin = parts.step - parts.first_sample
        spans = np.stack([parts.slot, begin, begin + parts.lengths], axis=1)
        (end,), each = order.ends_of_sweep, zip(streams, spread, strict=True)
        return {info.name: TruncatedMinibatchData(info, values, mask, spans, end) for info, values in each}


class PackedInTurn:
    """Minibatches that the caller takes while a thread packs later minibatches.

    Attributes:
        run: Packs minibatches, until all are packed or enough of them are ahead of the caller.
        resume: Returns whether `run` must be called again; it has been called, or will be, otherwise.
        stop: Lets `run` end soon.
    """

    def __init__(
        self, packing: _core.Packing, hand_over: HandOver, layouts: Sequence[Sequence[StreamInformation]]
    ) -> None:
        self._packing, self._hand_over, self._layouts = packing, hand_over, layouts
        self._num_left = hand_over.num_minibatches
        self.run, self.resume, self.stop = packing.run, packing.resume, packing.stop

    @property
    def is_taken(self) -> bool:
        return not self._num_left

    @property
    def lets_follow(self) -> bool:
        """True if the next hand-over may be packed: this hand-over is packed, and the caller has begun to take it."""
        is_begun = self._num_left < self._hand_over.num_minibatches
        return is_begun and self._hand_over.goes_on and self._packing.is_complete()

    def take(self) -> list[Prepared]:
        """Fill the next minibatches; wait a while for one. After an error of packing, raise it."""
        packed, num_packed = self._packing.take()
        if not num_packed:
            return []
        for order, of_order in zip(self._hand_over.orders, packed, strict=True):
            minibatches = order.minibatches[: len(of_order)]
            begin = len(order.ends_of_sweep) - len(order.minibatches)
            ends_of_sweep = order.ends_of_sweep[begin : begin + len(of_order)]
            for index, info in enumerate(self._layouts[order.corpus_index]):
                MinibatchData.fill(minibatches, info, of_order, index, ends_of_sweep)
        self._num_left -= num_packed
        return self._hand_over.take(num_packed)

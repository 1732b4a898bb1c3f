"""`packed`: the sequences of a minibatch in rows of a fixed length, without padding between them. (docs/batches.md)

::

    rows of 6   a a a b b ·      segments  1 1 1 2 2 0      positions  0 1 2 0 1 0      cu_seqlens  0 3 5 6 10 12
                c c c c d d                3 3 3 3 4 4                 0 1 2 3 0 1

A `cntkio.Budget` with `rows` chooses the sequences of a minibatch so that they fit. This module only changes the form.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio import _core
from cntkio.arguments import flag, whole_number
from cntkio.displays import counted
from cntkio.errors import ConfigError
from cntkio.layouts import class_ids
from cntkio.minibatch import Minibatch


@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows:
    """The sequences of a minibatch in rows. All arrays are contiguous, so `torch.from_numpy` shares their memory.

    Attributes:
        values: For each stream with the lengths of the first: `[rows, length, *sample shape]`, 0 in empty cells; class
            ids of one-hot streams, int32, `[rows, length]`.
        of_sequences: For each stream with one sample for each sequence: `[num_sequences, *sample shape]`, or class
            ids, int32, `[num_sequences]`. If all sequences have one sample, streams are in both mappings.
        segment_ids: 1 + the index of the sequence in the minibatch, 0 in empty cells; int32, `[rows, length]`.
        position_ids: Index of the sample in its sequence, 0 in empty cells; int32, `[rows, length]`.
        cu_seqlens: First cell of each segment of the concatenated rows and, last, the number of cells; int32. A segment
            is a sequence, its part in a row, or the empty cells at the end of a row.
    """

    values: dict[str, npt.NDArray[Any]]
    of_sequences: dict[str, npt.NDArray[Any]]
    segment_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    cu_seqlens: npt.NDArray[np.int32]


def packed(minibatch: Minibatch, length: int, *, rows: int | None = None, split: bool = False) -> PackedRows:
    """Fill rows with the sequences of a minibatch, in their order.

    Args:
        minibatch: Minibatch of whole sequences. The first stream gives the lengths of its sequences.
        length: Cells of a row.
        rows: Number of rows; None: as many as needed.
        split: Let a sequence that does not fit in the rest of its row continue in the next row, so that only the end of
            the last row is empty. Otherwise it begins the next row.

    Raises:
        ConfigError: The minibatch is empty or does not fit; or a stream has other lengths, or is sparse and not
            one-hot.

    Example:
        >>> from cntkio import Budget, CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/train.ctf"
        >>> source = MinibatchSource(CTFDeserializer(path, infer_streams(path)))
        >>> minibatch = source.read(Budget(rows=4, row_length=512, pool=400))
        >>> found = packed(minibatch, 512, rows=4)
        >>> found.values["w"].shape, int(found.cu_seqlens[-1]), float((found.segment_ids > 0).mean()) > 0.95
        ((4, 512), 2048, True)
    """
    whole_number("length", length, least=1)
    flag("split", split)
    if not minibatch:
        raise ConfigError("the minibatch is empty; expected a minibatch with streams", key="minibatch")
    lengths = next(iter(minibatch.values())).lengths
    begins = np.cumsum(lengths) - lengths
    if not split:
        if len(lengths) and lengths.max() > length:
            raise ConfigError(
                f"a sequence has {counted(int(lengths.max()), 'sample')}, but a row has {length}; use split=True, or a "
                "Budget with rows and oversize='drop'",
                key="length",
            )
        begins = _core.cells_in_rows(lengths.astype(np.uint32), length)
    needed = -(-int((begins + lengths).max(initial=0)) // length)
    if rows is None:
        rows = needed
    elif needed > whole_number("rows", rows):
        raise ConfigError(
            f"the minibatch needs {counted(needed, 'row')} of {length}, but rows is {rows}; read it with "
            f"Budget(rows={rows}, row_length={length}, pool=...)",
            key="rows",
        )
    in_sequence = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    cells = np.repeat(begins, lengths) + in_sequence
    num_cells = rows * length
    begins_segment = np.zeros(num_cells + 1, np.bool_)
    begins_segment[::length] = True
    begins_segment[begins] = True
    begins_segment[begins + lengths] = True
    segment_ids, position_ids = np.zeros(num_cells, np.int32), np.zeros(num_cells, np.int32)
    segment_ids[cells] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    position_ids[cells] = in_sequence
    values, of_sequences = {}, {}
    for name, data in minibatch.items():
        samples = class_ids(data) if data.is_sparse else data.values
        if np.array_equal(data.lengths, lengths):
            filled = np.zeros((num_cells, *samples.shape[1:]), samples.dtype)
            filled[cells] = samples
            values[name] = filled.reshape(rows, length, *samples.shape[1:])
        if (data.lengths == 1).all():
            of_sequences[name] = samples
        elif name not in values:
            raise ConfigError(
                f"stream {name!r} has neither the lengths of the first stream nor one sample for each sequence; leave "
                "it out",
                key="minibatch",
            )
    shape = rows, length
    cu_seqlens = np.flatnonzero(begins_segment).astype(np.int32)
    return PackedRows(values, of_sequences, segment_ids.reshape(shape), position_ids.reshape(shape), cu_seqlens)

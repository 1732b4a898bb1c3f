"""Minibatches as arrays of JAX, of fixed shapes where a compiled function wants them. (docs/jax.md)

::

    Minibatch ── convert ──> Padded (values, lengths)      [sequences, steps, *shape], from a small set of shapes
                             Ragged (values, offsets)      all samples one after the other
                             BCSR matrix, class ids

Its law: what a minibatch says is the timeline's; here it only gets its shape. Padding is written once, into memory that
JAX takes over as it is (through DLPack; JAX copies what does not begin at a multiple of 64 bytes). To another device
than the processor everything is copied. It is the only module that imports jax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from cntkio.errors import ConfigError, did_you_mean
from cntkio.minibatch import Minibatch, MinibatchData, TruncatedMinibatchData
from cntkio.streams import StreamInformation

try:
    import jax
    from jax import dlpack
    from jax import numpy as jnp
    from jax.experimental import sparse
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"cntkio.jax needs {error.name}, which is not installed: pip install 'cntkio[jax]'", name=error.name
    ) from None

Layout = Literal["ragged", "padded", "csr", "ids", "ragged_ids", "padded_ids"]
_ALIGNMENT = 64  # of memory that JAX takes over


class Ragged(NamedTuple):
    """The samples of all sequences, one after the other.

    Attributes:
        values: Dense: `[num_samples, *sample shape]`. Sparse: a `jax.experimental.sparse.BCSR`, `[num_samples, dim]`.
            Class ids: int32, `[num_samples]`.
        offsets: Where each sequence begins and, last, where they end; int32, `[num_sequences + 1]`.
    """

    values: Any
    offsets: jax.Array


class Padded(NamedTuple):
    """One row for each sequence, and as many more as were asked for.

    Attributes:
        values: `[rows, steps, *sample shape]`, and 0 where there is no sample. Class ids: int32, `[rows, steps]`.
        lengths: Samples of each row, int32, `[rows]`; 0 where there is no sequence.
    """

    values: jax.Array
    lengths: jax.Array

    @property
    def mask(self) -> jax.Array:
        """Whether there is a sample, bool, `[rows, steps]`."""
        return jnp.arange(self.values.shape[1]) < self.lengths[:, None]


class Truncated(NamedTuple):
    """One row for each slot of a truncated minibatch; its shapes are fixed as they are.

    Attributes:
        values: `[num_slots, num_steps, *sample shape]`.
        mask: 2 at a sequence's first sample, 1 at its others, 0 where there are none; int8, `[num_slots, num_steps]`.
        continues: Whether a slot goes on with the sequence of the minibatch before, bool, `[num_slots]`.
    """

    values: jax.Array
    mask: jax.Array
    continues: jax.Array


def convert(
    minibatch: Minibatch,
    device: Any = None,
    layout: Layout | Mapping[str, Layout] | None = None,
    *,
    pad_to: int | Sequence[int] | None = None,
    num_sequences: int | Sequence[int] | None = None,
) -> dict[str, Any]:
    """Turn a minibatch into arrays of JAX, by the names of its streams.

    Args:
        minibatch: What a source delivers, or `cntkio.read_ctf` reads.
        device: A `jax.Device` or sharding; None: the processor, without a copy where that is possible.
        layout: For all streams, or for some of them by name: ``"ragged"`` (`Ragged`), ``"padded"`` (`Padded`, dense
            also where the stream is sparse), ``"csr"`` (a `jax.experimental.sparse.BCSR` of all samples), or, for
            one-hot streams, ``"ids"``, ``"ragged_ids"`` and ``"padded_ids"``. For others, and None: padded if `pad_to`
            or `num_sequences` is given, and else ragged; of a truncated minibatch `Truncated`.
        pad_to: Steps of padded arrays: a number that no sequence exceeds, or several, of which the smallest is taken
            that is enough for every sequence of the stream. None: as many as the longest sequence has.
        num_sequences: Rows of padded arrays, in the same way; rows that are left over are empty. None: as many as there
            are sequences.

    Returns:
        A dictionary, which is a pytree: it can be an argument of a compiled function. Numbers are in the precision that
        JAX has (float64 becomes float32 unless ``jax_enable_x64`` is set).

    Raises:
        ConfigError: There is no such layout or stream; a stream has no such layout; or a sequence or the minibatch is
            longer than all that was allowed.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/train.ctf"
        >>> book = MinibatchSource(CTFDeserializer(path, infer_streams(path)), randomize=False)
        >>> batch = convert(book.next_minibatch(200), layout={"w": "padded_ids"}, pad_to=(64, 256), num_sequences=8)
        >>> batch["w"].values.shape, batch["w"].lengths.tolist()
        ((8, 64), [57, 55, 0, 0, 0, 0, 0, 0])
    """
    if isinstance(layout, Mapping):
        names = [info.name for info in minibatch]
        for name in layout:
            if name not in names:
                raise ConfigError(
                    f"layout: no stream {name!r}; there are: {names}{did_you_mean(name, names)}", key=name
                )
    is_fixed = pad_to is not None or num_sequences is not None
    converted: dict[str, Any] = {}
    for info, data in minibatch.items():
        asked = layout.get(info.name) if isinstance(layout, Mapping) else layout
        if isinstance(data, TruncatedMinibatchData):
            if asked is not None or is_fixed:
                raise ConfigError("a truncated minibatch has the shape [slots, steps], and no layout", key="layout")
            converted[info.name] = Truncated(*(_array(one, device) for one in (data.values, data.mask, data.continues)))
            continue
        kind = asked or ("padded" if is_fixed else "ragged")
        if kind not in get_args(Layout):
            raise ConfigError(f"layout {kind!r}; expected one of {get_args(Layout)}", key="layout")
        converted[info.name] = _laid_out(data, kind, device, pad_to, num_sequences)
    return converted


def _laid_out(
    data: MinibatchData,
    layout: Layout,
    device: Any,
    pad_to: int | Sequence[int] | None,
    num_sequences: int | Sequence[int] | None,
) -> Any:
    info = data.stream
    if layout in ("padded", "padded_ids"):
        steps = _enough(
            pad_to, data.num_steps, f"stream {info.name!r}: a sequence of {data.num_steps} samples", "pad_to"
        )
        what = f"a minibatch of {data.num_sequences} sequences"
        rows = _enough(num_sequences, data.num_sequences, what, "num_sequences")
        if layout == "padded_ids":
            values = _padded(_ids(data), data.lengths, rows, steps)
        elif data.is_sparse:
            values = _aligned((rows, steps, *info.shape), data.values.dtype)
            values[: data.num_sequences, : data.num_steps] = data.asarray()
        else:
            values = _padded(data.values, data.lengths, rows, steps)
        lengths = np.zeros(rows, np.int32)
        lengths[: data.num_sequences] = data.lengths
        return Padded(_array(values, device), _array(lengths, device))
    if layout == "csr" or (layout == "ragged" and data.is_sparse):
        made: Any = _matrix(data, device)
    else:
        made = _array(data.values if layout == "ragged" else _ids(data), device)
    return Ragged(made, _array(data.offsets.astype(np.int32), device)) if layout.startswith("ragged") else made


def _enough(allowed: int | Sequence[int] | None, needed: int, what: str, key: str) -> int:
    """The smallest that is allowed and enough."""
    if allowed is None:
        return needed
    sizes = sorted(allowed) if isinstance(allowed, Sequence) else [allowed]
    for size in sizes:
        if size >= needed:
            return size
    raise ConfigError(f"{what}, and {key} allows {sizes[-1] if sizes else 0} at most", key=key)


def _padded(values: npt.NDArray[Any], lengths: npt.NDArray[np.int64], rows: int, steps: int) -> npt.NDArray[Any]:
    padded = _aligned((rows, steps, *values.shape[1:]), values.dtype)
    padded[: len(lengths)][np.arange(steps) < lengths[:, None]] = values
    return padded


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros in memory that JAX takes over without a copy."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    room = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    return room[begin : begin + size].view(dtype).reshape(shape)


def _array(values: npt.NDArray[Any], device: Any) -> jax.Array:
    if device is not None:
        return jax.device_put(values, device)
    is_wide = values.dtype.itemsize == 8 and not jax.config.jax_enable_x64
    if is_wide or not values.flags.writeable or not values.size:  # what DLPack does not take
        return jnp.asarray(values)
    return dlpack.from_dlpack(np.ascontiguousarray(values))


def _matrix(data: MinibatchData, device: Any) -> Any:
    if data.indices is None or data.indptr is None:
        raise ConfigError(f"stream {data.stream.name!r} is dense, and no matrix; layout 'ragged' has its samples")
    parts = (data.values, data.indices, data.indptr.astype(np.int32))
    return sparse.BCSR(tuple(_array(part, device) for part in parts), shape=(data.num_samples, data.stream.dim))


def _ids(data: MinibatchData) -> npt.NDArray[np.int32]:
    """The class of each sample of a one-hot stream."""
    info: StreamInformation = data.stream
    if info.dtype == np.int32:
        return data.values
    if data.indices is not None and data.indptr is not None:
        if len(data.indices) == data.num_samples and (np.diff(data.indptr) == 1).all() and (data.values == 1).all():
            return data.indices
    else:
        rows = data.values.reshape(data.num_samples, info.dim)
        ids = rows.argmax(axis=1) if info.dim else np.zeros(len(rows), np.int64)
        if (np.count_nonzero(rows, axis=1) == 1).all() and (rows[np.arange(len(rows)), ids] == 1).all():
            return ids.astype(np.int32)
    raise ConfigError(f"stream {info.name!r} is not one-hot: a sample is not a single 1", key="layout")

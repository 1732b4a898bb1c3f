"""Minibatches as JAX arrays, padded to fixed shapes for compiled functions. (docs/jax.md)

::

    Minibatch ── convert ──> Padded (values, lengths)      [sequences, steps, *shape], from a small set of shapes
                             Ragged (values, offsets)      the samples of all sequences, concatenated
                             BCSR matrix, class ids

Invariant: the timeline decides the contents of a minibatch; this module only changes their form. Padding is written
once, into memory that JAX shares through DLPack (JAX copies arrays that do not begin at a multiple of 64 bytes). Arrays
for other devices than the CPU are copied. Only this module imports jax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, overload

import numpy as np
import numpy.typing as npt

from cntkio.arguments import sizes, suggests_keywords, there_are
from cntkio.displays import counted, shape_text
from cntkio.errors import ConfigError
from cntkio.layouts import check_layout, class_ids
from cntkio.minibatch import MinibatchData, TruncatedMinibatchData, checked_minibatch
from cntkio.timeline import WHOLE, Budget, Partition

try:
    import jax
    from jax import dlpack
    from jax import numpy as jnp
    from jax.experimental import sparse
except ModuleNotFoundError as error:
    what = f"cntkio.jax needs {error.name}, which is not installed: pip install jax"
    raise ModuleNotFoundError(what, name=error.name) from None

__all__ = ["Layout", "Padded", "Ragged", "Truncated", "convert"]

Layout = Literal["ragged", "padded", "csr", "ids", "ragged_ids", "padded_ids"]
_ALIGNMENT = 64  # JAX shares memory only if it begins at a multiple of these bytes


class Ragged(NamedTuple):
    """The samples of all sequences, concatenated.

    Attributes:
        values: Dense: `[num_samples, *sample shape]`. Sparse: a `jax.experimental.sparse.BCSR`, `[num_samples, dim]`.
            Class ids: int32, `[num_samples]`.
        offsets: Start of each sequence, then the end of the last; int32, `[num_sequences + 1]`.
    """

    values: Any
    offsets: jax.Array

    def __repr__(self) -> str:
        return _size_text(self)


class Padded(NamedTuple):
    """Arrays with a row for each sequence, and empty rows up to the requested number.

    Attributes:
        values: `[rows, steps, *sample shape]`, 0 at padding. Class ids: int32, `[rows, steps]`.
        lengths: Samples of each row, int32, `[rows]`; 0 for empty rows.
    """

    values: jax.Array
    lengths: jax.Array

    @property
    def mask(self) -> jax.Array:
        """True at samples, false at padding; bool, `[rows, steps]`."""
        return jnp.arange(self.values.shape[1]) < self.lengths[:, None]

    def __repr__(self) -> str:
        return _size_text(self)


class Truncated(NamedTuple):
    """Arrays with a row for each slot of a truncated minibatch, whose shape is always the same.

    Attributes:
        values: `[num_slots, num_steps, *sample shape]`.
        mask: 2 at a sequence's first sample, 1 at its other samples, 0 at empty steps; int8, `[num_slots, num_steps]`.
        continues: True for slots that continue a sequence of the previous minibatch; bool, `[num_slots]`.
    """

    values: jax.Array
    mask: jax.Array
    continues: jax.Array

    def __repr__(self) -> str:
        return _size_text(self)


class _Streams(dict[str, Any]):
    """Arrays by stream name. For JAX it is a pytree, as any dictionary is; an unknown name is an error that helps."""

    def __missing__(self, name: object) -> Any:
        raise KeyError(f"no stream {name!r}{there_are(name, self)}")


# JAX knows `dict` alone, not its subclasses. It sorts the keys of a `dict`, so the names are sorted here as well.
jax.tree_util.register_pytree_with_keys(
    _Streams,
    lambda streams: (
        [(jax.tree_util.DictKey(name), streams[name]) for name in sorted(streams)],
        tuple(sorted(streams)),
    ),
    lambda names, parts: _Streams(zip(names, parts, strict=True)),
)


def _size_text(arrays: Any) -> str:
    """Return the kind and the shape of each array; in a pytree, the parts may be something other than arrays."""
    sizes = [
        f"{name}={part.dtype} {shape_text(part.shape)}" if hasattr(part, "dtype") else f"{name}={part!r}"
        for name, part in zip(arrays._fields, arrays, strict=True)
    ]
    return f"{type(arrays).__name__}({', '.join(sizes)})"


@overload
def convert(
    minibatch: Mapping[Any, MinibatchData],
    device: Any = None,
    *,
    layout: Literal["padded", "padded_ids"],
    pad_to: int | Sequence[int] | None = None,
    num_sequences: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    partition: Partition | None = None,
) -> dict[str, Padded]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, *, budget: Budget, partition: Partition | None = None
) -> dict[str, Padded]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData],
    device: Any = None,
    *,
    pad_to: int | Sequence[int],
    num_sequences: int | Sequence[int] | None = None,
) -> dict[str, Padded]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, *, num_sequences: int | Sequence[int]
) -> dict[str, Padded]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData],
    device: Any = None,
    layout: Literal["ragged", "ragged_ids"] | None = None,
) -> dict[str, Ragged]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData], device: Any = None, *, layout: Literal["ids"]
) -> dict[str, jax.Array]: ...
@overload
def convert(
    minibatch: Mapping[Any, MinibatchData],
    device: Any = None,
    layout: Layout | Mapping[str, Layout] | None = None,
    *,
    pad_to: int | Sequence[int] | None = None,
    num_sequences: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    partition: Partition | None = None,
) -> dict[str, Any]: ...
@suggests_keywords
def convert(
    minibatch: Mapping[Any, MinibatchData],
    device: Any = None,
    layout: Layout | Mapping[str, Layout] | None = None,
    *,
    pad_to: int | Sequence[int] | None = None,
    num_sequences: int | Sequence[int] | None = None,
    budget: Budget | None = None,
    partition: Partition | None = None,
) -> dict[str, Any]:
    """Convert a minibatch to JAX arrays, by stream name.

    Args:
        minibatch: A minibatch of a source, also of a `UserMinibatchSource` or with an `input_map`, whose keys are kept;
            or the result of `cntkio.read_ctf`.
        device: A `jax.Device`, its name such as ``"cpu"`` or ``"gpu:1"``, or a sharding; None: the CPU, without a copy
            where possible.
        layout: One layout for all streams, or a mapping from stream names to layouts: ``"ragged"`` (`Ragged`),
            ``"padded"`` (`Padded`; sparse streams become dense), ``"csr"`` (a `jax.experimental.sparse.BCSR` of all
            samples), or, for one-hot streams, ``"ids"``, ``"ragged_ids"`` and ``"padded_ids"``. The default is padded
            if `pad_to`, `num_sequences` or `budget` is given, else ragged. Streams of a truncated minibatch become
            `Truncated`.
        pad_to: Steps of padded arrays: a number that no sequence exceeds, or several numbers, of which each stream uses
            the smallest that is large enough. None: the length of the longest sequence.
        num_sequences: Rows of padded arrays, in the same way; surplus rows are empty. None: the number of sequences.
        budget: The budget with buckets with which the minibatch was read, in place of the two. Every padded stream gets
            the steps of the minibatch's bucket, and as many rows as the budget allows there: one shape a bucket.
        partition: With `budget`, the partition that was read: as many rows as any partition can get, so that all have
            the same shape. None: as many as the whole minibatch can have. A share without sequences has the shape of
            the smallest bucket.

    Returns:
        A dictionary, which is a pytree: it can be an argument of a compiled function. Numbers have JAX's precision
        (float64 becomes float32 unless ``jax_enable_x64`` is set). To type checkers its values have the form of the
        layout; with several layouts, or ``"csr"``, they are `Any`.

    Raises:
        ConfigError: A layout or a stream of this name does not exist; a stream cannot have the layout; or a sequence or
            the minibatch exceeds every allowed size.

    Example:
        >>> from cntkio import CTFDeserializer, MinibatchSource, infer_streams
        >>> path = "examples/alice/train.ctf"
        >>> book = MinibatchSource(CTFDeserializer(path, infer_streams(path)), randomize=False)
        >>> batch = convert(book.next_minibatch(200), layout={"w": "padded_ids"}, pad_to=(64, 256), num_sequences=8)
        >>> batch["w"].values.shape, batch["w"].lengths.tolist()
        ((8, 64), [57, 55, 0, 0, 0, 0, 0, 0])
    """
    minibatch = checked_minibatch(minibatch)
    check_layout(layout, list(minibatch), get_args(Layout))
    device = _device(device)
    if budget is not None:
        if pad_to is not None or num_sequences is not None:
            raise ConfigError("budget excludes pad_to and num_sequences, which it gives", key="budget")
        pad_to, num_sequences = _shape_of_bucket(budget, partition or WHOLE, minibatch)
    pad_to, num_sequences = _allowed("pad_to", pad_to), _allowed("num_sequences", num_sequences)
    is_fixed = pad_to is not None or num_sequences is not None
    converted = _Streams()
    for name, data in minibatch.items():
        asked = layout.get(name) if isinstance(layout, Mapping) else layout
        if isinstance(data, TruncatedMinibatchData):
            if asked is not None or is_fixed:
                raise ConfigError("a truncated minibatch has the shape [slots, steps]; give no layout", key="layout")
            converted[name] = Truncated(*(_array(array, device) for array in (data.values, data.mask, data.continues)))
            continue
        default: Layout = "padded" if is_fixed else "ragged"
        converted[name] = _in_layout(data, asked or default, device, pad_to, num_sequences)
    return converted


def _in_layout(
    data: MinibatchData, layout: Layout, device: Any, pad_to: Sequence[int] | None, num_sequences: Sequence[int] | None
) -> Any:
    info = data.stream
    if layout in ("padded", "padded_ids"):
        longest = f"stream {info.name!r}: a sequence of {counted(data.num_steps, 'sample')}"
        steps = _smallest_sufficient(pad_to, data.num_steps, longest, "pad_to")
        sequences = f"a minibatch of {counted(data.num_sequences, 'sequence')}"
        rows = _smallest_sufficient(num_sequences, data.num_sequences, sequences, "num_sequences")
        if data.is_sparse and layout == "padded":
            values = _aligned((rows, steps, *info.shape), data.values.dtype)
            values[: data.num_sequences, : data.num_steps] = data.asarray()
        else:
            ragged = data.values if layout == "padded" else class_ids(data)
            values = _aligned((rows, steps, *ragged.shape[1:]), ragged.dtype)
            values[: data.num_sequences][np.arange(steps) < data.lengths[:, None]] = ragged
        # Rows beyond the sequences have the length 0, so that the mask leaves them out.
        lengths = np.zeros(rows, np.int32)
        lengths[: data.num_sequences] = data.lengths
        return Padded(_array(values, device), _array(lengths, device))
    offsets = _in_int32(info.name, data.offsets)
    if layout == "csr" or (layout == "ragged" and data.is_sparse):
        samples: Any = _matrix(data, device)
    else:
        samples = _array(data.values if layout == "ragged" else class_ids(data), device)
    return Ragged(samples, _array(offsets, device)) if layout.startswith("ragged") else samples


def _shape_of_bucket(whole: Budget, partition: Partition, minibatch: Mapping[Any, MinibatchData]) -> tuple[int, int]:
    """Return the steps of the bucket of a minibatch, and the most sequences that a partition gets of it."""
    if not whole.buckets:
        raise ConfigError("the budget has no buckets, so its shapes have no end; expected buckets=(...)", key="budget")
    budget = whole.share(partition.num_shares)
    longest = max((data.num_steps for data in minibatch.values()), default=0)
    if longest > budget.buckets[-1]:  # oversize="alone"
        return longest, 1
    index = next(index for index, steps in enumerate(budget.buckets) if steps >= longest)
    steps, shortest = budget.buckets[index], (0, *budget.buckets)[index] + 1
    # A bucket has the sequences above the next smaller bucket, and `samples` counts them without padding.
    # If limits change, the largest give the shape of the whole run.
    most_samples, most_sequences, most_padded, *_ = budget.numbers()
    limits = ((most_padded, steps), (most_samples, shortest))
    weights = [length + (length * length // budget.quadratic if budget.quadratic else 0) for _, length in limits]
    counts = [limit // weight for (limit, _), weight in zip(limits, weights, strict=True) if limit is not None]
    rows = max(1, min([*counts, *([] if most_sequences is None else [most_sequences])]))
    samples = min(rows * steps, most_samples or rows * steps)
    return steps, partition.most_sequences(rows, range(shortest, steps + 1), samples)


def _device(device: Any) -> Any:
    """Return a device of JAX for its name; any other value is what JAX takes itself."""
    if not isinstance(device, str):
        return device
    platform, _, index = device.partition(":")
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        known = ", ".join(f"'{found.platform}:{found.id}'" for found in {*jax.devices(), *jax.devices("cpu")})
        raise ConfigError(f"device is {device!r}; expected one of {known}, or a sharding", key="device") from error


def _in_int32(stream: str, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    if offsets[-1] >= 1 << 31:
        what = f"{offsets[-1]} samples or entries in a minibatch, which offsets in int32 cannot count"
        expected = "expected less than 2147483648: read smaller minibatches"
        raise ConfigError(f"stream {stream!r}: {what}; {expected}", key="minibatch")
    return offsets.astype(np.int32)


def _allowed(name: str, value: Any) -> tuple[int, ...] | None:
    """Return the allowed sizes, the smallest first; None: any."""
    if value is None:
        return None
    allowed = sizes(name, value)
    if not allowed or min(allowed) < 0:
        raise ConfigError(f"{name} is {value!r}; expected one or more numbers, each at least 0", key=name)
    return tuple(sorted(allowed))


def _smallest_sufficient(allowed: Sequence[int] | None, needed: int, subject: str, key: str) -> int:
    if allowed is None:
        return needed
    if needed > allowed[-1]:
        raise ConfigError(f"{subject}, but {key} allows at most {allowed[-1]}", key=key)
    return next(size for size in allowed if size >= needed)


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros in memory that JAX can share."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    # NumPy aligns arrays to fewer bytes, so the result begins at the first multiple within larger memory.
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _array(values: npt.NDArray[Any], device: Any) -> jax.Array:
    # JAX makes 32-bit numbers of these, which copies them.
    is_wide = values.dtype.itemsize == 8 and not jax.config.jax_enable_x64
    if is_wide and values.dtype == np.int64 and values.size:
        # `~x` is -x - 1, because int32 goes down to -2^31, but only up to 2^31 - 1.
        largest = max(int(values.max()), ~int(values.min()))
        if largest >= 1 << 31:
            what = f"a whole number of {largest.bit_length() + 1} bits does not fit int32, which JAX makes of int64"
            raise ConfigError(f'{what}; expected jax.config.update("jax_enable_x64", True)', key="layout")
    if device is not None:
        return jax.device_put(values, device)
    if is_wide or not values.flags.writeable or not values.size:  # DLPack accepts none of these
        return jnp.asarray(values)
    return dlpack.from_dlpack(np.ascontiguousarray(values))


def _matrix(data: MinibatchData, device: Any) -> Any:
    if data.indices is None or data.indptr is None:
        raise ConfigError(f"stream {data.stream.name!r} is dense, not a matrix; use layout 'ragged' for its samples")
    parts = (data.values, data.indices, _in_int32(data.stream.name, data.indptr))
    return sparse.BCSR(tuple(_array(part, device) for part in parts), shape=(data.num_samples, data.stream.dim))

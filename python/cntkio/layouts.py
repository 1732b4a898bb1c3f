"""The NumPy half of `cntkio.torch` and `cntkio.jax`: names of layouts, and class ids of one-hot streams.

It imports no framework. Each adapter turns the arrays into its own tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cntkio.arguments import did_you_mean, there_are
from cntkio.errors import ConfigError
from cntkio.minibatch import Arrays, MinibatchData
from cntkio.streams import StreamInformation


def check_layout(layout: str | Mapping[str, str] | None, streams: Sequence[str], layouts: Sequence[str]) -> None:
    """Check the layout that a caller asks for: one for all streams, or a mapping with a layout for some streams."""
    if layout is None:
        return
    if not isinstance(layout, str | Mapping):
        raise ConfigError(
            f"layout is {layout!r}; expected a name, or a mapping such as {{'x': {layouts[0]!r}}}", key="layout"
        )
    # None stands for all streams, so that a single name is checked in the same way as a mapping.
    choices = {None: layout} if isinstance(layout, str) else layout
    for stream, choice in choices.items():
        if choice not in layouts:
            near = did_you_mean(choice, layouts)
            raise ConfigError(f"layout {choice!r}; expected one of {', '.join(map(repr, layouts))}{near}", key="layout")
        if stream is not None and stream not in streams:
            raise ConfigError(f"layout names the stream {stream!r}{there_are(stream, streams)}", key="layout")


def class_ids(data: MinibatchData) -> npt.NDArray[Any]:
    """Return the class of each sample of a one-hot stream, `[num_samples]`; or the whole number that a sample is.

    The result shares the memory of the values, or of a sparse stream's indices.

    Raises:
        ConfigError: A sample is not a single entry of 1.

    Example:
        >>> from cntkio import Value
        >>> class_ids(Value.one_hot([[3, 1], [4]], num_classes=5)).tolist()
        [3, 1, 4]
    """
    classes, wrong = classes_of(data.stream, data.arrays)
    if wrong is not None:
        why = f"sample {wrong} of the minibatch is not a single entry of 1, so it has no class; use another layout"
        raise ConfigError(f"stream {data.stream.name!r} is not one-hot: {why}", key="layout")
    return classes


def no_class(data: MinibatchData, sample: int, keys: npt.NDArray[Any]) -> str:
    """Return the message about a sample without a class, which is given by its index in the stream."""
    sequence = int(np.searchsorted(data.offsets, sample, side="right")) - 1
    where = f"sequence {keys[sequence]}, stream {data.stream.name!r}: sample {sample - int(data.offsets[sequence])}"
    return f"{where} is not a single entry of 1, so it has no class"


def are_whole(stream: StreamInformation) -> bool:
    """Return whether each sample of a stream is a whole number, such as a class, a word or a count."""
    return stream.dtype.kind == "i" and not stream.is_sparse and stream.dim == 1


def classes_of(stream: StreamInformation, arrays: Arrays) -> tuple[npt.NDArray[Any], int | None]:
    """Return the class of each sample, and the first sample that is not a single entry of 1, if there is one."""
    values, _, indptr, indices = arrays
    if are_whole(stream):
        return values.reshape(-1), None
    classes: npt.NDArray[Any]
    if indices is None or indptr is None:
        # The class of a sample with several axes is an index into all its values.
        samples = values.reshape(-1, stream.dim)
        classes = samples.argmax(axis=1).astype(np.int32)
        is_one_hot = (np.count_nonzero(samples, axis=1) == 1) & (samples[np.arange(len(samples)), classes] == 1)
    else:
        classes = indices
        # With as many entries as samples, and none without an entry, each entry is a sample of its own.
        is_one_hot = indptr[1:] > indptr[:-1]
        if len(values) == len(is_one_hot) and np.count_nonzero(is_one_hot) == len(is_one_hot):
            is_one_hot = values == 1
        else:
            is_one_hot = indptr[1:] - indptr[:-1] == 1
    # NumPy counts a few flags in a seventh of the time of `all`.
    return classes, None if np.count_nonzero(is_one_hot) == len(is_one_hot) else int(is_one_hot.argmin())

"""`described`: the printed form of a source: the amount of data, their order, and the streams."""

from __future__ import annotations

from typing import Protocol

from cntkio.displays import Description, counted
from cntkio.errors import CorpusError
from cntkio.streams import StreamInformation


class Describable(Protocol):
    """The properties of a source that its description shows."""

    @property
    def num_sequences(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_chunks(self) -> int: ...
    @property
    def is_randomized(self) -> bool: ...
    @property
    def span(self) -> tuple[int, int] | None: ...
    def is_infinite(self) -> bool: ...
    def stream_infos(self) -> list[StreamInformation]: ...


def described(source: Describable) -> Description:
    """Return the description of a source; it reads nothing."""
    try:
        counts = (
            f"{counted(source.num_sequences, 'sequence')} of {counted(source.num_samples, 'sample')} "
            f"in {counted(source.num_chunks, 'chunk')}"
        )
    except CorpusError:  # user-defined deserializers on their own timeline
        counts = "sequences of a user-defined deserializer"
    order = "randomized" if source.is_randomized else "in order"
    if source.is_infinite():
        end = "without end"
    else:
        end = "with an end" if source.span is None else "samples {:,} to {:,}".format(*source.span)
    rows = [
        (info.name, info.form, "defines the minibatch size" * info.defines_mb_size) for info in source.stream_infos()
    ]
    return Description(f"{type(source).__name__}: {counts}; {order}, {end}", ("stream", "samples are", ""), rows)

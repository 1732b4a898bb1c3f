"""Interrupts at chosen moments, and a source of each kind to interrupt.

`Lockstep` reads two equal sources. It interrupts calls of the first, and has the second follow without an interrupt.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFReader,
    MinibatchSource,
    Mixture,
    StreamDef,
    StreamDefs,
    write_cbf,
)
from cntkio.formats import htk
from cntkio.timeline import BalancedPartition, GlobalPartition, Partition

from support.builders import STREAMS, corpus_text
from support.user_formats import Named, Numbers, OneStream, arrays_of

LENGTHS = [1 + key % 5 for key in range(30)]
_EVENTS = ("call", "return", "c_return")


class At:
    """Calls an action, and raises `KeyboardInterrupt` at one of its Python calls, returns and returns from C.

    Attributes:
        was_reached: Whether the action reached the event.
    """

    def __init__(self, event_number: int) -> None:
        self._event_number = event_number
        self.was_reached = False

    def __call__(self, action: Callable[[], Any]) -> bool:
        """Return whether the action was interrupted. Python discards an exception in a destructor."""
        numbers = itertools.count()

        def profile(frame: Any, event: str, argument: Any) -> None:
            if event in _EVENTS and next(numbers) == self._event_number:
                self.was_reached = True
                raise KeyboardInterrupt

        sys.setprofile(profile)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False


def interrupted_after(seconds: float, action: Callable[[], Any]) -> bool:
    """Call `action`, and interrupt it after a time; return whether it was interrupted before its end."""

    is_over = False

    def interrupt(*_: object) -> None:
        # Another thread may receive the signal, so that this thread learns of it late.
        if not is_over:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            action()
        finally:
            is_over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


class Kind(NamedTuple):
    """A kind of source.

    Attributes:
        make: Makes a source of this kind from the files in a folder.
        partition: The share to read.
    """

    make: Callable[[Path], Any]
    partition: Partition = Partition()


def write_corpora(folder: Path) -> None:
    """Write the files of all kinds of sources."""
    (folder / "a.ctf").write_bytes(corpus_text(LENGTHS))
    keys = list(range(0, 30, 2))
    (folder / "b.ctf").write_bytes(b"".join(b"%d |y %d\n" % (key, key) for key in keys))
    write_cbf(folder / "a.cbf", CTFDeserializer(folder / "a.ctf", STREAMS), chunk_size_in_bytes=300)
    utterances = [(f"u{key}", np.full((length, 2), key, np.float32)) for key, length in enumerate(LENGTHS)]
    htk.write_archive(folder / "a.ark", folder / "a.scp", utterances)


def _ctf(folder: Path, **options: Any) -> MinibatchSource:
    return MinibatchSource(CTFDeserializer(folder / "a.ctf", STREAMS, chunk_size_in_bytes=200), **options)


def _joined(folder: Path) -> MinibatchSource:
    other = CTFDeserializer(folder / "b.ctf", StreamDefs(y=StreamDef(field="y", shape=1)), chunk_size_in_bytes=30)
    first = CTFDeserializer(folder / "a.ctf", STREAMS, chunk_size_in_bytes=200)
    return MinibatchSource([first, other], max_sweeps=2, trace_level=0)


def _mixture(folder: Path) -> Mixture:
    return Mixture({"a": (_ctf(folder), 2), "b": (_ctf(folder, randomize=False), 1)}, stop="all")


def _htk(folder: Path) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=2)))


KINDS = {
    "in order": Kind(lambda folder: _ctf(folder, max_sweeps=2, randomize=False)),
    "without read-ahead": Kind(lambda folder: _ctf(folder, max_sweeps=2, randomize=False, read_ahead_in_bytes=0)),
    "randomized": Kind(lambda folder: _ctf(folder, max_sweeps=2, randomization_window_in_chunks=3)),
    "partition": Kind(lambda folder: _ctf(folder, max_sweeps=2, randomization_window_in_chunks=3), Partition(1, 2)),
    "balanced": Kind(lambda folder: _ctf(folder, max_sweeps=2), BalancedPartition(1, 2)),
    "global": Kind(lambda folder: _ctf(folder, max_sweeps=2), GlobalPartition(1, 2, num_workers=2)),
    "truncated": Kind(lambda folder: _ctf(folder, max_sweeps=2, truncation_length=2)),
    "joined": Kind(_joined),
    "binary": Kind(lambda folder: MinibatchSource(CBFDeserializer(folder / "a.cbf", STREAMS), max_sweeps=2)),
    "frames": Kind(lambda folder: MinibatchSource(_htk(folder), max_sweeps=2, frame_mode=True)),
    "rolling window": Kind(
        lambda folder: HTKMLFReader(
            _htk(folder), readMethod="rollingWindow", randomize=9, max_sweeps=2, page_limit_in_bytes=0
        )
    ),
    "user-defined": Kind(lambda folder: MinibatchSource(Numbers(), max_sweeps=4, randomization_window_in_chunks=2)),
    "user-defined, truncated": Kind(
        lambda folder: MinibatchSource(OneStream(), max_sweeps=4, randomize=False, truncation_length=2)
    ),
    "user-defined, global": Kind(lambda folder: MinibatchSource(Named(), max_sweeps=4)),
}

WITH_MIXTURES = {**KINDS, "mixture": Kind(_mixture)}


def plain(minibatch: Any) -> Any:
    """Return a minibatch as plain data."""
    if minibatch is None:
        return None
    data = [[name, arrays_of(data), data.end_of_sweep] for name, data in minibatch.items()]
    return minibatch.keys_of_sequences.tolist(), data


class Lockstep:
    """Two equal sources, one of which is interrupted.

    Attributes:
        interrupted: Calls an action, maybe interrupts it, and returns whether it did.
        num_interrupts: Number of interrupted calls.
    """

    def __init__(
        self, kind: Kind, folder: Path, interrupted: Callable[[Callable[[], Any]], bool] = lambda action: bool(action())
    ) -> None:
        self._kind, self.interrupted = kind, interrupted
        self._source, self._follower = kind.make(folder), kind.make(folder)
        self._start = self._follower.state_dict()
        self.num_interrupts = 0

    def _call(self, action: Callable[[], Any]) -> bool:
        was_interrupted = self.interrupted(action)
        self.num_interrupts += was_interrupted
        return was_interrupted

    def read(self, size: int) -> bool:
        """Interrupt a read, compare the states, and compare the next read; return whether the data have ended."""
        delivered: list[Any] = []
        if self._call(lambda: delivered.append(plain(self._source.read(size, self._kind.partition)))):
            if self._source.state_dict() != self._follower.state_dict():
                self._follower.read(size, self._kind.partition)  # the minibatch of the interrupted read counts
            assert self._source.state_dict() == self._follower.state_dict()
            delivered = [plain(in_another_thread(lambda: self._source.read(size, self._kind.partition)))]
        assert delivered == [plain(self._follower.read(size, self._kind.partition))]
        assert self._source.state_dict() == self._follower.state_dict()
        return delivered == [None]

    def restore(self) -> None:
        """Interrupt a return to the start: afterwards the source is at the start, or at its old position."""
        before = self._source.state_dict()
        if self._call(lambda: self._source.load_state_dict(self._start)):
            assert self._source.state_dict() in (before, self._start)
            if self._source.state_dict() == before:
                self._source.read(3, self._kind.partition)  # another minibatch, or the end
            self._source.load_state_dict(self._start)
        self._follower.load_state_dict(self._start)
        assert self._source.state_dict() == self._follower.state_dict()

    def close(self) -> None:
        """Interrupt the end of the first source, and end both."""
        self._call(self._source.close)
        in_another_thread(self._source.close)
        self._follower.close()


def in_another_thread(action: Callable[[], Any]) -> Any:
    """Call `action` in another thread, which must not block."""
    executor = ThreadPoolExecutor(1)
    try:
        return executor.submit(action).result(60)
    finally:
        executor.shutdown(wait=False)


def sizes() -> Iterator[int]:
    """Sizes of successive reads: often the same as before."""
    return itertools.cycle([5, 5, 5, 3, 5, 5])

"""`SourceProgress`: the position of a source; and the contents of a state, and the check that a state fits a source.

::

    timeline    position of the timeline
    settings    the settings that change the minibatches
    data        a fingerprint of each corpus
    content     a checksum of the content of each corpus, in addition to its fingerprint; empty if making it takes long
    order       a checksum of the tables that decide the order, and their description for messages

A state that does not fit is refused with one error that names every difference.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from cntkio.arguments import whole_number
from cntkio.errors import CheckpointError
from cntkio.formats.contract import Corpus
from cntkio.formats.corpus import differences_of_files
from cntkio.formats.table import SequenceTable
from cntkio.source.arrangement import Arrangement
from cntkio.source.omissions import different_omissions
from cntkio.source.pipeline import Epoch, Pipeline
from cntkio.source.recipe import Recipe, SourceOptions
from cntkio.timeline import AnyTimeline, Bookmark
from cntkio.timeline.fields import is_same

_VERSION = 1
_SUMMED_AT_ONCE = 1 << 20  # numbers of a column, which may be in a file
_NO_ORDER: Mapping[str, Any] = {"digest": "", "deserializers": []}


CONSTANT = ("version", "settings", "data", "content", "order")
"""Fields that all states of a source have in common."""


def changing(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a source's state that differs from read to read."""
    return {name: value for name, value in state.items() if name not in CONSTANT}


def _epoch_of(state: Mapping[str, Any]) -> tuple[int, int]:
    span = state["epoch"]
    # Not `isinstance`: JSON has true and false, which Python also takes as numbers.
    if isinstance(span, list | tuple) and len(span) == 2 and all(type(position) is int for position in span):
        return span[0], span[1]
    expected = "two positions, where the epoch begins and ends"
    raise CheckpointError(f"the state's 'epoch' is {span!r:.200}; expected {expected}", saved=span)


def difference(name: str, saved: object, current: object) -> str:
    """Return the part of a message about a value of a state that differs from the value here."""
    return f"{name}: saved {saved!r:.200}, here {current!r:.200}"


class _Difference(NamedTuple):
    """A value of a state that differs. The message shows both values, or the texts `shown` in their place."""

    name: str
    saved: object
    current: object
    shown: tuple[str, str] | None = None

    def text(self) -> str:
        name, saved, current, shown = self
        return f"{name}: saved {shown[0]}, here {shown[1]}" if shown else difference(name, saved, current)


def _different(saved: Mapping[str, Any], current: Mapping[str, Any], suffix: str = "") -> Iterator[_Difference]:
    for name in dict.fromkeys([*saved, *current]):
        if not is_same(saved.get(name), current.get(name)):
            yield _Difference(f"{name}{suffix}", saved.get(name), current.get(name))


def _is_order(value: Any) -> TypeGuard[Mapping[str, Any]]:
    if not isinstance(value, Mapping) or not isinstance(value.get("digest"), str):
        return False
    all_described = value.get("deserializers")
    return isinstance(all_described, list) and all(
        isinstance(of_one, Mapping) and isinstance(of_one.get("options"), Mapping) for of_one in all_described
    )


def _different_data(
    saved: Sequence[Any], current: Sequence[str], *descriptions: Sequence[Mapping[str, Any]]
) -> Iterator[_Difference]:
    for index, (before, now, *described) in enumerate(zip_longest(saved, current, *descriptions)):
        if is_same(before, now):
            continue
        shown = None
        # A state of an earlier version has no descriptions, so its message shows the fingerprints.
        if described[0] is not None or before is None or now is None:
            texts = ["none" if of_one is None else f"{of_one.get('name')} ({_counts(of_one)})" for of_one in described]
            files = differences_of_files(before, now) if isinstance(before, str) and isinstance(now, str) else ""
            # If names and counts are the same, say that the content is what differs.
            what = f" where {files}" if files else " with other content" * (texts[0] == texts[1])
            shown = (texts[0], texts[1] + what)
        yield _Difference(f"data of deserializer {index}", before, now, shown)


def _other_content(saved: Any, made: Mapping[str, Any]) -> Iterator[_Difference]:
    """Compare the checksums of content that both sides have. A state of an earlier version has none."""
    if not isinstance(saved, list):
        raise CheckpointError(f"the state's 'content' is {saved!r:.200}; expected a list of checksums", saved=saved)
    # The states may have been taken with another number of deserializers.
    for index, (before, now, described) in enumerate(
        zip(saved, made["content"], made["order"]["deserializers"], strict=False)
    ):
        if now and not any(is_same(before, one) for one in (now, "", None)):
            yield _Difference(f"data of deserializer {index}", before, now, (described["name"], "other content"))


def _counts(described: Mapping[str, Any]) -> str:
    num_sequences, num_chunks = described.get("num_sequences"), described.get("num_chunks")
    return f"{num_sequences} sequence{'s' * (num_sequences != 1)} in {num_chunks} chunk{'s' * (num_chunks != 1)}"


def _sizes(table: SequenceTable) -> dict[str, int]:
    return {"num_sequences": table.num_sequences, "num_chunks": table.num_chunks}


def _digest(arrangement: Arrangement) -> str:
    """Return a checksum of everything in the tables that the order and the joins depend on."""
    columns = [*arrangement.table.content(), arrangement.chunk_starts, arrangement.flags, *(arrangement.partners or ())]
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        if column is None:
            continue
        if column.dtype.hasobject or column.dtype.kind == "T":  # strings of any length, which are stored elsewhere
            texts = "\0".join(map(str, column[:].tolist())).encode("utf-8", "surrogatepass")
            column = np.frombuffer(texts, np.uint8)
        # The sizes separate the columns: others with the same bytes one after the other have another checksum.
        digest.update((len(column) * column.dtype.itemsize).to_bytes(8, "little"))
        for first in range(0, len(column), _SUMMED_AT_ONCE):
            digest.update(np.ascontiguousarray(column[first : first + _SUMMED_AT_ONCE]).view(np.uint8).data)
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------------------
# `SourceProgress`: the position of a source: epochs, checkpoints and states.
#
# Invariant: a call that fails, or is interrupted, leaves the source where it was. (`Pipeline.move`)


@dataclasses.dataclass(eq=False, repr=False)
class SourceProgress:
    """Position of a source, and the ways to move it.

    The fingerprints and checksums are made when the first state is taken or checked, in about 0.1 s for ten million
    sequences, and as long for 64 MB of content.
    """

    _options: SourceOptions
    _recipe: Recipe
    _corpora: Sequence[Corpus]
    _arrangement: Arrangement
    _timeline: AnyTimeline
    _pipeline: Pipeline
    _before_epochs: Bookmark
    _made: dict[str, Any] | None = None

    def begin_epoch(self, begin: int, end: int, truncation_length: int | None, number: int | None) -> None:
        """Deliver an epoch; see `MinibatchSource.begin_epoch`."""
        given = {"begin": begin, "end": end, "truncation_length": truncation_length or 0, "number": number or 0}
        for name, value in given.items():
            if whole_number(name, value) < 0:
                raise CheckpointError(f"{name} is {value}; expected at least 0", saved=value)
        # All checks come before the move, which discards prepared minibatches.
        self._recipe.check_truncation(self._options, truncation_length)
        span = int(begin), int(end)

        def move() -> Epoch:
            now = self._pipeline.epoch
            steps = now.truncation_length if truncation_length is None else truncation_length
            epoch = Epoch(span, now.number if number is None else number, steps)
            self._timeline.begin_epoch(*span, truncation_length, self._recipe.num_rows(epoch.number))
            return epoch

        self._pipeline.move(move)

    # -------------------------------------------------------------------------------------------- checkpoints

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go to a position of CNTK, or of a `state`."""
        if "version" in _mapping(checkpoint):
            self.load_state(checkpoint)
            return

        def move() -> Epoch:
            self._timeline.restore(checkpoint)
            return self._pipeline.epoch

        self._pipeline.move(move)

    def state(self) -> dict[str, Any]:
        """Return everything that is needed to continue here, and to detect other data or settings."""
        self._pipeline.check_open()  # the fingerprints of the data may be read from the files
        delivered, epoch = self._pipeline.where()
        return self.state_of(self._timeline.state(delivered.bookmark), epoch)

    def state_of(self, timeline: Mapping[str, Any], epoch: Epoch) -> dict[str, Any]:
        """Return the state of a source whose timeline has this state, in an epoch."""
        settings = self._settings(epoch)
        span = {} if epoch.span is None else {"epoch": list(epoch.span)}
        state = {"version": _VERSION, "timeline": timeline, "settings": settings, **self._fingerprints()}
        omissions = self._arrangement.omissions
        left_out = {} if omissions is None else {"left_out": omissions.sums}
        return {**state, **span, **left_out, **self._recipe.epoch_state(epoch.number)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a `state`, which `_check` may refuse."""
        _mapping(state)

        def move() -> Epoch:
            # A state without an epoch was taken before the first epoch, so the source's own limits follow it.
            current = self._pipeline.epoch if "epoch" in state else Epoch()
            epoch = current._replace(number=self._recipe.epoch_number(state))
            self._check(state, self._settings(epoch))
            if "epoch" in state:
                span = _epoch_of(state)
                epoch = epoch._replace(span=span)
                self._timeline.begin_epoch(*span)
            elif self._pipeline.epoch.span is not None:
                self._timeline.go_back(self._before_epochs)
            self._timeline.load_state(state["timeline"], self._recipe.num_rows(epoch.number))
            return epoch

        self._pipeline.move(move)

    def _check(self, state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit.

        A state of an earlier version has no order; only its other fields are compared.
        """
        version = state.get("version")
        if not is_same(version, _VERSION):
            message = f"the state's version is {version!r:.200}; expected {_VERSION}"
            raise CheckpointError(message, saved=version, current=_VERSION)
        saved_settings, saved_data = state.get("settings"), state.get("data")
        has_timeline = isinstance(state.get("timeline"), Mapping)
        if not has_timeline or not isinstance(saved_settings, Mapping) or not isinstance(saved_data, list):
            raise CheckpointError("the state lacks 'settings', 'data' or 'timeline'", saved=dict(state))
        saved_order = state.get("order", _NO_ORDER)
        if not _is_order(saved_order):
            raise CheckpointError("the state's 'order' is damaged", saved=saved_order)
        made = self._fingerprints()
        data, order = made["data"], made["order"]
        described = saved_order["deserializers"], order["deserializers"]
        different: list[_Difference] = [
            *_different(saved_settings, settings),
            *_different_data(saved_data, data, *described),
        ] or [*_other_content(state.get("content", []), made)]
        if "order" in state and saved_order["digest"] != order["digest"]:
            # The states may have been taken with another number of deserializers.
            for index, (of_saved, of_current) in enumerate(zip(*described, strict=False)):
                suffix = f" of deserializer {index}" if len(self._corpora) > 1 else ""
                different += _different(of_saved["options"], of_current["options"], suffix)
            # Other data or options explain other tables, so only without them the tables are named.
            if not different:
                before, now = _counts(saved_order), _counts(order)
                shown = before, now + " with other keys, lengths or bounds" * (before == now)
                different = [_Difference("sequences", saved_order["digest"], order["digest"], shown)]
        if "left_out" in state or self._arrangement.omissions is not None:
            omitted = different_omissions(state.get("left_out"), self._arrangement.omissions, state["timeline"])
            different += [_Difference(name, saved, here) for name, saved, here in omitted]
        if different:
            raise CheckpointError(
                "the state does not fit this source: " + "; ".join(each.text() for each in different),
                saved={each.name: each.saved for each in different},
                current={each.name: each.current for each in different},
            )

    def start(self, *, is_here: bool) -> Callable[[AnyTimeline], None]:
        """Return a function that moves a new timeline to the beginning of the epoch, or to the source's position."""
        delivered, epoch = self._pipeline.where()
        num_rows = self._recipe.num_rows(epoch.number)
        # Taken now, because a plan makes its timelines later, and the source may have moved by then.
        here = self._timeline.state(delivered.bookmark) if is_here else None

        def put(timeline: AnyTimeline) -> None:
            if epoch.span is not None:
                timeline.begin_epoch(*epoch.span, epoch.truncation_length, num_rows)
            if here is not None:
                timeline.load_state(here, num_rows)

        return put

    def options_in(self, epoch: Epoch) -> SourceOptions:
        """Return the options of the source in an epoch."""
        if epoch.truncation_length is None:
            return self._options
        return dataclasses.replace(self._options, truncation_length=epoch.truncation_length)

    def _settings(self, epoch: Epoch) -> dict[str, Any]:
        return {**self._recipe.for_checkpoint(self.options_in(epoch)), **self._timeline.checkpoint_settings}

    def _fingerprints(self) -> dict[str, Any]:
        """Return the fields `data`, `content` and `order` of each state."""
        if self._made is None:
            described = [
                {"name": corpus.name, **_sizes(corpus.table), "options": dict(corpus.table.options)}
                for corpus in self._corpora
            ]
            digest = _digest(self._arrangement)
            order = {"digest": digest, **_sizes(self._arrangement.table), "deserializers": described}
            data, content = zip(
                *((corpus.fingerprint(), corpus.content_sum()) for corpus in self._corpora), strict=True
            )
            self._made = {"data": [*data], "content": [*content], "order": order}
        return self._made


def _mapping(state: Any) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        expected = "the dict that state_dict() or get_checkpoint_state() returned"
        raise CheckpointError(f"the state is {state!r:.200}; expected {expected}", saved=state)
    return state

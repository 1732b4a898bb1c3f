"""`Checkpoint`: what the state of a source holds, and whether a state fits a source.

The state holds where the timeline stands, the settings that change what is delivered, and a fingerprint of each corpus.
A state that does not fit is refused with one error that names every difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cntkio.errors import CheckpointError
from cntkio.formats.contract import Corpus

_VERSION = 1


class Checkpoint:
    """Takes and checks the states of one source.

    Args:
        corpora: Its corpora, whose fingerprints are made when the first state is taken or checked.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self._corpora = corpora
        self._fingerprints: list[str] | None = None

    def take(self, timeline: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a state, from the state of the timeline and the settings to compare."""
        return {"version": _VERSION, "timeline": timeline, "settings": dict(settings), "data": self._data()}

    def check(self, state: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Refuse a state that does not fit.

        Raises:
            CheckpointError: The state was taken from other data or with other settings; all differences are named.
        """
        if state.get("version") != _VERSION:
            raise CheckpointError(
                f"the state's version is {state.get('version')!r}; expected {_VERSION}",
                saved=state.get("version"),
                current=_VERSION,
            )
        saved_settings, saved_data = state.get("settings"), state.get("data")
        if not isinstance(saved_settings, Mapping) or not isinstance(saved_data, list) or "timeline" not in state:
            raise CheckpointError("the state lacks 'settings', 'data' or 'timeline'", saved=dict(state))
        saved = {**saved_settings, **_by_deserializer(saved_data)}
        current = {**settings, **_by_deserializer(self._data())}
        different = [key for key in dict.fromkeys([*saved, *current]) if saved.get(key) != current.get(key)]
        if different:
            raise CheckpointError(
                "the state does not fit this source: "
                + "; ".join(f"{key}: saved {saved.get(key)!r}, here {current.get(key)!r}" for key in different),
                saved={key: saved.get(key) for key in different},
                current={key: current.get(key) for key in different},
            )

    def _data(self) -> list[str]:
        if self._fingerprints is None:
            self._fingerprints = [corpus.fingerprint() for corpus in self._corpora]
        return self._fingerprints


def _by_deserializer(fingerprints: Sequence[str]) -> dict[str, str]:
    return {f"data of deserializer {index}": fingerprint for index, fingerprint in enumerate(fingerprints)}

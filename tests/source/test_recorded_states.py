"""Pickles and checkpoints of an earlier version are read, and the same minibatches follow."""

import base64
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from cntkio import MinibatchSource, Record, StreamDef, StreamDefs
from support import recorded_states as recorded
from support.recorded_states import DESERIALIZERS, SOURCES

RECORDS = recorded.records()


@pytest.fixture(autouse=True)
def folder_of_corpora() -> Iterator[None]:
    with recorded.beside_corpora():
        yield


def unpickled(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def test_every_case_is_recorded() -> None:
    assert list(RECORDS["objects"]) == list(recorded.objects())
    assert list(RECORDS["deserializers"]) == list(DESERIALIZERS)
    assert list(RECORDS["sources"]) == list(SOURCES)


@pytest.mark.parametrize("name", recorded.objects())
def test_a_recorded_object_equals_one_made_now(name: str) -> None:
    loaded, made = unpickled(RECORDS["objects"][name]), recorded.objects()[name]
    if isinstance(made, StreamDef):  # recorded as a `Record`, which deserializers convert
        assert type(loaded) is Record and loaded == made
        loaded = StreamDefs(x=loaded).x
    else:
        assert type(loaded).__hash__ is None or hash(loaded) == hash(made)
    assert (type(loaded), loaded, repr(loaded)) == (type(made), made, repr(made))


@pytest.mark.parametrize("name", DESERIALIZERS)
def test_a_recorded_deserializer_delivers_the_same(name: str) -> None:
    record = RECORDS["deserializers"][name]
    loaded, made = unpickled(record["pickle"]), DESERIALIZERS[name]()
    assert type(loaded) is type(made)
    if name != "user-defined":
        assert repr(loaded) == repr(made)
    for deserializer in (loaded, made):
        given = recorded.beside_features(name, deserializer)
        with MinibatchSource(given, max_sweeps=1, randomize=False) as source:
            assert recorded.shown_streams(source) == record["streams"]
            assert recorded.read_on(source, 9, recorded.WHOLE) == record["next"]


@pytest.mark.parametrize("name", RECORDS["minibatches"])
def test_recorded_data_of_a_minibatch_have_the_same_arrays(name: str) -> None:
    for record in RECORDS["minibatches"][name].values():
        assert recorded.shown_data(unpickled(record["pickle"])) == record["shown"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_recorded_pickle_of_a_source_continues_identically(name: str) -> None:
    record, request = RECORDS["sources"][name], SOURCES[name][1]
    with unpickled(record["pickle"]) as source:
        assert recorded.shown_streams(source) == record["streams"]
        assert recorded.read_on(source, *request) == record["next"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_recorded_state_continues_identically(name: str) -> None:
    record, (make, request, *_) = RECORDS["sources"][name], SOURCES[name]
    with make() as source:
        source.load_state_dict(record["state"])
        assert recorded.in_recorded_form(source.state_dict()) == recorded.in_current_form(record["state"])
        assert source.get_checkpoint_state() == record["checkpoint"]
        assert recorded.read_on(source, *request) == record["next"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_recorded_checkpoint_of_cntk_continues_identically(name: str) -> None:
    record, (make, request, *_) = RECORDS["sources"][name], SOURCES[name]
    with make() as source:
        source.restore_from_checkpoint(record["checkpoint"])
        assert recorded.read_on(source, *request) == record["next after checkpoint"]

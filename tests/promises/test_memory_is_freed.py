"""A corpus is freed with the last reference to its source: its memory does not wait for the collector of cycles."""

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from cntkio import MinibatchSource
from cntkio.formats.contract import Corpus
from support.small_corpora import FORMATS

pytestmark = pytest.mark.usefixtures("current_folder")


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Only references decide what is freed. The collector knows only objects that are made from now on."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def opened_corpora() -> list[weakref.ref[Any]]:
    return [weakref.ref(one) for one in gc.get_objects() if Corpus in type(one).__mro__]


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_a_corpus_is_freed_with_its_source(name: str, is_closed: bool) -> None:
    deserializers = FORMATS[name]()
    gc.collect()
    before = len(opened_corpora())
    source = MinibatchSource(deserializers, max_sweeps=1)
    for minibatch in source.minibatches(3):
        del minibatch
    assert len(opened_corpora()) > before
    if is_closed:
        source.close()
    del source
    deadline = time.monotonic() + 10
    while len(opened_corpora()) > before and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread of the source may be at its last job
    assert len(opened_corpora()) == before

"""States of data sets of an earlier version are read, and the same minibatches follow."""

import pytest
from support import recorded_states as recorded

pytest.importorskip("torch")

from cntkio.torch import MinibatchDataset

RECORDS = recorded.records()["datasets"]


def test_every_data_set_is_recorded() -> None:
    assert list(RECORDS) == list(recorded.DATASETS)


@pytest.mark.parametrize("name", recorded.DATASETS)
def test_a_recorded_state_of_a_data_set_continues_identically(name: str) -> None:
    record, (make, options, *_) = RECORDS[name], recorded.DATASETS[name]
    with recorded.beside_corpora(), make() as source:
        dataset = MinibatchDataset(source, 6, **options)
        dataset.load_state_dict(record["state"])
        state = dataset.state_dict()
        assert {**state, "source": recorded.in_recorded_form(state["source"])} == record["state"]
        assert [recorded.shown_tensors(minibatch) for minibatch in dataset] == record["next"]

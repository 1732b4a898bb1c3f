"""Tensors of minibatches, and data sets for PyTorch. (docs/torch.md)"""

import importlib.util
import itertools
import json
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CheckpointError,
    ConfigError,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    HTKMLFReader,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.formats import htk, mlf
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamInformation
from support import ROOT, builders
from support.programs import run_together

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from cntkio.torch import MinibatchDataset, Padded, Ragged, TensorMinibatch, Truncated, convert  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

NUM_SEQUENCES = 101


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequence k has key k and 1 + k % 4 samples x = (k, step), s = one-hot of k + step."""
    path = tmp_path_factory.mktemp("torch") / "a.ctf"
    lines = [
        f"{key} |x {key} {step} |s {key + step}:1\n" for key in range(NUM_SEQUENCES) for step in range(1 + key % 4)
    ]
    path.write_text("".join(lines))
    return path


def source_of(path: Path, **options: Any) -> MinibatchSource:
    return builders.source_of(path, 300, **{"max_sweeps": 1, **options})


def shown(minibatch: Any) -> Any:
    x, s = minibatch["x"], minibatch["s"]
    return (
        minibatch.keys_of_sequences.tolist(), x.values.tolist(), x.offsets.tolist(),
        s.values.to_dense().argmax(1).tolist(), minibatch.num_sequences, minibatch.end_of_sweep,
    )  # fmt: skip


def keys_of(minibatches: Any) -> Counter[int]:
    return Counter(key for minibatch in minibatches for key in minibatch.keys_of_sequences.tolist())


EACH_ONCE = Counter(range(NUM_SEQUENCES))

# -- tensors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def minibatch(corpus: Path) -> Iterator[Minibatch]:
    with source_of(corpus) as source:
        found = source.read(40)
        assert found is not None
        yield found


def pointer(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_tensors_share_the_memory_of_the_minibatch(minibatch: Minibatch) -> None:
    tensors = convert(minibatch)
    x, s = minibatch["x"], minibatch["s"]
    assert tensors["x"].values.data_ptr() == pointer(x.values)
    assert tensors["x"].offsets.data_ptr() == pointer(x.offsets)
    assert tensors["s"].values.values().data_ptr() == pointer(s.values)
    assert tensors["s"].values.col_indices().data_ptr() == pointer(s.indices)
    assert tensors["s"].offsets.data_ptr() == pointer(s.offsets)


@pytest.mark.parametrize(("layout", "name"), [("csr", "s"), ("ids", "s"), ("ragged_ids", "s"), ("nested", "x")])
def test_every_layout_without_padding_shares_the_memory(minibatch: Minibatch, layout: Any, name: str) -> None:
    made = convert(minibatch, layout={name: layout})[name]
    array = minibatch[name].values if layout in ("csr", "nested") else minibatch[name].indices
    if layout in ("csr", "nested", "ragged_ids"):
        made = made.values() if layout != "ragged_ids" else made.values
    assert made.data_ptr() == pointer(array)


def test_sequences_of_one_length_are_padded_without_a_copy(tmp_path: Path) -> None:
    (tmp_path / "b.ctf").write_text("".join(f"{key} |x {key} 1 |s {key}:1\n" * 3 for key in range(4)))
    whole = cntkio.read_ctf(tmp_path / "b.ctf", builders.STREAMS)
    tensors = convert(whole, layout={"x": "padded", "s": "padded_ids"})
    assert tensors["x"].values.shape == (4, 3, 2) and tensors["s"].values.shape == (4, 3)
    assert tensors["x"].values.data_ptr() == pointer(whole["x"].values)
    assert tensors["s"].values.data_ptr() == pointer(whole["s"].indices)


def test_memory_lives_as_long_as_its_tensor(corpus: Path) -> None:
    with source_of(corpus) as source:
        kept = [convert(minibatch)["x"].values for minibatch in source.minibatches(7)]
        keys = [key for tensor in kept for key in tensor[:, 0].tolist()]
    assert Counter(keys) == Counter({key: 1 + key % 4 for key in range(NUM_SEQUENCES)})


def test_read_only_arrays_are_shared_without_a_warning(minibatch: Minibatch) -> None:
    x, s = minibatch["x"], minibatch["s"]
    arrays = [x.values, x.offsets, s.values, s.indices, s.indptr]
    for array in arrays:
        array.flags.writeable = False
    tensors = convert(minibatch)
    assert tensors["x"].values.data_ptr() == pointer(x.values)
    assert tensors["x"].values.tolist() == x.values.tolist()
    assert tensors["s"].values.values().data_ptr() == pointer(s.values)
    assert not x.values.flags.writeable


def test_all_layouts_hold_the_same_values(minibatch: Minibatch) -> None:
    sequences = [sequence.tolist() for sequence in minibatch["x"].as_sequences()]
    classes = [list(range(key, key + 1 + key % 4)) for key in minibatch.keys_of_sequences.tolist()]
    flat = [one for sequence in sequences for one in sequence]

    ragged = convert(minibatch)["x"]
    values, offsets = ragged
    assert isinstance(ragged, Ragged) and values.tolist() == flat and offsets.tolist()[-1] == len(flat)
    assert ragged.lengths.tolist() == [len(sequence) for sequence in sequences]

    padded = convert(minibatch, layout="padded")
    assert isinstance(padded["x"], Padded)
    assert padded["x"].mask.sum(1).tolist() == padded["x"].lengths.tolist() == ragged.lengths.tolist()
    assert padded["x"].values[padded["x"].mask].tolist() == flat
    assert not padded["x"].values[~padded["x"].mask].any()
    assert padded["s"].values.argmax(-1)[padded["s"].mask].tolist() == sum(classes, [])

    nested = convert(minibatch, layout={"x": "nested", "s": "nested_ids"})
    assert [one.tolist() for one in nested["x"].unbind()] == sequences
    assert [one.tolist() for one in nested["s"].unbind()] == classes

    assert convert(minibatch, layout={"s": "ids"})["s"].tolist() == sum(classes, [])
    ids = convert(minibatch, layout={"s": "padded_ids"})["s"]
    assert ids.values.dtype == torch.int32 and ids.values[ids.mask].tolist() == sum(classes, [])
    assert not ids.values[~ids.mask].any()

    matrix = convert(minibatch, layout={"s": "csr"})["s"]
    assert matrix.layout == torch.sparse_csr and matrix.shape == (len(flat), 1000)
    assert (matrix.to_dense() == torch.from_numpy(minibatch["s"].tocsr().toarray())).all()


def test_repeated_and_descending_indices_become_a_proper_matrix(tmp_path: Path) -> None:
    (tmp_path / "b.ctf").write_text("0 |s 5:1 3:2\n0 |s\n0 |s 1:1 1:4 7:1\n1 |s 0:1\n")
    whole = cntkio.read_ctf(tmp_path / "b.ctf", StreamDefs(s=StreamDef(field="s", shape=9, is_sparse=True)))
    matrix = convert(whole, layout="csr")["s"]
    assert matrix.crow_indices().tolist() == [0, 2, 2, 4, 5]
    assert matrix.col_indices().tolist() == [3, 5, 1, 7, 0]
    assert matrix.values().tolist() == [2, 1, 5, 1, 1]
    assert matrix.col_indices().dtype == matrix.crow_indices().dtype == torch.int32
    vector = torch.arange(9.0)
    assert (matrix @ vector).tolist() == (whole["s"].tocsr() @ np.arange(9.0)).tolist()


def test_samples_without_entries_at_either_end_are_rows_of_zeros(tmp_path: Path) -> None:
    (tmp_path / "b.ctf").write_text("0 |s\n0 |s\n0 |s 2:1 4:1\n0 |s 1:1\n0 |s\n")
    whole = cntkio.read_ctf(tmp_path / "b.ctf", StreamDefs(s=StreamDef(field="s", shape=5, is_sparse=True)))
    matrix = convert(whole)["s"].values
    assert matrix.to_dense().tolist() == whole["s"].tocsr().toarray().tolist()
    assert matrix.values().data_ptr() == pointer(whole["s"].values)


@pytest.mark.parametrize("text", ["0 |s 1:1\n0 |s 1:2\n", "0 |s 1:1\n0 |s 1:1 2:1\n", "0 |s 1:1\n0 |s\n"])
def test_refuses_classes_of_streams_that_are_not_one_hot(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.ctf").write_text(text)
    whole = cntkio.read_ctf(tmp_path / "b.ctf", StreamDefs(s=StreamDef(field="s", shape=9, is_sparse=True)))
    with pytest.raises(ConfigError, match="stream 's' is not one-hot: sample 1"):
        convert(whole, layout="ids")["s"]


def test_dense_one_hot_streams_have_classes(tmp_path: Path) -> None:
    (tmp_path / "b.ctf").write_text("|y 0 1 0\n|y 0 0 1\n|y 1 0 0\n")
    assert convert(cntkio.read_ctf(tmp_path / "b.ctf"), layout="ids")["y"].tolist() == [1, 2, 0]
    (tmp_path / "c.ctf").write_text("|y 0 1 0\n|y 0 1 1\n|y 1 0 0\n")
    with pytest.raises(ConfigError, match="sample 1"):
        convert(cntkio.read_ctf(tmp_path / "c.ctf"), layout="ids")["y"]


def test_streams_of_classes_stay_unchanged(tmp_path: Path) -> None:
    utterances = [("u0", np.ones((3, 2))), ("u1", np.ones((1, 2)))]
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    features = HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=tmp_path / "a.scp", shape=2)))
    mlf.write_mlf(tmp_path / "a.mlf", [("u0", np.array([0, 0, 2])), ("u1", np.array([1]))], ["a", "b", "c"])
    mlf.write_mapping(tmp_path / "states.list", ["a", "b", "c"])
    streams = StreamDefs(L=StreamDef(mlf=tmp_path / "a.mlf", shape=3))
    labels = HTKMLFDeserializer(tmp_path / "states.list", streams, as_class_ids=True)
    with MinibatchSource([features, labels], randomize=False) as source:
        minibatch = source.read(4)
        assert minibatch is not None
    for layout in ("ragged", "ragged_ids"):
        classes = convert(minibatch, layout=layout)["L"].values
        assert classes.dtype == torch.int32 and classes.tolist() == [0, 0, 2, 1]
        assert classes.data_ptr() == pointer(minibatch["L"].values)
    for layout in ("padded", "padded_ids"):
        assert convert(minibatch, layout=layout)["L"].values.tolist() == [[0, 0, 2], [1, 0, 0]]


@pytest.mark.parametrize(
    ("layout", "message"),
    [("flat", "layout 'flat'; expected one of 'ragged'"), ({"z": "csr"}, "names the stream 'z'; there are: 's', 'x'")],
)
def test_refuses_unknown_layouts(minibatch: Minibatch, layout: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(minibatch, layout=layout)


@pytest.mark.parametrize("layout", [{"x": "csr"}, {"s": "nested"}])
def test_refuses_layouts_that_a_stream_does_not_have(minibatch: Minibatch, layout: Any) -> None:
    [name] = layout
    with pytest.raises(ConfigError, match=f"stream '{name}' is"):
        convert(minibatch, layout=layout)[name]


def test_truncated_minibatches_keep_their_layout(corpus: Path) -> None:
    with source_of(corpus, truncation_length=2) as source:
        found = source.read(8)
        assert found is not None
        x = convert(found)["x"]
        assert isinstance(x, Truncated)
        assert x.values.data_ptr() == pointer(found["x"].values) and x.values.shape == (4, 2, 2)
        assert x.mask.tolist() == found["x"].mask.tolist() and x.continues.tolist() == found["x"].continues.tolist()
        with pytest.raises(ConfigError, match="truncated minibatches have the layout 'padded', not 'csr'"):
            convert(found, layout="csr")["x"]


def test_a_minibatch_of_tensors_is_a_mapping(minibatch: Minibatch) -> None:
    tensors = convert(minibatch)
    assert list(tensors) == tensors.keys() == ["s", "x"] and len(tensors) == 2
    assert "x" in tensors and "z" not in tensors and minibatch["x"].stream in tensors
    assert tensors["x"] is tensors["x"] is tensors[minibatch["x"].stream]
    assert dict(tensors.items())["x"] is tensors["x"] and tensors.values()[1] is tensors["x"]
    with pytest.raises(KeyError, match="no stream 'z'; there are"):
        tensors["z"]


@pytest.mark.parametrize(
    "layout", [None, "padded", {"x": "nested", "s": "csr"}, {"s": "padded_ids"}, {"s": "nested_ids"}]
)
def test_a_pickled_or_moved_minibatch_is_the_same(minibatch: Minibatch, layout: Any) -> None:
    tensors = convert(minibatch, layout=layout)
    for again in (pickle.loads(pickle.dumps(tensors)), tensors.to("cpu"), convert(minibatch, "cpu", layout)):
        assert again.keys() == tensors.keys() and again.end_of_sweep == tensors.end_of_sweep
        assert again.num_sequences == tensors.num_sequences
        assert again.keys_of_sequences.tolist() == tensors.keys_of_sequences.tolist()
        for name, made in tensors.items():
            assert type(again[name]) is type(made)
            for one, other in zip(strided(made), strided(again[name]), strict=True):
                assert one.dtype == other.dtype and one.tolist() == other.tolist()


def strided(made: Any) -> list[Any]:
    parts = list(made) if isinstance(made, tuple | Ragged) else [made]
    return [one for part in parts for one in (part.unbind() if part.is_nested else [part.to_dense()])]


def test_tensors_print_their_kinds_and_sizes(minibatch: Minibatch) -> None:
    tensors = convert(minibatch, layout={"x": "padded"})
    num_samples, steps = minibatch["s"].num_samples, minibatch["x"].num_steps
    count = minibatch.num_sequences
    expected = [
        f"TensorMinibatch: {count} sequences",
        f"  s  Ragged(values=csr float32 [{num_samples}, 1000], offsets=int64 [{count + 1}])",
        f"  x  Padded(values=float32 [{count}, {steps}, 2], lengths=int64 [{count}])",
    ]
    assert repr(tensors).splitlines() == repr(tensors.to("cpu")).splitlines() == expected
    assert "<table>" in tensors._repr_html_() and tensors._ipython_key_completions_() == ["s", "x"]
    assert "no nested sparse tensors" in repr(convert(minibatch, layout={"s": "nested"}))


def test_tensors_go_to_a_device(minibatch: Minibatch) -> None:
    for device in ("meta", *(["cuda"] if torch.cuda.is_available() else [])):
        tensors = convert(minibatch, device)
        assert tensors["x"].values.device.type == tensors["s"].values.device.type == device
        assert tensors["x"].values.shape == (minibatch["x"].num_samples, 2)


def test_pinning_asks_for_pinned_memory_of_each_tensor(minibatch: Minibatch, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.pin_memory import pin_memory

    asked: list[Any] = []

    def pinned(tensor: Any, *_: Any) -> Any:
        asked.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)  # without a GPU there is no such memory
    tensors = convert(minibatch, layout={"x": "padded"})
    again = pin_memory(tensors)  # as the data loader does
    assert isinstance(again, TensorMinibatch)
    assert len(asked) == 2 + 4  # values, lengths; begins, indices, values, offsets
    assert shown(convert(minibatch))[3] == again["s"].values.to_dense().argmax(1).tolist()
    assert again["x"].values.data_ptr() != tensors["x"].values.data_ptr()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pins_memory_with_a_gpu(corpus: Path, workers: int) -> None:
    has_gpu = torch.cuda.is_available()
    dataset = MinibatchDataset(source_of(corpus), 20)
    for minibatch in DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=has_gpu):
        assert minibatch["x"].values.is_pinned() == has_gpu


# -- data sets ---------------------------------------------------------------------------------------------------------


def test_a_data_set_delivers_the_minibatches_of_its_source(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with source_of(corpus, max_sweeps=2) as source, source_of(corpus, max_sweeps=2) as other:
        expected = [shown(convert(minibatch)) for minibatch in source.minibatches(20)]
        dataset = MinibatchDataset(other, 20)
        assert [shown(minibatch) for minibatch in dataset] == expected
        assert [shown(minibatch) for minibatch in DataLoader(dataset, batch_size=None)] == expected
        read, minibatches = other.read, []

        def recording(*arguments: Any, **keywords: Any) -> Any:
            minibatches.append(read(*arguments, **keywords))
            return minibatches[-1]

        monkeypatch.setattr(other, "read", recording)
        first = next(iter(dataset))
        assert first["x"].values.data_ptr() == pointer(minibatches[0]["x"].values)


@pytest.mark.parametrize(
    "options",
    [
        {"frameMode": False, "nbruttsineachrecurrentiter": [1, 3]},
        {"frameMode": False, "truncated": True, "nbruttsineachrecurrentiter": [1, 2]},
        {"readMethod": "rollingWindow", "randomize": 4},
    ],
    ids=str,
)
def test_a_data_set_delivers_each_epoch_of_an_htkmlf_reader(options: dict[str, Any], tmp_path: Path) -> None:
    utterances = [(f"u{number}", np.full((1 + number % 4, 2), number)) for number in range(7)]
    htk.write_archive(tmp_path / "a.ark", tmp_path / "a.scp", utterances)
    features = HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=tmp_path / "a.scp", shape=2)))
    with (
        HTKMLFReader(features, max_sweeps=1, **options) as reader,
        HTKMLFReader(features, max_sweeps=1, **options) as other,
    ):
        dataset = MinibatchDataset(other, 5)
        for epoch in range(3):
            dataset.set_epoch(epoch)
            found = [minibatch["F"].values.tolist() for minibatch in dataset]
            assert found == [minibatch["F"].values.tolist() for minibatch in reader.epoch(epoch, 5)]


@pytest.mark.parametrize(
    ("context", "partition"),
    [
        *(("fork", partition) for partition in ("cntk", "balanced", "global")),
        ("forkserver", "global"),
        *(pytest.param("spawn", partition, marks=pytest.mark.thorough) for partition in ("cntk", "balanced", "global")),
    ],
)
def test_with_two_workers_every_sequence_is_seen_once_a_sweep(corpus: Path, context: str, partition: Any) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20, partition=partition, layout={"x": "padded"})
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert keys_of(loader) == EACH_ONCE
    if partition != "cntk":
        alone = [minibatch.keys_of_sequences.tolist() for minibatch in dataset]
        assert [minibatch.keys_of_sequences.tolist() for minibatch in loader] == alone


def test_forked_workers_continue_a_source_that_the_parent_has_read(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20)
    alone = keys_of(dataset)
    next(iter(dataset))
    assert keys_of(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")) == alone


@pytest.mark.parametrize("partition", ["cntk", "balanced", "global"])
@pytest.mark.parametrize("randomize", [True, False])
def test_ranks_and_workers_share_each_sweep_exactly(corpus: Path, partition: Any, randomize: bool) -> None:
    options = {"partition": partition, "world_size": 2}
    seen: Counter[int] = Counter()
    numbers = []
    for rank in range(2):
        dataset = MinibatchDataset(source_of(corpus, randomize=randomize), 20, rank=rank, **options)
        minibatches = list(DataLoader(dataset, batch_size=None, num_workers=2))
        seen += keys_of(minibatches)
        numbers.append(len(minibatches))
        most = 20 if partition == "global" else 10  # a single long sequence makes a share larger than half
        assert all(len(minibatch["x"].values) <= most for minibatch in minibatches)
    assert seen == EACH_ONCE
    if partition != "cntk":
        assert numbers[0] == numbers[1]


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize(("partition", "remainder", "workers"), [("cntk", "drop", 0), ("balanced", "repeat", 2)])
def test_two_distributed_processes_see_every_sequence_once_a_sweep(
    corpus: Path, partition: str, remainder: str, workers: int
) -> None:
    program = Path(__file__).with_name("torch_ranks.py")
    address, settings = free_address(), [corpus, partition, remainder, workers]
    ranks = run_together(program, *([address, rank, 2, *settings] for rank in range(2)))
    assert [rank.status for rank in ranks] == [0, 0]
    found = [json.loads(rank.printed) for rank in ranks]
    assert Counter(key for rank in found for keys in rank for key in keys) == EACH_ONCE
    assert all(found)
    if partition == "balanced":
        assert len(found[0]) == len(found[1])


def test_a_deal_of_whole_minibatches_is_a_spelling_of_balanced(corpus: Path) -> None:
    options = {"deal": "minibatch"}, {"deal": "minibatch", "partition": "global"}, {"partition": "balanced"}
    made = [MinibatchDataset(source_of(corpus), 30, rank=1, world_size=2, **one) for one in options]  # type: ignore[arg-type]
    first, *others = [[minibatch.keys_of_sequences.tolist() for minibatch in itertools.islice(one, 3)] for one in made]
    assert all(other == first for other in others)
    assert {dataset.state_dict()["partition"] for dataset in made} == {"balanced"}
    with pytest.raises(ConfigError, match="deal='minibatch' needs partition='global', but partition is 'cntk'"):
        MinibatchDataset(source_of(corpus), 30, deal="minibatch", partition="cntk")


def test_warns_of_partitions_without_chunks(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20, rank=0, world_size=1000, partition="cntk")
    assert len(keys_of(dataset)) < NUM_SEQUENCES
    assert "1000 partitions (ranks times workers) share" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_each_epoch_has_an_order_of_its_own_and_every_sequence_once(corpus: Path, workers: int) -> None:
    dataset = MinibatchDataset(source_of(corpus, randomization_seed=3), 20, partition="balanced")
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    orders = []
    for epoch in (0, 1, 2, 1, 0):
        dataset.set_epoch(epoch)
        assert dataset.epoch == epoch
        orders.append([key for minibatch in loader for key in minibatch.keys_of_sequences.tolist()])
        assert Counter(orders[-1]) == EACH_ONCE
    assert orders[0] != orders[1] != orders[2]
    assert orders[3:] == [orders[1], orders[0]]
    with source_of(corpus, max_sweeps=3, randomization_seed=3) as source:
        whole = [key for one in source.minibatches(20) for key in one.keys_of_sequences.tolist()]
    assert sum(orders[:3], []) == whole


def test_epochs_may_be_shorter_than_a_sweep_and_follow_each_other(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus, max_sweeps=cntkio.INFINITELY_REPEAT, max_samples=90), 20)
    found = []
    for epoch in range(4):
        dataset.set_epoch(epoch)
        found += [key for minibatch in dataset for key in minibatch.keys_of_sequences.tolist()]
    with source_of(corpus, max_sweeps=2) as source:
        whole = [key for one in source.minibatches(20) for key in one.keys_of_sequences.tolist()]
    assert len(found) > NUM_SEQUENCES and found == whole[: len(found)]


def test_an_iteration_without_a_new_epoch_starts_over(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20)
    first = [shown(minibatch) for minibatch in dataset]
    for _, minibatch in zip(range(3), dataset, strict=False):
        assert shown(minibatch)
    assert [shown(minibatch) for minibatch in dataset] == first


def test_a_data_set_begins_at_the_position_of_its_source(corpus: Path) -> None:
    source = source_of(corpus, max_sweeps=2)
    source.read(37)
    with source_of(corpus, max_sweeps=2) as other:
        other.restore_from_checkpoint(source.get_checkpoint_state())
        expected = [shown(convert(minibatch)) for minibatch in other.minibatches(20)]
    dataset = MinibatchDataset(source, 20)
    assert [shown(minibatch) for minibatch in dataset] == expected
    assert [shown(minibatch) for minibatch in dataset] == expected
    source.close()


def test_an_iteration_ends_when_another_begins(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20)
    older = iter(dataset)
    next(older)
    next(iter(dataset))
    with pytest.raises(RuntimeError, match="another iteration over the same data set began"):
        next(older)


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["cntk", "balanced", "global"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_state_continues_identically_in_a_new_data_set(corpus: Path, partition: Any, epoch: int) -> None:
    def new() -> MinibatchDataset:
        return MinibatchDataset(source_of(corpus), 20, partition=partition, rank=1, world_size=2)

    dataset = new()
    dataset.set_epoch(epoch)
    states, seen = [json.dumps(dataset.state_dict())], []
    for minibatch in dataset:
        seen.append(shown(minibatch))
        states.append(json.dumps(dataset.state_dict()))
    following = [shown(minibatch) for minibatch in dataset]
    for at in range(len(seen) + 1):
        again = new()
        again.load_state_dict(json.loads(states[at]))
        assert json.dumps(again.state_dict()) == states[at]
        assert again.epoch == epoch
        again.set_epoch(epoch)  # as a training loop does; it changes nothing
        assert [shown(minibatch) for minibatch in again] == seen[at:]
        assert [shown(minibatch) for minibatch in again] == following
        dataset.load_state_dict(json.loads(states[at]))
        assert [shown(minibatch) for minibatch in dataset] == seen[at:]


def test_setting_another_epoch_drops_a_loaded_state(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20)
    next(iter(dataset))
    state = dataset.state_dict()
    dataset.set_epoch(1)
    second = [shown(minibatch) for minibatch in dataset]
    dataset.load_state_dict(state)
    dataset.set_epoch(1)
    assert [shown(minibatch) for minibatch in dataset] == second


@pytest.mark.parametrize("partition", ["cntk", "balanced", "global"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_stateful_loader_of_torchdata_keeps_every_workers_state(corpus: Path, partition: Any, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def new() -> Any:
        dataset = MinibatchDataset(source_of(corpus), 20, partition=partition)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    expected = [shown(minibatch) for minibatch in new()]
    for at in (1, 4, len(expected) - 2):
        loader = new()
        running = iter(loader)
        seen = [shown(next(running)) for _ in range(at)]
        state = loader.state_dict()
        again = new()
        again.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert seen + [shown(minibatch) for minibatch in again] == expected


@pytest.mark.parametrize("partition", ["cntk", "balanced", "global"])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_a_state_is_exact_with_the_workers_of_a_loader(corpus: Path, partition: Any, options: dict[str, Any]) -> None:
    def new() -> tuple[MinibatchDataset, Any]:
        dataset = MinibatchDataset(source_of(corpus), 20, partition=partition)
        return dataset, torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, **options)

    dataset, loader = new()
    dataset.set_epoch(1)
    expected = [shown(minibatch) for minibatch in loader]
    states = [dataset.state_dict()]  # the end
    for at in (1, 4, len(expected) - 1):
        dataset, loader = new()
        dataset.set_epoch(1)
        running = iter(loader)
        seen = [shown(next(running)) for _ in range(at)]
        states.append(json.loads(json.dumps(dataset.state_dict())))
        assert [*seen, *map(shown, running)] == expected
        again, resumed = new()
        again.load_state_dict(states[-1])
        assert again.state_dict() == states[-1]
        running = iter(resumed)
        seen.append(shown(next(running)))
        states.append(again.state_dict())
        assert [*seen, *map(shown, running)] == expected
        assert [shown(minibatch) for minibatch in resumed] == expected
        again.load_state_dict(states[-1])  # which waiting workers take up as well
        assert [*seen[: at + 1], *map(shown, resumed)] == expected
    again, resumed = new()
    again.load_state_dict(states[0])
    assert list(resumed) == []
    assert [shown(minibatch) for minibatch in resumed] == expected


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_started_workers_continue_from_the_state_of_workers(corpus: Path, context: str) -> None:
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": context}
    dataset = MinibatchDataset(source_of(corpus), 20)
    running = iter(torch.utils.data.DataLoader(dataset, **options))
    for _ in range(3):
        next(running)
    state = dataset.state_dict()
    expected = [shown(minibatch) for minibatch in running]
    dataset.load_state_dict(state)
    assert [shown(minibatch) for minibatch in torch.utils.data.DataLoader(dataset, **options)] == expected


def test_a_state_of_workers_is_refused_by_other_workers(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20)
    next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)))
    state = dataset.state_dict()
    assert len(json.dumps(state)) < 2000
    for workers in (0, 1):
        again = MinibatchDataset(source_of(corpus), 20)
        again.load_state_dict(state)
        with pytest.raises(CheckpointError, match=f"num_workers: saved 2, here {workers}"):
            next(iter(torch.utils.data.DataLoader(again, batch_size=None, num_workers=workers)))
    next(iter(again := MinibatchDataset(source_of(corpus), 20)))
    again.load_state_dict(again.state_dict())
    with pytest.raises(CheckpointError, match="num_workers: saved 1, here 2"):
        next(iter(torch.utils.data.DataLoader(again, batch_size=None, num_workers=2)))


def _number_of_sequences(minibatch: Any) -> int:
    return minibatch.num_sequences


def test_a_data_set_refuses_a_state_that_it_cannot_know(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus), 20)
    options = {"batch_size": None, "num_workers": 2, "collate_fn": _number_of_sequences}
    loader = iter(torch.utils.data.DataLoader(dataset, **options))
    next(loader)
    with pytest.raises(CheckpointError, match="do not tell where all workers stand"):
        dataset.state_dict()
    assert sum(1 for _ in loader) > 0
    with pytest.raises(CheckpointError, match="do not tell where all workers stand"):
        dataset.state_dict()  # at the end of the iteration, too
    next(iter(dataset))
    dataset.state_dict()


def test_a_state_of_another_rank_or_worker_or_setting_names_every_difference(corpus: Path) -> None:
    state = MinibatchDataset(source_of(corpus), 20, rank=0, world_size=2, partition="cntk").state_dict()
    other = MinibatchDataset(source_of(corpus, randomization_seed=5), 30, rank=1, world_size=2, partition="balanced")
    with pytest.raises(CheckpointError) as error:
        other.load_state_dict(state)
    for text in (
        "minibatch_size: saved 20, here 30",
        "partition: saved 'cntk', here 'balanced'",
        "rank: saved 0, here 1",
        "randomization_seed: saved 0, here 5",
    ):
        assert text in str(error.value)
    assert error.value.saved["rank"] == 0 and error.value.current["rank"] == 1
    with pytest.raises(CheckpointError, match="the state is damaged or incomplete"):
        other.load_state_dict({"version": 1})
    with pytest.raises(CheckpointError, match="randomization_seed: saved 0, here 5"):
        MinibatchDataset(source_of(corpus, randomization_seed=5), 20, rank=0, world_size=2).load_state_dict(state)


def test_a_state_of_other_chunks_is_refused_by_name(corpus: Path) -> None:
    state = MinibatchDataset(source_of(corpus), 20).state_dict()
    with pytest.raises(CheckpointError, match="chunk_size_in_bytes: saved 300, here 200"):
        MinibatchDataset(builders.source_of(corpus, 200, max_sweeps=1), 20).load_state_dict(state)


# -- empty minibatches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("layer", ["LSTM", "GRU", "packed", "transformer", "CTC"])
def test_layers_and_losses_accept_an_empty_minibatch(corpus: Path, layer: str, workers: int) -> None:
    dataset = MinibatchDataset(source_of(corpus), 1, rank=5, world_size=6, layout={"x": "padded", "s": "padded_ids"})
    minibatch = next(iter(DataLoader(dataset, batch_size=None, num_workers=workers)))
    assert minibatch.num_sequences == 0
    values, lengths = x = minibatch["x"]
    assert (values.tolist(), lengths.tolist(), x.mask.tolist()) == ([[[0, 0]]], [1], [[False]])
    assert (minibatch["s"].values.tolist(), minibatch["s"].mask.tolist()) == ([[0]], [[False]])
    recurrent = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}.get(layer, torch.nn.LSTM)(2, 2, batch_first=True)
    if layer == "transformer":
        scores = torch.nn.TransformerEncoderLayer(2, 1, batch_first=True)(values, src_key_padding_mask=~x.mask)
    elif layer == "packed":
        packed = torch.nn.utils.rnn.pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False)
        scores, _ = torch.nn.utils.rnn.pad_packed_sequence(recurrent(packed)[0], batch_first=True)
    else:
        scores, _ = recurrent(values)
    if layer == "CTC":
        targets = minibatch["s"].values.long()
        ctc = torch.nn.CTCLoss(reduction="none")
        loss = ctc(scores.log_softmax(-1).transpose(0, 1), targets, lengths, torch.zeros(1, dtype=torch.int64))
        loss = loss.sum() * minibatch.num_sequences
    else:
        loss = torch.nn.functional.cross_entropy(scores[x.mask], minibatch["s"].values[x.mask].long(), reduction="sum")
    loss.backward()
    assert loss.item() == 0


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minibatch_size": 0}, "minibatch_size is 0; expected a whole number"),
        ({"minibatch_size": 2.5}, "minibatch_size is 2.5"),
        ({"layout": "flat"}, "layout 'flat'"),
        ({"layout": {"y": "csr"}}, "names the stream 'y'"),
        ({"partition": "even"}, "partition is 'even'; expected 'cntk', 'balanced' or 'global'"),
        ({"rank": 0}, "rank=0, but world_size=None; give both or neither"),
        ({"rank": 2, "world_size": 2}, "rank is 2, but world_size is 2; expected a rank from 0 to 1"),
        ({"rank": 0, "world_size": 1, "remainder": "keep"}, "remainder is 'keep'"),
        ({"source": [1]}, "source is list; expected MinibatchSource"),
        ({"layout": ["padded"]}, r"layout is \['padded'\]; expected a name, or a mapping"),
        ({"layout": "paded"}, "did you mean 'padded'"),
        ({"rank": "0", "world_size": "2"}, "rank is '0'; expected a whole number"),
        ({"rank": 0, "world_size": 0}, "world_size is 0; expected at least 1"),
    ],
)
def test_refuses_impossible_data_sets(corpus: Path, options: dict[str, Any], message: str) -> None:
    with source_of(corpus) as source, pytest.raises(ConfigError, match=message):
        MinibatchDataset(**{"source": source, "minibatch_size": 20, **options})


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda dataset: dataset.set_epoch("1"), ConfigError, "epoch is '1'; expected a whole number"),
        (lambda dataset: dataset.load_state_dict(None), CheckpointError, "the state is NoneType; expected a result of"),
        (lambda dataset: dataset.load_state_dict(dataset.source.state_dict()), CheckpointError, "state of a source"),
        (lambda dataset: MinibatchDataset(dataset.source, batch_size=3), TypeError, "did you mean 'minibatch_size'"),
        (lambda dataset: convert({"x": 1}), ConfigError, "'x' of the type int; expected MinibatchData"),
        (lambda dataset: convert(dataset.source), ConfigError, "of the type MinibatchSource; expected the result"),
        (lambda dataset: convert(dataset.source.read(3))[0], KeyError, "no stream 0; there are: 's', 'x'"),
        (lambda dataset: next(iter(DataLoader(dataset.source))), TypeError, r"DataLoader\(MinibatchDataset\(source"),
    ],
)
def test_a_plausible_mistake_says_what_to_write(corpus: Path, call: Any, kind: Any, message: str) -> None:
    with source_of(corpus) as source, pytest.raises(kind, match=message):
        call(MinibatchDataset(source, 20))


def test_an_endless_source_has_no_epochs(corpus: Path) -> None:
    dataset = MinibatchDataset(source_of(corpus, max_sweeps=cntkio.INFINITELY_REPEAT), 20)
    with pytest.raises(ConfigError, match="epochs need a MinibatchSource that ends"):
        dataset.set_epoch(1)
    with pytest.raises(ConfigError, match="epoch is -1"):
        dataset.set_epoch(-1)
    assert sum(1 for _ in zip(range(50), dataset, strict=False)) == 50


# -- the example -------------------------------------------------------------------------------------------------------

TAGGER = ROOT / "examples" / "alice" / "tagger.py"
NUM_SWEEPS = 6


def losses(log: Path) -> list[tuple[int, int, str]]:
    """Number, sweep and exact loss of each minibatch."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(step), int(sweep), loss) for step, sweep, loss in (line.split() for line in lines)]


@pytest.mark.thorough
def test_the_tagger_learns_and_continues_bit_by_bit_after_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(TAGGER)]
    done = subprocess.run([*command, "--log", tmp_path / "whole"], capture_output=True, text=True, check=True)
    whole = losses(tmp_path / "whole")
    assert [step for step, _, _ in whole] == list(range(1, len(whole) + 1))
    assert {sweep for _, sweep, _ in whole} == set(range(NUM_SWEEPS))
    # 86.2 % of the casings are small, and 82.2 % of the words have no mark after them.
    found = re.search(r"([\d.]+)% of the casings, ([\d.]+)% of the marks", done.stdout)
    assert found is not None and float(found[1]) > 93.5 and float(found[2]) > 86.5

    command += ["--sweeps", "3", "--checkpoint", tmp_path / "checkpoint", "--log", tmp_path / "killed"]
    second = [step for step, sweep, _ in whole if sweep == 1]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(losses(tmp_path / "killed")) < second[18] and time.monotonic() < deadline:
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    reached = losses(tmp_path / "killed")
    assert reached == whole[: len(reached)]
    assert reached[-1][0] in second[:-1]  # in the middle of the second sweep

    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    resumed = losses(tmp_path / "killed")[len(reached) :]
    assert resumed[0][0] in second[1:] and resumed[0][0] <= len(reached) + 1
    assert resumed == [one for one in whole if one[0] >= resumed[0][0] and one[1] < 3]


def tagger() -> Any:
    spec = importlib.util.spec_from_file_location("examples_alice_tagger", TAGGER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("partition", ["cntk", "balanced", "global"])
def test_the_taggers_corpus_is_read_once_a_sweep_by_two_workers(partition: Any) -> None:
    dataset = tagger().corpus("train.ctf", partition=partition)
    assert keys_of(DataLoader(dataset, batch_size=None, num_workers=2)) == Counter(range(646))


def test_whole_numbers_are_exact_in_every_layout() -> None:
    info = StreamInformation("t", 0, "dense", np.int64, (1,))
    data = MinibatchData(info, np.array([2**53 + 1, -1, 2**63 - 1]), np.array([0, 2, 3]))
    minibatch = Minibatch({"t": data}, lambda: np.arange(2, dtype=np.uint64))
    found = convert(minibatch, layout="padded_ids")["t"].values
    assert (found.dtype, found.tolist()) == (torch.int64, [[2**53 + 1, -1], [2**63 - 1, 0]])
    assert convert(minibatch, layout="ids")["t"].tolist() == [2**53 + 1, -1, 2**63 - 1]
    assert convert(minibatch, layout="padded")["t"].values.tolist() == [[[2**53 + 1], [-1]], [[2**63 - 1], [0]]]

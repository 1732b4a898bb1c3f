"""Minibatches as arrays of JAX, which is loaded when the first of these tests runs (`pyproject.toml` says why)."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cntkio import ConfigError, CTFDeserializer, Minibatch, MinibatchSource, StreamDef, StreamDefs, Value
from cntkio.minibatch import MinibatchData
from cntkio.streams import StreamInformation

LENGTHS = [3, 1, 2]
STREAMS = StreamDefs(
    x=StreamDef(field="x", shape=2),
    w=StreamDef(field="w", shape=9, is_sparse=True),
    c=StreamDef(field="c", shape=3),
)


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@pytest.fixture
def adapter(jax: Any) -> ModuleType:
    return importlib.import_module("cntkio.jax")


@pytest.fixture
def source(tmp_path: Path) -> MinibatchSource:
    lines = [
        f"{key} |x {key} {step} |w {key + step}:1 |c {int(key == 0)} {int(key == 1)} {int(key == 2)}"
        for key, length in enumerate(LENGTHS)
        for step in range(length)
    ]
    (tmp_path / "a.ctf").write_text("\n".join(lines) + "\n")
    return MinibatchSource(CTFDeserializer(tmp_path / "a.ctf", STREAMS), randomize=False, max_sweeps=1)


@pytest.fixture
def minibatch(source: MinibatchSource) -> Minibatch:
    read = source.next_minibatch(6)
    assert isinstance(read, Minibatch)
    return read


def test_without_a_layout_samples_come_one_after_the_other(adapter: ModuleType, jax: Any, minibatch: Minibatch) -> None:
    made = adapter.convert(minibatch)
    assert isinstance(made["x"], adapter.Ragged) and isinstance(made["x"].values, jax.Array)
    assert np.array_equal(made["x"].values, minibatch["x"].values)
    assert made["x"].offsets.tolist() == [0, 3, 4, 6] and made["x"].offsets.dtype == np.int32
    assert made["w"].values.shape == (6, 9)
    assert np.array_equal(made["w"].values.todense(), minibatch["w"].tocsr().toarray())


def test_padded_arrays_have_the_requested_rows_and_steps(adapter: ModuleType, minibatch: Minibatch) -> None:
    made = adapter.convert(minibatch, pad_to=5, num_sequences=4)
    for name, dim in (("x", 2), ("w", 9), ("c", 3)):
        padded = made[name]
        assert isinstance(padded, adapter.Padded) and padded.values.shape == (4, 5, dim)
        assert padded.lengths.tolist() == [3, 1, 2, 0]
        assert np.array_equal(padded.values[:3, :3], minibatch[name].asarray())
        assert not padded.values[3:].any() and not padded.values[:, 3:].any()
        assert np.array_equal(padded.mask[:3, :3], minibatch[name].mask > 0) and padded.mask.sum() == 6


@pytest.mark.parametrize(("size", "shape"), [(3, (2, 4, 2)), (4, (2, 4, 2)), (6, (8, 4, 2))])
def test_the_smallest_sufficient_shape_is_used(
    adapter: ModuleType, source: MinibatchSource, size: int, shape: tuple[int, ...]
) -> None:
    made = adapter.convert(source.next_minibatch(size), layout="padded", pad_to=(16, 4), num_sequences=(2, 8))
    assert made["x"].values.shape == shape


def test_a_compiled_function_is_compiled_once_for_a_shape(
    adapter: ModuleType, jax: Any, source: MinibatchSource
) -> None:
    count = 0

    @jax.jit
    def total(batch: dict[str, Any]) -> Any:
        nonlocal count
        count += 1
        return jax.numpy.where(batch["x"].mask[..., None], batch["x"].values, 0).sum()

    totals = [float(total(adapter.convert(one, pad_to=4, num_sequences=2))) for one in source.minibatches(3)]
    assert totals == [3.0, 1.0 + 5.0] and count == 1


def test_unknown_names_name_the_streams(adapter: ModuleType, minibatch: Minibatch) -> None:
    jax = pytest.importorskip("jax")
    made = adapter.convert(minibatch)
    doubled = jax.tree.map(lambda array: array * 2, {"x": made["x"].values, "batch": made})
    assert doubled["batch"]["x"].values.tolist() == doubled["x"].tolist()
    for batch in (made, doubled["batch"], jax.jit(lambda batch: batch)(made)):
        with pytest.raises(KeyError, match=r"no stream 'ww'; there are: .* did you mean 'w'"):
            batch["ww"]


def test_refuses_minibatches_larger_than_every_shape(adapter: ModuleType, minibatch: Minibatch) -> None:
    with pytest.raises(ConfigError, match=r"stream 'c': a sequence of 3 samples, but pad_to allows at most 2"):
        adapter.convert(minibatch, pad_to=2)
    with pytest.raises(ConfigError, match="a minibatch of 3 sequences, but num_sequences allows at most 2"):
        adapter.convert(minibatch, num_sequences=(1, 2))


def test_a_one_hot_stream_can_be_classes(adapter: ModuleType, minibatch: Minibatch) -> None:
    made = adapter.convert(minibatch, layout={"w": "padded_ids", "c": "ids"}, pad_to=4)
    assert made["w"].values.tolist() == [[0, 1, 2, 0], [1, 0, 0, 0], [2, 3, 0, 0]]
    assert made["c"].tolist() == [0, 0, 0, 1, 2, 2]
    ragged = adapter.convert(minibatch, layout={"w": "ragged_ids"})["w"]
    assert ragged.values.tolist() == [0, 1, 2, 1, 2, 3] and ragged.offsets.tolist() == [0, 3, 4, 6]
    with pytest.raises(ConfigError, match="stream 'x' is not one-hot"):
        adapter.convert(minibatch, layout={"x": "ids"})


def test_refuses_unknown_layouts(adapter: ModuleType, minibatch: Minibatch) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        adapter.convert(minibatch, layout="round")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'w'"):
        adapter.convert(minibatch, layout={"ww": "ids"})
    with pytest.raises(ConfigError, match="is dense, not a matrix"):
        adapter.convert(minibatch, layout={"x": "csr"})


def test_a_truncated_minibatch_keeps_its_shape(adapter: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "b.ctf").write_text("".join(f"0 |x {step} 0\n" for step in range(5)))
    streams = StreamDefs(x=STREAMS.x)
    source = MinibatchSource(CTFDeserializer(tmp_path / "b.ctf", streams), truncation_length=3, randomize=False)
    first, second = (adapter.convert(source.next_minibatch(3))["x"] for _ in range(2))
    assert isinstance(first, adapter.Truncated) and first.values.shape == second.values.shape == (1, 3, 2)
    assert (first.mask.tolist(), first.continues.tolist()) == ([[2, 1, 1]], [False])
    assert second.continues.tolist() == [True]


def test_jax_uses_padded_values_without_a_copy(
    adapter: ModuleType, minibatch: Minibatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointers = set()
    share = adapter.dlpack.from_dlpack

    def recording(array: np.ndarray[Any, Any]) -> Any:
        pointers.add(array.ctypes.data)
        return share(array)

    monkeypatch.setattr(adapter.dlpack, "from_dlpack", recording)
    padded = adapter.convert(minibatch, layout="padded")
    assert {padded["x"].values.unsafe_buffer_pointer(), padded["w"].values.unsafe_buffer_pointer()} <= pointers


def test_arrays_go_to_the_named_device(adapter: ModuleType, jax: Any, minibatch: Minibatch) -> None:
    device = jax.devices()[0]
    made = adapter.convert(minibatch, device, "padded")
    assert made["x"].values.devices() == {device}
    assert np.array_equal(made["x"].values, minibatch["x"].asarray())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pad_to": "16"}, "pad_to is '16'; expected a whole number, or a tuple of whole numbers"),
        ({"pad_to": 16.0}, "pad_to is 16.0; expected a whole number"),
        ({"pad_to": []}, r"pad_to is \[\]; expected one or more numbers"),
        ({"num_sequences": ["4"]}, r"num_sequences is \['4'\]; expected a whole number"),
        ({"layout": ["padded"]}, "expected a name, or a mapping"),
    ],
)
def test_a_plausible_mistake_says_what_to_write(
    adapter: ModuleType, minibatch: Minibatch, options: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        adapter.convert(minibatch, **options)


def test_arrays_print_their_types_and_sizes(adapter: ModuleType, minibatch: Minibatch) -> None:
    name, count = next(iter(minibatch)), minibatch.num_sequences + 1
    made = adapter.convert(minibatch, layout="padded", pad_to=50, num_sequences=count)[name]
    shape = ", ".join(map(str, made.values.shape))
    assert repr(made) == f"Padded(values={made.values.dtype} [{shape}], lengths=int32 [{count}])"


def test_a_dict_of_an_input_map_becomes_arrays_by_its_keys(adapter: Any) -> None:
    data = Value.one_hot([[3, 1], [4]], num_classes=5)
    assert adapter.convert({7: data}, layout={7: "ids"})[7].tolist() == [3, 1, 4]


def test_whole_numbers_are_exact_or_refused(adapter: ModuleType) -> None:
    def tokens(values: list[int]) -> Minibatch:
        info = StreamInformation("t", 0, "dense", np.int64, (1,))
        data = MinibatchData(info, np.array(values), np.array([0, 2, 3]))
        return Minibatch({"t": data}, lambda: np.arange(2, dtype=np.uint64))

    found = adapter.convert(tokens([2**24 + 1, -(2**31), 2**31 - 1]), layout="padded_ids")
    assert found["t"].values.tolist() == [[2**24 + 1, -(2**31)], [2**31 - 1, 0]]
    with pytest.raises(ConfigError, match="a whole number of 33 bits does not fit int32"):
        adapter.convert(tokens([1, 2**31, 2]), layout="padded_ids")


@pytest.mark.parametrize("is_sparse", [False, True])
def test_refuses_offsets_that_int32_cannot_count(adapter: ModuleType, is_sparse: bool) -> None:
    ends = np.array([0, 1 << 31])
    # These arrays keep a single number.
    zeros, indices = (np.broadcast_to(np.zeros(1, dtype), (1 << 31,)) for dtype in (np.float32, np.int32))
    info = StreamInformation("x", 0, "sparse" if is_sparse else "dense", np.float32, (1,))
    parts = (np.arange(2), ends, indices) if is_sparse else (ends,)
    minibatch = Minibatch({"x": MinibatchData(info, zeros, *parts)}, lambda: np.arange(1, dtype=np.uint64))
    with pytest.raises(ConfigError, match="stream 'x': 2147483648 samples or entries in a minibatch"):
        adapter.convert(minibatch)

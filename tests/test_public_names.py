"""The names of `cntk.io`: their signatures, defaults and refusals; and errors that suggest the nearest name."""

import importlib
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    ConfigError,
    CorpusError,
    CTFDeserializer,
    FormatError,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamConfiguration,
    StreamDef,
    StreamDefs,
    StreamInformation,
    TraceLevel,
    UnsupportedError,
    UserMinibatchSource,
    write_cbf,
)
from cntkio.arguments import near_names

REQUIRED = inspect.Parameter.empty
ENDLESS, SWEEP = 2**64 - 1, 2**64 - 2
# The parameters of each callable of CNTK 2.7, in order, and their defaults.
SIGNATURES: dict[str, list[tuple[str, Any]]] = {
    "MinibatchSource": [
        ("deserializers", REQUIRED), ("max_samples", ENDLESS), ("max_sweeps", ENDLESS),
        ("randomization_window_in_chunks", 128), ("randomization_window_in_samples", 0), ("randomization_seed", 0),
        ("trace_level", 1), ("multithreaded_deserializer", None), ("frame_mode", False), ("truncation_length", 0),
        ("randomize", True), ("max_errors", 0),
    ],
    "MinibatchSource.next_minibatch": [
        ("minibatch_size_in_samples", REQUIRED), ("input_map", None), ("device", None), ("num_data_partitions", None),
        ("partition_index", None),
    ],
    "MinibatchSource.stream_infos": [],
    "MinibatchSource.stream_info": [("name", REQUIRED)],
    "MinibatchSource.__getitem__": [("name", REQUIRED)],
    "MinibatchSource.get_checkpoint_state": [],
    "MinibatchSource.restore_from_checkpoint": [("checkpoint", REQUIRED)],
    "MinibatchSource.is_infinite": [],
    "MinibatchData.as_sequences": [("variable", None)],
    "MinibatchData.asarray": [],
    "StreamDef": [
        ("field", None), ("shape", None), ("is_sparse", False), ("transforms", None), ("context", None), ("scp", None),
        ("mlf", None), ("broadcast", None), ("defines_mb_size", False), ("max_sequence_length", 65535),
    ],
    "StreamDefs.updated_with": [],
    "StreamInformation": [
        ("name", REQUIRED), ("stream_id", REQUIRED), ("storage_format", REQUIRED), ("dtype", REQUIRED),
        ("shape", REQUIRED), ("defines_mb_size", False),
    ],
    "StreamConfiguration": [
        ("name", REQUIRED), ("dim", REQUIRED), ("is_sparse", False), ("stream_alias", ""), ("defines_mb_size", False),
    ],
    "CTFDeserializer": [("filename", REQUIRED), ("streams", REQUIRED)],
    "CBFDeserializer": [("filename", REQUIRED), ("streams", {})],
    "HTKFeatureDeserializer": [("streams", REQUIRED)],
    "HTKMLFDeserializer": [("label_mapping_file", REQUIRED), ("streams", REQUIRED), ("phoneBoundaries", False)],
    "HTKMLFBinaryDeserializer": [("streams", REQUIRED)],
    "LatticeDeserializer": [("lattice_index_file", REQUIRED), ("streams", REQUIRED)],
    "ImageDeserializer": [("filename", REQUIRED), ("streams", REQUIRED)],
    "Base64ImageDeserializer": [("filename", REQUIRED), ("streams", REQUIRED)],
    "transforms.crop": [
        ("crop_type", "center"), ("crop_size", 0), ("side_ratio", 0.0), ("area_ratio", 0.0), ("aspect_ratio", 1.0),
        ("jitter_type", "none"),
    ],
    "transforms.scale": [
        ("width", REQUIRED), ("height", REQUIRED), ("channels", REQUIRED), ("interpolations", "linear"),
        ("scale_mode", "fill"), ("pad_value", -1),
    ],
    "transforms.mean": [("filename", REQUIRED)],
    "transforms.color": [("brightness_radius", 0.0), ("contrast_radius", 0.0), ("saturation_radius", 0.0)],
    "UserDeserializer.stream_infos": [],
    "UserDeserializer.num_chunks": [],
    "UserDeserializer.get_chunk": [("chunk_id", REQUIRED)],
    "UserMinibatchSource.stream_infos": [],
    "UserMinibatchSource.stream_info": [("name", REQUIRED)],
    "UserMinibatchSource.get_checkpoint_state": [],
    "UserMinibatchSource.restore_from_checkpoint": [("state", REQUIRED)],
    "UserMinibatchSource.is_infinite": [],
    "MinibatchSourceFromData": [("data_streams", REQUIRED), ("max_samples", ENDLESS)],
    "MinibatchSourceFromData.next_minibatch": [
        ("num_samples", REQUIRED), ("number_of_workers", 1), ("worker_rank", 0), ("device", None),
    ],
    "MinibatchSourceFromData.restore_from_checkpoint": [("checkpoint", REQUIRED)],
    "Value": [("batch", REQUIRED), ("seq_starts", None), ("device", None)],
    "Value.one_hot": [("batch", REQUIRED), ("num_classes", REQUIRED), ("dtype", None), ("device", None)],
    "sequence_to_cntk_text_format": [("seq_idx", REQUIRED), ("alias_tensor_map", REQUIRED)],
}  # fmt: skip


def named(path: str) -> Any:
    found: Any = cntkio
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", SIGNATURES)
def test_callables_take_cntks_arguments_first_with_the_same_defaults(path: str) -> None:
    parameters = [one for one in inspect.signature(named(path)).parameters.values() if one.name != "self"]
    expected = SIGNATURES[path]
    own = parameters[: len(expected)]
    assert [one.name for one in own] == [name for name, _ in expected]
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in own)
    for parameter, (_, default) in zip(own, expected, strict=True):
        if isinstance(default, dict):  # made anew for each call
            assert repr(parameter.default) == "<factory>"
        else:
            assert parameter.default == default
    for parameter in parameters[len(expected) :]:  # parameters that cntkio adds must be optional
        assert parameter.default is not REQUIRED or parameter.kind is inspect.Parameter.VAR_KEYWORD


# The public members of the classes of `cntk.io`, as `dir` lists them in CNTK 2.7.
_OF_SOURCES = (
    "current_position default_randomization_window_in_chunks full_data_sweep get_checkpoint_state get_next_minibatch "
    "infinitely_repeat is_infinite next_minibatch restore_from_checkpoint stream_info stream_infos streams"
)
MEMBERS = {
    "MinibatchData": "as_sequences as_string asarray data end_of_sweep is_sparse mask num_samples num_sequences "
    "number_of_samples number_of_sequences shape sweep_end",
    "MinibatchSource": _OF_SOURCES,
    "MinibatchSourceFromData": _OF_SOURCES,
    "UserMinibatchSource": _OF_SOURCES,
    "StreamConfiguration": "m_defines_mb_size m_dim m_is_sparse m_stream_alias m_stream_name",
    "StreamInformation": "as_string m_defines_mb_size m_element_type m_id m_is_binary m_name m_sample_layout "
    "m_storage_format name",
    "UserDeserializer": "chunk_infos get_chunk get_sequence_info num_chunks sequence_infos_for_chunk stream_infos",
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_cntks_classes_exist_or_are_in_the_list_of_differences(name: str) -> None:
    page = Path(__file__).parents[1].joinpath("docs", "cntk-names.md").read_text(encoding="utf-8")
    kind = getattr(cntkio, name)
    missing = {member for member in MEMBERS[name].split() if member not in {*dir(kind), *kind.__annotations__}}
    assert {member for member in missing if not re.search(rf"`{member}(\(\))?`", page)} == set()
    assert missing <= {
        "as_string",
        "chunk_infos",
        "get_next_minibatch",
        "get_sequence_info",
        "sequence_infos_for_chunk",
    }


def test_next_minibatch_of_a_user_source_takes_cntks_arguments() -> None:
    own = [one for one in inspect.signature(UserMinibatchSource.next_minibatch).parameters if one != "self"]
    assert own == ["num_samples", "number_of_workers", "worker_rank", "device"]


def test_the_constants_equal_cntks() -> None:
    assert (cntkio.INFINITELY_REPEAT, cntkio.FULL_DATA_SWEEP) == (ENDLESS, SWEEP)
    assert cntkio.DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS == 128
    assert [level.value for level in (TraceLevel.Error, TraceLevel.Warning, TraceLevel.Info)] == [0, 1, 2]
    for kind in (MinibatchSource, UserMinibatchSource, MinibatchSourceFromData):
        assert (kind.infinitely_repeat, kind.full_data_sweep) == (ENDLESS, SWEEP)
        assert kind.default_randomization_window_in_chunks == 128


# ---------------------------------------------------------------------------------------------------- refusals

X = StreamDefs(x=StreamDef(field="x", shape=2))


@pytest.fixture
def corpus(tmp_path: Path) -> CTFDeserializer:
    (tmp_path / "a.ctf").write_text("|x 1 2\n|x 3 4\n|x 5 6\n")
    return CTFDeserializer(tmp_path / "a.ctf", X)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"max_samples": -1}, OverflowError, "max_samples is -1; expected 0 to"),
        ({"max_samples": 2**64}, OverflowError, "max_samples"),
        ({"max_sweeps": -1}, OverflowError, "max_sweeps"),
        ({"randomization_seed": -1}, OverflowError, "randomization_seed"),
        ({"randomization_seed": 2**64}, OverflowError, "randomization_seed"),
        ({"randomization_window_in_chunks": -1}, OverflowError, "randomization_window_in_chunks"),
        ({"randomization_window_in_samples": -1}, OverflowError, "randomization_window_in_samples"),
        ({"truncation_length": -1}, OverflowError, "truncation_length"),
        ({"max_errors": -1}, OverflowError, "max_errors"),
        ({"max_samples": 1.5}, TypeError, "max_samples is 1.5; expected a whole number"),
        ({"max_samples": 1, "max_sweeps": 1}, RuntimeError, "max_samples=1 and max_sweeps=1 exclude each other"),
        ({"randomization_window_in_samples": 9}, RuntimeError, "randomization_window_in_samples=9 exclude each other"),
        ({"frame_mode": True, "truncation_length": 2}, RuntimeError, "truncation_length=2 exclude each other"),
    ],
)  # fmt: skip
def test_an_option_that_cntk_refuses_raises_an_exception_of_cntks_type(
    corpus: CTFDeserializer, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        MinibatchSource(corpus, **options)


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (lambda corpus: MinibatchSource([]), ValueError),
        (lambda corpus: MinibatchSource(corpus).next_minibatch(0), ValueError),
        (lambda corpus: MinibatchSource(corpus).next_minibatch(-1), NotImplementedError),
        (lambda corpus: MinibatchSource(corpus).next_minibatch(1.5), NotImplementedError),
        (lambda corpus: MinibatchSource(corpus).next_minibatch("8"), NotImplementedError),
        (lambda corpus: MinibatchSource(corpus, max_samples=0).next_minibatch(1), RuntimeError),
        (lambda corpus: MinibatchSource(corpus, max_samples=2**63 + 5).next_minibatch(1), ValueError),
        (lambda corpus: MinibatchSource(corpus, truncation_length=2).next_minibatch(2, None, None, 2, 0), ValueError),
        (lambda corpus: MinibatchSource(corpus).next_minibatch(1, None, None, 2, 2), ValueError),
        (lambda corpus: MinibatchSource(corpus).stream_info("B"), RuntimeError),
        (lambda corpus: MinibatchSource(corpus)["B"], RuntimeError),
        (lambda corpus: MinibatchSource(corpus).streams.B, AttributeError),
        (lambda corpus: MinibatchSource(corpus).streams["B"], KeyError),
        (lambda corpus: MinibatchSource(corpus).restore_from_checkpoint({"position": 1}), ValueError),
        (lambda corpus: MinibatchSource([corpus, corpus]), RuntimeError),
        (lambda corpus: MinibatchSource(CTFDeserializer(corpus.filename, {"y": StreamDef("y", 2)})).next_minibatch(1),
         RuntimeError),
        (lambda corpus: CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(shape=2))), ValueError),
        (lambda corpus: HTKFeatureDeserializer(StreamDefs(x=StreamDef(field="x", scp="a.scp", shape=2))), ValueError),
        (lambda corpus: HTKFeatureDeserializer(StreamDefs(x=StreamDef(shape=2))), ValueError),
        (lambda corpus: HTKFeatureDeserializer(StreamDefs()), ValueError),
        (lambda corpus: HTKMLFDeserializer("m", StreamDefs(x=StreamDef(mlf="a"), y=StreamDef(mlf="b"))), ValueError),
        (lambda corpus: HTKMLFDeserializer("m", StreamDefs(x=StreamDef(field="x", mlf="a", shape=2))), ValueError),
        (lambda corpus: HTKMLFDeserializer("m", StreamDefs(x=StreamDef(shape=2))), ValueError),
        (lambda corpus: HTKMLFBinaryDeserializer(StreamDefs(x=StreamDef(shape=2))), ValueError),
        (lambda corpus: MinibatchSourceFromData({}), ValueError),
        (lambda corpus: setattr(X, "y", 1), AttributeError),
        (lambda corpus: X.y, AttributeError),
        (lambda corpus: StreamInformation("x", 0, "thick", np.float32, (2,)), ValueError),
    ],
)  # fmt: skip
def test_a_call_that_cntk_refuses_raises_an_exception_of_cntks_type(
    corpus: CTFDeserializer, read: Callable[[CTFDeserializer], Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        read(corpus)


def test_an_exception_of_cntkio_is_a_runtime_error_and_survives_pickling() -> None:
    for kind in (ConfigError, CorpusError, FormatError, cntkio.CheckpointError, UnsupportedError):
        assert issubclass(kind, RuntimeError)
        again = pickle.loads(pickle.dumps(kind("words")))
        assert type(again) is kind and again.args == ("words",)


def test_images_and_lattices_say_what_to_use_instead() -> None:
    streams = StreamDefs(image=StreamDef(field="image"))
    for call, words in (
        (lambda: cntkio.ImageDeserializer("map.txt", streams), "torchvision.io.decode_image"),
        (lambda: cntkio.Base64ImageDeserializer("map.txt", streams), "base64.b64decode"),
        (lambda: cntkio.LatticeDeserializer("lattices.toc", streams), "k2"),
        (lambda: cntkio.transforms.crop(crop_type="randomside"), "RandomResizedCrop"),
        (lambda: cntkio.transforms.scale(224, 224, 3), "Resize"),
        (lambda: cntkio.transforms.mean("mean.xml"), "Normalize"),
        (lambda: cntkio.transforms.color(0.4), "ColorJitter"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            call()


def test_the_image_transforms_are_a_module_as_in_cntk() -> None:
    assert importlib.import_module("cntkio.transforms") is cntkio.transforms


# ------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("key", ["chunkSizeInBytes", "chunksizeinbytes", "chunk_size_in_bytes"])
def test_an_option_of_a_text_works_by_item_and_by_keyword(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("|x 1 2\n" * 40)
    by_item, by_keyword = CTFDeserializer(path, X), CTFDeserializer(path, X, chunk_size_in_bytes=64)
    assert MinibatchSource(by_item).num_chunks == 1
    by_item[key] = 64
    assert by_item[key] == by_item.chunk_size_in_bytes == 64
    assert MinibatchSource(by_item).num_chunks == MinibatchSource(by_keyword).num_chunks > 1


def test_settings_of_a_deserializer_can_be_read_by_item(corpus: CTFDeserializer, tmp_path: Path) -> None:
    assert corpus["input"].x.dim == 2 and corpus["file"] == str(tmp_path / "a.ctf")
    assert corpus["type"] == "CNTKTextFormatDeserializer"
    assert CBFDeserializer("a.cbf", X)["input"] == X
    with pytest.raises(KeyError, match="did you mean 'chunkSizeInBytes'"):
        corpus["chunkSizeInByte"]


def test_warns_of_unknown_options_by_item_and_suggests_similar_names(
    corpus: CTFDeserializer, caplog: pytest.LogCaptureFixture
) -> None:
    corpus["maxError"] = 3
    CBFDeserializer("a.cbf")["precison"] = "float"
    assert "did you mean 'maxErrors'?" in caplog.messages[0] and "did you mean 'precision'?" in caplog.messages[1]


def test_an_input_map_takes_any_keys_and_its_minibatches_stay_valid(corpus: CTFDeserializer) -> None:
    source = MinibatchSource(corpus, randomize=False, max_sweeps=1)
    key = object()
    first = source.next_minibatch(1, {key: source["x"], 7: source["x"]})
    second = source.next_minibatch(1, {("x", 1): source["x"]})
    assert set(first) == {key, 7} and first[key] is first[7]
    assert first[key].asarray().tolist() == [[[1, 2]]] and second["x", 1].asarray().tolist() == [[[3, 4]]]
    assert list(source.next_minibatch(1, {})) == ["x"]  # as in CNTK, an empty map selects all streams


def test_a_stream_configuration_has_cntks_names_and_makes_a_stream_def() -> None:
    words = StreamConfiguration("words", 12, True, defines_mb_size=True)
    assert (words.m_stream_name, words.m_dim, words.m_is_sparse, words.m_stream_alias) == ("words", 12, True, "")
    assert words.m_defines_mb_size is True
    assert words.as_stream_def() == StreamDef(field="words", shape=12, is_sparse=True, defines_mb_size=True)


def test_stream_information_is_equal_by_content_and_has_cntks_names() -> None:
    one, other = (StreamInformation("x", 3, "sparse", np.float32, (2, 5), True) for _ in range(2))
    assert one == other and hash(one) == hash(other) and one is not other
    assert (one.m_name, one.m_id, one.m_storage_format, one.m_element_type) == ("x", 3, "sparse", np.float32)
    assert (one.m_sample_layout, one.m_defines_mb_size, one.sample_shape) == ((2, 5), True, (2, 5))


@pytest.mark.parametrize("name", ["arrow", "jax"])
def test_a_missing_framework_is_an_error_that_says_how_to_install_it(name: str) -> None:
    module = "pyarrow" if name == "arrow" else name
    program = f"""
import sys
sys.modules[{module!r}] = None  # not there
import cntkio
try:
    cntkio.{name}
except ModuleNotFoundError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"which is not installed: pip install {module}" in ran.stdout


# --------------------------------------------------------------------------------------------------- near names


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("lenghts", ["lengths", "species"], ["lengths"]),
        ("MaxErrors", ["max_errors", "strict"], ["max_errors"]),
        ("zzz", ["lengths"], []),
        ("a", [], []),
    ],
)
def test_only_plausible_names_are_suggested(name: str, known: list[str], near: list[str]) -> None:
    assert near_names(name, known) == near


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda path: CTFDeserializer(path, X, max_error=1), TypeError, "'max_error'; did you mean 'max_errors'?"),
        (lambda path: CBFDeserializer(path, keep_in_memory=1), TypeError, "did you mean 'keep_data_in_memory'?"),
        (lambda path: CBFDeserializer(path, banana=1), TypeError, "it has: filename, streams, dtype"),
        (lambda path: MinibatchSource(CTFDeserializer(path, X), max_sweep=1), TypeError, "did you mean 'max_sweeps'?"),
        (lambda path: cntkio.MinibatchSorce, AttributeError, "did you mean 'MinibatchSource'?"),
        (lambda path: StreamDef(feild="x"), TypeError, "did you mean 'field'?"),
        (lambda path: MinibatchSource(path), ConfigError, "is a path; expected a deserializer, such as"),
        (lambda path: CTFDeserializer(path, StreamDef(field="x", shape=2)), ConfigError,
         "expected StreamDefs(name=StreamDef(field=..., shape=...)), with a name for each stream"),
        (lambda path: CTFDeserializer(path, "x"), ConfigError, "expected StreamDefs(name=StreamDef"),
        (lambda path: MinibatchSource(CTFDeserializer(path, X))["X_"], ConfigError, "'x'; did you mean 'x'?"),
        (lambda path: MinibatchSource(CTFDeserializer(path, X)).streams.xx, AttributeError, "did you mean 'x'?"),
        (lambda path: MinibatchSource(CTFDeserializer(path, X)).streams["xx"], KeyError, "did you mean 'x'?"),
        (lambda path: MinibatchSource(CTFDeserializer(path, X)).next_minibatch(1)["xx"], KeyError, "did you mean 'x'?"),
        (lambda path: MinibatchSourceFromData({"x": np.ones((2, 2))})["xx"], ConfigError, "did you mean 'x'?"),
    ],
)  # fmt: skip
def test_a_wrong_name_suggests_a_similar_name(
    tmp_path: Path, call: Callable[[str], Any], kind: type[Exception], words: str
) -> None:
    (tmp_path / "a.ctf").write_text("|x 1 2\n")
    with pytest.raises(kind) as caught:
        call(str(tmp_path / "a.ctf"))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (StreamDef(field="lenghts", shape=4), "the file's first lines have no 'lenghts'; did you mean 'lengths'?"),
        (StreamDef(field="qq", shape=4), "the file's first lines have no 'qq'; they have: 'lengths', 'word'"),
        (StreamDef(field="lengths", shape=3), "the file would fit StreamDef(field='lengths', shape=4)"),
        (StreamDef(field="word", shape=9), "the file would fit StreamDef(field='word', shape=13, is_sparse=True)"),
        (StreamDef(field="word", shape=9, is_sparse=True), "StreamDef(field='word', shape=13, is_sparse=True)"),
        (StreamDef(field="lengths", shape=4, is_sparse=True), "would fit StreamDef(field='lengths', shape=4)"),
    ],
)
def test_errors_of_misfitting_streams_suggest_fitting_streams(tmp_path: Path, stream: Any, words: str) -> None:
    (tmp_path / "a.ctf").write_text("|lengths 7 6 5 8 |word 12:1\n|lengths 4 3 2 9 |word 3:1\n")
    with (
        MinibatchSource(CTFDeserializer(tmp_path / "a.ctf", StreamDefs(a=stream)), randomize=False) as source,
        pytest.raises(FormatError) as caught,
    ):
        source.next_minibatch(1)
    assert words in str(caught.value)


def test_errors_that_no_definition_would_fix_suggest_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("|x 1 2\n" * 20_000 + "|x 1 2 3\n")
    source = MinibatchSource(CTFDeserializer(tmp_path / "a.ctf", X), randomize=False)
    with pytest.raises(FormatError) as caught:
        source.next_minibatch(30_000)
    assert str(caught.value).endswith("3 values, but the dimension is 2")


def test_a_missing_defining_stream_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "a.ctf").write_text("|lengths 7 6\n")
    streams = StreamDefs(a=StreamDef(field="length", shape=2, defines_mb_size=True))
    with pytest.raises(CorpusError, match="did you mean 'lengths'"):
        MinibatchSource(CTFDeserializer(tmp_path / "a.ctf", streams))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("corpora/trian.ctf", "; did you mean 'corpora/train.ctf'?"),
        ("corpra/train.ctf", "; did you mean 'corpora/train.ctf'?"),
        ("q.bin", " from the folder "),
        ("q/train.ctf", ": there is no 'q'"),
        ("corpora", "Is a folder; expected a file"),
    ],
)
def test_a_missing_path_suggests_a_similar_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, words: str
) -> None:
    (tmp_path / "corpora").mkdir()
    write_cbf(tmp_path / "corpora" / "train.ctf", {"x": np.eye(2)})
    monkeypatch.chdir(tmp_path)
    for deserializer in (CTFDeserializer(path, X), CBFDeserializer(path, X)):
        with pytest.raises(OSError) as caught:
            deserializer.open()
        assert words in str(caught.value) and caught.value.filename == path


# ---------------------------------------------------------------------------------------------------- the package


def test_the_package_has_cntks_module_io() -> None:
    assert cntkio.io.MinibatchSource is MinibatchSource
    assert set(cntkio.io.__all__) <= set(cntkio.__all__) and dir(cntkio.io) == sorted(cntkio.io.__all__)
    assert importlib.import_module("cntkio.io").CTFDeserializer is CTFDeserializer
    with pytest.raises(AttributeError, match="did you mean 'StreamDefs'"):
        cntkio.io.StremDefs  # noqa: B018


def test_the_package_lists_only_public_names() -> None:
    assert set(dir(cntkio)) == {*cntkio.__all__, "arrow", "jax", "ray", "spark", "torch"}


def test_the_package_has_the_version_of_its_core() -> None:
    command = [sys.executable, "-m", "cntkio", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split()[-1] == cntkio.__version__


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Trainer", "train with PyTorch or JAX"),
        ("layers", "build the model with PyTorch or JAX"),
        ("cpu", r"cntkio.torch.convert\(minibatch, device=...\)"),
        ("distributed", "cntkio.torch.MinibatchDataset"),
        ("asarray", "NumPy arrays"),
        ("logging", "cntkio.TraceLevel"),
    ],
)
def test_names_of_cntk_outside_io_name_their_replacements(name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(cntkio, name)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("from cntkio import Trainer", "no 'Trainer' of CNTK: train with PyTorch or JAX"),
        ("from cntkio import MinibatchSource, sgd", "no 'sgd' of CNTK: train with"),
        ("from cntkio.layers import *", "no 'layers' of CNTK: build the model with PyTorch"),
        ("import cntkio.ops.functions", "no 'ops' of CNTK: build the model with PyTorch"),
        ("from cntkio import nothing", "cannot import name 'nothing'"),
        ("import cntkio.nothing", "No module named 'cntkio.nothing'"),
    ],
)
def test_imports_of_names_of_cntk_name_their_replacements(statement: str, words: str) -> None:
    with pytest.raises(ImportError, match=words):
        exec(statement)
    assert not hasattr(cntkio, "Trainer")


def test_transforms_are_imported_as_from_cntk() -> None:
    found: dict[str, Any] = {}
    exec("import cntkio.io.transforms as a; from cntkio.io.transforms import crop; import cntkio.io.transforms", found)
    assert found["a"] is cntkio.transforms and found["crop"] is cntkio.transforms.crop

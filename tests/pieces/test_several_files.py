"""Corpora that are written into several files, and uploaded. (docs/convert.md)"""

from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import ConfigError, CorpusError, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from cntkio.cli import main
from cntkio.convert import corpus_of, joined, pieces_of, write_file
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.rounds import rounds

STREAMS = StreamDefs(x=StreamDef(field="x", shape=2))
EXTENSIONS = ["ctf", "cbf", "ark", "parquet", "arrow"]


def sequences(lengths: list[int]) -> list[Any]:
    return [np.float32([[number, step] for step in range(length)]) for number, length in enumerate(lengths)]


def values_of(path: Path) -> Any:
    with pieces_of(corpus_of(path, STREAMS if path.suffix == ".ctf" else StreamDefs())) as pieces:
        found = joined(pieces)
        (data,) = found.values()  # an archive of Kaldi names no stream
        return data.values.tolist(), data.lengths.tolist(), found.keys_of_sequences.astype(np.str_).tolist()


@settings(max_examples=rounds(30), suppress_health_check=list(HealthCheck), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), extension=st.sampled_from(EXTENSIONS),
    files=st.fixed_dictionaries({"num_files": st.integers(1, 8)})
    | st.fixed_dictionaries({"max_file_size": st.integers(1, 400)}),
    chunk_size=st.integers(20, 500),
)  # fmt: skip
@example(lengths=[1, 1], extension="ctf", files={"max_file_size": 1}, chunk_size=20)
@example(lengths=[1, 1], extension="ctf", files={"num_files": 4}, chunk_size=20)
def test_several_files_hold_the_sequences_of_one(
    module_folder: Path, lengths: list[int], extension: str, files: Any, chunk_size: int
) -> None:
    for path in module_folder.iterdir():
        path.unlink()
    cntkio.write_ctf(module_folder / "all.ctf", {"x": sequences(lengths)})
    corpus = CTFDeserializer(module_folder / "all.ctf", STREAMS, chunk_size_in_bytes=chunk_size)
    write_file(module_folder / f"part-*.{extension}", corpus, **files)
    parts = sorted(module_folder.glob("part-*"))
    assert [path.name for path in parts] == [f"part-{number:05}.{extension}" for number in range(len(parts))]
    found = [values_of(path) for path in parts]
    values, all_lengths, keys = ([one for part in found for one in part[column]] for column in range(3))
    whole = values_of(module_folder / "all.ctf")
    assert (values, all_lengths) == whole[:2]
    if extension != "cbf":  # which has no keys
        assert keys == whole[2]
    counts = [len(part[1]) for part in found]
    if "num_files" in files:
        assert len(parts) == min(files["num_files"], len(lengths)) and max(counts) - min(counts) <= 1
    else:
        sizes = [8 * sum(part[1]) for part in found]
        assert all(size <= files["max_file_size"] or count == 1 for size, count in zip(sizes, counts, strict=True))


def test_arrays_and_sources_are_numbered_through_all_files(tmp_path: Path) -> None:
    cntkio.write_ctf(tmp_path / "a-*.ctf", {"x": sequences([1, 2, 1, 1])}, num_files=2)
    assert [values_of(path)[2] for path in sorted(tmp_path.glob("a-*"))] == [["0", "1"], ["2", "3"]]
    corpus = CTFDeserializer(str(tmp_path / "a-*.ctf"), STREAMS)
    with MinibatchSource(corpus, max_sweeps=2, randomize=False) as source:
        cntkio.write_ctf(tmp_path / "b-*.ctf", source, max_file_size=25)
    found = [key for path in sorted(tmp_path.glob("b-*")) for key in values_of(path)[2]]
    assert found == [str(number) for number in range(8)]
    with MinibatchSource(corpus, max_sweeps=2) as source, pytest.raises(ConfigError, match="use max_file_size"):
        cntkio.write_ctf(tmp_path / "c-*.ctf", source, num_files=2)


def test_lists_and_keys_belong_to_their_files(tmp_path: Path) -> None:
    data = {"x": sequences([2, 1, 3])}
    cntkio.write_kaldi(tmp_path / "a-*.ark", data, scp=tmp_path / "a-*.scp", num_files=3)
    assert (tmp_path / "a-00002.scp").read_text() == f"2 {tmp_path}/a-00002.ark:2\n"
    cntkio.write_ctf(tmp_path / "a-*.ctf", corpus_of(tmp_path / "a-00001.ark", StreamDefs()),
                     keys_file=tmp_path / "keys-*", num_files=1)  # fmt: skip
    assert (tmp_path / "keys-00000").read_text() == "1\n"
    with pytest.raises(ConfigError, match=r"keys: with num_files, expected one '\*'"):
        cntkio.write_ctf(tmp_path / "b-*.ctf", data, keys_file=tmp_path / "keys", num_files=1)


def test_wrong_calls_for_several_files_are_refused(tmp_path: Path) -> None:
    data = {"x": sequences([1, 1])}
    cntkio.write_ctf(tmp_path / "a-*.ctf", data, num_files=1)
    for name, files, text in (
        ("a.ctf", {"num_files": 2}, r"a.ctf: with num_files, expected one '\*' in the name"),
        ("*-*.ctf", {"num_files": 2}, r"expected one '\*'"),
        ("b-*.ctf", {"num_files": 2, "max_file_size": 3}, "exclude each other"),
        ("b-*.ctf", {"num_files": 0}, "num_files is 0"),
        ("a-*.ctf", {"num_files": 2}, "1 such files are there"),
    ):
        with pytest.raises(ConfigError, match=text):
            cntkio.write_ctf(tmp_path / name, data, **files)
    with pytest.raises(TypeError, match="did you mean 'num_files'"):
        cntkio.write_ctf(tmp_path / "b-*.ctf", data, num_file=2)  # type: ignore[call-arg]
    assert [path.name for path in tmp_path.iterdir()] == ["a-00000.ctf"]


def test_an_error_leaves_none_of_the_files(tmp_path: Path) -> None:
    data = {"x": [np.float32([[1]]), np.float32([[2]]), np.float32([[np.nan]])]}
    with pytest.raises(cntkio.FormatError, match="nan"):
        cntkio.write_ctf(tmp_path / "a-*.ctf", data, num_files=3)
    with pytest.raises(CorpusError, match="no sequence"):
        cntkio.write_ctf(tmp_path / "a-*.ctf", {"x": np.zeros((0, 2))}, num_files=3)
    assert not list(tmp_path.iterdir())


def test_every_writer_uploads_whole_files(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    data = {"x": sequences([2, 1, 3])}
    for extension in [*EXTENSIONS, "ctf.gz", "ctf.zst"]:
        write_file(tmp_path / f"a.{extension}", data)
        write_file(f"memory://uploads/a.{extension}", data)
        assert store.cat(f"/uploads/a.{extension}") == (tmp_path / f"a.{extension}").read_bytes()
        with pytest.raises(cntkio.CntkIoError):
            write_file(f"memory://uploads/failed.{extension}", {"x": np.zeros((0, 2))})
    assert not [name for name in store.find("/uploads") if "failed" in name]
    cntkio.write_ctf("memory://uploads/part-*.ctf", data, num_files=2)
    corpus = CTFDeserializer("memory://uploads/part-*.ctf", STREAMS)
    assert corpus.open().table.lengths.tolist() == [2, 1, 3]
    with pytest.raises(ConfigError, match="2 such files are there"):
        cntkio.write_ctf("memory://uploads/part-*.ctf", data, num_files=2)


def test_the_command_writes_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cntkio.write_ctf(tmp_path / "a.ctf", {"x": sequences([1, 1, 1])})
    arguments = ["convert", "--num-files", "2", str(tmp_path / "a.ctf"), str(tmp_path / "b-*.cbf")]
    assert main(arguments) == 0
    assert len(list(tmp_path.glob("b-*.cbf"))) == 2
    assert main(arguments) != 0
    assert "2 such files are there; remove them first" in capsys.readouterr().err


def test_a_star_in_the_name_of_a_stream_stays(tmp_path: Path) -> None:
    data = {"f*": np.eye(3), "label": np.arange(3.0)}
    cntkio.convert.write_svmlight(tmp_path / "a-*.svm", data, features="f*", num_files=3)
    assert (tmp_path / "a-00002.svm").read_text() == "2 3:1\n"

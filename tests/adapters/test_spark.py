"""Spark reads every sequence of a corpus once, with the same values."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java, which is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    program, folder = Path(__file__).with_name("spark_program.py"), tmp_path_factory.mktemp("spark")
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder)}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, program, folder], capture_output=True, text=True, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_rows_are_the_sequences_with_their_values(found: Any) -> None:
    assert found["text"] == [[key, [[key, 1], [0, key]], [key % 9]] for key in range(500)]
    assert found["schema"] == "struct<key:bigint,s:array<int>,x:array<array<float>>>"


def test_reads_only_the_columns_that_are_asked_for(found: Any) -> None:
    text, binary = found["columns"]
    assert text == [["key", "s"], [{"key": 7, "s": [3]}, {"key": 8, "s": []}]]
    assert binary == [["key", "x"], [{"key": 0, "x": [[0, 1], [0, 0]]}]]


def test_a_task_reads_a_run_of_chunks(found: Any) -> None:
    assert found["tasks"] == 4


def test_binary_corpora_keep_every_key_once(found: Any) -> None:
    assert found["binary"] == list(range(500))


def test_tasks_get_the_caches_that_the_driver_made(found: Any) -> None:
    assert found["elsewhere"] == [list(range(500)), 3, []]


def test_an_impossible_option_is_named(found: Any) -> None:
    assert "chunk_size_in_bytes is 0; expected at least 1" in found["wrong"]


def test_a_data_frame_is_written_with_a_file_for_each_part(found: Any) -> None:
    written = found["written"]
    assert written["text"] == written["binary"] == list(range(50))
    assert written["text files"] == written["binary files"] == 2


def test_a_write_that_fails_leaves_the_folder_as_it_was(found: Any) -> None:
    written = found["written"]
    assert "not all samples have 3 values" in written["wrong"] and "no sequence to write" in written["empty"]
    assert written["replaced"] == written["after"] == [6]
    assert written["left"] == ["cbf out", "ctf out"]


def test_a_folder_with_files_is_replaced_only_if_asked(found: Any) -> None:
    assert "expected an empty folder, or mode('overwrite')" in found["written"]["appended"]
    assert "has no option 'shape' of writers" in found["written"]["option"]


def test_several_paths_are_one_corpus(found: Any) -> None:
    assert found["list"] == [0, 499, 10**12 + 498]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("parts", "num_partitions is 0; expected at least 1"),
        ("remote", "remote is not a JSON object; expected one such as {"),
        ("streams", "streams is not a JSON object; expected one such as {"),
        ("stream", "streams: 'x' is not a JSON object; expected one such as {"),
        ("flat", "flat is 'x'; expected a list of names, such as ['x']"),
        ("columns", "columns is 'x'; expected a JSON list of streams, such as [\"x\"]"),
        ("column", "columns: no stream 'xx'; there are: 'x', 's'; did you mean 'x'?"),
        ("key", "key is 3; expected the name of a column, or None"),
        ("path", "cntkio.ctf: no path; expected load(path)"),
        ("large", "large.ctf: a key is too large for Spark, which has no unsigned numbers"),
    ],
)
def test_mistakes_of_users_get_messages_that_help(found: Any, mistake: str, words: str) -> None:
    assert words in found["mistakes"][mistake] and "secret" not in found["mistakes"][mistake]


def test_urls_are_read_in_tasks(found: Any) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    assert found["url"] == found["urls"] == found["braces"] == list(range(500))
    assert "No such object: 'http" in found["missing"] and "c.ctf" in found["missing"]


def test_a_store_in_memory_is_refused_with_the_reason(found: Any) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    for name in ("memory", "memory pattern"):
        assert "a store in memory is only in the process that filled it" in found[name]

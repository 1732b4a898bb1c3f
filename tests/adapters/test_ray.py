"""Ray reads every sequence of a corpus once, with the same values, and writes corpora that cntkio reads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.data")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    program = Path(__file__).with_name("ray_program.py")
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    folder = tmp_path_factory.mktemp("ray")
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, program, folder], capture_output=True, text=True, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_rows_are_the_sequences_with_their_values(found: Any) -> None:
    assert found["text"] == [[key, [[key, 1], [0, key]], [key % 9]] for key in range(1000)]


def test_binary_corpora_keep_every_key_once(found: Any) -> None:
    assert found["binary"] == list(range(1000))


def test_a_data_set_is_written_as_files_of_a_corpus(found: Any) -> None:
    assert found["files"] > 1 and found["written"] == list(range(1000))
    assert set(found["written binary"]) == {".cbf"}


def test_a_task_that_died_reads_the_same_rows_when_repeated(found: Any) -> None:
    again, expected, died = found["repeated"]
    assert died and again == expected and len(expected) > 10


def test_a_changed_corpus_is_an_error_of_the_task(found: Any) -> None:
    assert "changed since its chunks were listed" in found["changed"]


def test_patterns_lists_and_compressed_files_are_one_corpus(found: Any) -> None:
    assert found["several"] == list(range(1000))
    assert found["listed"] == [*range(700, 1000), *range(350)]


def test_a_data_set_is_written_to_one_file_in_order(found: Any) -> None:
    assert found["one text"] is True
    assert found["one binary"] == 1000
    assert found["none"] == "the data set has no sequence to write"


def test_tensors_of_numpy_batches_are_written(found: Any) -> None:
    lines, matrix = found["tensors"]
    assert lines == ["0\t|s 0:1", "1\t|s 1:1"]
    assert matrix == "0\t|data 0 1\n1\t|data 2 3\n2\t|data 4 5\n"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("no such file", "every machine that reads them needs it at this path"),
        ("relative", "but this process works in '/': use absolute paths"),
        ("twice", "The folder has '000000.ctf' already, which would be mixed with the files of this data set"),
        ("format", "to is 'csv'; expected 'ctf' or 'cbf'"),
        ("texts", "column 'x' is string; expected numbers"),
        ("null", "data set, write task 0, row 1, column 'x': 1 null"),
        ("nested null", "data set, write task 0, row 1, column 'x': 1 null"),
        ("tensors", "column 'x' has tensors, which do not tell samples from sequences; give shapes={'x': ...}"),
        ("objects", "expected lists: use map_batches(..., batch_format='pyarrow')"),
        ("types", "the data set has a block with columns of the types int64, double, but its first block has int64"),
        ("columns", "a block with the columns ['key'], but its first block has ['key', 'x']"),
        ("no chunks", "0"),
        ("blocks", "1000"),
    ],
)
def test_mistakes_of_users_get_messages_that_help(found: Any, mistake: str, words: str) -> None:
    assert words in found["mistakes"][mistake]


def test_tasks_get_the_index_that_the_driver_made(found: Any) -> None:
    assert found["scans"] == [True, 1, False]
    assert found["scans of gzip"] == [True, 2, False]


def test_a_killed_read_task_is_repeated_with_the_same_rows(found: Any) -> None:
    assert found["killed"] == [True, True]


def test_urls_are_read_in_tasks(found: Any) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    assert list(found["urls"]) == ["one", "several", "braces", "source"]
    assert all(keys == list(range(1000)) for keys in found["urls"].values())


def test_a_store_in_memory_is_refused_with_the_reason(found: Any) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    for message in found["in memory"]:
        assert "a store in memory is only in the process that filled it, not in its workers" in message

"""Joins: tables of known answers, and the fast join compared with the slow join."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from cntkio.errors import CorpusError
from cntkio.formats.table import Keys, SequenceTable
from cntkio.source.join import JoinedTable, join
from slow.timeline import slow_join


def table(keys: Any, lengths: list[int] | None = None, sizes: list[int] | None = None) -> SequenceTable:
    counts = np.array(lengths if lengths is not None else [1] * len(keys), np.uint32)
    return SequenceTable(Keys.of(keys), counts, np.cumsum([0, *(sizes if sizes is not None else [len(keys)])]))


def chunks(joined: JoinedTable) -> list[list[int]]:
    return [part.tolist() for part in np.split(joined.lengths, joined.chunk_starts[1:-1])]


def partners(joined: JoinedTable) -> list[list[int]]:
    return np.stack(joined.partners, axis=1).tolist()


def test_the_first_table_decides_order_and_chunks() -> None:
    joined = join([table([7, 8, 3, 9, 5], [1, 1, 1, 4, 1], [2, 2, 1]), table([9, 7, 5, 4], [2, 3, 1, 1])])
    assert joined.keys.tolist() == [7, 9, 5]
    assert chunks(joined) == [[3], [4], [1]]
    assert partners(joined) == [[0, 1], [3, 0], [4, 2]]


def test_chunks_without_partners_are_dropped_and_later_chunks_move_up() -> None:
    joined = join([table([1, 2, 3, 4, 5, 6], sizes=[2, 2, 2]), table([1, 5, 6])])
    assert chunks(joined) == [[1], [1, 1]]
    assert joined.chunk_starts.tolist() == [0, 1, 3]


def test_the_largest_length_counts_unless_a_table_defines_it() -> None:
    tables = [table([1, 2], [3, 9]), table([1, 2], [5, 2]), table([2, 1], [4, 4])]
    assert join(tables).lengths.tolist() == [5, 9]
    assert join(tables, defining=0).lengths.tolist() == [3, 9]
    assert join(tables, defining=1).lengths.tolist() == [5, 2]
    assert join(tables, defining=2).lengths.tolist() == [4, 4]


@pytest.mark.parametrize("spread", [1, 10**15], ids=["close", "apart"])
def test_a_repeated_key_joins_the_first_partner_each_time(spread: int) -> None:
    first, second = ([key * spread for key in keys] for keys in ([4, 2, 4], [2, 4, 2, 4]))
    assert partners(join([table(first), table(second)])) == [[0, 1], [1, 0], [2, 1]]


@pytest.mark.parametrize(
    "text",
    [
        np.array([b"b", b"a/1", b"10"]),
        np.array(["b", "a/1", "10"]),
        np.array(["b", "a/1", "10"], np.dtypes.StringDType()),
        np.array(["b", "a/1", "10"], object),
    ],
    ids=["bytes", "str", "StringDType", "objects"],
)
def test_numbers_match_text_keys_by_their_digits(text: np.ndarray[Any, Any]) -> None:
    assert partners(join([table(text), table(np.array([b"10", b"b", b"c"]))])) == [[0, 1], [2, 0]]
    assert partners(join([table([9, 10]), table(text)])) == [[1, 2]]
    assert partners(join([table(text), table([9, 10])])) == [[2, 1]]


def test_text_keys_compare_by_their_bytes() -> None:
    assert partners(join([table(np.array(["ä", "A", "a"])), table(np.array(["a", "ä"]))])) == [[0, 1], [2, 0]]


def test_the_largest_numbers_are_ordinary_keys() -> None:
    assert partners(join([table([2**64 - 1, 0, 2**64 - 2]), table([2**64 - 2, 2**64 - 1])])) == [[0, 1], [2, 0]]


def test_a_table_alone_is_joined_to_itself() -> None:
    joined = join([table([3, 3, 1], [1, 2, 3], [1, 2])])
    assert (joined.keys.tolist(), chunks(joined)) == ([3, 3, 1], [[1], [2, 3]])
    assert joined.complaint(["a"]) is None


def test_sequences_without_partners_are_counted_and_named() -> None:
    joined = join([table(list(range(30))), table([*range(15, 40)]), table([*range(30)])])
    first, second, third = joined.left_out
    assert (first.num_sequences, first.first_keys) == (15, tuple(map(str, range(10))))
    assert (second.num_sequences, second.first_keys) == (10, tuple(map(str, range(30, 40))))
    assert (second.num_missing, second.first_missing) == (15, tuple(map(str, range(10))))
    assert (third.num_sequences, third.num_missing) == (15, 0)
    assert joined.complaint(["a", "b", "c"]) == (
        "b lacks 15 of the keys of a (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...); "
        "left out: 15 sequences of a (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...); "
        "left out: 10 sequences of b (30, 31, 32, 33, 34, 35, 36, 37, 38, 39); "
        "left out: 15 sequences of c (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)"
    )


def test_keys_of_bytes_are_named_as_text() -> None:
    joined = join([table(np.array([b"one", b"two"])), table(np.array([b"two"]))])
    assert joined.left_out[0].first_keys == ("one",)


@pytest.mark.parametrize("second", [[3, 4], []], ids=["others", "nothing"])
def test_refuses_tables_without_common_keys(second: list[int]) -> None:
    with pytest.raises(CorpusError, match="no key is in all deserializers"):
        join([table([1, 2]), table(second)])


def test_a_pattern_partners_keys_that_end_with_it_unless_one_is_equal() -> None:
    first = table(np.array([b"d/a", b"a", b"d/e/a", b"x/b", b"c", b"d/e/f"]))
    second = table(np.array([b"a", b"e/a", b"x/b", b"b", b"c", b"f"]))
    patterns = np.array([True, True, False, True, True, False])
    joined = join([first, second], patterns=[None, patterns])
    assert partners(joined) == [[0, 0], [1, 0], [2, 1], [3, 2], [4, 4]]


@pytest.mark.parametrize("number", range(300))
def test_the_fast_join_agrees_with_the_slow_join(number: int) -> None:
    chance = random.Random(number)
    spread = chance.choice([1, 1, 10**9])
    is_text = chance.random() < 0.3
    tables = []
    for _ in range(chance.randint(1, 4)):
        sizes = [chance.randint(1, 4) for _ in range(chance.randint(1, 9))]
        keys = [spread * chance.randint(0, chance.choice([5, 40])) for _ in range(sum(sizes))]
        tables.append((keys, [chance.randint(1, 9) for _ in keys], sizes))
    defining = chance.choice([None, chance.randrange(len(tables))])
    expected_chunks, expected_partners = slow_join(tables, defining)
    made = [table(np.array(keys).astype("S20") if is_text else keys, *rest) for keys, *rest in tables]
    if not expected_partners:
        with pytest.raises(CorpusError):
            join(made, defining=defining)
        return
    joined = join(made, defining=defining)
    assert (chunks(joined), partners(joined)) == (expected_chunks, expected_partners)
    for found, numbers, (keys, _, _) in zip(joined.left_out, joined.partners, tables, strict=True):
        unused = [key for at, key in enumerate(keys) if at not in set(numbers.tolist())]
        assert found.num_sequences == len(unused)
        assert [int(key) for key in found.first_keys] == unused[:10]

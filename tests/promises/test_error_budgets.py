"""Errors count when the minibatches that use them are delivered, whatever was prepared before. (docs/formats/ctf.md)"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cntkio import (
    CTFDeserializer,
    FormatError,
    GlobalPartition,
    MinibatchSource,
    SequenceMixture,
    StreamDef,
    StreamDefs,
    SvmlightDeserializer,
)
from hypothesis import example, given
from hypothesis import strategies as st
from support.builders import take_in_turn
from support.forks import in_a_fork
from support.rounds import rounds

ALL = 200
"""A window of more chunks than any corpus here."""


class Setting(NamedTuple):
    """A corpus, its budget, and the reads and moves of a source."""

    faulty: list[bool]  # of each line
    chunk_size: int
    max_errors: int
    window: int  # in chunks; 0: in order
    num_sweeps: int
    steps: list[tuple[str, int, int]]  # ("read", size, number of partitions), ("save", 0, 0), ("load", state, 0)


SETTINGS = st.builds(
    Setting,
    st.lists(st.booleans(), min_size=2, max_size=16),
    st.sampled_from([8, 14, 25, 60, 1 << 20]),
    st.integers(0, 12),
    st.sampled_from([0, 0, 1, 2, ALL]),
    st.integers(1, 2),
    st.lists(
        st.one_of(
            st.tuples(st.just("read"), st.integers(1, 6), st.integers(1, 2)),
            st.tuples(st.just("save"), st.just(0), st.just(0)),
            st.tuples(st.just("load"), st.integers(0, 3), st.just(0)),
        ),
        min_size=1,
        max_size=9,
    ),
)


def ctf(folder: Path, setting: Setting, max_errors: int, name: str = "a.ctf", stream: str = "x") -> CTFDeserializer:
    lines = [f"|{stream} {number}{' |' * bad}\n" for number, bad in enumerate(setting.faulty)]
    (folder / name).write_text("".join(lines))
    streams = StreamDefs(**{stream: StreamDef(field=stream, shape=1)})
    return CTFDeserializer(folder / name, streams, max_errors=max_errors, chunk_size_in_bytes=setting.chunk_size)


def svmlight(folder: Path, setting: Setting, max_errors: int) -> SvmlightDeserializer:
    lines = [f"{number} {'x' if bad else '1:1'}\n" for number, bad in enumerate(setting.faulty)]
    (folder / "a.svm").write_text("".join(lines))
    options: dict[str, Any] = {"num_features": 2, "max_errors": max_errors, "chunk_size_in_bytes": setting.chunk_size}
    return SvmlightDeserializer(folder / "a.svm", **options)


def options_of(setting: Setting) -> dict[str, Any]:
    order = {"randomization_window_in_chunks": setting.window} if setting.window else {"randomize": False}
    return {"max_sweeps": setting.num_sweeps, "trace_level": 0, **order}


def source_of_ctf(folder: Path, setting: Setting, max_errors: int) -> MinibatchSource:
    return MinibatchSource(ctf(folder, setting, max_errors), **options_of(setting))


def source_of_svmlight(folder: Path, setting: Setting, max_errors: int) -> MinibatchSource:
    return MinibatchSource(svmlight(folder, setting, max_errors), **options_of(setting))


def joined(folder: Path, setting: Setting, max_errors: int) -> MinibatchSource:
    others = setting._replace(faulty=setting.faulty[::-1], chunk_size=2 * setting.chunk_size)
    parts = [ctf(folder, setting, max_errors), ctf(folder, others, max_errors, "b.ctf", "y")]
    return MinibatchSource(parts, **options_of(setting))


def mixture(folder: Path, setting: Setting, max_errors: int) -> MinibatchSource:
    others = setting._replace(faulty=setting.faulty[::-1])
    parts = ctf(folder, setting, max_errors), ctf(folder, others, max_errors, "b.ctf")
    options = {**options_of(setting), "max_sweeps": 2**64 - 1}
    sources = [MinibatchSource(part, **options) for part in parts]
    return SequenceMixture({"a": (sources[0], 2), "b": (sources[1], 1)}, stop="all")


Open = Callable[[Path, Setting, int], MinibatchSource]


def outcomes(source: MinibatchSource, steps: Sequence[tuple[str, int, int]], *, discards: bool) -> list[Any]:
    """Return the keys of each read with all counts, or its error; with `discards` nothing stays prepared in between."""
    saved, found = [source.get_checkpoint_state()], []
    for kind, number, count in steps:
        if kind == "save":
            saved.append(source.get_checkpoint_state())
        elif kind == "load":
            source.restore_from_checkpoint(saved[number % len(saved)])
        else:
            try:
                minibatch = source.next_minibatch(number * count, None, None, count, count - 1)
                keys = minibatch.keys_of_sequences.tolist()  # type: ignore[attr-defined]
            except FormatError as error:
                return [*found, str(error)]
            found.append((keys, source.error_counts, source.warning_counts))
            if discards:
                source.load_state_dict(source.state_dict())
    return found


@pytest.mark.parametrize("opened", [source_of_ctf, source_of_svmlight, joined, mixture])
def test_discarded_minibatches_cost_nothing(opened: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("budgets")

    @given(setting=SETTINGS)
    def check(setting: Setting) -> None:
        with opened(folder, setting, setting.max_errors) as source:
            expected = outcomes(source, setting.steps, discards=False)
        with opened(folder, setting, setting.max_errors) as source:
            assert outcomes(source, setting.steps, discards=True) == expected
        with pytest.MonkeyPatch.context() as patch, opened(folder, setting, setting.max_errors) as source:
            take_in_turn(patch)
            assert outcomes(source, setting.steps, discards=False) == expected

    check()


def slow_costs(setting: Setting, chunk_of: Sequence[int], all_keys: list[list[int]]) -> list[int]:
    """Return the errors that are charged up to each read, from the keys of all reads.

    In order, a chunk stays in use until a minibatch has sequences of other chunks only. If all chunks are in the
    window, a chunk stays in use for as long as the source lives.
    """
    in_use, total, costs = set[int](), 0, []
    for keys in all_keys:
        needed = list(dict.fromkeys(chunk_of[key] for key in keys))
        for chunk in needed:
            if chunk not in in_use:
                in_use.add(chunk)
                total += sum(bad and own == chunk for bad, own in zip(setting.faulty, chunk_of, strict=True))
        if setting.window != ALL and needed:
            in_use &= set(needed)
        costs.append(total)
    return costs


@pytest.mark.parametrize(("opened", "corpus_of"), [(source_of_ctf, ctf), (source_of_svmlight, svmlight)])
def test_errors_are_charged_as_a_slow_model_says(
    opened: Open, corpus_of: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("budgets")

    @given(setting=SETTINGS)
    @example(Setting([True, False] * 5, 1 << 20, 5, 0, 1, [("read", size, 1) for size in (2, 3, 5)]))
    @example(Setting([True, False] * 5, 14, 5, 0, 1, [("read", size, 1) for size in (2, 3, 5)]))
    @example(Setting([True] * 6, 8, 6, ALL, 1, [("read", 2, 1)] * 4 + [("load", 0, 0), ("read", 3, 1)]))
    def check(setting: Setting) -> None:
        setting = setting._replace(window=setting.window and ALL)
        starts = corpus_of(folder, setting, -1).open().table.chunk_starts
        with opened(folder, setting, -1) as source:
            seen = outcomes(source, setting.steps, discards=False)
        chunk_of = [chunk for chunk in range(len(starts) - 1) for _ in range(starts[chunk], starts[chunk + 1])]
        costs = slow_costs(setting, chunk_of, [keys for keys, _, _ in seen])
        assert [sum(errors.values()) for _, errors, _ in seen] == costs

        with opened(folder, setting, setting.max_errors) as source:
            within = outcomes(source, setting.steps, discards=False)
        num_sound = sum(cost <= setting.max_errors for cost in costs)
        assert within[:num_sound] == seen[:num_sound] and len(within) == min(num_sound + 1, len(seen))

    check()


def test_a_change_of_size_refuses_nothing_that_equal_sizes_deliver(tmp_path: Path) -> None:
    for chunk_size in (10, 1 << 20):
        setting = Setting([True, False] * 5, chunk_size, 5, 0, 1, [])
        for sizes in ((5, 5), (2, 3, 5), (3, 3, 3, 3)):
            with source_of_ctf(tmp_path, setting, 5) as source:
                assert sum(source.next_minibatch(size).num_sequences for size in sizes) == 10  # type: ignore[attr-defined]
                assert source.error_counts == {"pipe without a name": 5}


def test_a_fork_pays_for_what_its_parent_delivered(tmp_path: Path) -> None:
    setting = Setting([True] * 40, 20, 40, 2, 1, [])
    with source_of_ctf(tmp_path, setting, -1) as source:
        before = []
        for _ in range(rounds(9)):
            source.read(3)
            before.append(sum(source.error_counts.values()))
        delivered = str(before[-1])
        assert in_a_fork(lambda: sum(source.error_counts.values())) == delivered
        rest = in_a_fork(lambda: (len(list(source.minibatches(3))), sum(source.error_counts.values())))
        assert rest == repr((len(list(source.minibatches(3))), sum(source.error_counts.values())))


@pytest.mark.parametrize(("opened", "num_corpora"), [(source_of_ctf, 1), (source_of_svmlight, 1), (joined, 2)])
def test_ranks_that_come_and_go_charge_each_error_once(
    opened: Open, num_corpora: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("budgets")
    ranks = st.integers(1, 3).flatmap(
        lambda count: st.tuples(st.integers(1, 6), st.integers(0, count - 1), st.just(count))
    )

    @given(setting=SETTINGS, steps=st.lists(ranks, min_size=2, max_size=9), is_restored=st.booleans())
    @example(Setting([True] * 8, 1 << 20, 8, ALL, 1, []), [(2, 0, 2), (2, 0, 1), (2, 1, 2), (2, 1, 3)], False)
    def check(setting: Setting, steps: list[tuple[int, int, int]], is_restored: bool) -> None:
        with opened(folder, setting._replace(num_sweeps=3), -1) as source:
            for size, index, count in steps:
                minibatch = source.read(size, GlobalPartition(index, count))
                if minibatch is None:
                    break
                state = source.state_dict()
                num_sweeps = -(-state["timeline"]["position"] // len(setting.faulty))
                assert sum(source.error_counts.values()) <= num_sweeps * sum(setting.faulty) * num_corpora
                if is_restored:
                    source.load_state_dict(state)

    check()

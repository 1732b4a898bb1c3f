"""The verb `plan`: figures of the order, the sequences of a step, and comparisons."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cntkio import Budget, CTFDeserializer, GlobalPartition, MinibatchSource, Partition, SequenceMixture, infer_streams
from cntkio.cli import main
from cntkio.cli.plan import DEALS
from pyarrow import feather
from pyarrow import parquet as pq
from support.builders import corpus_text

LENGTHS = [1 + key % 7 for key in range(200)]


@pytest.fixture(autouse=True)
def corpus_of_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.ctf").write_bytes(corpus_text(LENGTHS))
    return tmp_path


def planned(*arguments: str, capsys: pytest.CaptureFixture[str], verb: str = "plan") -> dict[str, Any]:
    capsys.readouterr()
    assert main([verb, "--json", "--quiet", "a.ctf", "--chunk-size", "1000", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def source(**options: Any) -> MinibatchSource:
    deserializer = CTFDeserializer("a.ctf", infer_streams("a.ctf"), chunk_size_in_bytes=1000)
    return MinibatchSource(deserializer, randomization_window_in_chunks=2, **options)


def test_a_step_names_the_sequences_that_the_source_delivers(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["--minibatch-size", "40", "--window", "2", "--ranks", "2", "--rank", "1"]
    found = planned(*setting, "--step", "3", capsys=capsys, verb="explain")
    with source() as reader:
        partition = Partition(1, 2)
        minibatch = [reader.read(40, partition) for _ in range(4)][-1]
    assert minibatch is not None
    assert [row["key"] for row in found["delivered"]] == minibatch.keys_of_sequences.tolist()
    lines = Path("a.ctf").read_text().splitlines()
    for row in found["delivered"]:
        path, line = row["places"][0].rsplit(":", 1)
        assert path == "a.ctf" and lines[int(line) - 1].startswith(f"{row['key']} |")
    position = planned(*setting, "--position", str(found["position"] - 1), capsys=capsys, verb="explain")
    assert position["step"] == found["step"] == 3
    key = str(found["delivered"][0]["key"])
    steps = planned(*setting, "--key", key, capsys=capsys, verb="explain")
    assert 3 in steps["steps"]


def test_a_larger_window_shuffles_better_and_needs_more_memory(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        "--minibatch-size", "40", "--window", "0", "--compare", "window=2", "--compare", "window=100", capsys=capsys
    )
    in_order, small, full = found["plans"]
    assert in_order["shuffling"] < 0.05 < small["shuffling"] < 0.8 < full["shuffling"]
    assert in_order["most_chunks"] <= small["most_chunks"] < full["most_chunks"] == found["chunks"]
    assert in_order["padding"] > 0 and in_order["waiting"] == 0
    assert found["sequences"] == len(LENGTHS) and found["samples"] == sum(LENGTHS)


@pytest.mark.parametrize("deal", list(DEALS))
def test_figures_agree_with_the_steps_of_all_ranks(deal: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned("--minibatch-size", "40", "--window", "2", "--ranks", "2", "--deal", deal, capsys=capsys)
    with source(max_sweeps=1) as reader:
        sweeps = [reader.plan(40, DEALS[deal](rank, 2)).sweep() for rank in range(2)]
    areas = sum(int(sweep.steps.padded_areas.sum()) for sweep in sweeps)
    samples = sum(int(sweep.steps.num_samples.sum()) for sweep in sweeps)
    (figures,) = found["plans"]
    assert figures["padding"] == pytest.approx(1 - samples / areas)
    assert figures["num_steps"] == max(len(sweep.steps) for sweep in sweeps)
    assert figures["num_loads"] == sum(sweep.num_loads for sweep in sweeps) >= found["chunks"]
    assert sorted(index for sweep in sweeps for index in sweep.sequences.tolist()) == list(range(len(LENGTHS)))
    assert all(sweep.steps.ends_of_sweep.tolist().index(True) == len(sweep.steps) - 1 for sweep in sweeps)


def test_lanes_are_planned_and_explained_as_a_source_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["--minibatch-size", "40", "--window", "2", "--ranks", "2", "--deal", "global", "--lanes", "4"]
    with source(max_sweeps=1) as reader:
        partitions = [GlobalPartition(rank, 2, lanes=4) for rank in range(2)]
        sweeps = [reader.plan(40, partition).sweep() for partition in partitions]
        steps = list(iter(lambda: reader.read(40, partitions[1]), None))
    in_lanes, without = planned(*setting, "--compare", "lanes=0", capsys=capsys)["plans"]
    assert in_lanes["num_loads"] == sum(sweep.num_loads for sweep in sweeps) < without["num_loads"]
    assert (in_lanes["num_steps"], in_lanes["lanes"]) == (len(steps), 4)
    found = planned(*setting, "--rank", "1", "--step", "3", capsys=capsys, verb="explain")
    assert [row["key"] for row in found["delivered"]] == steps[3].keys_of_sequences.tolist()


@pytest.mark.parametrize("window", ["0", "1", "100"])
@pytest.mark.parametrize("size", ["7", "40", "400"])
def test_a_sweep_of_one_rank_loads_each_chunk_once(window: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned("--minibatch-size", size, "--window", window, capsys=capsys)
    (figures,) = found["plans"]
    assert figures["num_loads"] == found["chunks"]
    assert figures["bytes_read"] == pytest.approx(
        figures["num_loads"] * Path("a.ctf").stat().st_size / found["chunks"], 1
    )


def test_pictures_are_self_contained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--html", "a.html", "--svg", "a.svg", "--compare", "window=0", "a.ctf"]) == 0
    page, drawing = Path("a.html").read_text(), Path("a.svg").read_text()
    assert page.count("<svg") >= 2 and "in order" in page
    assert drawing.startswith("<svg xmlns=") and drawing.count("<rect") > 10
    for text in (page, drawing):
        assert not re.search(r"<script|src=|href=|url\(", text)
    assert "a.svg: written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lanes", "4"], "lanes=4 with deal=cntk: lanes need --deal global"),
        (["--compare", "lanes=4,deal=global,ranks=5"], "5 partitions share 4 lanes"),
        (["--compare", "windw=3"], "did you mean 'window'?"),
        (["--compare", "window"], "expected NAME=VALUE"),
        (["--compare", "deal=none"], "expected one of cntk, balanced, global"),
        (["--compare", "minibatch_size=0:4,0:8"], "expected a whole number, or a table"),
        (["--compare", "window=0:4"], "'window=0:4': expected a whole number"),
    ],
)
def test_impossible_plans_say_what_was_expected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "a.ctf", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["plan", "--html"], ["plan", "--svg"], ["inspect", "--html"], ["convert", "--output"]],
    ids=" ".join,
)
def test_a_page_never_replaces_a_file_that_is_read(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verb, option = arguments
    Path("link.ctf").symlink_to("a.ctf")
    before = Path("a.ctf").read_bytes()
    for target in ("a.ctf", "link.ctf"):
        assert main([verb, "a.ctf", option, target]) == 2
        assert f"{target} is the file to read; {verb} never changes its input" in capsys.readouterr().err
    assert Path("a.ctf").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2", "--rank", "2", "--step", "0"], "--rank 2: expected 0 to 1"),
        (["--step", "2", "--key", "3"], "--step and --key exclude each other"),
        (["--ranks", "9", "--rank", "8", "--step", "1"], "the data end after 0 steps"),
    ],
)
def test_impossible_steps_say_what_was_expected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "a.ctf", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_plan_reads_only_the_first_lines_of_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("".join(f"|x {number} |y {number % 7}:1\n" for number in range(20_000)) + "|late 3\n" * 9)
    assert main(["plan", "--json", "--stream", "x:1", str(path)]) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr("cntkio.formats.ctf.corpus.infer_streams", lambda path: pytest.fail("the text was read"))
    assert main(["plan", "--json", str(path)]) == 0
    assert capsys.readouterr().out == expected


def test_a_plan_of_global_ranks_says_that_it_counts_whole_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    for deal, says_it in (("global", True), ("cntk", False)):
        assert main(["plan", "--ranks", "2", "--deal", deal, "a.ctf"]) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("read in a sweep")]
        assert line.endswith("in whole chunks; less where ranks load only their own sequences") == says_it, line


_PACKED = ["--ranks", "4", "--deal", "global", "--window", "100", "--pool", "100", "--rows", "4", "--row-length", "40"]


def test_equal_cost_leaves_ranks_less_to_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        *_PACKED, "--compare", "balance=attention", "--compare", "balance=attention,cost=9:1", capsys=capsys
    )
    packed, balanced, both = found["plans"]
    assert balanced["lost"] < packed["lost"] / 2 and both["cost"] == "9:1"
    assert balanced["num_steps"] == packed["num_steps"] and balanced["padding"] == packed["padding"] < 0.2
    key = ["--balance", "attention", "--key", "7"]
    ranks = [planned(*_PACKED, *key, "--rank", str(rank), capsys=capsys, verb="explain") for rank in range(4)]
    assert sum(len(of_rank["steps"]) for of_rank in ranks) == 1


@pytest.mark.parametrize("name", ["steps.json", "steps.parquet", "steps.arrow"])
def test_a_table_has_the_steps_of_all_ranks_and_sweeps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    planned(*_PACKED, "--balance", "attention", "--sweeps", "2", "--table", name, capsys=capsys)
    table = json.loads(Path(name).read_text()) if name.endswith("json") else table_of(name)
    budget = Budget(rows=4, row_length=40, pool=100, balance="attention")
    deserializer = CTFDeserializer("a.ctf", infer_streams("a.ctf"), chunk_size_in_bytes=1000)
    with MinibatchSource(deserializer, max_sweeps=2, randomization_window_in_chunks=100) as reader:
        delivered = [reader.plan(budget, GlobalPartition(rank, 4)).steps(99).columns() for rank in range(4)]
        for index, minibatch in enumerate(reader.minibatches(budget, partition=GlobalPartition(0, 4))):
            lengths = next(iter(minibatch.values())).lengths
            assert table["cost"][index] == (lengths**2).sum() and table["samples"][index] == lengths.sum()
    for column in delivered[0]:
        assert table[column] == [value for of_rank in delivered for value in of_rank[column].tolist()], column
    assert table["rank"] == [rank for rank in range(4) for _ in delivered[rank]["step"]]
    assert sum(table["end_of_sweep"]) == 8 and len(delivered[0]["step"]) == index + 1


def test_limits_that_change_are_in_the_table_and_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["--minibatch-size", "0:40,600:120", "--max-length", "0:3,900:9", "--pool", "20", "--ranks", "2"]
    setting += ["--deal", "global", "--window", "100"]
    more = ["--sweeps", "3", "--table", "a.json", "--html", "a.html", "--compare", "padded=0:40,600:90,between=steps"]
    found = planned(*setting, *more[:-2], capsys=capsys)["plans"][0]
    assert found["minibatch_size"] == {"0": 40, "600": 120} and found["num_left_out"] > 0
    table, page = json.loads(Path("a.json").read_text()), Path("a.html").read_text()
    budget = Budget(samples={0: 40, 600: 120}, max_length={0: 3, 900: 9}, oversize="drop", pool=20)
    starts = [0, *table["position"]]
    assert table["limit of samples"][:20] == [budget.at(start).samples for start in starts[:20]]
    assert table["limit of max_length"][:20] == [budget.at(start).max_length for start in starts[:20]]
    assert "limit of samples, over all planned sweeps" in page and "limit of max_length" in page
    assert planned(*setting, *more[-2:], capsys=capsys)["plans"][1]["padded"] == {"0": 40, "600": 90}
    step = planned(*setting, "--step", "3", capsys=capsys, verb="explain")
    assert step["samples"] == table["samples"][3]
    for text in ("0:40,", "0:40,0:50", "40:x", "-1"):
        with pytest.raises(SystemExit):
            main(["plan", "a.ctf", "--minibatch-size", text])
        assert "a table such as 0:4096,10000:8192" in capsys.readouterr().err


def table_of(name: str) -> dict[str, list[Any]]:
    table = pq.read_table(name) if name.endswith("parquet") else feather.read_table(name)
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "a.txt"], "expected a name that ends with .json"),
        (["--table", "a.json", "--compare", "window=1"], "leave out --compare"),
        (["--balance", "attention"], "balance needs a pool"),
        (["--balance", "attention", "--pool", "9", "--cost", "3"], "such as 4096:1"),
        (["--balance", "attention", "--pool", "9", "--ranks", "2"], "use GlobalPartition"),
        (["--compare", "padded=0:9,x"], "a whole number, or a table such as 0:64,10000:256"),
        (["--between", "steps", "--pool", "9"], "of no use without a table"),
    ],
)
def test_tables_and_costs_that_are_not_possible_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "a.ctf", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_steps_are_a_ledger_without_the_keys_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["--minibatch-size", "40", "--window", "2"]
    found = planned(*setting, "--steps", "3:6", capsys=capsys, verb="explain")
    with source() as reader:
        minibatches = [reader.read(40) for _ in range(6)][3:]
    keys = [key for minibatch in minibatches if minibatch for key in minibatch.keys_of_sequences.tolist()]
    assert [row["key"] for row in found["delivered"]] == keys and found["steps"] == [3, 4, 5]
    Path("bad.txt").write_text(f"{keys[0]}\n{keys[-1]}\n")
    found = planned(*setting, "--leave-out", "bad.txt@0", "--steps", "3:6", capsys=capsys, verb="explain")
    assert not {keys[0], keys[-1]} & {row["key"] for row in found["delivered"]}
    late = planned(*setting, "--leave-out", "bad.txt@999999", "--steps", "3:6", capsys=capsys, verb="explain")
    assert [row["key"] for row in late["delivered"]] == keys
    assert main(["explain", "--steps", "3", "a.ctf"]) == 2
    assert "expected two numbers, such as 100:110" in capsys.readouterr().err


def mixture(weights: Mapping[str, Any], **options: Any) -> SequenceMixture:
    parts = {
        name: (MinibatchSource(CTFDeserializer(name, infer_streams("a.ctf"), chunk_size_in_bytes=1000)), weight)
        for name, weight in weights.items()
    }
    return SequenceMixture(parts, stop="forever", **options)


@pytest.mark.parametrize("between", ["linear", "steps"])
def test_weights_make_the_files_one_mixture(between: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.ctf").write_bytes(corpus_text(LENGTHS[:40]))
    setting = ["b.ctf", "--minibatch-size", "0:40,600:60", "--weights", "0:3,1,500:1,3", "--between", between]
    more = ["--sweeps", "4", "--table", "a.json", "--html", "a.html", "--compare", "weights=9,1,window=2"]
    found = planned(*setting, *more[:-2], capsys=capsys)
    table, page = json.loads(Path("a.json").read_text()), Path("a.html").read_text()
    with mixture({"a.ctf": {0: 3, 500: 1}, "b.ctf": {0: 1, 500: 3}}, between=between) as reader:
        minibatches = [*islice(reader.minibatches(Budget(samples={0: 40, 600: 60}, between=between)), 100)]
        # The position counts sequences, and a sweep has as many as both files.
        num_steps, num_sequences = len(table["step"]), 4 * 240
    assert num_sequences - 60 < table["position"][-1] == found["plans"][0]["num_left_out"] + sum(table["sequences"])
    for name in ("a.ctf", "b.ctf"):
        counts = [int((one.source_of_sequences == name).sum()) for one in minibatches[: num_steps - 1]]
        assert table[f"sequences of {name}"][:-1] == counts and sum(counts) > 200
        assert found["plans"][0]["components"][name] == sum(table[f"sequences of {name}"])
        assert f"sequences of {name}, in % of a step" in page
    step = planned(*setting, "--step", "3", capsys=capsys, verb="explain")
    assert [row["key"] for row in step["delivered"]] == minibatches[3].keys_of_sequences.tolist()
    files = [row["places"][0].rpartition(":")[0] for row in step["delivered"]]
    assert files == minibatches[3].source_of_sequences.tolist()
    where = planned(*setting, "--key", str(step["delivered"][0]["key"]), capsys=capsys, verb="explain")
    assert 3 in where["steps"]
    compared = planned(*setting, *more[-2:], capsys=capsys)["plans"][1]
    assert compared["weights"] == {"0": [9, 1]} and compared["components"] == {"a.ctf": 216, "b.ctf": 24}


def test_weights_and_lanes_are_planned_together(capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.ctf").write_bytes(corpus_text(LENGTHS[:40]))
    setting = [
        "b.ctf",
        "--minibatch-size",
        "40",
        "--weights",
        "3,1",
        "--ranks",
        "2",
        "--deal",
        "global",
        "--lanes",
        "4",
    ]
    with mixture({"a.ctf": 3, "b.ctf": 1}) as reader:
        steps = [reader.read(40, GlobalPartition(1, 2, lanes=4)) for _ in range(4)]
    found = planned(*setting, "--rank", "1", "--step", "3", capsys=capsys, verb="explain")
    assert [row["key"] for row in found["delivered"]] == steps[3].keys_of_sequences.tolist()
    (figures,) = planned(*setting, capsys=capsys)["plans"]
    assert (figures["lanes"], figures["components"]) == (4, {"a.ctf": 180, "b.ctf": 60})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "3,x"], "'3,x' is not a weight for each FILE, such as 3,1, or a table such as 0:3,1,8000:1,1"),
        (["--weights", "3,1,8:1,1"], "is not a weight for each FILE"),
        (["--weights", "0:3,1,0:1,1"], "is not a weight for each FILE"),
        (["--weights", "0:3,1,9:1"], "is not a weight for each FILE"),
        (["--weights", "nan,1"], "is not a weight for each FILE"),
        (["--weights", "3"], "found 1 weight at position 0; expected a weight for each of a.ctf, b.ctf"),
        (["--weights", "0:3,1,2,5:1,1,1"], "found 3 weights at position 0"),
        (["--weights", "3,0"], "the weight of 'b.ctf' is 0.0; expected a number above 0"),
        (["--weights", "3,1", "--compare", "weights=2"], "found 1 weight at position 0"),
        (["--weights", "3,1", "--compare", "weights=2;1"], "expected a weight for each corpus, such as 3,1"),
        (["--compare", "weights=2,1"], "expected --weights, too"),
        (["--weights", "3,1,1", "a.ctf"], "a.ctf is given twice"),
        (["--weights", "3,1", "--truncation-length", "5"], "part 'a.ctf' of a mixture has truncation_length=5"),
    ],
)
def test_weights_that_are_not_possible_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("b.ctf").write_bytes(corpus_text(LENGTHS[:40]))
    with suppress(SystemExit):
        assert main(["plan", "a.ctf", "b.ctf", *arguments]) == 2
    assert message in capsys.readouterr().err

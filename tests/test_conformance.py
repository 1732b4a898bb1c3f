"""Every recorded case of CNTK 2.7 whose corpora are text, compared exactly.

The closed list of deviations stands below, each with the rule it rests on; a case on it must differ, or the list is
wrong. Cases of other formats, of user-defined deserializers and of configuration files have their own tests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import CBFDeserializer, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs
from conformance_cases import Case, cases

# Rule 2: where the documents promise and CNTK fails, we keep the promise.
FORGIVEN = "a stream without a sample in a sequence costs one error, and within the budget is delivered empty"
DEVIATIONS = {
    "number-rounding": "numbers are correctly rounded",
    "number-overflow": "0e400 and 310 fraction digits have their right values instead of NaN",
    "id-wrap": "an id of 2^64 or more is refused, also where CNTK wraps round",
    "cfg-names-differ-in-case": "two streams whose names differ in case are two streams",
    **dict.fromkeys(
        (
            "blank-tail comment-line doc-extended-maxerrors doc-seq2seq-as-printed input-missing "
            "input-missing-later input-missing-one-line mb-other-missing mix-5217 mix-5309 non-ascii-name "
            "only-sample-bad unit-blank-lines-skip-many "
        ).split(),
        FORGIVEN,
    ),
    # Defects of CNTK's timeline; what happens here instead is tested below, one test each.
    "quirk-reseed-restore-new": "the order depends on seed + sweep alone",
    "quirk-reseed-restore-same": "the order depends on seed + sweep alone",
    "quirk-reseed-size-change": "the order depends on seed + sweep alone",
    "quirk-size-wraps": "a size above 2^31 - 1 is refused, not cut to 32 bits",
    "quirk-max-samples-magic": "max_samples = 2^62 - 1 is a plain limit",
    "quirk-index-too-large": "a partition index outside its range is a ValueError",
    "quirk-no-data-first": "a read without data is the same wherever it comes",
    "quirk-trunc-partitions-change": "slots are worked out anew when the partition changes",
}


def text_cases() -> Iterator[Case]:
    for area in ("ctf", "timeline"):
        for case in cases(area):
            if all(spec["type"] == "ctf" for spec in case.spec.get("deserializers", [{"type": "none"}])):
                yield case


def deserializer(spec: dict[str, Any], folder: Path) -> CTFDeserializer | CBFDeserializer:
    streams = StreamDefs({name: StreamDef(**stream) for name, stream in spec["streams"].items()})
    made = {"ctf": CTFDeserializer, "cbf": CBFDeserializer}[spec["type"]](folder / spec["file"], streams)
    for key, value in spec.get("options", {}).items():
        made[key] = value
    return made


def source(case: Case) -> MinibatchSource:
    options = {key: value for key, value in case.spec.get("source", {}).items() if value is not None}
    return MinibatchSource([deserializer(spec, case.folder) for spec in case.spec["deserializers"]], **options)


def shown(values: Any) -> list[Any]:
    """Values as they were recorded: float32 as the shortest text, what is not finite as text, no minus zero."""
    return [float(str(v)) if np.isfinite(v) else str(v) for v in values]


def plain(value: Any) -> Any:
    """Minus zero was not recorded everywhere: compare by value. Long decimals are float32."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return 0.0 if value == 0 and not isinstance(value, bool) else value


def sparse_sequence(values: Any, indices: Any, indptr: Any, dim: int, is_raw: bool) -> dict[str, Any]:
    if not is_raw:  # by way of a dense matrix: ascending, summed, without zeros
        rows = []
        for begin, end in zip(indptr, indptr[1:], strict=False):
            summed: dict[int, np.float32] = {}
            for index, value in zip(indices[begin:end], values[begin:end], strict=True):
                summed[int(index)] = np.float32(summed.get(int(index), np.float32(0)) + value)
            rows.append(sorted((index, value) for index, value in summed.items() if value != 0))
        values = np.array([value for row in rows for _, value in row], np.float32)
        indices = [index for row in rows for index, _ in row]
        indptr = np.cumsum([0, *(len(row) for row in rows)])
    return {"indptr": [int(at) for at in indptr], "indices": [int(index) for index in indices], "data": shown(values)}


def stream_record(data: Any, is_raw: bool, is_masked: bool) -> dict[str, Any]:
    record = {
        "num_sequences": data.num_sequences,
        "num_samples": data.num_samples,
        "end_of_sweep": data.end_of_sweep,
    }
    if isinstance(data, cntkio.TruncatedMinibatchData):
        sequences = [[shown(row.reshape(-1)) for row in part] for part in data.as_sequences()]
        parts = [[*span, samples] for span, samples in zip(data.parts.tolist(), sequences, strict=True)]
        return {**record, "slots": len(data.mask), "time_steps": data.mask.shape[1], "parts": parts}
    if data.num_sequences == 0:
        return {**record, "sequences": []}
    record["shape"] = list(data.shape)
    record["mask"] = data.mask.tolist() if is_masked or not data.mask.all() else None
    if data.is_sparse:
        bounds = data.offsets
        record["sequences"] = [
            sparse_sequence(
                data.values[data.indptr[begin] : data.indptr[end]],
                data.indices[data.indptr[begin] : data.indptr[end]],
                data.indptr[begin : end + 1] - data.indptr[begin],
                data.stream.dim,
                is_raw,
            )
            for begin, end in zip(bounds, bounds[1:], strict=False)
        ]
    else:
        record["sequences"] = [[shown(row.reshape(-1)) for row in sequence] for sequence in data.as_sequences()]
    return record


def run(case: Case) -> dict[str, Any]:
    """What `run_case.py` records, from cntkio."""
    result: dict[str, Any] = {"streams": {}, "minibatches": [], "error": None}
    expected = iter(case.expected["minibatches"])
    with_source: list[MinibatchSource] = []
    try:
        reader = source(case)
        with_source.append(reader)
        for info in reader.stream_infos():
            result["streams"][info.name] = {
                "sparse": info.is_sparse,
                "shape": list(info.shape),
                "dtype": str(info.dtype),
            }
        done, saved = 0, {}
        restore = case.spec.get("restore", {}).get("after")
        for read in case.spec["reads"]:
            if "save" in read:
                saved[read["save"]] = reader.get_checkpoint_state()
                continue
            if "restore" in read:
                if read.get("fresh"):
                    reader = source(case)
                    with_source.append(reader)
                reader.restore_from_checkpoint(read.get("state") or saved[read["restore"]])
                continue
            count = read.get("count", 1)
            for _ in range(100000 if count is None else count):
                minibatch = reader.next_minibatch(
                    read["size"], num_data_partitions=read.get("partitions", 1), partition_index=read.get("index", 0)
                )
                recorded = next(expected, {"streams": {}})["streams"]
                streams = {
                    info.name: stream_record(
                        data, case.spec.get("raw_sparse", False), recorded.get(info.name, {}).get("mask") is not None
                    )
                    for info, data in minibatch.items()
                }
                result["minibatches"].append({"checkpoint": reader.get_checkpoint_state(), "streams": streams})
                done += 1
                if restore is not None and done == restore:
                    state = reader.get_checkpoint_state()
                    reader = source(case)
                    with_source.append(reader)
                    reader.restore_from_checkpoint(state)
                if not minibatch:
                    break
    except (cntkio.CntkIoError, OSError) as error:
        result["error"] = str(error)
    for one in with_source:
        one.close()
    return result


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Without the wording of errors, and without the states after an error."""
    text = json.dumps(plain([result["streams"], result["minibatches"], result["error"] is not None]), sort_keys=True)
    return dict(enumerate(json.loads(text, parse_float=lambda number: str(np.float32(number)))))


@pytest.mark.parametrize("case", [case for case in text_cases() if case.name not in DEVIATIONS], ids=str)
def test_a_case_agrees_with_its_record(case: Case) -> None:
    assert comparable(run(case)) == comparable(case.expected)


@pytest.mark.parametrize(
    "case", [case for case in text_cases() if case.name in DEVIATIONS and "quirk" not in case.spec], ids=str
)
def test_a_deviation_is_real(case: Case) -> None:
    assert comparable(run(case)) != comparable(case.expected)


def test_every_listed_deviation_has_a_case() -> None:
    packed = {name for name in DEVIATIONS if not name.startswith("unit-")}  # those are others' files
    assert packed <= {case.name for case in text_cases()}


# What happens instead of CNTK's defects.


def quirk(name: str) -> Case:
    return next(case for case in text_cases() if case.name == f"quirk-{name}")


def values_of(minibatches: list[dict[str, Any]]) -> list[Any]:
    return [minibatch["streams"]["A"]["sequences"] for minibatch in minibatches if minibatch["streams"]]


def uninterrupted(case: Case) -> list[Any]:
    with source(case) as reader:
        return [
            [[row.tolist() for row in sequence] for sequence in one["A"].as_sequences()]
            for one in reader.minibatches(16)
        ]


def test_a_restore_into_a_new_source_continues_the_same_order() -> None:
    case = quirk("reseed-restore-new")
    expected = uninterrupted(case)
    assert len(expected) == 8
    assert np.allclose(np.concatenate(sum(values_of(run(case)["minibatches"]), [])), np.concatenate(sum(expected, [])))


def test_a_restore_of_a_used_source_continues_the_same_order() -> None:
    case = quirk("reseed-restore-same")
    expected = uninterrupted(case)
    expected.insert(3, expected[2])  # read, restored to before it, and read again
    assert np.allclose(np.concatenate(sum(values_of(run(case)["minibatches"]), [])), np.concatenate(sum(expected, [])))


def test_a_change_of_size_keeps_the_order_of_the_sweep() -> None:
    case = quirk("reseed-size-change")
    changed = np.concatenate(sum(values_of(run(case)["minibatches"]), []))
    assert np.allclose(changed, np.concatenate(sum(uninterrupted(case), [])))


@pytest.mark.parametrize("name", ["size-wraps", "index-too-large"])
def test_a_size_or_an_index_out_of_range_is_a_value_error(name: str) -> None:
    case = quirk(name)
    read = case.spec["reads"][0]
    with source(case) as reader, pytest.raises(ValueError, match="expected at most|is outside"):
        reader.next_minibatch(
            read["size"], num_data_partitions=read.get("partitions"), partition_index=read.get("index")
        )


def test_no_number_of_samples_is_magic() -> None:
    minibatches = run(quirk("max-samples-magic"))["minibatches"]
    assert [one["checkpoint"]["minibatchSourcePosition"] for one in minibatches] == [50, 100, 150]


def test_a_read_without_data_may_be_the_first_one() -> None:
    result = run(quirk("no-data-first"))
    first, *others = [one["streams"]["A"] for one in result["minibatches"] if one["streams"]]
    assert result["error"] is None
    assert (first["num_sequences"], first["num_samples"], first["end_of_sweep"]) == (0, 0, False)
    assert others and all(one["num_sequences"] for one in others)


def test_slots_are_worked_out_anew_when_the_partition_changes() -> None:
    minibatches = run(quirk("trunc-partitions-change"))["minibatches"]
    slots = [minibatch["streams"]["A"]["slots"] for minibatch in minibatches if minibatch["streams"]]
    assert slots == [3, 3, 1, 1, 1]

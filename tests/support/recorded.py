"""The recorded conformance cases of an area: requests to a reader, and the results of CNTK 2.7.

The cases are packed in `tests/conformance`. If the folder `shared/conformance` exists next to the repository, it is
read instead; it has some more cases, on files of other projects.
"""

import atexit
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
from cntkio import CBFDeserializer, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs

from support import ROOT

PACKED = ROOT / "tests" / "conformance"
NEXT_TO = [folder / "shared" / "conformance" for folder in ROOT.parents]  # also from the folder of a work tree
SHARED = next((folder for folder in NEXT_TO if folder.is_dir()), NEXT_TO[0])


@dataclass(frozen=True)
class Case:
    """A case. Paths in `spec` are relative to `folder`; `expected` is empty if the spec says what is expected."""

    name: str
    spec: dict[str, Any]
    expected: dict[str, Any]
    folder: Path

    def __str__(self) -> str:
        return self.name


@cache
def unpacked(area: str) -> Path:
    """The packed copy of an area, extracted once per process into a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"cntkio-{area}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(PACKED / f"{area}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def folder_of(area: str) -> Path:
    """The folder from which the cases of an area are read."""
    return SHARED / area if (SHARED / area).is_dir() else unpacked(area)


@cache
def cases(area: str) -> list[Case]:
    """All cases of an area (ctf, cbf, htk, timeline, config) in the order of their names."""
    folder = folder_of(area)
    found = []
    for file in sorted(folder.glob("*.json")):
        spec = json.loads(file.read_text(encoding="utf-8"))
        if file.name.endswith(".expected.json") or not isinstance(spec, dict):
            continue  # a list is a table of refused files, which another test reads
        result = file.with_suffix(".expected.json")
        expected = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        found.append(Case(file.stem, spec, expected, folder))
    return found


# -- a case as cntkio reads it ----------------------------------------------------------------------------------------


def deserializer(
    spec: dict[str, Any], folder: Path, *, is_compatible: bool = True
) -> CTFDeserializer | CBFDeserializer:
    streams = StreamDefs({name: StreamDef(**stream) for name, stream in spec["streams"].items()})
    file = folder / spec["file"]
    made: CTFDeserializer | CBFDeserializer
    if spec["type"] == "ctf":
        made = CTFDeserializer(file, streams)
    else:
        made = CBFDeserializer(file, streams, compatible=is_compatible)
    for key, value in spec.get("options", {}).items():
        made[key] = value
    return made


def open_case(case: Case) -> MinibatchSource:
    options = {key: value for key, value in case.spec.get("source", {}).items() if value is not None}
    return MinibatchSource([deserializer(spec, case.folder) for spec in case.spec["deserializers"]], **options)


def shown(values: Any) -> list[Any]:
    """Return values in their recorded form: float32 as the shortest text, infinities and NaN as text."""
    return [float(str(value)) if np.isfinite(value) else str(value) for value in np.asarray(values).reshape(-1)]


def plain(value: Any) -> Any:
    """Replace minus zero by zero, because some records lack its sign. Long decimals are float32."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return 0.0 if value == 0 and not isinstance(value, bool) else value


def sparse_sequence(values: Any, indices: Any, indptr: Any, dim: int, is_raw: bool) -> dict[str, Any]:
    if not is_raw:  # recorded through a dense matrix: ascending, summed, without zeros
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
        sequences = [[shown(row) for row in part] for part in data.as_sequences()]
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
        record["sequences"] = [[shown(row) for row in sequence] for sequence in data.as_sequences()]
    return record


def run(case: Case, open_source: Callable[[Case], MinibatchSource] = open_case) -> dict[str, Any]:
    """Read the minibatches of a case, and return them in the form of its record."""
    result: dict[str, Any] = {"streams": {}, "minibatches": [], "error": None}
    expected = iter(case.expected["minibatches"])
    with_source: list[MinibatchSource] = []
    try:
        reader = open_source(case)
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
                    reader = open_source(case)
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
                    name: stream_record(
                        data, case.spec.get("raw_sparse", False), recorded.get(name, {}).get("mask") is not None
                    )
                    for name, data in minibatch.items()
                }
                result["minibatches"].append({"checkpoint": reader.get_checkpoint_state(), "streams": streams})
                done += 1
                if restore is not None and done == restore:
                    state = reader.get_checkpoint_state()
                    reader = open_source(case)
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
    """Return a record without the wording of errors and without the states after an error."""
    text = json.dumps(plain([result["streams"], result["minibatches"], result["error"] is not None]), sort_keys=True)
    return dict(enumerate(json.loads(text, parse_float=lambda number: str(np.float32(number)))))

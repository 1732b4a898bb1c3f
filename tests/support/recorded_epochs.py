"""The recorded cases of configured readers: their epochs as cntkio reads them, in the form of the records.

A record lists the minibatches of each epoch with their packed layout `[sequence, row, begin, end]`. This module
computes the layout, because the library delivers sequences.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from cntkio import (
    MinibatchSource,
    TruncatedMinibatchData,
)
from cntkio.config import ReaderConfig
from cntkio.config.files import configuration
from cntkio.config.reading import read_section
from cntkio.errors import CntkIoError

from support.recorded import Case, shown


def packed(lengths: list[int]) -> tuple[list[list[int]], int, int]:
    """Put each sequence into the first row in which it fits."""
    steps = max(lengths, default=0)
    used: list[int] = []
    layout = []
    for number, length in enumerate(lengths):
        row = next((row for row, taken in enumerate(used) if taken + length <= steps), len(used))
        if row == len(used):
            used.append(0)
        layout.append([number, row, used[row], used[row] + length])
        used[row] += length
    return layout, len(used), steps


def sparse(data: Any, sample: int) -> tuple[list[int], list[Any]]:
    begin, end = int(data.indptr[sample]), int(data.indptr[sample + 1])
    return data.indices[begin:end].tolist(), shown(data.values[begin:end])


def sequences_of(data: Any) -> list[Any]:
    if not data.is_sparse:
        return [[shown(row) for row in sequence] for sequence in data.as_sequences()]
    found = []
    for begin, end in zip(data.offsets, data.offsets[1:], strict=False):
        rows = [sparse(data, sample) for sample in range(int(begin), int(end))]
        indptr = np.cumsum([0, *(len(indices) for indices, _ in rows)]).tolist()
        indices = [index for row, _ in rows for index in row]
        found.append({"indptr": indptr, "indices": indices, "data": [value for _, row in rows for value in row]})
    return found


def stream_record(data: Any) -> dict[str, Any]:
    record = {"num_sequences": data.num_sequences, "num_samples": data.num_samples}
    if isinstance(data, TruncatedMinibatchData):
        layout = [[number, *part] for number, part in enumerate(data.parts.tolist())]
        slots, steps = data.mask.shape
        return {**record, "layout": layout, "parallel": slots, "steps": steps, "sequences": sequences_of_parts(data)}
    layout, rows, steps = packed(data.lengths.tolist())
    return {**record, "layout": layout, "parallel": rows, "steps": steps, "sequences": sequences_of(data)}


def sequences_of_parts(data: TruncatedMinibatchData) -> list[Any]:
    return [[shown(row) for row in part] for part in data.as_sequences()]


def understood(case: Case) -> ReaderConfig:
    arguments = [f"configFile={case.folder / case.spec['config']}", *case.spec.get("overrides", [])]
    return read_section(configuration(arguments), case.spec["section"])


def epoch(config: ReaderConfig, source: MinibatchSource, number: int, spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    count = spec.get("partitions", spec.get("workers", 1))
    reading = config.epoch(
        source,
        number,
        minibatch_size=spec["minibatch_size"],
        epoch_size=spec.get("epoch_size", 0),
        num_data_partitions=count,
        partition_index=spec.get("index", spec.get("rank", 0)),
    )
    has_ended = False
    for _ in range(spec.get("max_minibatches", 1000)):
        minibatch = next(reading, None)
        if minibatch is None:
            if not has_ended:
                yield {"end_of_epoch": True, "end_of_sweep": False, "streams": {}}
            return
        has_ended = source.has_ended
        streams = {name: stream_record(data) for name, data in minibatch.items() if data.num_sequences}
        ends = next(iter(minibatch.values())).end_of_sweep
        yield {"end_of_epoch": has_ended, "end_of_sweep": ends, "streams": streams}


def run(case: Case) -> dict[str, Any]:
    spec = case.spec
    try:
        config = understood(case)
        with config.open(minibatch_size=spec["minibatch_size"]) as source:
            streams = {
                info.name: {
                    "id": info.stream_id,
                    "sparse": info.is_sparse,
                    "shape": list(info.shape),
                    "dtype": str(info.dtype),
                }
                for info in source.stream_infos()
            }
            first = spec.get("first_epoch", 0)
            epochs = [list(epoch(config, source, first + number, spec)) for number in range(spec.get("epochs", 1))]
    except (CntkIoError, OSError) as error:
        return {"streams": None, "epochs": None, "error": str(error)}
    return {"streams": streams, "epochs": epochs, "error": None}


def comparable(record: dict[str, Any], digits: int | None) -> Any:
    """Return numbers in their recorded form, with minus zero as zero; of an error only its existence."""
    if record["error"] is not None:
        return "error"

    def number(text: str) -> str:
        return f"{float(text) + 0:.{digits}g}" if digits else str(np.float32(text) + 0)

    text = json.dumps({"streams": record["streams"], "epochs": record["epochs"]}, sort_keys=True)
    return json.loads(text, parse_float=number, parse_int=number)

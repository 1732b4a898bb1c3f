"""Random settings, compared read by read with the running CNTK 2.7.

    cd tests/conformance
    python against_cntk.py --cntk PYTHON [--settings 2000] [--seed 1] [--workers 2]      order, sizes, checkpoints
    python against_cntk.py --cntk PYTHON --ctf [--settings 500] [--workers 8]            valid and broken texts
    python against_cntk.py --cntk PYTHON --seed 1 --only 17                              show one setting

PYTHON is an interpreter with CNTK 2.7; it runs against_cntk_worker.py. A setting follows from --seed and its number
alone. The comparison covers the streams; for each read the values, masks, shapes, counts, flags and the checkpoint's
position; that keys belong to their values; and the reads at which either side raises. The exit status is 1 if anything
differs.

The pages list the known differences (docs/timeline.md, "Where cntkio differs from CNTK 2.7"; docs/formats/ctf.md,
"Differences from CNTK 2.7"). The settings avoid them, or are cut short before them (see AVOIDED); none of this hides
another difference. CNTK retries a failed read five times, a second apart, so `--ctf` mostly waits and therefore uses
many workers.
"""

from __future__ import annotations

import argparse
import base64
import collections
import itertools
import json
import logging
import math
import random
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cntkio
import numpy as np

# Conditions that all settings meet, and the behaviour of CNTK 2.7 otherwise.
AVOIDED = {
    "reseed": "restores and changes of size or partition come with seed 0 or a window over all data; "
    "otherwise CNTK shuffles the rest of a sweep with another seed",
    "size32": "sizes stay below 2^31; CNTK cuts them to 32 bits",
    "no data first": "steps are cut before a first read without data; CNTK raises an error about shapes",
    "index": "a partition's index is within its range; CNTK reads nothing, or dies",
    "slots": "in truncated reading, the partition changes only together with the size; CNTK keeps the number of slots",
    "dropped chunk": "in order, a joined first file with keys of its own has one chunk; CNTK uses the wrong chunk",
    "magic": "max_samples is never 2^62 - 1; CNTK reads one sweep then",
    "joined files": "a joined second file has one chunk; CNTK's threads disturb each other reading several",
    "error ahead": "settings that are meant to fail have no restores or changes; "
    "CNTK raises the error of a minibatch that was fetched ahead and dropped",
    "wrapped id": "ids beyond 64 bits are left out; CNTK wraps some of them around",
    "short last sample": "a short dense sample at the very end is left out; CNTK delivers uninitialised memory",
}
# Kinds of problems in a text: the kind that is fatal in CNTK with any budget, and the kinds that cost no budget.
FATAL_IN_CNTK = "stream without a sample"
WARNINGS = {
    "byte above 0x7F",
    "short dense sample",
    "stream twice on a line",
    "repeated id",
    "line left out",
    "sequence left out",
}
ONE_CHUNK = 32 << 20
LARGEST_ID = 2**64 - 1
NUMBER = rb"([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?"
PATIENCE_IN_SECONDS = 120
Setting = dict[str, Any]
Record = dict[str, Any]


# -- ours --------------------------------------------------------------------------------------------------------------


def text_of(array: Any, dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode()


def stream_of(data: Any) -> Record:
    """Return a stream of a read in the worker's form."""
    record: Record = {"counts": [data.num_sequences, data.num_samples], "end_of_sweep": data.end_of_sweep}
    if data.num_sequences == 0:
        return record
    if isinstance(data, cntkio.TruncatedMinibatchData):
        parts = sorted(zip(data.parts.tolist(), data.as_sequences(), strict=True), key=lambda part: part[0])
        values = np.concatenate([values.reshape(-1) for _, values in parts])
        slots, steps = data.mask.shape
        return record | {
            "slots": slots,
            "steps": steps,
            "parts": [span for span, _ in parts],
            "values": text_of(values, "<f4"),
        }
    record["mask"] = None if data.mask.all() else text_of(data.mask, "<i1")
    if data.is_sparse:
        return record | {
            "lengths": data.lengths.tolist(),
            "entries": text_of(np.diff(data.indptr), "<i4"),
            "indices": text_of(data.indices, "<i4"),
            "values": text_of(data.values, "<f4"),
        }
    values = data.asarray()
    if len(values) > 1 and data.num_steps > 1:
        values = values + np.float32(0)  # CNTK's Python interface loses the sign of zero when it splits sequences
    return record | {"shape": list(values.shape), "values": text_of(values, "<f4")}


def deserializers_of(setting: Setting) -> list[cntkio.CTFDeserializer]:
    made = []
    for one in setting["deserializers"]:
        streams = {name: cntkio.StreamDef(**arguments) for name, arguments in one["streams"].items()}
        deserializer = cntkio.CTFDeserializer(one["file"], cntkio.StreamDefs(streams))
        for key, value in one["options"].items():
            deserializer[key] = value
        made.append(deserializer)
    return made


def source_of(setting: Setting) -> cntkio.MinibatchSource:
    return cntkio.MinibatchSource(deserializers_of(setting), **setting["source"])


def first_values(data: Any) -> list[float | None]:
    """Return the first value of each sequence, None for a sequence without values."""
    if isinstance(data, cntkio.TruncatedMinibatchData):
        return []
    bounds = data.offsets if data.indptr is None else data.indptr[data.offsets]
    flat = data.values.reshape(-1)
    width = 1 if data.is_sparse else data.stream.dim
    return [float(flat[a * width]) if a < b else None for a, b in itertools.pairwise(bounds.tolist())]


def ours(setting: Setting, key_of: dict[float, int]) -> Record:
    """
    Read a setting with cntkio, and return the answer in the worker's form.

    The steps of the setting are cut before a first read without data. `key_of` maps the first values of
    a sequence's streams to the sequence's key; a sequence with the key of another sequence is an error.
    """
    result: Record = {"streams": {}, "reads": [], "error": None}
    saved: dict[str, Any] = {}
    opened: list[cntkio.MinibatchSource] = []
    try:
        opened.append(source_of(setting))
        for info in opened[-1].stream_infos():
            result["streams"][info.name] = [info.is_sparse, list(info.shape)]
        is_first = True
        for number, step in enumerate(setting["steps"]):
            if "save" in step:
                saved[step["save"]] = opened[-1].get_checkpoint_state()
                continue
            if "size" not in step:
                if step["fresh"]:
                    opened.append(source_of(setting))
                opened[-1].restore_from_checkpoint(step["state"] if "state" in step else saved[step["restore"]])
                is_first = True
                continue
            for done in range(step["count"]):
                minibatch: Any = opened[-1].next_minibatch(
                    step["size"], num_data_partitions=step["partitions"], partition_index=step["index"]
                )
                if is_first and minibatch and minibatch.num_sequences == 0:
                    setting["steps"] = [*setting["steps"][:number], {**step, "count": done}]
                    return result
                is_first = False
                streams = {name: stream_of(data) for name, data in minibatch.items()}
                position = opened[-1].get_checkpoint_state()["minibatchSourcePosition"]
                result["reads"].append({"position": position, "streams": streams})
                for data in minibatch.values() if key_of else ():
                    for key, value in zip(minibatch.keys_of_sequences.tolist(), first_values(data), strict=False):
                        if value is not None and key_of[value] != key:
                            result["error"] = f"WRONG KEY: {key} has the values of {key_of[value]}"
                            return result
    except (cntkio.CntkIoError, OSError) as error:
        result["error"] = str(error)
    finally:
        for source in opened:
            source.close()
    return result


# -- theirs ------------------------------------------------------------------------------------------------------------


class Cntk:
    """A process of CNTK that answers settings. It is restarted when it dies or hangs."""

    def __init__(self, python: str) -> None:
        self.command = [python, str(Path(__file__).with_name("against_cntk_worker.py"))]
        self.process: subprocess.Popen[str] | None = None

    def ask(self, setting: Setting) -> Record:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(setting) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_IN_SECONDS)
            line = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if line:
            answer: Record = json.loads(line)
            return answer
        self.close()
        return {"streams": {}, "reads": [], "error": "CNTK died or hung", "died": True}

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


# -- random files for the timeline -------------------------------------------------------------------------------------


@dataclass
class File:
    """The text of a corpus that is being written, and its properties."""

    text: str = ""
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: list[int] = field(default_factory=list)  # of the sequences that readers deliver
    num_samples: int = 0
    lengths: dict[int, int] = field(default_factory=dict)  # number of lines of the first sequence of each key


class Values:
    """Numbers that occur only once, and the key of the sequence that each belongs to."""

    def __init__(self) -> None:
        self.last = 0
        self.key_of: dict[float, int] = {}

    def next(self, key: int) -> str:
        self.last += 1
        self.key_of[float(self.last)] = key
        return str(self.last)


def random_size(rng: random.Random, most: int) -> int:
    """Draw a number from 1 to `most`, small and large numbers equally often."""
    return min(most, round(math.pow(most, rng.random())))


def sample(rng: random.Random, stream: dict[str, Any], key: int, values: Values) -> str:
    text = f"|{stream['field']}"
    if stream["is_sparse"]:
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            text += f" {rng.randrange(stream['shape'])}:{values.next(key)}"
        return text
    return text + "".join(f" {values.next(key)}" for _ in range(stream["shape"]))


def random_keys(rng: random.Random, count: int) -> list[int]:
    kind = rng.random()
    if kind < 0.5:
        return list(itertools.accumulate(rng.choice([1, 1, 1, 2, 7]) for _ in range(count)))
    if kind < 0.8:
        return rng.sample(range(3 * count), count)
    return [LARGEST_ID - key for key in rng.sample(range(3 * count), count)]


def random_file(
    rng: random.Random, values: Values, prefix: str, longest: int, is_even: bool, definer: bool, first: File | None
) -> File:
    """
    Write a valid file.

    Args:
        longest: Largest number of lines of a sequence.
        is_even: Whether all streams have the same number of samples.
        definer: Whether one stream defines the minibatch size.
        first: The file to join with; the new file has some of its keys, and its lengths if `is_even`.
    """
    made = File()
    for number in range(rng.choice([1, 1, 2, 3])):
        is_sparse = rng.random() < 0.4
        made.streams[f"{prefix}{number}"] = {
            "field": "abc"[number],
            "shape": rng.choice([1, 2, 5, 1000]) if is_sparse else rng.randint(1, 3),
            "is_sparse": is_sparse,
            "defines_mb_size": False,
        }
    streams = list(made.streams.values())
    if definer:
        rng.choice(streams)["defines_mb_size"] = True
    has_ids = rng.random() < 0.7 or (longest > 1 and rng.random() < 0.8)
    if first is None:
        keys = random_keys(rng, random_size(rng, 300))
        if rng.random() < 0.1:  # a repeated key begins another sequence
            keys += rng.choices(keys, k=1 + len(keys) // 10)
    else:
        keys = list(dict.fromkeys(first.keys))
        if rng.random() < 0.5:
            keys = [key for key in keys if rng.random() < 0.8] or keys
        if rng.random() < 0.5:
            keys += [key for key in random_keys(rng, 1 + len(keys) // 3) if key not in set(keys)]
        if rng.random() < 0.5:
            rng.shuffle(keys)
        if rng.random() < 0.2 and len(keys) < 14:  # with more than 16 sequences CNTK may use any repetition
            keys += rng.choices(keys, k=2)
        if max(keys) >= 1000 or (is_even and max(first.lengths.values()) > 1):
            has_ids = True
    if not has_ids:
        keys = list(range(len(keys)) if first is None else range(max(keys) + 1))
    keys = [key for place, key in enumerate(keys) if place == 0 or key != keys[place - 1]]
    is_skipping = definer and rng.random() < 0.4
    for key in keys:
        length = random_size(rng, longest) if has_ids else 1
        if is_even:
            length = (made if first is None else first).lengths.get(key, length)
        is_kept = not (is_skipping and made.keys and rng.random() < 0.2)
        lines, counted = lines_of(rng, streams, key, length, is_even, is_kept, values)
        for place, line in enumerate(lines):
            has_id = has_ids and (place == 0 or rng.random() < 0.8)
            made.text += (str(key) + rng.choice([" ", "\t"]) if has_id else " " * has_ids) + line + "\n"
        if is_kept:
            made.keys.append(key)
            made.num_samples += counted
            made.lengths.setdefault(key, length)
    return made


def lines_of(
    rng: random.Random,
    streams: list[dict[str, Any]],
    key: int,
    length: int,
    is_even: bool,
    is_kept: bool,
    values: Values,
) -> tuple[list[str], int]:
    """Return a sequence's lines and its length; if not `is_kept`, without the stream that defines the size."""
    longest = rng.choice([stream for stream in streams if stream["defines_mb_size"]] or streams)
    others = [stream for stream in streams if stream is not longest]
    counted = rng.randint(1, length) if longest["defines_mb_size"] and others and not is_even else length
    lines: list[list[str]] = [[] for _ in range(length)]
    for stream in streams:
        if stream["defines_mb_size"] and not is_kept:
            continue
        if is_even:
            places = list(range(length))
        elif stream is longest:
            places = sorted(rng.sample(range(length), counted))
        else:
            places = list(range(rng.randint(1, length)))
            if longest["defines_mb_size"] and rng.random() < 0.3:
                places += rng.choices(range(length), k=rng.randint(1, 2))  # several on a line
        for place in places:
            lines[place].append(sample(rng, stream, key, values))
    for items in lines:
        if not items:  # a line without a sample would be an error, if it counts
            items.append(sample(rng, rng.choice(others), key, values) if is_kept else "|unknown 1")
        if rng.random() < 0.05:
            items.insert(0, rng.choice(["|# comment ", "|other 1 2:3"]))
        rng.shuffle(items)
    return [" ".join(items) for items in lines], counted


# -- random settings for the timeline ----------------------------------------------------------------------------------


def timeline_setting(rng: random.Random, folder: Path) -> tuple[Setting, dict[float, int]]:
    values = Values()
    is_truncated = rng.random() < 0.2
    is_frame = not is_truncated and rng.random() < 0.15
    longest = 1 if is_frame else rng.choice([1, 3, 8, 8, 40])
    may_fail = rng.random() < 0.05
    if is_frame and may_fail:
        longest = 2
    is_even = (is_truncated and not may_fail) or rng.random() < 0.3
    definer = rng.choice([None, None, 0, 1])
    files = [random_file(rng, values, "first", longest, is_even, definer == 0, None)]
    if rng.random() < 0.25:
        files.append(random_file(rng, values, "second", longest, is_even, definer == 1, files[0]))
    randomize = rng.random() < 0.7
    chunk_sizes = [random_size(rng, 400), ONE_CHUNK]
    if rng.random() < 0.1 or (len(files) == 2 and not randomize and not set(files[0].keys) <= set(files[1].keys)):
        chunk_sizes[0] = ONE_CHUNK
    total = max(1, max(file.num_samples for file in files))  # roughly, if joined
    may_change = rng.random() < 0.6 and not may_fail
    source = random_source(rng, total, len(files[0].keys), randomize, may_change)
    if is_frame:
        source["frame_mode"] = True
    if is_truncated:
        source["truncation_length"] = rng.choice([1, 2, 3, 5, 8])
    deserializers = []
    for number, file in enumerate(files):
        path = folder / f"{number}.ctf"
        path.write_text(file.text)
        options = {"chunkSizeInBytes": chunk_sizes[number]}
        deserializers.append({"file": str(path), "streams": file.streams, "options": options})
    steps = random_steps(rng, total, may_change, source)
    return {"deserializers": deserializers, "source": source, "steps": steps}, values.key_of


def random_source(rng: random.Random, total: int, count: int, randomize: bool, may_change: bool) -> Record:
    source: Record = {}
    seed = rng.choice(
        [0, 1, rng.randrange(100), rng.getrandbits(32), rng.getrandbits(64), LARGEST_ID - rng.randrange(3)]
    )
    if randomize:
        if may_change and seed != 0 and rng.random() < 0.5:
            seed = 0
        if may_change and seed != 0:  # a window over all data: at least all chunks, or twice all samples
            if rng.random() < 0.5:
                source["randomization_window_in_chunks"] = max(count, 1) + rng.randrange(3)
            else:
                source["randomization_window_in_chunks"] = 0
                source["randomization_window_in_samples"] = 6 * total + 2 + rng.randrange(100)
        elif rng.random() < 0.45:
            source["randomization_window_in_chunks"] = random_size(rng, count + 3)
        elif rng.random() < 0.8:
            source["randomization_window_in_chunks"] = 0
            source["randomization_window_in_samples"] = random_size(rng, 2 * total + 3)
        if seed or rng.random() < 0.5:
            source["randomization_seed"] = seed
    elif rng.random() < 0.5:
        source["randomize"] = False
    else:
        source["randomization_window_in_chunks"] = 0
    kind = rng.random()
    if kind < 0.45:
        source["max_sweeps"] = rng.choice([1, 1, 2, 2, 3, 4, 0])
    elif kind < 0.65:
        source["max_samples"] = random_size(rng, 3 * total + 5)
    elif kind < 0.8:
        source["max_samples"] = cntkio.FULL_DATA_SWEEP
    return source


def random_steps(rng: random.Random, total: int, may_change: bool, source: Record) -> list[Record]:
    is_truncated = "truncation_length" in source
    is_limited = "max_sweeps" in source or "max_samples" in source

    def partition() -> dict[str, int]:
        partitions = rng.choice([1, 1, 2, 2, 3, 4])
        return {"partitions": partitions, "index": rng.randrange(partitions)}

    def size(now: dict[str, int]) -> int:
        if is_limited and not is_truncated and rng.random() < 0.02:
            return 2**31 - 1 - rng.randrange(3)
        most = 2 * total + 3 if rng.random() < 0.2 else total // 4 + 3
        least = source["truncation_length"] * now["partitions"] if is_truncated and rng.random() < 0.97 else 1
        return max(random_size(rng, most), least)

    def read() -> Record:
        return {"size": now_size, **now, "count": rng.choice([1, 1, 2, 3, 5, 8, 20])}

    now = partition()
    now_size = size(now)
    if not may_change:
        return [{**read(), "count": rng.choice([10, 20, 40])}]
    steps: list[Record] = []
    saved: list[str] = []
    for _ in range(rng.randint(2, 10)):
        what = rng.random()
        if what < 0.35:
            steps.append({"save": str(len(saved))})
            saved.append(str(len(saved)))
        elif what < 0.6 and saved:
            steps.append({"restore": rng.choice(saved), "fresh": rng.random() < 0.5})
        elif what < 0.65:
            state = {"minibatchSourcePosition": rng.randrange(3 * total + 2)}
            steps.append({"state": state, "fresh": rng.random() < 0.5})
        elif what < 0.85:
            before = now_size
            if rng.random() < 0.5:
                now = partition()
            now_size = size(now)
            if now_size == before:
                now_size -= 1 if now_size > 2**30 else -1  # with the old size, CNTK would keep its slots
        steps.append(read())
    return steps


# -- random texts ------------------------------------------------------------------------------------------------------

HEADS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef", b"\n \n", b" \t\v\f\r", b"\xef\xbb\xbf\n", b"\xff\xfe", b"|# head\n")
ENDS = (b"\n",) * 12 + (b"\r\n", b"\r\n", b" \n", b"\n\n", b"\r", b"")
BETWEEN = (b" ",) * 12 + (b"\t", b"", b"\x00", b"\xa0", b"\r", b"  ")
UNKNOWN = (b"|c", b"|aB 1", b"|abcd x y", b"|#", b"|## x", b"|#|# y", b"|c 1 2:3 \xff x", b"|\xc3\xa9", b"|#\xc3\xa9 z")
NASTY = (
    *(bytes([byte]) for byte in b"\x00\x01\t\n\v\f\r\x1f !#+-./019:;eE|\x7f\x80\xa0\xef\xff"),
    *b"|a,|ab ,|#,| ,||,\n\n,\r\n,1e,1.,-,:, 1:2 ,\xc2\xbd,nan,\n3 ".split(b","),
)
HARD_NUMBERS = (
    "3.4028235e38 3.4028235677973366e38 1e39 -1e39 1e309 1e400 1e99999999999999999999 18446744073709551616 1e23 "
    "16777217 16777217.0000000001 0.5236994326114654541015625 1.1754944e-38 1e-45 1e-46 5e-324 1e-400 0e400 00001.50"
).split()
REFUSED_NUMBERS = ".5 -.5 1.e5 1e 1e+ --1 0x10 nan inf 1,5 1e5.5 1.2.3 1:2 + . 1-".split()


def random_number(rng: random.Random, is_hard: bool) -> str:
    kind = rng.random()
    if is_hard and kind < 0.3:
        return rng.choice(HARD_NUMBERS)
    if is_hard and kind < 0.4:
        return f"{rng.uniform(-1, 1) * 10.0 ** rng.randint(-44, 38):.{rng.randint(1, 25)}g}"
    if kind < 0.6:
        return str(rng.randint(-999, 999))
    if kind < 0.65:
        return rng.choice(["-0", "-0.0", "+1", "1.", "-1.", "1E+05", "1e-5", "00001", "1e0"])
    return f"{rng.uniform(-1, 1) * 10.0 ** rng.randint(-6, 8):.{rng.randint(1, 9)}g}"


def random_sample(rng: random.Random, stream: Record, is_hard: bool, badness: float) -> bytes:
    text = "|" + stream["field"]
    dim = stream["shape"]
    count = rng.randint(0, 4) if stream["is_sparse"] else dim
    if rng.random() < badness:
        count = max(0, count + rng.choice([-1, -1, 1, 2]))
    for _ in range(count):
        number = rng.choice(REFUSED_NUMBERS) if rng.random() < badness / 2 else random_number(rng, is_hard)
        if stream["is_sparse"]:
            index = str(rng.choice([rng.randrange(dim), dim - 1, 0]))
            if rng.random() < badness / 2:
                index = rng.choice([str(dim), str(dim + 1), "", "-1", "1" * 11, str(2**64), "3" * 20, "000" + index])
            text += f" {index}{':' if rng.random() > badness / 4 else rng.choice(['', ' :', ': ', '::'])}{number}"
        else:
            text += (rng.choice(["", "\t", "  ", " \t "]) if rng.random() < badness else " ") + number
    return text.encode()


def random_text(rng: random.Random, streams: list[Record], is_hard: bool, badness: float) -> bytes:
    """Return a text: valid if `badness` is 0, and more broken the larger `badness` is, up to 1."""
    has_ids = rng.random() < 0.75
    lines: list[bytes] = []
    key = rng.randint(0, 4)
    for _ in range(random_size(rng, 25)):
        length = rng.choice([1, 2, 3, 4, 6]) if has_ids else 1
        longest = [stream for stream in streams if stream["defines_mb_size"]] or [rng.choice(streams)]
        counts = {s["field"]: length if s in longest else rng.randint(min(2, length), length) for s in streams}
        for place in range(length):
            items = [
                random_sample(rng, stream, is_hard, badness)
                for stream in streams
                if place < counts[stream["field"]] and rng.random() > badness / 10
            ]
            if rng.random() < badness / 4:
                items.append(random_sample(rng, rng.choice(streams), is_hard, badness))
            if rng.random() < 0.1:
                items.append(rng.choice(UNKNOWN[:7]))
            if rng.random() < badness / 4:
                items.append(rng.choice(UNKNOWN))
            rng.shuffle(items)
            line = b"".join(
                item + (rng.choice(BETWEEN) if rng.random() < max(badness, 0.05) else b" ") for item in items
            )
            if has_ids:
                start = b"" if (place > 0 and rng.random() < 0.2) or rng.random() < badness / 10 else b"%d" % key
                line = start + b" " + line
            lines.append(line + (rng.choice(ENDS) if rng.random() < badness else b"\n"))
        key = rng.randint(0, 12) if rng.random() < badness / 4 else key + rng.choice([1, 1, 1, 2])
    text = b"".join(lines)
    if rng.random() < badness / 3:
        text = rng.choice(HEADS) + text
    while rng.random() < badness / 1.5:
        place, length, put_in = rng.randrange(len(text) + 1), rng.choice([0, 0, 1, 1, 2, 5, 20]), rng.choice(NASTY)
        put_in = rng.choice([put_in, put_in, b"", text[place : place + length] * 2])
        text = text[:place] + put_in + text[place + length :]
    if rng.random() < badness / 2:
        text = text[: max(1, len(text) - rng.randrange(60))]
    elif rng.random() < 0.25:
        text = text.rstrip(b"\r\n")
    return text


def ctf_setting(rng: random.Random, folder: Path) -> Setting:
    streams = []
    for alias in rng.sample(["a", "ab", "abc", "A", "b", "x#"], rng.choice([1, 2, 2, 3])):
        is_sparse = rng.random() < 0.5
        shape = rng.choice([1, 2, 5, 10, 2**31 - 1]) if is_sparse else rng.randint(1, 4)
        streams.append({"field": alias, "shape": shape, "is_sparse": is_sparse, "defines_mb_size": False})
    if rng.random() < 0.25:
        rng.choice(streams)["defines_mb_size"] = True
    is_hard = rng.random() < 0.2
    badness = rng.choice([0, 0.01, 0.03, 0.03, 0.06, 0.1, 0.3])
    (folder / "0.ctf").write_bytes(random_text(rng, streams, is_hard, badness))
    options: Record = {"chunkSizeInBytes": rng.choice([random_size(rng, 300), ONE_CHUNK])}
    if rng.random() < 0.1:
        options["skipSequenceIds"] = True
    deserializer = {
        "file": str(folder / "0.ctf"),
        "streams": {f"stream{number}": stream for number, stream in enumerate(streams)},
        "options": options,
    }
    source = {"randomize": False, "max_sweeps": rng.choice([1, 1, 2])}
    if rng.random() < 0.25:
        source |= {"randomize": True, "randomization_window_in_chunks": rng.choice([1, 2, 3, 5, 128])}
    steps = [{"size": rng.randint(1, 12), "partitions": 1, "index": 0, "count": 80}]
    return {"deserializers": [deserializer], "source": source, "steps": steps}


# -- comparison --------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Compare one setting; return the differences and the counts of compared reads."""

    number: int
    difference: str | None = None
    num_reads: int = 0
    num_sequences: int = 0
    notes: list[str] = field(default_factory=list)


def decoded(record: Record) -> Record:
    """Return a record for display: arrays instead of base64."""
    types = {"mask": "<i1", "entries": "<i4", "indices": "<i4", "values": "<f4"}
    return {
        key: np.frombuffer(base64.b64decode(value), types[key]).tolist() if key in types and value else value
        for key, value in record.items()
    }


def as_cntk_rounds(number: bytes) -> bytes:
    """Compute a number like CNTK, step by step in float64; return the four bytes of the float32."""
    sign, whole, fraction, exponent = re.fullmatch(NUMBER, number).groups(default=b"")  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        value, part, power = np.float64(0), np.float64(0), np.float64(1)
        for digit in whole:
            value = value * 10 + (digit - 48)
        for digit in fraction:
            part, power = part * 10 + (digit - 48), power * 10
        if fraction:
            value = value + part / power
        value = -value if sign == b"-" else value
        if exponent:
            value = value * np.power(np.float64(10), np.float64(exponent))
        rounded: bytes = np.float32(value).tobytes()
    return rounded


def is_rounding(mine: Record, theirs: Record, text: bytes) -> bool:
    """Return whether two streams differ only because CNTK does not round some numbers of the text correctly."""
    if mine | {"values": None} != theirs | {"values": None}:
        return False
    here, there = (np.frombuffer(base64.b64decode(stream["values"]), "<f4") for stream in (mine, theirs))
    with np.errstate(over="ignore"):
        near = [np.nextafter(here, np.float32(end)) for end in (np.inf, -np.inf)]
    differs = here.view("<u4") != there.view("<u4")
    if not np.all(~differs | (near[0] == there) | (near[1] == there) | np.isnan(there)):
        return False
    possible = {as_cntk_rounds(match.group()) for match in re.finditer(NUMBER, text)}
    return {value.tobytes() for value in there[differs & ~np.isnan(there)]} <= possible


def difference(mine: Record, theirs: Record, outcome: Outcome, text: bytes = b"") -> str | None:
    """Describe the first difference; `text` is the text that the numbers were read from."""
    if theirs.get("died"):
        return f"CNTK died or hung; here: {mine['error'] or 'no error'}, {len(mine['reads'])} reads"
    if mine["streams"] != theirs["streams"] and not (mine["error"] and theirs["error"]):
        return f"streams: {mine['streams']} here, {theirs['streams']} in CNTK; {mine['error']}; {theirs['error']}"
    for number, (one, other) in enumerate(zip(mine["reads"], theirs["reads"], strict=False)):
        outcome.num_reads += bool(one["streams"])
        outcome.num_sequences += max((stream["counts"][0] for stream in one["streams"].values()), default=0)
        if one == other:
            continue
        names = [name for name in one["streams"] if one["streams"][name] != other["streams"].get(name)]
        if text and one["position"] == other["position"] and one["streams"].keys() == other["streams"].keys():
            names = [name for name in names if not is_rounding(one["streams"][name], other["streams"][name], text)]
            if not names:
                outcome.notes.append("reads with numbers that CNTK rounds incorrectly")
                continue
        shown = "".join(
            f"\n  {name}\n    here {decoded(one['streams'][name])}\n    CNTK {decoded(other['streams'].get(name, {}))}"
            for name in names
        )
        return f"read {number}: position {one['position']} here, {other['position']} in CNTK{shown}"
    if len(mine["reads"]) != len(theirs["reads"]) or (mine["error"] is None) != (theirs["error"] is None):
        return (
            f"{len(mine['reads'])} reads here, then {mine['error'] or 'no error'}; "
            f"{len(theirs['reads'])} in CNTK, then {theirs['error'] or 'no error'}"
        )
    if mine["error"] is not None:
        outcome.notes.append("settings that end in an error on both sides")
    return None


def compare_timeline(setting: Setting, key_of: dict[float, int], cntk: Cntk, outcome: Outcome) -> None:
    num_steps = sum(step.get("count", 0) for step in setting["steps"])
    mine = ours(setting, key_of)
    if sum(step.get("count", 0) for step in setting["steps"]) < num_steps:
        outcome.notes.append("settings cut before a first read without data")
    if mine["error"] is not None and mine["error"].startswith("WRONG KEY"):
        outcome.difference = mine["error"]
        return
    theirs = cntk.ask(setting)
    if "For BPTT sequences" in (theirs["error"] or "") and len(theirs["reads"]) < len(mine["reads"]):
        # CNTK compares the streams of a sequence when the sequence enters a slot; cntkio when it delivers the sequence.
        mine = {**mine, "reads": mine["reads"][: len(theirs["reads"])], "error": "only in CNTK"}
    elif "non-frame sequence" in (theirs["error"] or "") and ends_before_a_change(
        len(theirs["reads"]), setting["steps"]
    ):
        # The error belongs to the minibatch that CNTK fetched ahead, and the next step restores or changes the size.
        mine = {**mine, "reads": mine["reads"][: len(theirs["reads"])], "error": "only in CNTK"}
        outcome.notes.append("frame mode: CNTK raises the error of a minibatch that was fetched ahead and dropped")
    outcome.difference = difference(mine, theirs, outcome)
    for feature in features(setting):
        outcome.notes.append(f"with {feature}")


def ends_before_a_change(num_reads: int, steps: list[Record]) -> bool:
    """Return whether a step of reads ends after a number of reads, and another step that reads or restores follows."""
    ends = itertools.accumulate(step.get("count", 0) for step in steps)
    return any(end == num_reads for end, _ in zip(ends, steps[:-1], strict=False))


def features(setting: Setting) -> list[str]:
    source, steps = setting["source"], setting["steps"]
    reads = [step for step in steps if "size" in step]
    found = {
        "two files": len(setting["deserializers"]) == 2,
        "several partitions": any(read["partitions"] > 1 for read in reads),
        "restores": any("fresh" in step for step in steps),
        "changes of size or partition": len({(r["size"], r["partitions"], r["index"]) for r in reads}) > 1,
        "truncation": "truncation_length" in source,
        "frame mode": "frame_mode" in source,
        "order of the file": source.get("randomize") is False
        or source.get("randomization_window_in_chunks", 1) + source.get("randomization_window_in_samples", 0) == 0,
        "a window in samples": "randomization_window_in_samples" in source,
    }
    return [name for name, is_there in found.items() if is_there]


def is_wrapped(text: bytes) -> bool:
    """Return whether a line begins with a number of more than 64 bits."""
    return any(int(run) > LARGEST_ID for run in re.findall(rb"(?:\A\xef?\xbb?\xbf?\s*|\n)([0-9]{20,})", text))


def ends_short(text: bytes, streams: Iterable[Record]) -> bool:
    """Return whether the text may end inside a dense sample that has too few values."""
    last = text[text.rfind(b"|") + 1 :]
    if re.search(rb"[\x00-\x08\x0a-\x1f\x80-\xff]", last) is not None:
        return False
    name, *numbers = last.split() or [b""]
    return any(s["field"].encode() == name and not s["is_sparse"] and len(numbers) < s["shape"] for s in streams)


def has_nothing(text: bytes, options: Record) -> str:
    """Return how a text uses lines without content, an error in CNTK: "none", "within" sequences, or "fatal"."""
    blank = rb"[\x00-\x09\x0b-\x20]*"
    comments = rb"(?:\|#[^|\n]*)+"
    in_lines = options.get("skipSequenceIds") or text.lstrip(b"\xef\xbb\xbf \t\n\v\f\r")[:1] == b"|"
    if re.search(rb"(?m)^[0-9]+" + blank + comments + rb"$", text):
        return "fatal"
    if re.search(rb"(?m)^" + blank + rb"(?:" + comments + rb")?$", text.removesuffix(b"\n") + b"\n|x"):
        return "fatal" if in_lines else "within"
    return "none"


def compare_ctf(setting: Setting, cntk: Cntk, outcome: Outcome, rng: random.Random) -> None:
    """
    Compare a text, with an error budget near the number of its errors.

    A sequence that lacks a stream is fatal in CNTK with any budget: CNTK must raise in the first read that needs the
    chunk of such a sequence, unless cntkio raised earlier. In randomized order, CNTK counts a chunk's errors when it
    loads the window, and cntkio when it delivers a sequence of the chunk, so CNTK may raise earlier. Everything else
    must be the same.
    """
    [one] = setting["deserializers"]
    streams, options = one["streams"].values(), one["options"]
    text = Path(one["file"]).read_bytes()
    if is_wrapped(text):
        outcome.notes.append("left out: ids beyond 64 bits")
        return
    if ends_short(text, streams):
        outcome.notes.append("left out: a short last sample")
        return
    nothing = has_nothing(text, options)
    if nothing == "fatal":
        outcome.notes.append("left out: blank lines or comments that are sequences in CNTK")
        return
    options["maxErrors"] = -1
    forgiving = ours(setting, {})
    num_errors, fatal_sequences = (0, []) if forgiving["error"] is not None else errors_of(setting)
    if setting["source"]["randomize"] and (forgiving["error"] is not None or any(fatal_sequences)):
        outcome.notes.append("left out: randomized, and a sequence lacks a stream")
        return
    sweeps = setting["source"]["max_sweeps"]
    budgets = [num_errors, sweeps * num_errors, num_errors - 1, sweeps * num_errors - 1, rng.randint(0, num_errors), -1]
    options["maxErrors"] = max(-1, rng.choice(budgets)) if nothing == "none" else -1
    mine = ours(setting, {})
    if mine["reads"] != forgiving["reads"][: len(mine["reads"])]:
        outcome.difference = f"the budget {options['maxErrors']} changes what cntkio reads"
        return
    done = 0
    is_fatal = False
    for number, read in enumerate(mine["reads"]):
        count = max((stream["counts"][0] for stream in read["streams"].values()), default=0)
        if any(fatal_sequences[done : done + count]):
            is_fatal = True
            mine = {**mine, "reads": mine["reads"][:number], "error": "a sequence lacks a stream: fatal in CNTK"}
            break
        done += count
    theirs = cntk.ask(setting)
    if setting["source"]["randomize"] and num_errors and len(theirs["reads"]) < len(mine["reads"]) and theirs["error"]:
        mine = {**mine, "reads": mine["reads"][: len(theirs["reads"])], "error": "only in CNTK"}
        outcome.notes.append("randomized texts whose errors exceed the budget earlier in CNTK")
    outcome.difference = difference(mine, theirs, outcome, text)
    if forgiving["error"] is not None:
        kind = "refused as a whole"
    elif is_fatal:
        kind = "with a sequence that lacks a stream"
    elif num_errors:
        kind = "with errors beyond the budget" if mine["error"] else "with errors within the budget"
    else:
        kind = "without an error"
    outcome.notes.append(f"files {kind}")


def errors_of(setting: Setting) -> tuple[int, list[bool]]:
    """Count a file's errors, and return for each sequence whether its chunk has a sequence that lacks a stream."""
    corpus = deserializers_of(setting)[0].open()
    num_errors = 0
    fatal: list[bool] = []
    for number in range(corpus.table.num_chunks):
        before = dict(corpus.report.errors)
        corpus.account_for(corpus.load(number))
        new = {kind: count - before.get(kind, 0) for kind, count in corpus.report.errors.items()}
        num_errors += sum(count for kind, count in new.items() if kind not in WARNINGS)
        first, last = corpus.table.chunk_starts[number : number + 2]
        fatal += [new.get(FATAL_IN_CNTK, 0) > 0] * int(last - first)
    corpus.close()
    return num_errors, fatal


def one(arguments: argparse.Namespace, number: int, cntk: Cntk) -> Outcome:
    rng = random.Random(f"{'ctf' if arguments.ctf else 'timeline'} {arguments.seed} {number}")
    outcome = Outcome(number)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.ctf:
            setting = ctf_setting(rng, Path(folder))
        else:
            setting, key_of = timeline_setting(rng, Path(folder))
        if arguments.only is not None:
            for path in sorted(Path(folder).iterdir()):
                print(f"{path.name}: {path.read_bytes()!r}")
            print(json.dumps(setting, indent=1))
        if arguments.ctf:
            compare_ctf(setting, cntk, outcome, rng)
        else:
            compare_timeline(setting, key_of, cntk, outcome)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Conditions of all settings:\n" + "\n".join(f"  {name}: {reason}" for name, reason in AVOIDED.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cntk", required=True, metavar="PYTHON", help="an interpreter with CNTK 2.7")
    parser.add_argument("--ctf", action="store_true", help="compare texts instead of timelines")
    parser.add_argument("--settings", type=int, default=2000, help="number of settings")
    parser.add_argument("--first", type=int, default=0, help="number of the first setting")
    parser.add_argument("--seed", type=int, default=1, help="seed of all settings")
    parser.add_argument("--workers", type=int, default=2, help="processes of CNTK")
    parser.add_argument("--only", type=int, help="show and compare only the setting of this number")
    arguments = parser.parse_args()
    logging.getLogger("cntkio").setLevel(logging.CRITICAL)
    numbers = range(arguments.first, arguments.first + arguments.settings)
    if arguments.only is not None:
        numbers = range(arguments.only, arguments.only + 1)
    engines: SimpleQueue[Cntk] = SimpleQueue()
    all_engines = [Cntk(arguments.cntk) for _ in range(min(arguments.workers, len(numbers)))]
    for engine in all_engines:
        engines.put(engine)

    def work(number: int) -> Outcome:
        engine = engines.get()
        try:
            return one(arguments, number, engine)
        finally:
            engines.put(engine)

    start = time.monotonic()
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(len(all_engines)) as workers:
        for outcome in workers.map(work, numbers):
            outcomes.append(outcome)
            if outcome.difference is not None:
                print(f"setting {outcome.number}: {outcome.difference}", flush=True)
            if len(outcomes) % 100 == 0:
                print(f"{len(outcomes)} of {len(numbers)}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    for engine in all_engines:
        engine.close()
    notes = collections.Counter(note for outcome in outcomes for note in set(outcome.notes))
    different = [outcome.number for outcome in outcomes if outcome.difference is not None]
    print(f"{len(outcomes)} settings, {sum(outcome.num_reads for outcome in outcomes)} reads, ", end="")
    print(f"{sum(outcome.num_sequences for outcome in outcomes)} sequences, {time.monotonic() - start:.0f} s")
    for note, count in sorted(notes.items()):
        print(f"  {count} {note}")
    print(f"{len(different)} settings differ" + (f": {different}" if different else ""))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

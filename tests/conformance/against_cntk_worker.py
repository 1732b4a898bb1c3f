"""Minibatches of CNTK 2.7 on request: a JSON object per line in and out. against_cntk.py starts it in Python 3.6.

{"deserializers": [{"file", "streams": {name: {StreamDef's arguments}}, "options"}], "source": {MinibatchSource's
 arguments}, "steps": [{"size", "partitions", "index", "count"} | {"save"} | {"restore" or "state", "fresh"}]}
->  {"streams": {name: [is sparse, shape]}, "reads": [{"position", "streams"}], "error": text or null}

A stream of a read is {"counts": [sequences, samples], "end_of_sweep"}, and, if it has data,
    dense      "shape", "mask", "values": the padded array
    sparse     "lengths", "mask", "entries" (of each sample), "indices", "values": all as the engine stores them
    truncated  "slots", "steps", "parts": [slot, begin, end] each, "values": inside the minibatch, part after part
Arrays are base64 of little endian int8 (mask), int32 (entries, indices) and float32 (values).
"""

import base64
import ctypes
import json
import os
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # CNTK also prints to standard output
import cntk.io  # noqa: E402
import numpy as np  # noqa: E402
from cntk import cntk_py  # noqa: E402

cntk.device.try_set_default_device(cntk.device.cpu())
CPU = cntk.device.cpu()
CORE = ctypes.CDLL(str(Path(cntk.__file__).parent / "libs" / "libCntk.Core-2.7.so"))
# std::tuple<const float*, const int*, const int*, size_t> NDArrayView::SparseCSCDataBuffers<float>() const. The tuple
# is returned in memory, its last member first.
COLUMNS_OF = CORE["_ZNK4CNTK11NDArrayView20SparseCSCDataBuffersIfEESt5tupleIJPKT_PKiS7_mEEv"]
COLUMNS_OF.restype, COLUMNS_OF.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
# Places of the data and of the layout in a packed Value, in words (shared pointers) from its start.
PACKED_DATA, PACKED_LAYOUT = 18, 20
SEQUENCE_INFO = 4  # words per sequence of a layout: number, slot, begin, end
GAP = -1


def text_of(array, dtype):
    return base64.b64encode(np.ascontiguousarray(array, dtype).tobytes()).decode()


def word(address):
    return ctypes.c_int64.from_address(address)


def array_at(address, count, dtype):
    if count == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(ctypes.string_at(address, count * np.dtype(dtype).itemsize), dtype)


def shape_of(info):
    return [int(size) for size in reversed(info.m_sample_layout.dimensions())]  # the engine is column-major


def sparse_parts(value, variable):
    lengths, entries, indices, values = [], [], [], []
    for sequence in value.unpack_variable_value(variable, True, CPU)[0]:
        length = int(sequence.shape().dimensions()[0])
        count_rows_columns_values = (ctypes.c_int64 * 4)()
        COLUMNS_OF(ctypes.addressof(count_rows_columns_values), word(int(sequence.this)).value)
        _, rows, columns, numbers = count_rows_columns_values
        starts = array_at(columns, length + 1, np.int32)
        count = int(starts[-1] - starts[0])
        lengths.append(length)
        entries.append(np.diff(starts))
        indices.append(array_at(rows, count, np.int32))
        values.append(array_at(numbers, count, np.float32))
    return {
        "lengths": lengths,
        "entries": text_of(np.concatenate(entries), np.int32),
        "indices": text_of(np.concatenate(indices), np.int32),
        "values": text_of(np.concatenate(values), np.float32),
    }


def truncated_parts(value):
    # The Python interface refuses incomplete sequences, so read the packed value in place.
    packed = word(int(value.this)).value
    layout = word(packed + 8 * PACKED_LAYOUT).value
    steps, slots, first, last = [word(layout + 8 * place).value for place in range(4)]
    borrowed = cntk.NDArrayView.from_dense(np.zeros((1,), np.float32))
    pointer = word(int(borrowed.this))
    own, pointer.value = pointer.value, word(packed + 8 * PACKED_DATA).value
    try:
        cells = np.array(borrowed.to_ndarray()).reshape(steps * slots, -1)
    finally:
        pointer.value = own
    parts = []
    for at in range(first, last, 8 * SEQUENCE_INFO):
        number, slot, begin, end = [word(at + 8 * place).value for place in range(SEQUENCE_INFO)]
        if number != GAP:
            parts.append([slot, begin, end])
    parts.sort()
    rows = [cells[step * slots + slot] for slot, begin, end in parts for step in range(max(begin, 0), min(end, steps))]
    values = np.concatenate(rows) if rows else np.zeros(0)
    return {"slots": slots, "steps": steps, "parts": parts, "values": text_of(values, np.float32)}


def stream_of(data, variable, is_truncated):
    record = {
        "counts": [int(data.number_of_sequences), int(data.number_of_samples)],
        "end_of_sweep": bool(data.sweep_end),
    }
    value = data.data
    if value is None:
        return record
    if is_truncated:
        record.update(truncated_parts(value))
        return record
    value.__class__ = cntk.Value  # the bare binding lacks the Python conveniences
    has_mask = super(cntk.Value, value).mask() is not None
    record["mask"] = text_of(value.mask, np.int8) if has_mask else None
    if value.is_sparse:
        record.update(sparse_parts(value, variable))
    else:
        array = value.asarray()
        record["shape"] = list(array.shape)
        record["values"] = text_of(array, np.float32)
    return record


def source_of(deserializers, source):
    made = []
    for one in deserializers:
        streams = cntk.io.StreamDefs(
            **{name: cntk.io.StreamDef(**arguments) for name, arguments in one["streams"].items()}
        )
        deserializer = cntk.io.CTFDeserializer(one["file"], streams)
        for key, value in one["options"].items():
            deserializer[key] = cntk_py.DictionaryValue(value)
        made.append(deserializer)
    return cntk.io.MinibatchSource(made, **source)


def answer(deserializers, source, steps):
    result = {"streams": {}, "reads": [], "error": None}
    saved, variables = {}, {}
    try:
        reader = source_of(deserializers, source)
        for info in reader.stream_infos():
            is_sparse = info.m_storage_format != cntk_py.StorageFormat_Dense
            result["streams"][info.m_name] = [is_sparse, shape_of(info)]
            variables[info.m_name] = cntk.sequence.input_variable(
                shape=tuple(shape_of(info)), is_sparse=is_sparse, dtype=np.float32
            )
        for step in steps:
            if "save" in step:
                saved[step["save"]] = dict(reader.get_checkpoint_state())
                continue
            if "size" not in step:
                if step["fresh"]:
                    reader = source_of(deserializers, source)
                reader.restore_from_checkpoint(step["state"] if "state" in step else saved[step["restore"]])
                continue
            for _ in range(step["count"]):
                minibatch = reader.next_minibatch(
                    step["size"], num_data_partitions=step["partitions"], partition_index=step["index"]
                )
                streams = {
                    info.m_name: stream_of(data, variables[info.m_name], bool(source.get("truncation_length")))
                    for info, data in minibatch.items()
                }
                position = int(dict(reader.get_checkpoint_state())["minibatchSourcePosition"])
                result["reads"].append({"position": position, "streams": streams})
                minibatch = None  # release it before the engine reuses the memory of sparse values
    except Exception as error:  # the message is part of the answer
        result["error"] = str(error).split("\n")[0]
    return result


for line in sys.stdin:
    answers.write(json.dumps(answer(**json.loads(line))) + "\n")
    answers.flush()

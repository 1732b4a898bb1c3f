"""A program whose types are right; it runs from the root of a clone, with a folder to write to as its argument."""

import sys
from pathlib import Path

import cntkio as C
import numpy as np
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFDeserializer,
    Minibatch,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamDef,
    StreamDefs,
    StreamInformation,
    TruncatedMinibatchData,
    infer_streams,
    read_ctf,
    write_cbf,
    write_ctf,
)

folder = Path(sys.argv[1])
path = Path("examples/digits/train.ctf")
streams = StreamDefs(x=StreamDef(field="pixels", shape=(8, 8)), y=StreamDef(field="label", shape=10))

corpora = [CTFDeserializer(file, streams, chunk_size_in_bytes=1 << 16, max_errors=3) for file in (path, str(path))]
write_cbf(folder / "digits.cbf", corpora[0])
write_ctf(folder / "digits.ctf", CBFDeserializer(folder / "digits.cbf", StreamDefs(x=StreamDef(field="x"))))

source = MinibatchSource([corpora[0]], max_sweeps=1, randomize=False)
minibatch = source.next_minibatch(100)
print(minibatch.end_of_sweep, minibatch.num_sequences, minibatch.keys_of_sequences[:3])
data = minibatch["x"]
print(data.values.sum(), data.offsets[-1], data.lengths.max(), data.shape, data.asarray().dtype, data.data.shape)
print(minibatch[source.streams.x].num_samples, minibatch[source["y"]].is_sparse, minibatch.get("z"))
print({name: stream.num_samples for name, stream in minibatch.items()})
by_input = source.next_minibatch(100, input_map={1: source.streams.x, 2: source["y"]})
print(by_input[1].values.shape, by_input[2].as_sequences()[0])
for rest in source.minibatches(512, num_data_partitions=2, partition_index=0):
    print(rest["y"].num_samples, rest.end_of_sweep)
end: Minibatch = source.next_minibatch(1)
print(not end, end.end_of_sweep, end.num_sequences, len(end.keys_of_sequences))

source.restore_from_checkpoint(source.get_checkpoint_state())
source.load_state_dict(source.state_dict())
info: StreamInformation = source["x"]
print(info.shape, info.dtype, info.name, info.is_sparse)

whole: Minibatch = read_ctf(path)
print(whole["pixels"].values.shape, infer_streams(path).pixels.dim)

with MinibatchSource(corpora[1], truncation_length=5) as truncated:
    part = truncated.next_minibatch(10)["x"]
    if isinstance(part, TruncatedMinibatchData):
        print(part.continues, part.mask.sum())

features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(shape=33, context=(5, 5), scp=folder / "train.scp")))
labels = HTKMLFDeserializer(folder / "states.list", StreamDefs(s=StreamDef(shape=132, mlf=folder / "train.mlf")))
print(features.streams.f.context, labels.streams.s.mlf)

arrays = MinibatchSourceFromData({"x": np.ones((3, 2), np.float32)}, max_samples=C.FULL_DATA_SWEEP)
print(arrays.next_minibatch(2)["x"].values.shape, C.__version__, C.io.MinibatchSource is MinibatchSource)

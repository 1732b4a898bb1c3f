"""A program with a mistake in each line that ends with "wrong"."""

from pathlib import Path

import cntkio
from cntkio import CBFDeserializer, CTFDeserializer, MinibatchSource, StreamDef, StreamDefs, read_ctf, write_ctf

streams = StreamDefs(x=StreamDef(field="x", shape=2))
corpus = CTFDeserializer("a.ctf", streams)
CTFDeserializer("a.ctf", streams, max_error=3)  # wrong
CTFDeserializer("a.ctf", streams, max_errors="3")  # wrong
CBFDeserializer("a.cbf", streams, keep_in_memory=True)  # wrong
StreamDef(feild="x")  # wrong
StreamDef(field="x", shape="2")  # wrong
StreamDef(field="x").dimm  # wrong

source = MinibatchSource(corpus)
MinibatchSource(corpus, max_sweep=1)  # wrong
MinibatchSource("a.ctf")  # wrong
MinibatchSource(Path("a.ctf"))  # wrong
source.next_minibach(3)  # wrong
source.next_minibatch("3")  # wrong
source.minibatches("3")  # wrong
source["x"].nme  # wrong

minibatch = source.next_minibatch(100)
minibatch.end_of_swep  # wrong
minibatch["x"].vlues  # wrong
minibatch["x"].offset  # wrong
minibatch[1.5]  # wrong
source.next_minibatch(100, input_map={"a": source["x"]})["a"].valeus  # wrong

read_ctf(3)  # wrong
write_ctf("b.ctf", corpus, max_eror=3)  # wrong
cntkio.MinibatchSorce  # wrong
cntkio.io.Trainer  # wrong

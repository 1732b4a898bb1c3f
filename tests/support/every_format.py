"""Write a small corpus in every format, and read it in every way.

python every_format.py FOLDER NAME ...     without these functions of `os` and these modules, as on other systems
"""

import itertools
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np


def everything_read(folder: Path) -> list[list[float]]:
    """Return the values that each way of reading delivers."""
    from cntkio import (
        CBFDeserializer,
        CTFDeserializer,
        HTKFeatureDeserializer,
        HTKMLFDeserializer,
        HTKMLFReader,
        MinibatchSource,
        StreamDef,
        StreamDefs,
        read_ctf,
    )
    from cntkio.cli import main
    from cntkio.convert import write_cbf, write_ctf

    streams = StreamDefs(x=StreamDef(field="x", shape=2), y=StreamDef(field="y", shape=3, is_sparse=True))
    text, binary, again = folder / "a text.ctf", folder / "a binary.cbf", folder / "written again.ctf"
    text.write_bytes(b"7 |x 1 2 |y 1:4\r\n7 |x 3 4\r\n9 |x 5 6 |y 2:1\r\n")
    write_cbf(binary, CTFDeserializer(text, streams))
    write_ctf(again, CBFDeserializer(binary))
    assert b"\r" not in again.read_bytes()
    assert (
        main(["convert", "--to", "ctf", "--input", str(binary), "--output", str(folder / "from the command.ctf")]) == 0
    )
    assert (folder / "from the command.ctf").read_bytes() == again.read_bytes()

    (folder / "frames.mfc").write_bytes(struct.pack(">iihh8f", 4, 100000, 8, 9, *range(8)))
    (folder / "a list.scp").write_bytes(f"u={folder / 'frames.mfc'}[0,3]\r\n".encode())
    (folder / "labels.mlf").write_bytes(b'#!MLF!#\r\n"u.lab"\r\n0 300000 one\r\n300000 400000 two\r\n.\r\n')
    (folder / "states").write_bytes(b"one\r\ntwo\r\n")
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(scp=str(folder / "a list.scp"), shape=2)))
    labels = StreamDefs(l=StreamDef(mlf=str(folder / "labels.mlf"), shape=2))
    config = folder / "a config.cntk"
    stream = "[ x = [ dim = 2 ; format = dense ] ]"
    section = (
        f'maxSweeps = 1 ; reader = [ file = "{text}" ; randomize = false ; skipSequenceIds = false ; input = {stream} ]'
    )
    config.write_bytes(f"train = [\r\n{section}\r\n]\r\n".encode())
    sources = [
        MinibatchSource(CTFDeserializer(text, streams, chunk_size_in_bytes=16), max_sweeps=1, randomize=False),
        *(MinibatchSource(CTFDeserializer(text, streams, cache_index=True), max_sweeps=1) for _ in range(2)),
        *(MinibatchSource(CBFDeserializer(binary, memory_map=is_mapped), max_sweeps=1) for is_mapped in (True, False)),
        MinibatchSource([features, HTKMLFDeserializer(str(folder / "states"), labels)], max_sweeps=1),
        HTKMLFReader([features], readMethod="rollingWindow", pageFilePath=folder, page_limit_in_bytes=1, max_sweeps=2),
        MinibatchSource.from_config(config, section="train/reader"),
    ]
    minibatches = [list(itertools.islice(source.minibatches(3), 9)) for source in sources]
    read = [np.concatenate([data.values.ravel() for one in whole for data in one.values()]) for whole in minibatches]
    return [values.tolist() for values in (*read, read_ctf(again)["x"].values)]


if __name__ == "__main__":
    for name in sys.argv[2:]:
        if hasattr(os, name):
            delattr(os, name)
        sys.modules[name] = None  # type: ignore[assignment]
    print(json.dumps(everything_read(Path(sys.argv[1]))))

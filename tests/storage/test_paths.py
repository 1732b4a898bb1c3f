"""Every format is read and written under paths that are not UTF-8."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    HTKMLFReader,
    MinibatchSource,
    StreamDef,
    StreamDefs,
)
from cntkio.formats import htk, mlf

UTTERANCES = [(f"u{n}", np.full((3, 2), n)) for n in range(4)]
CLASSES = [(key, np.zeros(3, int)) for key, _ in UTTERANCES]


@pytest.fixture
def unusual_folder(tmp_path: Path) -> str:
    """A folder with a file of each format."""
    made = str(tmp_path / os.fsdecode(b"f\xff\xfe r"))
    Path(made).mkdir()
    Path(made, "a.ctf").write_text("".join(f"{n} |x {n} {n}\n" for n in range(4)))
    cntkio.write_cbf(f"{made}/a.cbf", text(made))
    htk.write_archive(f"{made}/a.ark", f"{made}/a.scp", UTTERANCES)
    htk.write_features(f"{made}/u0.mfc", UTTERANCES[0][1])
    Path(made, "dots.scp").write_text("u0=.../u0.mfc\n")
    Path(made, "short.scp").write_text("u0=u0.mfc[0,2]\n")
    mlf.write_mlf(f"{made}/a.mlf", CLASSES, ["a"])
    mlf.write_binary_mlf(f"{made}/a.bmlf", CLASSES)
    mlf.write_mapping(f"{made}/states", ["a"])
    return made


def text(folder: str, **options: Any) -> CTFDeserializer:
    return CTFDeserializer(f"{folder}/a.ctf", StreamDefs(x=StreamDef(field="x", shape=2)), **options)


def features(folder: str, name: str = "a.scp", **options: Any) -> HTKFeatureDeserializer:
    return HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp=f"{folder}/{name}", shape=2)), **options)


def labels(folder: str, **options: Any) -> HTKMLFDeserializer:
    streams = StreamDefs(L=StreamDef(mlf=f"{folder}/a.mlf", shape=1))
    return HTKMLFDeserializer(f"{folder}/states", streams, **options)


@pytest.mark.parametrize(
    ("deserializers", "expected"),
    [
        (lambda unusual_folder: [text(unusual_folder)], 4),
        (lambda unusual_folder: [text(unusual_folder, cache_index=True)], 4),
        (lambda unusual_folder: [CBFDeserializer(f"{unusual_folder}/a.cbf")], 4),
        (lambda unusual_folder: [features(unusual_folder)], 4),
        (lambda unusual_folder: [features(unusual_folder, "dots.scp")], 1),
        (lambda unusual_folder: [features(unusual_folder, "short.scp", prefix=unusual_folder)], 1),
        (lambda unusual_folder: [features(unusual_folder), labels(unusual_folder)], 4),
        (lambda unusual_folder: [features(unusual_folder), labels(unusual_folder, cache_index=True)], 4),
        (
            lambda unusual_folder: [
                features(unusual_folder),
                HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf=f"{unusual_folder}/a.bmlf", shape=1))),
            ],
            4,
        ),
    ],
    ids=["ctf", "cached", "cbf", "scp", "dots", "prefix", "mlf", "cached mlf", "binary mlf"],
)
def test_files_under_any_path_are_read(
    deserializers: Callable[[str], list[Any]], expected: int, unusual_folder: str
) -> None:
    for _ in range(2):
        with MinibatchSource(deserializers(unusual_folder), max_sweeps=1) as source:
            assert source.next_minibatch(100).num_sequences == expected
            assert json.dumps(source.state_dict())


def test_configurations_and_page_files_may_have_any_path(unusual_folder: str) -> None:
    streams = "input = [ x = [ dim = 2 ; format = dense ] ]"
    Path(unusual_folder, "a.cntk").write_bytes(
        os.fsencode(f'train = [ reader = [ file = "{unusual_folder}/a.ctf" ; {streams} ] ]')
    )
    with MinibatchSource.from_config(f"{unusual_folder}/a.cntk") as source:
        assert source.next_minibatch(4).num_sequences == 4
    with HTKMLFReader(
        [features(unusual_folder)],
        readMethod="rollingWindow",
        randomize=2,
        pageFilePath=unusual_folder,
        page_limit_in_bytes=0,
    ) as reader:
        assert sum(minibatch.num_sequences for minibatch in reader.epoch(0, 100)) == 12

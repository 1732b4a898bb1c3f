"""Advice in an error can be followed where the error arose: in the words of the call, and with keys as text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio import (
    ConfigError,
    CorpusError,
    CTFDeserializer,
    HTKFeatureDeserializer,
    MinibatchSource,
    StreamDef,
    StreamDefs,
    arrow,
)
from cntkio.cli import main

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed")


P = StreamDefs(p=StreamDef(field="p", shape=1))
UNKNOWN_SHAPE = pa.table({"x": pa.array([[[1.0, 2.0]], [[3.0, 4.0]]], pa.list_(pa.list_(pa.float32())))})


@pytest.fixture
def texts_and_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(("a.ctf", "b.ctf")):
        Path(name).write_text(f"{index} |p {index}\n")
    cntkio.write_htk_features("u.mfc", np.zeros((4, 2), np.float32))
    Path("u.scp").write_text("1=u.mfc[0,3]\nü=u.mfc[0,2]\n")
    return tmp_path


def test_pieces_of_a_corpus_are_one_deserializer(texts_and_features: Path) -> None:
    with pytest.raises(ConfigError, match="give one deserializer with a list of paths or a pattern; or else rename"):
        MinibatchSource([CTFDeserializer("a.ctf", P), CTFDeserializer("b.ctf", P)])
    assert MinibatchSource(CTFDeserializer(["a.ctf", "b.ctf"], P)).num_sequences == 2


def test_the_command_advises_a_pattern(texts_and_features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("b.ctf").write_text("0 |p 1\n")
    assert main(["check", "--join", "a.ctf", "b.ctf"]) == 1
    assert "give a pattern in quotes" in capsys.readouterr().out


def test_streams_of_one_name_in_different_corpora_are_renamed(texts_and_features: Path) -> None:
    other = StreamDefs(p=StreamDef(field="p", shape=1), r=StreamDef(field="q", shape=1))
    with pytest.raises(ConfigError, match=r"in a.ctf and in b.ctf; rename one of them$"):
        MinibatchSource([CTFDeserializer("a.ctf", P), CTFDeserializer("b.ctf", other)])
    cntkio.write_cbf("b.cbf", {"p": np.ones((1, 1), np.float32)})
    for second in (cntkio.CBFDeserializer("b.cbf"), CTFDeserializer("a.ctf", P)):  # another format, the same file
        with pytest.raises(ConfigError, match=r"; rename one of them$"):
            MinibatchSource([CTFDeserializer("a.ctf", P), second])


WRITERS: list[Callable[[Any], None]] = [
    lambda data: cntkio.write_ctf("o.ctf", data),
    lambda data: cntkio.write_cbf("o.cbf", data),
    lambda data: cntkio.write_kaldi("o.ark", data),
    lambda data: cntkio.write_ctf("o*.ctf", data, max_file_size=100),
]


@pytest.mark.parametrize("write", WRITERS)
def test_the_advice_of_a_writer_about_shapes_can_be_followed(
    texts_and_features: Path, write: Callable[[Any], None]
) -> None:
    with pytest.raises(ConfigError, match=r"add shapes=\{'x': \.\.\.\} to cntkio\.arrow\.read, and write its result"):
        write(UNKNOWN_SHAPE)
    write(arrow.read(UNKNOWN_SHAPE, shapes={"x": 2}))
    with pytest.raises(ConfigError, match=r"add shapes=\{'x': \.\.\.\}$"):
        write(arrow.read(UNKNOWN_SHAPE))


@pytest.mark.parametrize("options", [{"truncation_length": 2}, {"frame_mode": True}, {"strict": True}])
@pytest.mark.parametrize("key", ["1", "ü"])
def test_keys_in_messages_are_text(texts_and_features: Path, options: dict[str, Any], key: str) -> None:
    Path("u.scp").write_text(f"{key}=u.mfc[0,3]\nother=u.mfc[0,2]\n" * (1 + ("strict" in options)))
    cntkio.write_ctf("l.ctf", {"l": [np.ones((2, 1))]})
    Path("l.ctf").write_text("".join(f"{1} |l {value}\n" for value in (3, 4)))
    features = HTKFeatureDeserializer(StreamDefs(f=StreamDef(shape=2, scp="u.scp")))
    text = CTFDeserializer("l.ctf", StreamDefs(l=StreamDef(field="l", shape=1)))
    with pytest.raises((CorpusError, ConfigError)) as caught:
        MinibatchSource([text, features], max_sweeps=1, **options).next_minibatch(4)
    assert "b'" not in str(caught.value)

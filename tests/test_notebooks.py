"""Notebooks run and reproduce their stored outputs, which are bounded, escaped and self-contained."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cntkio import (
    CBFDeserializer,
    CTFDeserializer,
    HTKMLFDeserializer,
    Minibatch,
    MinibatchData,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
    Vocabulary,
)
from cntkio.survey.findings import Finding, Findings
from support import ROOT, builders, notebooks

NOTEBOOKS = sorted(ROOT.glob("examples/**/*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.parametrize("folder", [".", "examples"])  # Jupyter starts a notebook in its own folder
def test_a_notebook_runs_and_shows_what_it_stores(notebook: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / folder)
    assert notebooks.run(notebook) == notebooks.cells(notebook)


class Page(HTMLParser):
    """The text of HTML, and its elements; it fails for an element that is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: set[str] = set()
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.elements.add(tag)
        assert {name for name, _ in attrs} <= {"style", "colspan"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


class Endless(UserDeserializer):
    def stream_infos(self) -> list[StreamInformation]:
        return [StreamInformation("u", 0, "dense", np.float32, (2,))]

    def num_chunks(self) -> int:
        return 1

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        return {"u": [np.ones((1, 2), np.float32)]}


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, Any]:
    """Return everything that a notebook shows, by name."""
    path = tmp_path / "<b>.ctf"
    path.write_bytes(builders.corpus_text([1, 2, 3]))
    source = builders.source_of(path, max_sweeps=1)
    minibatch = source.next_minibatch(4)
    findings = Findings(9)
    findings.add(Finding("bad-number", "'<' in a number \x1b[2J", str(path), 7, 1, 8, 1, "x"))
    dense = CTFDeserializer(path, StreamDefs(x=builders.STREAMS.x))
    return {
        "definitions": builders.STREAMS,
        "text": CTFDeserializer(path, builders.STREAMS),
        "binary": CBFDeserializer(path),
        "labels": HTKMLFDeserializer("a.list", StreamDefs(y=StreamDef(mlf="a.mlf", shape=3))),
        "source": source,
        "endless source": MinibatchSource(Endless()),
        "source of arrays": MinibatchSourceFromData({"x": np.ones((3, 2))}),
        "minibatch": minibatch,
        "stream": minibatch["x"],
        "empty minibatch": Minibatch({}, lambda: np.empty(0)),
        "closed source": _closed(builders.source_of(path)),
        "truncated minibatch": MinibatchSource(dense, truncation_length=2).read(4),
        "plan": source.plan(4),
        "steps": source.plan(4).steps(2),
        "explained step": source.plan(4).explain(0),
        "vocabulary": Vocabulary({1: "<i>"}, 3, 1, {1: {"</table>": 1}}),
        "findings": findings,
    }


def _closed(source: MinibatchSource) -> MinibatchSource:
    source.close()
    return source


def test_everything_that_a_notebook_shows_is_escaped_and_complete(shown: dict[str, Any]) -> None:
    for name, thing in shown.items():
        page = Page(thing._repr_html_())
        assert page.elements <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}, name
        assert len(repr(thing)) < 1000 and "object at 0x" not in repr(thing), name
        assert '<caption style="text-align: left; white-space: nowrap">' in thing._repr_html_(), name
    assert "<b>.ctf" in Page(shown["text"]._repr_html_()).text


def test_descriptions_say_what_things_are_and_how_large(shown: dict[str, Any]) -> None:
    assert repr(shown["source"]).splitlines() == [
        "MinibatchSource: 3 sequences of 6 samples in 1 chunk; randomized, samples 0 to 6",
        "  s  sparse float32 [1000]",
        "  x  dense float32 [2]",
    ]
    assert repr(shown["minibatch"]).splitlines()[1:] == [
        f"  s  sparse float32 [1000]  {shown['minibatch']['s'].num_samples} samples",
        f"  x  dense float32 [2]      {shown['minibatch']['x'].num_samples} samples",
    ]
    assert repr(shown["empty minibatch"]) == "Minibatch: empty"
    assert repr(shown["steps"]).splitlines() == [
        "2 steps, 14% padding",
        "  step  position  sequences  samples  padded",
        "  0     3         2          3        4",
        "  1     6         1          3        3",
    ]
    assert repr(shown["explained step"]).splitlines()[1].split() == ["key", "first", "sample", "samples", "place"]
    assert "without end" in repr(shown["endless source"])
    assert "samples: x 3" in repr(shown["source of arrays"])


def test_a_description_of_many_streams_is_bounded() -> None:
    stream = StreamInformation("x" * 500 + "\x1b[2J", 0, "dense", np.float32, (1,))
    data = MinibatchData(stream, np.ones((1, 1), np.float32), np.array([0, 1]))
    minibatch = Minibatch({f"s{number}": data for number in range(500)}, lambda: np.zeros(1, np.uint64))
    assert len(repr(minibatch).splitlines()) == 22 and "and 480 more" in repr(minibatch)
    assert max(map(len, repr(minibatch).splitlines())) < 250 and "\x1b" not in repr(minibatch)
    assert len(minibatch._repr_html_()) < 20_000


def test_findings_and_vocabularies_of_any_size_are_bounded() -> None:
    findings = Findings(10_000)
    for number in range(5000):
        findings.add(Finding("stray-text", "x" * 500, "a.ctf", stream=str(number)))
    words = dict.fromkeys(range(5000), "word" * 100)
    vocabulary = Vocabulary(words, 5000, 10**6, {7: {f"other{number}": 1 for number in range(10**5)}})
    for thing in (findings, vocabulary):
        assert len(repr(thing).splitlines()) == 22 and "and 4,980 more" in repr(thing)
        assert len(thing._repr_html_()) < 20_000


def test_findings_are_numbered_in_the_order_of_places() -> None:
    findings = Findings(9)
    for byte in (7, 3):
        findings.add(Finding("stray-text", "x" * byte, "a.ctf", byte))
    assert findings[0] is next(iter(findings)) and (findings[0].byte, findings[-1].byte) == (3, 7)
    with pytest.raises(IndexError):
        findings[2]


def test_keys_are_completed_by_the_names_of_streams(shown: dict[str, Any]) -> None:
    for thing in (shown["source"], shown["minibatch"], shown["source"].streams, shown["definitions"]):
        assert sorted(thing._ipython_key_completions_()) == ["s", "x"]


def test_a_stream_definition_prints_the_call_that_makes_it() -> None:
    streams = builders.STREAMS
    assert eval(repr(streams)) == streams and re.match(r"StreamDefs\(x=StreamDef\(field='x', shape=2\)", repr(streams))

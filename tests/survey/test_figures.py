"""Figures of corpora agree with NumPy's figures of the whole arrays, and their page is self-contained."""

import json
import re
import xml.etree.ElementTree as ET
from contextlib import closing
from pathlib import Path
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio.cli import main
from cntkio.survey import blocks
from cntkio.survey.figures import QUANTILES, Figures, figures
from cntkio.survey.pictures import bars, page

pytestmark = pytest.mark.usefixtures("current_folder")


def figures_of(path: str, **options: Any) -> Figures:
    deserializer = cntkio.CTFDeserializer(path, cntkio.infer_streams(path), **options)
    with closing(deserializer.open()) as corpus:
        return figures(corpus, blocks(corpus))


def write_corpus(num_sequences: int = 500) -> None:
    generator = np.random.default_rng(3)
    with Path("a.ctf").open("w") as file:
        for sequence in range(num_sequences):
            for _ in range(generator.integers(1, 9)):
                values = " ".join(f"{value:.4f}" for value in generator.normal(size=6))
                words = f"{generator.integers(20)}:1 {20 + generator.integers(5)}:2.5"
                label = " ".join("1" if index == sequence % 4 else "0" for index in range(4))
                file.write(f"{sequence} |x {values} |w {words} |y {label}\n")


@pytest.mark.parametrize("chunk_size", [2000, 1 << 25])
def test_figures_agree_with_figures_of_whole_arrays(chunk_size: int) -> None:
    write_corpus()
    whole = cntkio.read_ctf("a.ctf")
    found = figures_of("a.ctf", chunk_size_in_bytes=chunk_size)
    lengths = whole["x"].lengths
    assert (found.num_sequences, found.num_samples) == (500, int(lengths.sum()))
    assert found.length_quantiles == np.quantile(lengths, QUANTILES).tolist()
    x, w, y = (next(one for one in found.streams if one.info.name == name) for name in "xwy")
    values = whole["x"].values
    assert (x.lowest, x.highest, x.longest) == (values.min(), values.max(), lengths.max())
    np.testing.assert_allclose([x.mean, x.deviation], [values.mean(), values.std()], rtol=1e-5)
    np.testing.assert_allclose(x.quantiles, np.quantile(values, QUANTILES), rtol=1e-6)
    assert x.frequencies is None
    assert x.values is not None and sum(x.values.counts) == values.size
    assert w.density == 2 / 25
    assert w.frequencies is not None
    assert w.frequencies.tolist() == np.bincount(whole["w"].indices, minlength=25).tolist()  # type: ignore[arg-type]
    assert y.frequencies is not None
    assert y.frequencies.tolist() == np.bincount(whole["y"].values.argmax(1)).tolist()
    assert y.most_frequent(2)[0][1] == y.frequencies.max()


def test_padding_agrees_with_padded_minibatches() -> None:
    write_corpus()
    lengths = cntkio.read_ctf("a.ctf")["x"].lengths
    for one in figures_of("a.ctf").padding:
        batches = [lengths[begin : begin + one.size] for begin in range(0, len(lengths), one.size)]
        area = sum(batch.max() * len(batch) for batch in batches)
        assert one.in_order == pytest.approx(1 - lengths.sum() / area)
        assert 0 < one.shuffled < 1


def test_quantiles_of_a_large_stream_come_from_all_components() -> None:
    # Component k of a sample has the value k, so figures of only some components would differ.
    cntkio.write_cbf("a.cbf", {"x": np.tile(np.arange(64, dtype=np.float32), (20_000, 1))})
    with closing(cntkio.CBFDeserializer("a.cbf").open()) as corpus:
        (stream,) = figures(corpus, blocks(corpus)).streams
    np.testing.assert_allclose(stream.quantiles, np.quantile(np.arange(64), QUANTILES), atol=1.5)
    assert (stream.mean, stream.num_values) == (31.5, 20_000 * 64)


def test_strange_values_are_counted_and_left_out() -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    values[1, 0], values[2, 1] = np.nan, np.inf
    cntkio.write_cbf("a.cbf", {"x": values})
    with closing(cntkio.CBFDeserializer("a.cbf").open()) as corpus:
        (stream,) = figures(corpus, blocks(corpus)).streams
    finite = values[np.isfinite(values)]
    assert (stream.num_strange, stream.num_values, stream.highest) == (2, 12, 11)
    assert stream.mean == pytest.approx(finite.mean())


def test_inspect_prints_figures_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus()
    assert main(["inspect", "a.ctf"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^length histogram +1 [▁-█ ]+ 8$", printed, re.MULTILINE)
    assert re.search(r"^  classes +4 of 4 occur; \d: ", printed, re.MULTILINE)
    assert main(["inspect", "--json", "a.ctf"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["sequences"] == 500 and set(fields["lengths"]) == {f"{share:g}" for share in QUANTILES}
    assert [stream["name"] for stream in fields["streams"]] == ["w", "x", "y"] or len(fields["streams"]) == 3
    assert all(sum(stream["histogram"]["counts"]) for stream in fields["streams"])


def test_the_page_is_valid_and_self_contained() -> None:
    write_corpus()
    assert main(["inspect", "--html", "a.html", "a.ctf"]) == 0
    text = Path("a.html").read_text(encoding="utf-8")
    root = ET.fromstring(text.split("\n", 1)[1].replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', ""))  # fmt: skip
    assert (
        len(root.findall(".//svg")) == 13
    )  # lengths, padding, values of three streams, classes of two, components of one
    assert not re.search(r"<script|https?://|src=|@import|url\(", text)


def test_names_are_escaped_in_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(100, dtype=np.float32)
    cntkio.write_cbf("a.cbf", {"<script>alert(1)</script>\x1b[2J": values.reshape(50, 2)})
    assert main(["inspect", "--html", "a.html", "a.cbf"]) == 0
    text = Path("a.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in text and "<script" not in text and "\x1b" not in text
    assert "<script" not in page("<script>", [("<script>", "<script>")], [])


def test_bars_show_every_count_and_merge_bins() -> None:
    assert bars([0, 1, 1000]) == " ▁█"
    assert len(bars(list(range(100)), 20)) == 20
    assert bars([]) == ""

"""Whatever a verb selects, and whatever it writes: each sequence arrives with its key and its values, or is refused."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cntkio import StreamDefs, write_cbf, write_ctf, write_kaldi, write_svmlight
from cntkio.cli import main
from cntkio.convert import corpus_of, joined, pieces_of
from support.rounds import step

pytest.importorskip("pyarrow", reason="PyArrow is not installed")

from cntkio.arrow import write_arrow, write_parquet

WRITERS: dict[str, Callable[..., None]] = {
    "ctf": write_ctf, "ctf.gz": write_ctf, "ctf.zst": write_ctf, "cbf": write_cbf, "svm": write_svmlight,
    "ark": write_kaldi, "parquet": write_parquet, "arrow": write_arrow,
}  # fmt: skip
VERBS = {
    "none": [], "split": ["--split", "0.5,0.5"], "sample": ["--sample", "3"], "shuffle": ["--shuffle", "--seed", "1"],
    "sample, shuffle": ["--sample", "3", "--shuffle"], "merge": ["--merge"], "merge, shuffle": ["--merge", "--shuffle"],
    "merge, split": ["--merge", "--split", "0.3,0.7"], "merge, renumber": ["--merge", "--renumber"],
    "several files": ["--max-file-size", "40"],
}  # fmt: skip
SOURCES = ["ctf", "ctf.gz", "cbf", "svm", "ark", "parquet", "arrow"]
WITHOUT_KEYS = ("cbf", "svm")
IDS = [[7, 9, 2**53 + 1, 11, 8, 2**40], [3, 5, 4]]
"""The keys of two corpora; the first value of a sequence is the place of its key in both."""


def write_sources(folder: Path, form: str, *, has_label: bool) -> list[Path]:
    """Write both corpora. svmlight has labels, and a sample in each sequence."""
    paths, first = [], 0
    for ids, name in zip(IDS, "ab", strict=True):
        lengths = [1 if has_label else 1 + number % 3 for number in range(len(ids))]
        numbers = [first + number for number in range(len(ids))]
        samples = [
            [[number, 0.1 + row, -0.5] for row in range(length)]
            for number, length in zip(numbers, lengths, strict=True)
        ]
        paths.append(folder / f"{name}.{form}")
        label = [number % 2 for number in numbers]
        if form in WITHOUT_KEYS:
            streams = {"features": [np.float32(rows) for rows in samples]} | ({"label": label} if has_label else {})
            WRITERS[form](paths[-1], streams)
        else:
            lines = [
                f"{key} |features {' '.join(map(str, row))}" + f" |label {mark}" * has_label + f" |# word {key}\n"
                for key, rows, mark in zip(ids, samples, label, strict=True)
                for row in rows
            ]
            text = "".join(lines).encode()
            (folder / "text").write_bytes(gzip.compress(text) if form == "ctf.gz" else text)
            if form.startswith("ctf"):
                (folder / "text").rename(paths[-1])
            else:
                WRITERS[form](paths[-1], corpus_of(folder / "text", StreamDefs({})))
        first += len(ids)
    return paths


def sequences(path: Path) -> list[tuple[object, list[list[float]]]]:
    """Return the key and the samples of each sequence."""
    with pieces_of(corpus_of(path, StreamDefs({}))) as pieces:
        whole = joined(pieces)
    data = whole["features"]
    rows = np.float32(data.samples()).tolist()
    bounds = zip(data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True)
    return list(zip(whole.keys_of_sequences.tolist(), (rows[begin:end] for begin, end in bounds), strict=True))


def expected_key(source: str, target: str, verb: str, place: int, position: int) -> object:
    """Return the key of a sequence, by its place in both corpora and its position in what was written."""
    if target in WITHOUT_KEYS or "renumber" in verb:
        return position
    if source in WITHOUT_KEYS:
        return position if "merge" in verb else place
    return [*IDS[0], *IDS[1]][place]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("source", SOURCES)
def test_each_sequence_arrives_with_its_key_and_values(
    source: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # All pairs of a verb or a source with a target are tried, and in `make test-all` all triples.
    begin = [*VERBS].index(verb) + SOURCES.index(source)
    for target in [*WRITERS][begin % step(4) :: step(4)]:
        has_label = "svm" in (source, target)
        if "ark" in (source, target) and has_label:
            continue  # an archive has one stream, and svmlight two
        folder = tmp_path / target
        folder.mkdir()
        paths = write_sources(folder, source, has_label=has_label)[: 2 if "merge" in verb else 1]
        originals = [rows for path in paths for _, rows in sequences(path)]
        star = "*" * (verb == "several files")
        outputs = [folder / f"out{number}{star}.{target}" for number in range(2 if "split" in verb else 1)]
        assert main(["convert", *VERBS[verb], *map(str, paths), *map(str, outputs)]) == 0, capsys.readouterr().err
        says = capsys.readouterr().err
        assert ("comments that are left out" in says) == (source[:3] == target[:3] == "ctf"), (target, says)
        places = []
        for output in outputs:
            found = [each for path in sorted(folder.glob(output.name)) for each in sequences(path)]
            for position, (key, rows) in enumerate(found):
                place = round(rows[0][0])
                assert rows == originals[place], target
                places.append(place)
                if not star or target not in WITHOUT_KEYS:
                    assert str(key) == str(expected_key(source, target, verb, place, position)), (target, position)
        wanted = 3 if "sample" in verb else len(originals)
        assert len(places) == len(set(places)) == wanted, target
        if verb in ("none", "merge", "merge, renumber", "several files"):
            assert places == sorted(places), target

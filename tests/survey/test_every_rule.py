"""Each rule of the check finds its damage once, at its place: binary corpora, lists, features and labels."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cntkio
import numpy as np
import pytest
from cntkio import CBFDeserializer, CTFDeserializer, HTKFeatureDeserializer, HTKMLFDeserializer, StreamDef, StreamDefs
from cntkio.formats.contract import Deserializer
from cntkio.formats.mlf import HTKMLFBinaryDeserializer
from cntkio.survey.rules import RULES, code_of

NUM_SEQUENCES = 40


pytestmark = pytest.mark.usefixtures("current_folder")


class Damage(NamedTuple):
    """Damage of a sound corpus.

    Attributes:
        kind: The kind of error or warning, or the rule that finds it.
        make: Writes the corpus with the damage, and returns the deserializer, and the byte or the line of the damage.
    """

    kind: str
    make: Callable[[], tuple[Deserializer, int | None]]

    @property
    def code(self) -> str:
        code = code_of(self.kind.replace("-", " "))
        return self.kind if code == "broken-file" and self.kind in RULES else code


# ---------------------------------------------------------------------------------------------- binary corpora


def patched(path: str, at: int, *numbers: int) -> int:
    """Overwrite bytes of a file with numbers of 32 bits, and return their offset."""
    content = bytearray(Path(path).read_bytes())
    packed = b"".join(struct.pack("<I", number & 0xFFFFFFFF) for number in numbers)
    content[at : at + len(packed)] = packed
    Path(path).write_bytes(content)
    return at


def sparse_lines() -> str:
    """Sequences of two samples of two values each."""
    return "".join(f"{n} |s 0:{n + 1} 3:{n + 2}\n{n} |s 1:{n + 3} 2:{n + 4}\n" for n in range(NUM_SEQUENCES))


def binary(layout: Any, text: str, edit: Callable[[int], tuple[int, Sequence[int], int]]) -> Callable[[], Any]:
    """Return a function that writes a corpus and changes numbers; `edit` returns offset, values, finding's place."""

    def make() -> tuple[Deserializer, int]:
        Path("a.ctf").write_text(text)
        cntkio.convert.ctf_to_cbf("a.ctf", "a.cbf", layout=layout)
        assert not cntkio.check(CBFDeserializer("a.cbf")).counts
        begin = int(CBFDeserializer("a.cbf").open().index.layout.begins[0])
        at, numbers, place = edit(begin)
        patched("a.cbf", at, *numbers)
        return CBFDeserializer("a.cbf"), place

    return make


def modern(sequence: int, offset: int, number: int, place: int) -> Callable[[], Any]:
    """Change a number of a sparse sequence of the 2.x layout: two counts, 4 values, 4 indices, 2 sizes."""

    def edit(begin: int) -> tuple[int, Sequence[int], int]:
        start = begin + 4 * NUM_SEQUENCES + 48 * sequence
        return start + offset, [number], start + place

    return binary("2.x", sparse_lines(), edit)


def dense(sequence: int, number: int, place: int) -> Callable[[], Any]:
    """Change the count of a dense sequence of one value in the 2.x layout; `place` counts from there."""

    def edit(begin: int) -> tuple[int, Sequence[int], int]:
        start = begin + 4 * NUM_SEQUENCES + 8 * sequence
        return start, [number], start + place

    return binary("2.x", "".join(f"{n} |x {n}\n" for n in range(NUM_SEQUENCES)), edit)


def documented(part: str, index: int, *numbers: int, place: int | None = None) -> Callable[[], Any]:
    """Change numbers of a sparse stream of the documented layout: the count, 160 values, 160 rows, 41 columns."""

    def edit(begin: int) -> tuple[int, Sequence[int], int]:
        starts = {"rows": begin + 4 + 4 * 160, "columns": begin + 4 + 8 * 160}
        at = starts[part] + 4 * index
        return at, numbers, at if place is None else starts[part] + 4 * place

    return binary("documented", sparse_lines(), edit)


BINARY = (
    Damage("negative-count", modern(5, 4, -1, 4)),
    Damage("sparse-samples-beyond-the-chunk", modern(5, 0, -1, 8)),
    Damage("negative-sample-size", modern(5, 44, -1, 44)),
    Damage("wrong-sum-of-values", modern(5, 44, 3, 44)),
    Damage("index-out-of-range", modern(5, 28, 4, 28)),
    Damage("count-beyond-the-chunk", dense(0, 2 * NUM_SEQUENCES - 1, 8 * NUM_SEQUENCES)),
    Damage("dense-samples-beyond-the-chunk", dense(7, 2 * NUM_SEQUENCES, 4)),
    Damage("chunk-with-unused-bytes", dense(NUM_SEQUENCES - 1, 0, 4)),
    Damage("columns-begin-late", documented("columns", 0, 1)),
    Damage("descending-columns", documented("columns", 3, 2)),
    Damage("column-beyond-the-values", documented("columns", NUM_SEQUENCES, 161)),
    Damage("negative-row", documented("rows", 9, -1)),
    Damage("descending-samples", documented("rows", 8, 4, 5, 0, 1, place=10)),
    Damage("more-samples-than-the-table-says", documented("rows", 11, 2**31 - 1, place=8)),
)


# ------------------------------------------------------------------------------------------- lists and features


def utterances(number: int = 6) -> list[tuple[str, Any]]:
    generator = np.random.default_rng(3)
    return [(f"u{index}", generator.normal(size=(4, 3)).astype(np.float32)) for index in range(number)]


def features(*, compatible: bool = False, **streams: Any) -> Deserializer:
    return HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp="a.scp", shape=3, **streams)), compatible=compatible)


def listed(line: str, *, compatible: bool = False) -> Callable[[], Any]:
    """Return a function that writes a list with this third line."""

    def make() -> tuple[Deserializer, int]:
        cntkio.write_htk_archive("a.ark", "a.scp", utterances())
        lines = Path("a.scp").read_text().splitlines()
        lines[2] = line
        Path("a.scp").write_text("\n".join(lines) + "\n")
        return features(compatible=compatible), 3

    return make


def files(change: Callable[[], object], **streams: Any) -> Callable[[], Any]:
    """Return a function that writes a list of feature files, and damages it."""

    def make() -> tuple[Deserializer, int | None]:
        for name, frames in utterances():
            cntkio.write_htk_features(f"{name}.mfc", frames)
        Path("a.scp").write_text("".join(f"u{index}=u{index}.mfc[0,3]\n" for index in range(6)))
        change()
        return features(**streams), None

    return make


def too_long() -> None:
    cntkio.write_htk_features("u4.mfc", np.random.default_rng(4).normal(size=(9, 3)).astype(np.float32))
    Path("a.scp").write_text(Path("a.scp").read_text().replace("u4.mfc[0,3]", "u4.mfc[0,8]"))


def without_frames() -> None:
    content = Path("u2.mfc").read_bytes()
    Path("u2.mfc").write_bytes(struct.pack(">i", 0) + content[4:12])
    Path("a.scp").write_text(Path("a.scp").read_text().replace("u2.mfc[0,3]", "u2.mfc"))


LISTS = (
    Damage("no-id", listed("u2 a.ark[8,11]", compatible=True)),
    Damage("no-range", listed("u2=a.ark", compatible=True)),
    Damage("bad-range", listed("u2=a.ark[8,x]")),
    Damage("reversed", listed("u2=a.ark[11,8]")),
    Damage("no-path", listed("u2=[8,11]")),
    Damage("bad-key", listed("u" * 5000 + "=a.ark[8,11]")),
    Damage("repeated-utterance", lambda: (listed("u1=a.ark[8,11]")()[0], None)),
    Damage("open-quote", listed('"u2=a.ark[8,11]')),
    Damage("bad-header", files(lambda: Path("u2.mfc").write_bytes(b"not a header of HTK"))),
    Damage("mixed-files", files(lambda: cntkio.write_htk_features("u3.mfc", utterances()[3][1], period=50_000))),
    Damage("utterance-too-long", files(too_long, max_sequence_length=5)),
    Damage("no-frames", files(without_frames)),
)


# -------------------------------------------------------------------------------------------------- label files


def entries() -> list[str]:
    return [f'"u{index}.lab"\n0 100000 a\n100000 400000 {"ab"[index % 2]}\n.\n' for index in range(8)]


def labels(
    old: str, new: str, line: int | None, *, mapping: bool = True, classes: bool = False, compatible: bool = False
) -> Callable[[], Any]:
    """Return a function that writes a label file with a changed fourth entry; an entry takes four lines."""

    def make() -> tuple[Deserializer, int | None]:
        texts = entries()
        texts = [text.replace(" a\n", " a 0\n").replace(" b\n", " b 1\n") for text in texts] if classes else texts
        assert old in texts[3]
        texts[3] = texts[3].replace(old, new, 1)
        Path("a.mlf").write_text("#!MLF!#\n" + "".join(texts))
        Path("a.list").write_text("a\nb\n")
        return HTKMLFDeserializer("a.list" if mapping else None, LABELS, compatible=compatible), line

    return make


def without_last_dot() -> tuple[Deserializer, int]:
    make = labels("", "", None)
    deserializer, _ = make()
    Path("a.mlf").write_text(Path("a.mlf").read_text()[:-2])
    return deserializer, 30


def without_header() -> tuple[Deserializer, int]:
    deserializer, _ = labels("", "", None)()
    Path("a.mlf").write_text(Path("a.mlf").read_text().removeprefix("#!MLF!#\n"))
    return deserializer, 1


def binary_labels(change: Callable[[bytearray], bytes | bytearray]) -> Callable[[], Any]:
    def make() -> tuple[Deserializer, None]:
        cntkio.write_binary_mlf("a.bin", [(f"u{index}", np.array([0, 0, 1])) for index in range(8)])
        Path("a.bin").write_bytes(change(bytearray(Path("a.bin").read_bytes())))
        return HTKMLFBinaryDeserializer(StreamDefs(y=StreamDef(mlf="a.bin", shape=2))), None

    return make


LABELS = StreamDefs(y=StreamDef(mlf="a.mlf", shape=2))
LABEL_FILES = (
    Damage("out-of-order", labels("100000 400000", "200000 400000", 16)),
    Damage("late-start", labels("0 100000", "100000 100000", 15)),
    Damage("columns", labels("0 100000 a", "0 100000", 15)),
    Damage("bad-time", labels("100000 400000", "100000 x", 16)),
    Damage("reversed", labels("100000 400000", "100000 0", 16)),
    Damage("unknown-label", labels("0 100000 a", "0 100000 c", 15)),
    Damage("bad-class", labels("a 0", "a x", 15, mapping=False, classes=True)),
    Damage("large-class", labels("a 0", "a 7", 15, mapping=False, classes=True)),
    Damage("no-frames", labels("0 100000 a\n100000 400000 b", "0 0 a", 15)),
    Damage("unquoted-key", labels('"u3.lab"', "u3.lab", 14)),
    Damage("empty-entry", labels("0 100000 a\n100000 400000 b\n", "", 14)),
    Damage("entry-cut-off", without_last_dot),
    Damage("pattern", labels('"u3.lab"', '"*/u3*.lab"', 14)),
    Damage("no-header", without_header),
    Damage("no-times", labels("100000 400000 b", "b", 16, compatible=True)),
    Damage("long-key", labels('"u3.lab"', f'"{"u" * 5000}.lab"', 14)),
    Damage("repeated-utterance", labels('"u3.lab"', '"u2.lab"', 14)),
    Damage("wrong-sum", binary_labels(lambda content: content[:-2] + struct.pack("<h", 5))),
    Damage("not-binary", binary_labels(lambda content: b"MLX" + content[3:])),
    Damage("version", binary_labels(lambda content: content[:3] + struct.pack("<h", 9) + content[5:])),
    Damage("truncated", binary_labels(lambda content: content[:-3])),
)


# ------------------------------------------------------------------------------------------- texts and any format


def text(content: str, line: int, *, defines: bool = False, by_line: bool = False) -> Callable[[], Any]:
    """Return a function that writes a text."""

    def make() -> tuple[Deserializer, int]:
        Path("a.ctf").write_text(content)
        streams = StreamDefs(
            name=StreamDef(field="name", shape=1), y=StreamDef(field="y", shape=1, defines_mb_size=defines)
        )
        return CTFDeserializer("a.ctf", streams, max_errors=-1, skip_sequence_ids=by_line), line

    return make


def lines(number: int = 30) -> str:
    return "".join(f"{n} |name {n} |y {n}\n" for n in range(number))


def values(change: Callable[[Any], None]) -> Callable[[], Any]:
    """Return a function that writes a binary corpus with changed values."""

    def make() -> tuple[Deserializer, None]:
        array = np.random.default_rng(5).normal(size=(50, 2)).astype(np.float32)
        change(array)
        cntkio.write_cbf("a.cbf", {"x": array})
        return CBFDeserializer("a.cbf"), None

    return make


def cut_off() -> tuple[Deserializer, None]:
    deserializer, _ = values(lambda array: None)()
    Path("a.cbf").write_bytes(Path("a.cbf").read_bytes()[:-4])
    return deserializer, None


def set_values(where: Any, value: float) -> Callable[[Any], None]:
    return lambda array: array.__setitem__(where, value)


ANY = (
    Damage("name-at-the-end", text(lines() + "30 |y 1 |nam", 31)),
    Damage("no-value-at-the-end", text(lines() + "30 |y 1 |name ", 31)),
    Damage("stream-twice-on-a-line", text(lines() + "30 |name 1 |name 2 |y 3\n30 |y 3\n", 31)),
    Damage("line-left-out", text(lines() + "|name 5\n", 31, defines=True, by_line=True)),
    Damage("sequence-left-out", text(lines() + "30 |name 5\n", 31, defines=True)),
    Damage("not-finite", values(set_values((7, 1), np.nan))),
    Damage("not-finite", values(set_values((7, 1), np.inf))),
    Damage("constant-values", values(set_values(..., 0))),
    Damage("constant-values", values(set_values(..., 3))),
    Damage("broken-file", cut_off),
)
ALL = (*BINARY, *LISTS, *LABEL_FILES, *ANY)


@pytest.mark.parametrize("damage", ALL, ids=lambda damage: damage.kind)
def test_each_damage_is_found_once_at_its_place(damage: Damage) -> None:
    deserializer, place = damage.make()
    (finding,) = cntkio.check(deserializer)
    assert (finding.code, finding.num_cases) == (damage.code, 1)
    assert place in (None, finding.line, finding.byte)


@pytest.mark.parametrize(
    "make", [files(lambda: None), labels("", "", None), binary_labels(lambda content: content), text(lines(), 0)]
)
def test_nothing_is_found_without_damage(make: Callable[[], Any]) -> None:
    assert not cntkio.check(make()[0]).counts

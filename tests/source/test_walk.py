"""The way from a plain local file to a source leads through few modules."""

import sys
from pathlib import Path
from types import FrameType

import cntkio
from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs

ELSEWHERE = {"block_cache", "compressed", "remote", "stores"}
"""Modules of `cntkio.formats` about compressed texts and remote stores."""
MOST = 35


def test_opening_a_local_text_enters_no_module_about_other_places(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    path.write_text("|x 1 2\n|x 3 4\n")
    deserializer = CTFDeserializer(path, StreamDefs(x=StreamDef(field="x", shape=2)))
    package, entered = Path(cntkio.__file__).parent, set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(package):
            entered.add(".".join(file.relative_to(package).with_suffix("").parts))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        source = MinibatchSource(deserializer)
    finally:
        sys.setprofile(before)
    source.close()
    assert "source.source" in entered
    assert not entered & {f"formats.{name}" for name in ELSEWHERE}
    assert len(entered) <= MOST, sorted(entered)

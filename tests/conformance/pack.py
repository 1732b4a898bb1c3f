"""Pack the recorded conformance cases: `python tests/conformance/pack.py FOLDER`.

FOLDER holds a folder per area (ctf, cbf, htk, timeline, config), each with cases (`NAME.json`, `NAME.expected.json`)
and their data. It writes one archive per area next to this file, so that a clone alone proves itself. Invariant:
the same files give the same bytes (sorted names; no times, owners or modes).

Left out are the cases whose data are others' files, and those files.
"""

import io
import sys
import tarfile
from fnmatch import fnmatchcase
from pathlib import Path

AREAS = ("ctf", "cbf", "htk", "timeline", "config")
# CTF and CBF: files of CNTK's own tests; HTK: an excerpt of the AN4 corpus. A star stands for any text.
OTHERS_FILES = {
    "ctf": ("unit-*", "data/*.txt"),
    "cbf": ("cntk-*", "old-cntk-*", "double-in-python.*", "reader-f64.*", "data/cntk_*"),
    "htk": ("an4_*", "data/an4/*"),
}


def packed_files(area: Path) -> list[Path]:
    """The files of an area that are packed, relative to its folder, sorted."""
    files = sorted(file.relative_to(area) for file in area.rglob("*") if file.is_file())
    others = OTHERS_FILES.get(area.name, ())
    packed = [file for file in files if not any(fnmatchcase(file.as_posix(), pattern) for pattern in others)]
    left_out = {file.as_posix().encode() for file in files if file not in packed and file.parts[0] == "data"}
    for file in (file for file in packed if file.suffix == ".json"):
        text = (area / file).read_bytes()
        if needed := [path for path in left_out if path in text]:
            raise SystemExit(f"{area.name}/{file} needs {needed}, which is not packed")
    return packed


def pack(area: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz", format=tarfile.USTAR_FORMAT, preset=9) as tar:
        for file in packed_files(area):
            entry = tarfile.TarInfo(file.as_posix())
            content = (area / file).read_bytes()
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def main() -> None:
    for name in AREAS:
        archive = Path(__file__).with_name(f"{name}.tar.xz")
        pack(Path(sys.argv[1]) / name, archive)
        print(f"{archive.name}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Make the source distribution, with the sources of all crates, so that it builds without a network.

    python packaging/sdist.py FOLDER [MATURIN]

maturin packs the project; this script adds a folder `vendor`, and the setting that makes cargo use it.
"""

import gzip
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The first second of 1980, the earliest time that zip archives know; gzip warns of the first second of 1970.
EPOCH = 315_532_800


def add_crates(folder: Path) -> None:
    """Copy the crates that the lock file names into an unpacked distribution."""
    command = ["cargo", "vendor", "--locked", "--versioned-dirs", "vendor"]
    setting = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    (folder / ".cargo").mkdir()
    (folder / ".cargo" / "config.toml").write_text(setting, encoding="utf-8")


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed the file, and when, so that the same sources make the same archive."""
    entry.uid = entry.gid = 0
    entry.mtime = EPOCH
    entry.uname = entry.gname = ""
    return entry


def main(target: Path, maturin: str) -> Path:
    """Make the distribution in a folder, and return its path."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        subprocess.run([maturin, "sdist", "--out", temporary], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        (packed,) = Path(temporary).glob("*.tar.gz")
        with tarfile.open(packed) as archive:
            archive.extractall(temporary, filter="data")
        folder = Path(temporary, packed.name.removesuffix(".tar.gz"))
        add_crates(folder)
        made = target / packed.name
        with (
            made.open("wb") as file,
            gzip.GzipFile("", "wb", 9, file, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(folder, folder.name, filter=without_owner)
    return made


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), *sys.argv[2:3] or ["maturin"]))

"""Write files atomically: under a name there is always the old file or the complete new file.

Linux writes a file without a name (`O_TMPFILE`) and names it at the end, so a killed process leaves no file. Elsewhere
the file is `.cntkio-RANDOM.part`, next to its place, until it is complete. No link is followed, since somebody else may
have made it: a link is replaced, except for the links of the system, such as `/dev/stdout`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cntkio.storage.names import as_url, hint_on_name, is_remote, refuse_prefix
from cntkio.storage.remote import Remote

AnyPath = str | os.PathLike[str]
UNNAMED: int | None = getattr(os, "O_TMPFILE", None)  # None: the system has no files without a name
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def written_whole(
    path: AnyPath,
    *,
    is_durable: bool = True,
    is_direct: bool = True,
    is_kept: bool = True,
    folder: int | None = None,
    remote: Remote | None = None,
) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name when the block ends without an exception.

    Args:
        path: The file. An older file or a link is replaced. An object of a remote store (a URL) is written to a
            temporary file, and then in one request, for which it is in memory.
        is_durable: Wait until the content is on disk, so that a power failure does no harm either.
        is_direct: Write directly to a pipe or a device; False: replace it, as is right for caches.
        is_kept: False: remove the file at the end, after it was read back; it is on the same disk as `path`.
        folder: Descriptor of the folder in which a relative path begins; None: the current folder.
        remote: Options of a remote store.

    Raises:
        OSError: The file cannot be written; the error names `path`, and says what is there now.
        ConfigError: The path begins with a prefix of Kaldi, such as `ark:`.
    """
    refuse_prefix(path)
    if is_remote(os.fspath(path), remote):
        with tempfile.TemporaryFile() as file:
            yield file
            if is_kept:
                from cntkio.storage.stores import write_object  # late: few programs upload files

                file.seek(0)
                write_object(as_url(os.fspath(path)), file.read(), remote)
        return
    target = Path(path)
    if is_direct and is_kept and _is_written_directly(target):
        with io.BufferedWriter(_Output(target, "w")) as file:
            yield file
        return
    number, temporary = -1, target.with_name(f".cntkio-{secrets.token_hex(8)}.part")
    with _explained(target):
        try:
            if UNNAMED is not None and Path("/proc/self/fd").exists():
                number = os.open(target.parent, UNNAMED | os.O_RDWR, 0o666, dir_fd=folder)
        except OSError as error:  # if the folder is missing, opening a named file says so
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
        if has_name := number < 0:
            number = os.open(temporary, _NEW, 0o666, dir_fd=folder)
    output = _Output(number, "r+")
    output.name = target
    try:
        yield (whole := io.BufferedRandom(output, 1 << 17))
        if is_kept:
            whole.flush()
            with _explained(target, os.fstat(number).st_size):
                if is_durable:
                    os.fsync(number)
                if not has_name:
                    # The call follows the link only if it gets a descriptor of a folder, which it does not use.
                    options: Any = {"src_dir_fd": number, "dst_dir_fd": folder, "follow_symlinks": True}
                    try:
                        os.link(f"/proc/self/fd/{number}", target, **options)
                    except FileExistsError:
                        os.link(f"/proc/self/fd/{number}", temporary, **options)
                        has_name = True
                if has_name:
                    output.close()  # Windows renames no open file
                    os.replace(temporary, target, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        output.close()  # after an exception, the contents of the buffer are not written
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
    if is_durable and is_kept:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # not every system opens folders
            stack.callback(os.close, parent := os.open(target.parent, os.O_RDONLY))
            os.fsync(parent)


def make_folder_of(path: AnyPath) -> None:
    """Make the folder of a file if it is missing; stores need no folders."""
    refuse_prefix(path)
    if not is_remote(os.fspath(path)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def write_whole(path: AnyPath, pieces: Iterable[bytes], *, is_durable: bool = True) -> None:
    """Write a file piece by piece, as `written_whole` does. Missing folders are created."""
    make_folder_of(path)
    with written_whole(path, is_durable=is_durable) as file:
        file.writelines(pieces)


def _is_written_directly(path: Path) -> bool:
    """Return whether a path is a pipe, a device, a folder (opening it says so) or a link of the system."""
    if not path.is_symlink():
        return path.exists() and not path.is_file()
    parent = os.path.realpath(path.parent)
    return parent == "/dev" or parent.startswith("/proc/") or path.is_dir()


class _Output(io.FileIO):
    """The open file under a buffer, whose name is the file that the user asked for. Its errors have this name."""

    def write(self, data: Any, /) -> int:
        with _explained(Path(self.name), os.fstat(self.fileno()).st_size):
            return super().write(data) or 0


@contextlib.contextmanager
def _explained(path: Path, num_bytes: int = 0) -> Iterator[None]:
    """Name the user's file in an error of the system, and say what is there now."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)):
            with contextlib.suppress(OSError):
                what += f" after {num_bytes:,} bytes, with {shutil.disk_usage(path.parent).free:,} bytes free"
        if error.errno == errno.ENOENT:
            what += hint_on_name(path)
        what += "; the old file is unchanged" if os.path.lexists(path) else "; no file was made"
        raise OSError(error.errno, what, os.fspath(path)) from None

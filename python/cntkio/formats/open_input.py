"""The one place that decides how the bytes of a text are read."""

from __future__ import annotations

from cntkio.formats.input_file import InputFile
from cntkio.formats.remote import Remote, as_url, is_remote
from cntkio.formats.remote_input import RemoteInput
from cntkio.formats.text_input import TextInput


def open_input(path: str, remote: Remote | None = None) -> TextInput:
    """Open a text where it is.

    Args:
        path: A path, or the URL of an object in a remote store.
        remote: How to read a remote store.

    Raises:
        OSError: It cannot be read, as for `open_to_read`.
        ConfigError: The remote store is not known.

    Example:
        >>> open_input("examples/iris/iris.ctf").read(0, 7)
        b'|specie'
    """
    if is_remote(path, remote):
        return RemoteInput(as_url(path), remote)
    return InputFile(path)

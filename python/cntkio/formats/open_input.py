"""The one place that decides how the bytes of a text are read."""

from __future__ import annotations

from cntkio.formats.input_file import InputFile
from cntkio.formats.text_input import TextInput


def open_input(path: str) -> TextInput:
    """Open a text where it is.

    Raises:
        OSError: It cannot be read, as for `open_to_read`.

    Example:
        >>> open_input("examples/iris/iris.ctf").read(0, 7)
        b'|class '
    """
    return InputFile(path)

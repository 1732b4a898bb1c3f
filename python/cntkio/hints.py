"""Hints of error messages: the known name that is nearest to an unknown one, and options as the caller writes them.

A message gives advice in the words of the caller: ``shape=3`` in a program, ``dim = 3`` in a configuration,
``--stream x:3`` on the command line. Code that opens a source for a configuration or for the command sets the words
with `advising`. The opened objects keep them (`wording`), for messages that come later or from other threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

_C = TypeVar("_C", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Wording:
    """The form in which a caller writes options.

    Attributes:
        form: Template of a setting, with `{name}` and `{value}`.
        dense: Template of the definition of a dense stream, with `{name}`, its name in the file `{field}`, and `{dim}`.
        sparse: The same for a sparse stream.
        inference: Template of the call that infers the streams of a file, with `{path}`.
        names: Names of options, where the caller's differ from Python's.
        settings: Settings, in Python's form, that the caller writes in another way.
        mark: Text before the name of an option.
        entry: Template of an option that has a number for a column.
    """

    form: str
    dense: str
    sparse: str
    inference: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mark: str = ""
    entry: str = "{option}={{{name!r}: ...}}"

    def number_of(self, option: str, name: str) -> str:
        """Return how an option gives the number of values, or of classes, of a column.

        Example:
            >>> PYTHON.number_of("one_hot", "y"), COMMAND.number_of("one_hot", "y")
            ("one_hot={'y': ...}", '--one-hot y:DIM')
        """
        return self.entry.format(option=self.option(option), name=name)

    def flag(self, name: str) -> str:
        """Return the name of an option as it stands alone in a sentence.

        Example:
            >>> PYTHON.flag("max_errors"), COMMAND.flag("max_errors")
            ('max_errors', '--max-errors')
        """
        return f"{self.mark}{self.option(name)}"

    def option(self, name: str) -> str:
        """Return the name of an option.

        Example:
            >>> PYTHON.option("shape"), CONFIGURATION.option("shape")
            ('shape', 'dim')
        """
        return self.names.get(name, name)

    def setting(self, name: str, value: object) -> str:
        """Return how an option is set to a value.

        Example:
            >>> PYTHON.setting("frame_mode", False), CONFIGURATION.setting("frame_mode", False)
            ('frame_mode=False', 'frameMode = false')
        """
        text = f"{name}={value!r}"
        return self.settings.get(text) or self.form.format(name=self.option(name), value=value)

    def stream(self, name: str, field: str, dim: int, *, is_sparse: bool) -> str:
        """Return the definition of a stream.

        Example:
            >>> COMMAND.stream("x", "x", 3, is_sparse=True)
            '--stream x:3:sparse'
        """
        alias = "" if name == field else f":{field}"
        return (self.sparse if is_sparse else self.dense).format(name=name, field=field, dim=dim, alias=alias)


PYTHON = Wording(
    "{name}={value!r}",
    "StreamDef(field={field!r}, shape={dim})",
    "StreamDef(field={field!r}, shape={dim}, is_sparse=True)",
    "cntkio.infer_streams({path!r})",
    settings={"cache='FOLDER'": "remote=cntkio.Remote(cache='FOLDER')"},
)
CONFIGURATION = Wording(
    "{name} = {value}",
    "dim = {dim}, format = dense",
    "dim = {dim}, format = sparse",
    "the command 'cntkio inspect {path}'",
    {"shape": "dim", "dtype": "precision", "max_errors": "maxErrors", "unequal_lengths": "readerType"},
    {
        "frame_mode=False": "frameMode = false",
        "subset=True": "maxErrors = -1",
        "skip_sequence_ids=True": "skipSequenceIds = true",
        "randomize=False": "randomize = false",
        "cache='FOLDER'": "remote = [ cache = FOLDER ]",
        "unequal_lengths='drop'": "readerType = HTKMLFReader",
        "dtype='float32'": "precision = float",
        "dtype='float64'": "precision = double",
    },
)
COMMAND = Wording(
    "--{name} {value}",
    "--stream {name}:{dim}{alias}",
    "--stream {name}:{dim}:sparse{alias}",
    "'cntkio inspect {path}' without --stream",
    {
        "shape": "the dimension",
        "streams": "stream",
        "max_errors": "max-errors",
        "skip_sequence_ids": "skip-sequence-ids",
        "chunk_size_in_bytes": "chunk-size",
        "keys_file": "keys-file",
        "one_hot": "one-hot",
        "shapes": "stream",
        "dtype": "precision",
    },
    {
        "subset=True": "--max-errors -1",
        "renumber=True": "--renumber",
        "skip_sequence_ids=True": "--skip-sequence-ids",
        "randomize=False": "without --randomize",
        "skip_header=True": "--skip-header",
    },
    mark="--",
    entry="--{option} {name}:DIM",
)
_wording = ContextVar("wording", default=PYTHON)


@contextlib.contextmanager
def advising(words: Wording) -> Iterator[None]:
    """Let sources that are opened in the block give advice in these words.

    Example:
        >>> with advising(CONFIGURATION):
        ...     wording().option("shape")
        'dim'
    """
    token = _wording.set(words)
    try:
        yield
    finally:
        _wording.reset(token)


def wording() -> Wording:
    """Return the words of the caller who is opening a source."""
    return _wording.get()


def near_name(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to an unknown name, if any is near; case does not matter.

    Example:
        >>> near_name("lenghts", ["lengths", "species"])
        'lengths'
        >>> near_name("x", ["lengths", "species"])
    """
    names = {folded(known_name): known_name for known_name in known}
    nearest = difflib.get_close_matches(folded(str(name)), names, n=1)
    return names[nearest[0]] if nearest else None


def folded(name: str) -> str:
    """Return a name in the form in which names are compared: in lower case, without underscores.

    Example:
        >>> folded("chunkSizeInBytes") == folded("chunk_size_in_bytes")
        True
    """
    return name.lower().replace("_", "")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, if any is near.

    Example:
        >>> "no stream 'lenghts'" + did_you_mean("lenghts", ["lengths", "species"])
        "no stream 'lenghts'; did you mean 'lengths'?"
    """
    nearest = near_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest else ""


def there_are(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: all known names, and the nearest of them.

    Example:
        >>> "no stream 'lenghts'" + there_are("lenghts", ["lengths", "species"])
        "no stream 'lenghts'; there are: 'lengths', 'species'; did you mean 'lengths'?"
    """
    names = list(known)
    return f"; there are: {', '.join(map(repr, names)) or 'none'}{did_you_mean(name, names)}"


def suggests_keywords(function: _C) -> _C:
    """Make a class or a function suggest the nearest keyword when it is called with an unknown one.

    Example:
        >>> @suggests_keywords
        ... class Source:
        ...     def __init__(self, max_sweeps=1): ...
        >>> Source(max_sweep=2)
        Traceback (most recent call last):
        TypeError: Source has no keyword 'max_sweep'; did you mean 'max_sweeps'?
    """
    plain: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    name = function.__name__
    parameters = inspect.signature(plain).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.name != "self"]
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # Unpack[...] of a `TypedDict`
            known.remove(parameter.name)
            known += typing.get_type_hints(plain)[parameter.name].__args__[0].__annotations__

    @functools.wraps(plain)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for keyword in keywords:
            if keyword not in known:
                hint = did_you_mean(keyword, known) or f"; it has: {', '.join(known)}"
                raise TypeError(f"{name} has no keyword {keyword!r}{hint}")
        return plain(*arguments, **keywords)

    if not isinstance(function, type):
        return checked  # type: ignore[return-value]
    function.__init__ = checked  # type: ignore[misc]
    return function

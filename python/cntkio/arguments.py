"""Arguments: checks of types, the known name nearest to an unknown one, the words for options, and the `Caller`.

An argument of the wrong type is refused with a `ConfigError`, never converted. A message gives advice in the words of
the caller: ``shape=3`` in a program, ``dim = 3`` in a configuration, ``--stream x:3`` on the command line. Code that
opens a source for a configuration or for the command sets the words with `calling`. The opened objects keep them, for
messages that come later or from other threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar

import numpy as np

from cntkio.errors import ConfigError

_C = TypeVar("_C", bound=Callable[..., Any])


def flag(name: str, value: Any) -> bool:
    """Return an argument that is True or False, of Python or NumPy.

    Example:
        >>> flag("randomize", "False")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: randomize is 'False'; expected True or False
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ConfigError(f"{name} is {value!r}; expected True or False", key=name)


def flag_or_word(name: str, value: Any, word: str) -> bool | str:
    """Return an argument that is True, False or a certain word.

    Example:
        >>> flag_or_word("cache_index", "yes", "verify")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: cache_index is 'yes'; expected True, False or 'verify'
    """
    # The type comes first: 1 is equal to True, and an array has no single answer.
    if isinstance(value, str | bool | np.bool_) and value in (True, False, word):
        return word if isinstance(value, str) else bool(value)
    raise ConfigError(f"{name} is {value!r}; expected True, False or {word!r}", key=name)


def check_word(name: str, value: Any, *words: str) -> None:
    """Check an argument that is one of several words.

    Example:
        >>> check_word("deal", "size", "length", "area", "chunk")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: deal is 'size'; expected 'length', 'area' or 'chunk'
    """
    # An array compares element by element.
    if not isinstance(value, str) or value not in words:
        raise ConfigError(f"{name} is {value!r:.200}; expected {either(words)}", key=name)


def is_whole(value: Any) -> TypeGuard[int | np.integer[Any]]:
    """Return whether a value is a whole number, of Python or NumPy.

    Example:
        >>> is_whole(3), is_whole(True), is_whole(3.0)
        (True, False, False)
    """
    # True is an int for Python, but as a number it is a mistake.
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument that is a whole number, of Python or NumPy.

    Args:
        least: The least allowed number; None: any number is allowed.

    Example:
        >>> whole_number("max_errors", 1.5)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: max_errors is 1.5; expected a whole number
    """
    if not is_whole(value):
        raise ConfigError(f"{name} is {value!r}; expected a whole number", key=name)
    if least is not None and value < least:
        raise ConfigError(f"{name} is {value}; expected at least {least}", key=name)
    return int(value)


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """Return the sizes of a shape: a whole number, or an iterable of whole numbers.

    Example:
        >>> sizes("shape", np.int64(943)), sizes("shape", (2, 3))
        ((943,), (2, 3))
        >>> sizes("shape", "943")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: shape is '943'; expected a whole number, or a tuple of whole numbers
    """
    if is_whole(value):
        return (int(value),)
    items: Any = None
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError):  # an array without axes
            items = tuple(value)
    if items is None or not all(map(is_whole, items)):
        raise ConfigError(f"{name} is {value!r}; expected a whole number, or a tuple of whole numbers", key=name)
    return tuple(map(int, items))


def path_text(name: str, value: Any) -> str:
    """Return a path as text: a text, bytes, or an object of `os.PathLike`.

    Example:
        >>> path_text("filename", None)
        Traceback (most recent call last):
        cntkio.errors.ConfigError: filename is None; expected a path
    """
    if isinstance(value, str | bytes | os.PathLike):
        return os.fsdecode(value)
    text = repr(value)
    shown = text if len(text) <= 80 and "\n" not in text else f"of the type {type(value).__name__}"
    raise ConfigError(f"{name} is {shown}; expected a path", key=name)


def path_texts(name: str, value: Any) -> str | list[str]:
    """Return a path, or a sequence of paths, as text.

    Example:
        >>> path_texts("filename", ("a.ctf", b"b.ctf")), path_texts("filename", "*.ctf")
        (['a.ctf', 'b.ctf'], '*.ctf')
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [path_text(f"{name}[{index}]", path) for index, path in enumerate(value)]
    return path_text(name, value)


def float_type(name: str, value: Any, *, or_whole: bool = False) -> np.dtype[Any]:
    """Return float32 or float64, or with `or_whole` also int32 or int64, as a NumPy type.

    Example:
        >>> float_type("dtype", "flaot32")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: dtype is 'flaot32'; expected float32 or float64
    """
    shown = repr(value)
    with contextlib.suppress(TypeError):
        found: np.dtype[Any] = np.dtype(value)
        if found in (np.float32, np.float64) or (or_whole and found in (np.int32, np.int64)):
            return found
        shown = str(found)
    expected = "float32, float64, int32 or int64" if or_whole else "float32 or float64"
    raise ConfigError(f"{name} is {shown}; expected {expected}", key=name)


def check_fields(options: Any, words: Mapping[str, str] = MappingProxyType({})) -> None:
    """Check the fields of a dataclass whose defaults are flags or whole numbers.

    Args:
        words: Flags that may also be a certain word.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in words:
            value = flag_or_word(field.name, value, words[field.name])
        # Before whole numbers, because a bool is an int as well.
        elif isinstance(field.default, bool):
            value = flag(field.name, value)
        elif isinstance(field.default, int):
            value = whole_number(field.name, value)
        # Numbers and flags of NumPy become Python's, as in the other checks.
        setattr(options, field.name, value)


# --------------------------------------------------------------------------------------------------------------
# Options as the caller writes them, and the known names that are near to an unknown name.


@dataclasses.dataclass(frozen=True)
class Wording:
    """The form in which a caller writes options.

    Attributes:
        form: Template of a setting, with `{name}` and `{value}`.
        dense: Template of the definition of a dense stream, with `{name}`, its name in the file `{field}`, and `{dim}`.
        sparse: The same for a sparse stream.
        inference: Template of the call that infers the streams of a file, with `{path}`.
        one_corpus: How the files of a corpus are given.
        names: Names of options, where the caller's differ from Python's.
        settings: Settings, in Python's form, that the caller writes in another way.
        mark: Text before the name of an option; then the name alone means True, and its words have hyphens.
        entry: Template of an option that has a number for a column.
    """

    form: str
    dense: str
    sparse: str
    inference: str
    one_corpus: str
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
        return self.settings.get(option, self.entry).format(option=self.option(option), name=name)

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
        return self.names.get(name) or (name.replace("_", "-") if self.mark else name)

    def setting(self, name: str, value: object) -> str:
        """Return how an option is set to a value.

        Example:
            >>> PYTHON.setting("frame_mode", False), CONFIGURATION.setting("frame_mode", False)
            ('frame_mode=False', 'frameMode = false')
        """
        form = "{name}" if self.mark and value is True else self.form
        return self.settings.get(f"{name}={value!r}") or form.format(name=self.flag(name), value=value)

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
    "one deserializer with a list of paths or a pattern",
    settings={"cache='FOLDER'": "remote=cntkio.Remote(cache='FOLDER')"},
)
_SHAPES = "shapes={{{name!r}: ...}} to cntkio.arrow.read, and write its result"
WRITERS = dataclasses.replace(PYTHON, settings={**PYTHON.settings, "shapes": _SHAPES})
"""The words for callers of a writer in Python, which takes no shapes."""
CONFIGURATION = Wording(
    "{name} = {value}", "dim = {dim}, format = dense", "dim = {dim}, format = sparse",
    "the command 'cntkio inspect {path}'", "one deserializer all paths, with ';' between them, or a pattern",
    {"shape": "dim", "dtype": "precision", "max_errors": "maxErrors", "unequal_lengths": "readerType"},
    {
        "frame_mode=False": "frameMode = false", "randomize=False": "randomize = false",
        "skip_sequence_ids=True": "skipSequenceIds = true", "subset=True": "maxErrors = -1",
        "cache='FOLDER'": "remote = [ cache = FOLDER ]", "unequal_lengths='drop'": "readerType = HTKMLFReader",
        "dtype='float32'": "precision = float", "dtype='float64'": "precision = double",
    },
)  # fmt: skip
COMMAND = Wording(
    "{name} {value}", "--stream {name}:{dim}{alias}", "--stream {name}:{dim}:sparse{alias}",
    "'cntkio inspect {path}' without --stream", "a pattern in quotes",
    {
        "shape": "the dimension", "shapes": "stream", "streams": "stream", "dtype": "precision",
        "chunk_size_in_bytes": "chunk-size",
    },
    {
        "subset=True": "--max-errors -1", "randomize=False": "without --randomize",
        "dtype='float32'": "--precision float", "dtype='float64'": "--precision double",
    },
    mark="--", entry="--{option} {name}:DIM",
)  # fmt: skip


Show: typing.TypeAlias = Callable[[int, int], None]
"""Called with the number of bytes done and the total; the total is 0 if it is not known."""
Watcher: typing.TypeAlias = Callable[[str], contextlib.AbstractContextManager[Show]]
"""Called with the name of a pass when it begins; the result is a context manager around the pass."""
Add: typing.TypeAlias = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


@dataclasses.dataclass(frozen=True)
class Caller:
    """The wishes of a caller for everything that it opens: the only ambient value of the package.

    Attributes:
        words: The words in which messages give advice.
        watcher: Shows passes over whole files; None: passes are not shown.
        add: Adds bytes to the current pass; None: no pass is shown at present.
        remote: The `cntkio.Remote` of files that have none; None: its defaults.
        opened: Descriptors of local files that the caller keeps open, by path: they are not opened again.
    """

    words: Wording = PYTHON
    watcher: Watcher | None = None
    add: Add | None = None
    remote: Any = None
    opened: Mapping[str, int] = dataclasses.field(default_factory=dict)


_NOBODY = Caller()
# A context variable, so that other threads and tasks keep their own caller.
_caller = ContextVar("caller", default=_NOBODY)


def caller() -> Caller:
    """Return the caller that `calling` has set in this context, or in the context of which this is a copy."""
    return _caller.get()


@contextlib.contextmanager
def calling(
    *, words: Wording | None = None, watcher: Watcher | None = None, add: Add | None = None, remote: Any = None,
    opened: Mapping[str, int] | None = None,
) -> Iterator[None]:  # fmt: skip
    """Change the caller for the block; None: as outside the block.

    Example:
        >>> with calling(words=CONFIGURATION):
        ...     caller().words.option("shape")
        'dim'
    """
    asked = {"words": words, "watcher": watcher, "add": add, "remote": remote, "opened": opened}
    # A mapping may be empty when the block begins.
    given = {name: value for name, value in asked.items() if value is not None}
    token = _caller.set(dataclasses.replace(_caller.get(), **given))
    try:
        yield
    finally:
        _caller.reset(token)


# Keywords of CNTK before 2.3 and the keywords that replaced them, without underscores.
_OLDER_KEYWORDS = {
    "epochsize": ("max_samples", "max_sweeps"),
    "randomizationwindow": ("randomization_window_in_chunks", "randomization_window_in_samples"),
    "samplebasedrandomizationwindow": ("randomization_window_in_samples",),
}
_MOST_SHOWN = 8
_LEAST_OF_BEGINNING = 3  # letters
_OF_WORDS = 1.5  # the distance of a name with further words: farther than one letter, nearer than two


def near_names(name: object, known: Iterable[str]) -> list[str]:
    """Return all known names that are nearest to an unknown name; neither case nor underscores matter.

    A name is near if at most about one letter in four differs, or if it begins or ends with the unknown name or
    contains all its words.

    Example:
        >>> near_names("lenghts", ["lengths", "species"]), near_names("s", ["S0", "S1", "words"])
        (['lengths'], ['S0', 'S1'])
        >>> near_names("seed", ["randomization_seed", "max_sweeps"]), near_names("x", ["lengths", "y"])
        (['randomization_seed'], [])
    """
    # Folded, so that CNTK's chunkSizeInBytes is near to chunk_size_in_bytes.
    wanted, words, distances = folded(str(name)), _words(str(name)), dict[str, float]()
    for known_name in dict.fromkeys(known):
        other = folded(known_name)
        longest = max(len(wanted), len(other))
        most = max((longest + 1) // 4, 1)
        distance = _distance(wanted, other) if abs(len(wanted) - len(other)) <= most else longest
        # Of the letters of both, more than half are equal: "s" is near to "s0", but "b0" is not near to "u0".
        if distance <= most and 4 * (longest - distance) > len(wanted) + len(other):
            distances[known_name] = float(distance)
        begins = len(wanted) >= _LEAST_OF_BEGINNING and other.startswith(wanted)
        ends = len(wanted) >= 2 * _LEAST_OF_BEGINNING and other.endswith(wanted)  # batch_size of minibatch_size
        if begins or ends or (words and words <= _words(known_name)):
            distances[known_name] = min(distances.get(known_name, _OF_WORDS), _OF_WORDS)
    least = min(distances.values(), default=0)
    return [known_name for known_name, distance in distances.items() if distance == least]


def _distance(first: str, second: str) -> int:
    """Return how many letters must be replaced, inserted, left out or swapped with the next to get the second text."""
    before, row = [0] * (len(second) + 1), list(range(len(second) + 1))
    for i, letter in enumerate(first):
        last, before, row = before, row, [i + 1]
        for j, other in enumerate(second):
            row.append(min(before[j] + (letter != other), before[j + 1] + 1, row[j] + 1))
            if i and j and letter == second[j - 1] and first[i - 1] == other:
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]*[a-z]+|[A-Z]+|[0-9]+", name)}


def folded(name: str) -> str:
    """Return a name in the form in which names are compared: in lower case, without underscores.

    Example:
        >>> folded("chunkSizeInBytes") == folded("chunk_size_in_bytes")
        True
    """
    return name.lower().replace("_", "")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known names, or what replaced a name of CNTK.

    Example:
        >>> "no stream 'lenghts'" + did_you_mean("lenghts", ["lengths", "species"])
        "no stream 'lenghts'; did you mean 'lengths'?"
        >>> did_you_mean("epoch_size", ["max_samples", "max_sweeps"])
        "; 'epoch_size' of older CNTK is 'max_samples' or 'max_sweeps' today"
    """
    names = list(known)
    today = _OLDER_KEYWORDS.get(folded(str(name)))
    if today and set(today) <= set(names):
        return f"; {name!r} of older CNTK is {either(today)} today"
    nearest = near_names(name, names)
    return f"; did you mean {either(nearest)}?" if nearest else ""


def either(names: Sequence[str]) -> str:
    """Return names as alternatives.

    Example:
        >>> either(["x", "y", "z"])
        "'x', 'y' or 'z'"
    """
    shown = list(map(repr, names[:_MOST_SHOWN]))
    if len(names) > _MOST_SHOWN:
        shown.append(f"one of {len(names) - _MOST_SHOWN} more")
    *others, last = shown
    return f"{', '.join(others)} or {last}" if others else last


def there_are(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: all known names, and the nearest of them.

    Example:
        >>> "no stream 'lenghts'" + there_are("lenghts", ["lengths", "species"])
        "no stream 'lenghts'; there are: 'lengths', 'species'; did you mean 'lengths'?"
    """
    names = list(known)
    return f"; there are: {', '.join(map(repr, names)) or 'none'}{did_you_mean(name, names)}"


def no_keyword(function_name: str, keyword: str, known: Sequence[str]) -> TypeError:
    """Return the error of a call with an unknown keyword, of the type that Python raises.

    Example:
        >>> str(no_keyword("write", "pth", ["path", "order"]))
        "write has no keyword 'pth'; did you mean 'path'?"
    """
    hint = did_you_mean(keyword, known) or f"; it has: {', '.join(known)}"
    return TypeError(f"{function_name} has no keyword {keyword!r}{hint}")


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
        if not keywords:  # as most reads of minibatches
            return plain(*arguments)
        for keyword in keywords:
            if keyword not in known:
                raise no_keyword(name, keyword, known)
        return plain(*arguments, **keywords)

    # A class stays the same class, so that instance checks and pickling work; only its constructor is wrapped.
    if not isinstance(function, type):
        return checked  # type: ignore[return-value]
    function.__init__ = checked  # type: ignore[misc]
    return function

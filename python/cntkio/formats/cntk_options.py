"""CNTK's names of options, their meaning here, the parsers of their values, and the options without effect.

The tables serve deserializers, whose options can be set by these names, and configurations, where the same names are
keys::

    deserializer["chunkSizeInBytes"] = 1 << 20         chunkSizeInBytes = 1048576

Options of readers and of sources are in `cntkio.config`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cntkio.arguments import did_you_mean, folded
from cntkio.errors import ConfigError
from cntkio.storage.names import shown_pattern
from cntkio.streams import described_streams

logger = logging.getLogger("cntkio")

_TRUE = ("true", "True", "TRUE", "t", "T", "1")
_FALSE = ("false", "False", "FALSE", "f", "F", "0", "")


def truth(value: Any) -> bool:
    """Read a truth value as CNTK does. The numbers 0 and 1 and Python's truth values are accepted, too.

    Raises:
        ValueError: The value is not a truth value.

    Example:
        >>> truth("T"), truth(0), truth(False)
        (True, False, False)
    """
    # Numbers and Python's truth values become texts, of which CNTK accepts 1 and 0.
    text = str(int(value)) if isinstance(value, int | np.bool_) else value
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("expected a truth value: true, True, TRUE, t, T, 1 or false, False, FALSE, f, F, 0")


def whole_value(value: Any) -> int:
    """Read a whole number, or raise `ValueError`.

    Example:
        >>> whole_value(" 17 "), whole_value(3)
        (17, 3)
    """
    # A truth value is an `int` in Python, but not a number here.
    text = str(value).strip() if isinstance(value, int | str | np.integer) and not isinstance(value, bool) else ""
    if not text.removeprefix("-").removeprefix("+").isdecimal():
        raise ValueError("expected a whole number")
    return int(text)


def _precision(value: Any) -> np.dtype[Any]:
    name = str(value).lower()
    if name not in ("float", "double"):
        raise ValueError("expected 'float' or 'double'")
    return np.dtype(np.float64 if name == "double" else np.float32)


def _shown_precision(dtype: Any) -> str:
    return "double" if dtype == np.float64 else "float"


def _as_it_is(value: Any) -> Any:
    return value


class Option(NamedTuple):
    """An option of a deserializer by CNTK's name."""

    key: str
    field: str | None = None  # our name; None: the option has no effect
    # Converts CNTK's value to ours, or raises ValueError; None: the option can be looked up, but not set.
    read: Callable[[Any], Any] | None = None
    show: Callable[[Any], Any] = _as_it_is  # converts our value to CNTK's
    implies: Mapping[str, Any] = {}  # further fields that are set with it
    remark: str = ""  # the reason why it has no effect, if that is worth a warning


def _without_effect(keys: str) -> tuple[Option, ...]:
    return tuple(Option(key) for key in keys.split())


TEXT = (
    Option("file", "filename"),
    Option("input", "streams"),
    Option("skipSequenceIds", "skip_sequence_ids", truth),
    Option("maxErrors", "max_errors", whole_value),
    Option("chunkSizeInBytes", "chunk_size_in_bytes", whole_value),
    Option("cacheIndex", "cache_index", truth),
    Option("keys", "keys", _as_it_is),
    Option("remote", "remote", _as_it_is),
    *_without_effect("precision frameMode keepDataInMemory traceLevel"),
)
"""Options of the text format."""
BINARY = (
    Option("file", "filename"),
    Option("input", "streams"),
    # Like CNTK, refuse a file of another precision.
    Option("precision", "dtype", _precision, _shown_precision, {"convert": False}),
    Option("keepDataInMemory", "keep_data_in_memory", truth),
    Option("remote", "remote", _as_it_is),
    Option("maxErrors", remark="no error in a binary file is forgiven"),
    *_without_effect("traceLevel verbosity randomize randomizationWindow chunkSizeInBytes frameMode cacheIndex"),
)
"""Options of the binary format."""
_OF_FRAMES = (
    Option("input", "streams"),
    Option("definesMBSize", "defines_mb_size", truth),
    Option("precision", "dtype", _precision, _shown_precision),
    Option("remote", "remote", _as_it_is),
)
FEATURES = (
    *_OF_FRAMES,
    Option("maxSequenceSize", "max_sequence_length", whole_value),
    *_without_effect("chunkSizeInBytes frameMode cacheIndex type module"),
)
"""Options of HTK features."""
BINARY_LABELS = (*_OF_FRAMES, *_without_effect("chunkSizeInBytes frameMode type module"))
"""Options of HTK labels in binary files."""
_BOUNDARIES = Option("phoneBoundaries", "phoneBoundaries", truth)
LABELS = (*BINARY_LABELS, Option("cacheIndex", "cache_index", truth), _BOUNDARIES)
"""Options of HTK labels in text files."""

FEATURE_STREAM = {
    "scpFile": "scp", "dim": "dim", "contextWindow": "context", "expandToUtterance": "broadcast",
    "prefixPathInSCP": "prefix", "definesMBSize": "defines_mb_size", "maxSequenceSize": "max_sequence_length",
    "type": None,
}  # fmt: skip
"""Keys of the section of a stream of features, and what they set; None: nothing."""
LABEL_STREAM = {
    "mlfFile": "mlf", "mlfFileList": "mlf_list", "labelMappingFile": "label_mapping_file", "dim": "dim",
    "labelDim": "dim", "phoneBoundaries": "phone_boundaries", "definesMBSize": "defines_mb_size",
    "labelToTargetMappingFile": "target_file", "targetDim": "target_dim", "cacheIndex": "cache_index", "type": None,
    "labelType": None,
}  # fmt: skip
"""Keys of the section of a stream of labels, and what they set; None: nothing."""


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(part) for part in value]
    return shown_pattern(value) if isinstance(value, str) else value


def defaults_of(options: Any) -> dict[str, Any]:
    """Return the default of each field of a dataclass or of its instance."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(options)
    }


def find_option(options: Iterable[Option], key: str) -> Option | None:
    """Return the option of a table with this name, CNTK's or ours; None if there is no such option.

    Example:
        >>> find_option(TEXT, "MAXERRORS").field
        'max_errors'
    """
    name = folded(key)
    return next((each for each in options if name in (folded(each.key), folded(each.field or each.key))), None)


@dataclasses.dataclass(eq=False, repr=False)
class CntkOptions:
    """Base of the deserializers: options that can also be set and looked up by CNTK's names, as items."""

    cntk_type: ClassVar[str]
    cntk_options: ClassVar[tuple[Option, ...]]

    @property
    def label(self) -> str:
        """Name used in messages about options."""
        return type(self).__name__

    def __repr__(self) -> str:
        """Print a call that creates an equal object: without default values, and without passwords in URLs."""
        arguments, defaults = [], defaults_of(self)
        # In a call, positional arguments come before keywords, whatever the order of the fields is.
        for field in sorted(dataclasses.fields(self), key=lambda field: bool(field.kw_only)):
            value, default = getattr(self, field.name), defaults[field.name]
            # NumPy compares None with a dtype as if it were float64.
            if value is not default and (value is None or default is None or value != default):
                text = repr(str(value) if isinstance(value, np.dtype) else _without_secrets(value))
                arguments.append(f"{field.name}={text}" if field.kw_only else text)
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _repr_html_(self) -> str:
        kind = type(self).__name__
        return described_streams(kind if self.label == kind else f"{kind}: {self.label}", self["input"]).html()

    def __setitem__(self, key: str, value: Any) -> None:
        """Set an option by CNTK's name in upper or lower case, or by ours; text is read as CNTK reads it.

        Raises:
            ConfigError: The value is not possible.
        """
        option = find_option(self.cntk_options, key)
        if option is None or (option.field is not None and option.read is None):
            # CNTK ignores unknown options, so they are not an error here.
            hint = did_you_mean(key, [known.key for known in self.cntk_options if known.read is not None])
            logger.warning("%s: option %r is unknown and ignored%s", self.label, key, hint)
        elif option.field is None:
            if option.remark:
                logger.warning("%s: option %r has no effect: %s", self.label, key, option.remark)
        else:
            assert option.read is not None
            try:
                # In CNTK's configurations, the word `default` means that the option is absent.
                own = defaults_of(self)[option.field] if value == "default" else option.read(value)
            except ValueError as error:
                raise ConfigError(f"{self.label}: option {key!r} is {value!r}; {error}", key=key) from None
            changes = {option.field: own, **option.implies}
            # Creating the copy checks the changes.
            changed = dataclasses.replace(self, **changes)
            for name in changes:
                setattr(self, name, getattr(changed, name))

    def __getitem__(self, key: str) -> Any:
        """Return an option by CNTK's name or by ours; also ``"file"``, ``"input"`` and ``"type"``.

        Raises:
            KeyError: There is no such option.
        """
        key = str(key)
        if folded(key) == "type":
            return self.cntk_type
        option = find_option(self.cntk_options, key)
        if option is None or option.field is None:
            known = [known.key for known in self.cntk_options if known.field is not None]
            raise KeyError(f"no option {key!r}{did_you_mean(key, [*known, 'type'])}")
        return option.show(getattr(self, option.field))

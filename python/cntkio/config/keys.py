"""Keys of CNTK's reader sections, and the options here that they set. (docs/configuration.md, "Readers")

Each kind of section has a table, for both reading and writing of configurations: reading asks an `ConfigOption` for its
value in a section, writing puts the value that differs from its default under its key.

Names of options that deserializers know themselves come from their tables (`cntkio.formats.cntk_options`).

This module has no rules: the modules that read know what several keys decide together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from cntkio.config.language import Section, folded_key
from cntkio.errors import ConfigError
from cntkio.formats import cntk_options
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.cntk_options import BINARY, FEATURE_STREAM, FEATURES, LABEL_STREAM, LABELS, TEXT, CntkOptions
from cntkio.formats.contract import KeysOf
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer
from cntkio.htkmlf_reader import DEFAULT_MAX_UTTERANCE_LENGTH
from cntkio.storage.remote import Remote

_T = TypeVar("_T")

Kind = Literal["CNTKTextFormatReader", "CNTKBinaryReader", "HTKMLFReader", "HTKDeserializers", "composite"]
Precision = Literal["float", "double"]
MinibatchMode = Literal["partial", "full"]
PRECISIONS: tuple[Precision, ...] = ("float", "double")

# ------------------------------------------------------------------------------------------------------ the readers

# Later versions of CNTK added a second name for each reader. CNTK accepts both, and compares them exactly.
_NAMES: dict[Kind, str] = {
    "CNTKTextFormatReader": "CNTKTextFormatReader Cntk.Deserializers.TextFormat",
    "CNTKBinaryReader": "CNTKBinaryReader Cntk.Deserializers.Binary",
    "HTKMLFReader": "HTKMLFReader Cntk.Reader.HTKMLF",
    "HTKDeserializers": "HTKDeserializers Cntk.Deserializers.HTK",
    "composite": "CompositeDataReader Cntk.Composite",
}
READERS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
"""Values of ``readerType``."""

MODULES: dict[type[CntkOptions], str] = {
    CTFDeserializer: "CNTKTextFormatReader",
    CBFDeserializer: "CNTKBinaryReader",
    HTKFeatureDeserializer: "HTKDeserializers",
    HTKMLFDeserializer: "HTKDeserializers",
    HTKMLFBinaryDeserializer: "HTKDeserializers",
}
"""The ``module`` of each deserializer of the composite reader."""
DESERIALIZERS = {target.cntk_type: target for target in MODULES}
"""The deserializer of each ``type``."""


def has_text_keys(target: type[CntkOptions]) -> bool:
    """Return whether the keys of the sequences of a deserializer are words."""
    return MODULES[target] == "HTKDeserializers"


CLASSES = {
    target.__name__: f"it is a class of Python; write {MODULES[target]}, or as the type of a deserializer "
    f"{target.cntk_type}"
    for target in (CTFDeserializer, CBFDeserializer)
}
"""For classes of Python, the names that a configuration has for them."""


# ------------------------------------------------------------------------------------------------------ the options


@dataclasses.dataclass(frozen=True)
class ConfigOption(Generic[_T]):
    """A key that sets an option here.

    Attributes:
        name: The keyword of the deserializer, or the attribute of `ReaderConfig`.
        read: A method of `Section` that reads values of its type.
        default: Its value without an entry.

    Example:
        >>> from cntkio.config.files import configuration
        >>> SEED.of(configuration(["randomizationSeed = 7"])), SEED.of(configuration([]))
        (7, 0)
    """

    key: str
    name: str
    read: Callable[[Section, str, _T], _T]
    default: _T

    def of(self, section: Section) -> _T:
        """Return its value in a section, or raise `ConfigError` if the value does not have its type."""
        return self.read(section, self.key, self.default)


def _keyword(target: type[CntkOptions], key: str, read: Callable[[Section, str, Any], Any]) -> ConfigOption[Any]:
    """Return an option that a deserializer knows itself, with the name and the default that it has there."""
    shared = cntk_options.find_option(target.cntk_options, key)
    assert shared is not None and shared.field is not None
    return ConfigOption(key, shared.field, read, cntk_options.defaults_of(target)[shared.field])


def _optional_text(section: Section, key: str, _: str | None) -> str | None:
    return section.text(key) if section.has(key, own=True) else None


def _remote(section: Section, key: str, _: Remote | None) -> Remote | None:
    """Read the section of an extension: how remote stores are read."""
    if not section.has(key):
        return None
    inner, known = section.section(key), {folded_key(option.key): option.key for option in REMOTE}
    for name in inner.keys:
        # An error, not a warning as for CNTK's keys: this section is an extension, so no configuration of CNTK has it.
        if folded_key(name) not in known:
            raise inner.error(name, f"unknown key {name!r}; expected {', '.join(known.values())}", own=True)
    values = {option.name: option.of(inner) for option in REMOTE}
    try:
        return Remote(**values)
    except ConfigError as error:
        # `Remote` names its own option; the message is about the key of the configuration.
        found = next(option.key for option in REMOTE if option.name == error.key)
        raise inner.error(found, str(error), own=True) from error


# Options in the section of remote stores. Options of a store, such as credentials, are in fsspec's configuration.
_REMOTE = Remote()
REMOTE: tuple[ConfigOption[Any], ...] = (
    ConfigOption("cache", "cache", Section.optional_file, None),
    ConfigOption("cacheLimit", "cache_limit", _optional_text, None),
    ConfigOption("numRequests", "num_requests", Section.size, _REMOTE.num_requests),
    ConfigOption("numRetries", "num_retries", Section.size, _REMOTE.num_retries),
    ConfigOption("timeoutInSeconds", "timeout_in_seconds", Section.size, _REMOTE.timeout_in_seconds),
)
# Options of deserializers.
CHUNK_SIZE: ConfigOption[int] = _keyword(CTFDeserializer, "chunkSizeInBytes", Section.size)
TARGETS = (
    ConfigOption("labelToTargetMappingFile", "labelToTargetMappingFile", Section.optional_file, None),
    ConfigOption(
        "targetDim", "targetDim", lambda section, key, _: section.size(key) if section.has(key) else None, None
    ),
)
PHONE_BOUNDARIES = ConfigOption("phoneBoundaries", "phoneBoundaries", Section.boolean, False)
# Keywords of a deserializer, in the order in which they are written.
KEYWORDS: dict[type, tuple[ConfigOption[Any], ...]] = {
    CTFDeserializer: (
        _keyword(CTFDeserializer, "skipSequenceIds", Section.boolean),
        _keyword(CTFDeserializer, "maxErrors", Section.integer),
        CHUNK_SIZE,
        _keyword(CTFDeserializer, "cacheIndex", Section.boolean),
        _keyword(CTFDeserializer, "keys", partial(Section.word, words=get_args(KeysOf))),
        _keyword(CTFDeserializer, "remote", _remote),
    ),
    CBFDeserializer: (_keyword(CBFDeserializer, "remote", _remote),),
    HTKFeatureDeserializer: (
        ConfigOption("prefixPathInSCP", "prefix", Section.file_name, ""),
        _keyword(HTKFeatureDeserializer, "maxSequenceSize", lambda section, key, _: section.size(key, 0) or None),
        _keyword(HTKFeatureDeserializer, "remote", _remote),
    ),
    HTKMLFDeserializer: (
        PHONE_BOUNDARIES,
        _keyword(HTKMLFDeserializer, "cacheIndex", Section.boolean),
        *TARGETS,
        _keyword(HTKMLFDeserializer, "remote", _remote),
    ),
    HTKMLFBinaryDeserializer: (_keyword(HTKMLFBinaryDeserializer, "remote", _remote),),
}

# Options of readers.
SEED = ConfigOption("randomizationSeed", "randomization_seed", Section.size, 0)
KEEP_DATA = ConfigOption("keepDataInMemory", "keep_data_in_memory", Section.boolean, False)
FRAME_MODE = ConfigOption("frameMode", "frame_mode", Section.boolean, False)
# CNTK's readers of HTK deliver single frames by default, its other readers whole sequences.
HTK_FRAME_MODE = ConfigOption("frameMode", "frame_mode", Section.boolean, True)
TRUNCATED = ConfigOption("truncated", "truncated", Section.boolean, False)
TRUNCATION_LENGTH = ConfigOption("truncationLength", "truncation_length", Section.size, 0)
RIGHT_SPLICE = ConfigOption("rightSplice", "right_splice", Section.size, 0)
LOCAL_TIMELINE = ConfigOption("localTimeline", "local_timeline", Section.boolean, True)
MAX_ERRORS = ConfigOption("maxErrors", "max_errors", Section.size, 0)
COUNTS = ConfigOption[tuple[int, ...]]("nbruttsineachrecurrentiter", "utterances_per_minibatch", Section.integers, (1,))
MAX_LENGTH = ConfigOption("maxUtteranceLength", "max_utterance_length", Section.integer, DEFAULT_MAX_UTTERANCE_LENGTH)
_read_mode = partial(Section.word, words=get_args(MinibatchMode))
MINIBATCH_MODE = ConfigOption[MinibatchMode]("minibatchMode", "minibatch_mode", _read_mode, "partial")
# `cntkio.config.reading` reads these two itself, as words or a path; the rows are for writing.
READ_METHOD = ConfigOption("readMethod", "read_method", Section.text, "blockRandomize")
PAGE_FILE_PATH = ConfigOption("pageFilePath", "page_file_path", Section.text, "")
TRACE_LEVEL = ConfigOption("traceLevel", "trace_level", Section.integer, 1)
_OF_HTK_READERS = (HTK_FRAME_MODE, TRUNCATED, TRUNCATION_LENGTH, COUNTS)
# Attributes of a `ReaderConfig` that a reader's section sets, without window, precision and deserializers.
ATTRIBUTES: dict[Kind, tuple[ConfigOption[Any], ...]] = {
    "CNTKTextFormatReader": (SEED, KEEP_DATA, FRAME_MODE),
    "CNTKBinaryReader": (SEED, KEEP_DATA),
    "HTKDeserializers": (READ_METHOD, SEED, KEEP_DATA, *_OF_HTK_READERS),
    "HTKMLFReader": (READ_METHOD, SEED, MINIBATCH_MODE, *_OF_HTK_READERS, MAX_LENGTH, PAGE_FILE_PATH),
    "composite": (SEED, KEEP_DATA, FRAME_MODE, TRUNCATED, TRUNCATION_LENGTH, RIGHT_SPLICE, LOCAL_TIMELINE, MAX_ERRORS),
}


# ------------------------------------------------------------------------------------- keys that a section can have

_RANDOMIZATION = "randomize randomizationWindow sampleBasedRandomizationWindow randomizationSeed "


def _known(keys: str, *tables: Iterable[ConfigOption[Any] | cntk_options.Option]) -> dict[str, str]:
    """Return the spelling of each folded key, from a list of keys and from tables."""
    return {folded_key(key): key for key in [*keys.split(), *(option.key for table in tables for option in table)]}


TEXT_READER = _known("readerType verbosity " + _RANDOMIZATION, ATTRIBUTES["CNTKTextFormatReader"], TEXT)
BINARY_READER = _known("readerType " + _RANDOMIZATION, ATTRIBUTES["CNTKBinaryReader"], BINARY)
# The further keys in the section of an HTK reader are names of streams.
HTK_READER = _known(
    "readerType randomize checkData useNumericSequenceKeys hashSequenceKeys verbosity action precision "
    "useMersenneTwisterRand unigram traceLevel definesMBSize maxSequenceSize remote",
    ATTRIBUTES["HTKMLFReader"],
)
COMPOSITE_READER = _known(
    "readerType deserializers action precision traceLevel useNumericSequenceKeys hashSequenceKeys checkData "
    "multiThreadedDeserialization chunkSizeInBytes verbosity prefetch remote " + _RANDOMIZATION,
    ATTRIBUTES["composite"],
)
TEXT_DESERIALIZER = _known("type module " + _RANDOMIZATION, TEXT)
BINARY_DESERIALIZER = _known("type module " + _RANDOMIZATION, BINARY)
# A stream looks its keys up in the section of its deserializer, too, so they may stand in either.
FEATURE_DESERIALIZER = _known("traceLevel keepDataInMemory " + " ".join(FEATURE_STREAM), FEATURES)
LABEL_DESERIALIZER = _known("traceLevel keepDataInMemory maxSequenceSize " + " ".join(LABEL_STREAM), LABELS)
FILE_STREAM = _known("dim format alias definesMBSize")
FEATURE_STREAM_KEYS = _known("remote " + " ".join(FEATURE_STREAM))
LABEL_STREAM_KEYS = _known("maxSequenceSize remote " + " ".join(LABEL_STREAM))

_OF_OTHER_READERS = _known(
    "elementType sectionType wrecords windowSize numCPUThreads cropType cropRatio labelMappingType start "
    "numberOfLabels labelFile labelTypes beginSequence endSequence unk wordclass mode noiseSampling startSequence "
    "ioNodeNames randomizeRange ..."
)
WITHOUT_WARNING = frozenset(_OF_OTHER_READERS).union(
    TEXT_READER, BINARY_READER, HTK_READER, COMPOSITE_READER, TEXT_DESERIALIZER, BINARY_DESERIALIZER,
    FEATURE_DESERIALIZER, LABEL_DESERIALIZER, FILE_STREAM, FEATURE_STREAM_KEYS, LABEL_STREAM_KEYS,
)  # fmt: skip
"""Folded keys that cause no warning: keys of other sections or readers, which many sections have out of habit, and
the dots with which pages abbreviate a section."""


class WithoutEffect(NamedTuple):
    """A key that changes nothing here.

    Attributes:
        usual: The value that asks for what cntkio does anyway; any other value causes a warning. None: each value does.
        reason: The reason why it changes nothing.
        is_inherited: Whether it is also looked up in the outer sections.
    """

    key: str
    usual: bool | str | None
    reason: str
    is_inherited: bool = False


def _rows(reason: str, *, is_inherited: bool = False, **usual: bool | str | None) -> tuple[WithoutEffect, ...]:
    """Return keys that change nothing for the same reason, with the usual value of each."""
    return tuple(WithoutEffect(key, value, reason, is_inherited) for key, value in usual.items())


_inherited = partial(_rows, is_inherited=True)
_OF_ALL_KEYS = (
    *_inherited("streams are always checked", checkData=True),
    *_inherited("keys are compared as they are", hashSequenceKeys=False),
)
TEXT_KEYS_WITHOUT_EFFECT = (
    *_OF_ALL_KEYS,
    *_inherited("keys are compared as text, numbers by their digits", useNumericSequenceKeys=False),
)
"""Options without effect for corpora whose keys are words, as in HTK's formats."""
NUMERIC_KEYS_WITHOUT_EFFECT = (
    *_OF_ALL_KEYS,
    *_inherited("keys that are numbers are always compared as numbers", useNumericSequenceKeys=True),
)
_VERBOSITY = _rows("traceLevel says what is logged", verbosity="0")
_IN_BINARY_FILES = (
    *_rows("no error in a binary file is forgiven", maxErrors="0"),
    *_rows("a binary file has no ids", skipSequenceIds=False),
    *_rows("a binary file has its own chunks", chunkSizeInBytes=None),
    *_rows("a binary file holds its index", cacheIndex=False),
)
_OF_HTK = (
    *_VERBOSITY,
    *TEXT_KEYS_WITHOUT_EFFECT,
    *_rows("the window is the value of randomize", randomizationWindow=None),
    *_rows("the window is the value of randomize, in samples", sampleBasedRandomizationWindow=None),
)
# Usual values that differ from the default: classic readers have no local timeline, and any path or limit is a wish.
_USUAL: dict[str, bool | None] = {"localTimeline": False, "maxUtteranceLength": None, "pageFilePath": None}


def _of_others(kind: Kind, *rows: WithoutEffect, known: str = "") -> tuple[WithoutEffect, ...]:
    """Return rows for a reader, and rows for the keys that only the tables of other readers have.

    `known` are further keys that the reader has, for its deserializer.
    """
    readers: dict[str, list[str]] = {}
    usual: dict[str, Any] = {}
    for reader, options in ATTRIBUTES.items():
        for option in options:
            readers.setdefault(option.key, []).append("the composite reader" if reader == "composite" else reader)
            usual.setdefault(option.key, option.default)
    own = {*known.split(), *(option.key for option in ATTRIBUTES[kind]), *(row.key for row in rows)}
    others = []
    for key, (*several, last) in readers.items():
        if key not in own:
            reason = f"{', '.join(several)} and {last} have it" if several else f"only {last} has it"
            default = usual[key]
            # The usual value is compared with the text of a value in a configuration, unless it is a truth value.
            if not isinstance(default, bool):
                default = ":".join(map(str, default)) if isinstance(default, tuple) else str(default)
            others.append(WithoutEffect(key, _USUAL.get(key, default), reason))
    return (*rows, *others)


_IN_DESERIALIZERS = _rows(
    "it belongs in the section of a deserializer", file=None, input=None, skipSequenceIds=False, cacheIndex=False
)
READER_WITHOUT_EFFECT: dict[Kind, tuple[WithoutEffect, ...]] = {
    "CNTKTextFormatReader": _of_others("CNTKTextFormatReader", *_VERBOSITY, known="maxErrors"),
    "CNTKBinaryReader": _of_others("CNTKBinaryReader", *_VERBOSITY, *_IN_BINARY_FILES),
    "HTKDeserializers": _of_others(
        "HTKDeserializers", *_OF_HTK, *_inherited("only HTKMLFReader has it", minibatchMode="partial")
    ),
    "HTKMLFReader": _of_others(
        "HTKMLFReader",
        *_OF_HTK,
        *_inherited("the random numbers are always drawn with the Mersenne twister", useMersenneTwisterRand=True),
        *_inherited("sweep k is shuffled with k", randomizationSeed="0"),
        *_inherited("the minibatch size is the truncation length", truncationLength="0"),
    ),
    "composite": _of_others("composite", *_VERBOSITY, *_IN_DESERIALIZERS),
}
"""For each reader, the keys that other readers have and this reader does not."""

_OF_OTHERS = _of_others(
    "composite",
    *_rows("the section of the reader sets it", randomize=True, randomizationWindow=None, randomizationSeed="0"),
    *_rows("the section of the reader sets it", sampleBasedRandomizationWindow=None, frameMode=False, truncated=False),
    *_rows("the section of the reader sets it", precision="float", truncationLength="0"),
)
_IN_SPEECH_FILES = (
    *_OF_OTHERS,
    *_rows("the section of the reader says how many utterances may be invalid", maxErrors="0"),
    *_rows("utterances are joined by key", skipSequenceIds=False),
    *_rows("chunks have 15 minutes of frames", chunkSizeInBytes=None),
)
DESERIALIZER_WITHOUT_EFFECT: dict[type[CntkOptions], tuple[WithoutEffect, ...]] = {
    CTFDeserializer: _OF_OTHERS,
    CBFDeserializer: (*_OF_OTHERS, *_IN_BINARY_FILES),
    **{target: _IN_SPEECH_FILES for target in MODULES if has_text_keys(target)},
}
"""The same for each deserializer of the composite reader. A value that the reader also has causes no warning."""

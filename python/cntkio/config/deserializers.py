"""Sections of deserializers and streams, and the calls that they become. (docs/configuration.md, "Readers")

Invariants: what CNTK's deserializer refuses is refused here, at its key; a key that CNTK does not look at is not looked
at; a key that no reader knows is warned of.

This module opens no data: the deserializers open the files that a section names.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from cntkio.arguments import did_you_mean
from cntkio.config import keys
from cntkio.config.keys import Kind, Precision
from cntkio.config.language import Section, folded_key
from cntkio.config.reader_config import Call, ReaderConfig
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.cntk_options import truth
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.htk import HTKFeatureDeserializer, window_of
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs
from cntkio.timeline import Window
from cntkio.unsupported import INSTEAD


@dataclasses.dataclass(frozen=True)
class Asked:
    """A reader's section, and the action that uses it.

    Attributes:
        action: The action that uses it, such as ``"test"``; empty: it is read as it is written.
    """

    section: Section
    kind: Kind
    action: str
    precision: Precision
    frame_mode: bool = False

    def is_write(self) -> bool:
        """Return whether the action or the section writes, which matters to HTK readers and the composite reader."""
        return self.action == "write" or self.section.text("action", "").lower() == "write"

    def reads_in_order(self) -> bool:
        """Return whether the action reads in order: ``write``; ``test`` and ``eval`` unless ``randomize`` is given."""
        # CNTK adds `randomize = None` to the reader of these actions.
        is_test = self.action in ("test", "eval")
        return self.action == "write" or (is_test and not self.section.has("randomize"))

    def trace_level(self, section: Section) -> int:
        """Return the trace level of a deserializer: the reader's or else its own."""
        return keys.TRACE_LEVEL.of(self.section if self.section.has(keys.TRACE_LEVEL.key) else section)

    def config(self, calls: Iterable[Call], window: Window | None, *, has_seed: bool, **options: Any) -> ReaderConfig:
        """Return the meaning of the section: these deserializers and options, and the seed if the reader has one."""
        if has_seed:
            options["randomization_seed"] = keys.SEED.of(self.section)
        return ReaderConfig(self.section.path, self.kind, tuple(calls), self.precision, window=window, **options)


# ---------------------------------------------------------------------------------------------------------- checks


def refuse_kind(section: Section, key: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise the error about a kind of reader or deserializer that cntkio does not have."""
    names = list(known)
    hint = (INSTEAD | keys.CLASSES).get(name) or f"supported are {', '.join(names)}{did_you_mean(name, names)}"
    raise section.error(key, f"{key} = {name!r} is not supported: {hint}")


def warn_of_unknown_keys(section: Section, known: Mapping[str, str], streams: Iterable[str] = ()) -> None:
    """Warn of keys that are neither in a table of `cntkio.config.keys` nor names of streams."""
    named = {folded_key(name) for name in streams}
    # Unknown keys get their warning here, so `warn_of_unused` must not warn of them again.
    section.use_all()
    for entry in section.entries:
        name = folded_key(entry.key)
        if name in known or name in named or name in keys.WITHOUT_WARNING:
            continue
        hint = did_you_mean(entry.key, [*known.values(), "deserializers"])
        # A comma ends a value that has no quotes, and the text after it becomes a flag.
        if not hint and entry.is_flag:
            hint = "; is it the second half of a value that should be in quotes?"
        section.warn(entry.key, f"key {entry.key!r} is unknown here and ignored{hint}", own=True)


def warn_of_no_effect(section: Section, rows: Iterable[keys.WithoutEffect], deciding: Section | None = None) -> None:
    """Warn of keys without effect whose values ask for something that cntkio does not do. Accept any type of value.

    If the deciding section has a value, only a different value in this section causes a warning.
    """
    for row in rows:
        is_own = not row.is_inherited
        with contextlib.suppress(ValueError, ConfigError):  # a variable that no entry needs may be missing
            asked = _asked_for(section, row, is_own)
            usual = None if deciding is None else _asked_for(deciding, row, is_own=False)
            if asked is not None and asked != (row.usual if usual is None else usual):
                section.warn(row.key, f"{row.key} has no effect: {row.reason}", own=is_own)


def _asked_for(section: Section, row: keys.WithoutEffect, is_own: bool) -> bool | str | None:
    """Return the value of a key without effect as `row.usual` has it; None: the value is missing, empty or a default.

    A value of a different type raises `ValueError`.
    """
    value = section.value(row.key, own=is_own)
    if value is None or value.string in ("", "default"):
        return None
    word = value.string.lower()
    if isinstance(row.usual, bool):
        # `randomize = none` means false.
        return word != "none" and truth(value.string)
    return row.usual if row.usual and word == row.usual.lower() else word


def chunk_size_of(section: Section) -> int:
    """Return ``chunkSizeInBytes``; refuse 0, with which CNTK crashes."""
    size = keys.CHUNK_SIZE.of(section)
    if not size:
        raise section.error(keys.CHUNK_SIZE.key, f"{keys.CHUNK_SIZE.key} = 0; expected at least 1")
    return size


def _dimension(stream: Section, key: str) -> int:
    dim = stream.size(key)
    if not 1 <= dim <= LARGEST_DIM:
        raise stream.error(key, f"{key} = {dim}; expected 1 to {LARGEST_DIM}")
    return dim


def _keywords(asked: Asked, section: Section, options: Iterable[keys.ConfigOption[Any]]) -> tuple[tuple[str, Any], ...]:
    """Read keywords of a deserializer and its precision, without those at their default."""
    values = [(option, option.of(section)) for option in options]
    precision = (("dtype", "float64"),) if asked.precision == "double" else ()
    return (*((option.name, value) for option, value in values if value != option.default), *precision)


def _streams_of(section: Section) -> list[Section]:
    example = "input = [ x = [ dim = 2 ; format = dense ] ]"
    if not section.has("input", own=True):
        hint = f"{did_you_mean('input', section.keys)}; expected streams, such as {example}"
        raise section.error("input", f"there is no section 'input'{hint}", own=True)
    streams = section.section("input", own=True)
    if not streams.keys:
        raise section.error("input", f"'input' is empty; expected a section for each stream: {example}", own=True)
    return [streams.section(name, own=True) for name in streams.keys]


# ------------------------------------------------------------------------------------------------ text and binary


def text_deserializer(section: Section, asked: Asked, known: Mapping[str, str]) -> Call:
    """Read the section of a text reader, or of a deserializer of the text format. `known` lists its keys."""
    warn_of_unknown_keys(section, known)
    path = section.files("file")
    streams: dict[str, Any] = {}
    names: dict[str | None, str] = {}  # the stream that has each name in the file
    defining = False
    for stream in _streams_of(section):
        described = _text_stream(stream)
        alias, defines = described.stream_alias, described.defines_mb_size
        if alias in names:
            raise stream.error("alias", f"streams {names[alias]!r} and {stream.name!r} are both {alias!r} in the file")
        if defines and defining:
            raise stream.error("definesMBSize", "more than one stream defines the minibatch size")
        streams[stream.name], names[alias], defining = described, stream.name, defining or defines
    # Only a check: the value is one of the keywords.
    chunk_size_of(section)
    keywords = _keywords(asked, section, keys.KEYWORDS[CTFDeserializer])
    return Call(CTFDeserializer, (path, StreamDefs(streams)), keywords, asked.trace_level(section))


def _text_stream(stream: Section) -> StreamDef:
    warn_of_unknown_keys(stream, keys.FILE_STREAM)
    dim = stream.size("dim", own=True)
    storage = stream.text("format", own=True).lower()
    if storage not in ("dense", "sparse"):
        raise stream.error("format", f"format = {storage!r} is neither dense nor sparse", own=True)
    # CNTK limits the dimension of sparse streams only.
    if dim < 1 or (storage == "sparse" and dim > LARGEST_DIM):
        raise stream.error("dim", f"dim = {dim}; expected 1 to {LARGEST_DIM}", own=True)
    alias = stream.text("alias", stream.name, own=True)
    if not alias:
        raise stream.error("alias", "alias is empty", own=True)
    defines = stream.boolean("definesMBSize", False)
    return StreamDef(field=alias, shape=dim, is_sparse=storage == "sparse", defines_mb_size=defines)


def binary_deserializer(section: Section, asked: Asked, known: Mapping[str, str]) -> Call:
    """Read the section of a binary reader, or of a deserializer of the binary format. `known` lists its keys."""
    warn_of_unknown_keys(section, known)
    path = section.files("file")
    # The keys are names in the file. If two streams have the same name there, the last stream by name gets the samples.
    names: dict[str, str] = {}
    if section.has("input", own=True):
        streams = section.section("input", own=True)
        for name in streams.keys:
            stream = streams.section(name, own=True)
            warn_of_unknown_keys(stream, keys.FILE_STREAM)
            alias = stream.text("alias", stream.name, own=True) or stream.name
            names.pop(alias, None)
            names[alias] = stream.name
    renamed = {name: StreamDef(field=alias) for alias, name in names.items() if alias != name}
    arguments: tuple[Any, ...] = (path, StreamDefs(renamed)) if renamed else (path,)
    dtype = "float32" if asked.precision == "float" else "float64"
    # Without conversion, because CNTK refuses a file whose values have another type.
    options = [(option.name, option.of(section), option.default) for option in keys.KEYWORDS[CBFDeserializer]]
    keywords = [(name, value) for name, value, default in options if value != default]
    return Call(
        CBFDeserializer, arguments, (*keywords, ("dtype", dtype), ("convert", False)), asked.trace_level(section)
    )


# ------------------------------------------------------------------------------------------------------------- HTK


def feature_deserializer(stream: Section, asked: Asked) -> Call:
    """Read the section of a stream of features."""
    warn_of_unknown_keys(stream, keys.FEATURE_STREAM_KEYS)
    fields: dict[str, Any] = {"scp": stream.files("scpFile", own=True), "shape": _dimension(stream, "dim")}
    # Without the key, `dim` and the dimension in the file say how many frames of context there are.
    if stream.has("contextWindow"):
        counts = stream.integers("contextWindow", (1,))
        try:
            fields["context"] = window_of(counts)
        except ConfigError:
            message = f"contextWindow = {counts}; expected one odd number, or left:right"
            raise stream.error("contextWindow", message) from None
    fields["broadcast"] = stream.boolean("expandToUtterance", False) or None
    fields["defines_mb_size"] = stream.boolean("definesMBSize", False)
    keywords = _keywords(asked, stream, keys.KEYWORDS[HTKFeatureDeserializer])
    return Call(HTKFeatureDeserializer, (StreamDefs({stream.name: StreamDef(**fields)}),), keywords)


def refuse_expanded(stream: Section) -> None:
    """Refuse ``expandToUtterance`` of the first stream of features, which says how long utterances are."""
    if stream.boolean("expandToUtterance", False):
        raise stream.error("expandToUtterance", "the first feature stream cannot be expanded to utterances")


def label_deserializer(stream: Section, asked: Asked) -> Call:
    """Read the section of a stream of labels."""
    warn_of_unknown_keys(stream, keys.LABEL_STREAM_KEYS)
    files, listed = _label_files(stream)
    described = StreamDef(mlf=files, shape=_number_of_classes(stream))
    mapping = stream.optional_file("labelMappingFile")
    takes_targets = asked.kind == "HTKMLFReader"
    if asked.frame_mode and keys.PHONE_BOUNDARIES.of(stream):
        raise stream.error("phoneBoundaries", "phoneBoundaries and frameMode exclude each other")
    if not takes_targets and stream.has("labelToTargetMappingFile"):
        stream.warn("labelToTargetMappingFile", "labelToTargetMappingFile has an effect only in HTKMLFReader")
    has_targets = takes_targets and stream.text("labelToTargetMappingFile", "")
    options = [option for option in keys.KEYWORDS[HTKMLFDeserializer] if has_targets or option not in keys.TARGETS]
    keywords = (*listed, *_keywords(asked, stream, options))
    return Call(HTKMLFDeserializer, (mapping, StreamDefs({stream.name: described})), keywords)


def _label_files(stream: Section) -> tuple[str | list[str] | None, tuple[tuple[str, Any], ...]]:
    """Return the files of a stream of labels, or the keyword that names a list of files."""
    if stream.has("mlfFile", own=True):
        return stream.files("mlfFile", own=True), ()
    text = stream.file_name("mlfFileList", own=True)
    files = stream.texts("mlfFileList", own=True)
    # CNTK tells the two forms apart by the colon: without one, the value is a file that lists files.
    if ":" in text or len(files) > 1:
        return [stream.in_directory(file, "mlfFileList", own=True) for file in files], ()
    listed = stream.in_directory(files[0] if files else text, "mlfFileList", own=True)
    # This module opens no data, so the deserializer reads the list.
    return None, (("stream_options", {stream.name: {"mlfFileList": listed}}),)


def _number_of_classes(stream: Section) -> int:
    return _dimension(stream, "labelDim" if stream.has("labelDim") else "dim")


def stream_deserializers(asked: Asked) -> list[Call]:
    """Read the streams of an HTK reader: members of its section, told apart by their keys, whatever their names."""
    reader = asked.section
    features, labels, names = [], [], []
    for name in reader.keys:
        value = reader.value(name, own=True)
        if value is None or not value.is_section:
            continue
        names.append(name)
        stream = reader.section(name, own=True)
        if stream.has("scpFile", own=True):
            features.append(stream)
        elif stream.has("mlfFile", own=True) or stream.has("mlfFileList", own=True):
            labels.append(stream)
        elif stream.has("phoneFile", own=True) or stream.has("denlatTocFile", own=True):
            raise reader.error(name, f"{name!r} describes sequence training (HMMs or lattices), which is not supported")
        # A section under a key of the reader itself, such as `unigram`, is not meant as a stream.
        elif folded_key(name) not in keys.HTK_READER:
            reader.warn(name, f"{name!r} has neither scpFile nor mlfFile nor mlfFileList, and is not read")
    warn_of_unknown_keys(reader, keys.HTK_READER, names)
    if not features:
        raise reader.error("scpFile", "no feature section: none of the sections has an scpFile")
    refuse_expanded(features[0])
    calls = []
    # The types are checked here only, because CNTK's composite reader does not look at them.
    for stream in features:
        stream.word("type", "real", ("real",))
        calls.append(feature_deserializer(stream, asked))
    for stream in labels:
        stream.word("labelType" if stream.has("labelType") else "type", "category", ("category",))
        calls.append(label_deserializer(stream, asked))
    return calls


# -------------------------------------------------------------------------------------- of the composite reader


def composite_deserializers(asked: Asked) -> list[Call]:
    """Read the ``deserializers`` of a composite reader."""
    sections = asked.section.sections("deserializers")
    if not sections:
        raise asked.section.error("deserializers", "'deserializers' is empty; expected at least one section")
    return [_deserializer(section, asked, is_first=not index) for index, section in enumerate(sections)]


def _deserializer(section: Section, asked: Asked, *, is_first: bool) -> Call:
    name = section.text("type")
    target = keys.DESERIALIZERS.get(name)
    if target is None:
        refuse_kind(section, "type", name, keys.DESERIALIZERS)
    # CNTK requires `module`, but `type` already says it; only a contradiction is an error.
    module = keys.MODULES[target]
    if section.has("module") and section.text("module") != module:
        raise section.error("module", f"module = {section.text('module')!r}; expected {module!r} for {name}")
    warn_of_no_effect(section, keys.DESERIALIZER_WITHOUT_EFFECT[target], asked.section)
    if target is CTFDeserializer:
        return text_deserializer(section, asked, keys.TEXT_DESERIALIZER)
    if target is CBFDeserializer:
        if not is_first:
            raise asked.section.error("deserializers", "a binary deserializer must be the first")
        return binary_deserializer(section, asked, keys.BINARY_DESERIALIZER)
    if target is HTKFeatureDeserializer:
        stream = _only_stream(section, keys.FEATURE_DESERIALIZER)
        if is_first:
            refuse_expanded(stream)
        return feature_deserializer(stream, asked)
    if is_first:
        raise asked.section.error("deserializers", "an MLF deserializer cannot be the first")
    if target is HTKMLFDeserializer:
        return label_deserializer(_only_stream(section, keys.LABEL_DESERIALIZER), asked)
    stream = _streams_of(section)[0]
    described = StreamDef(mlf=stream.files("mlfFile", own=True), shape=_number_of_classes(stream))
    return Call(
        HTKMLFBinaryDeserializer,
        (StreamDefs({stream.name: described}),),
        _keywords(asked, stream, keys.KEYWORDS[target]),
    )


def _only_stream(section: Section, known: Mapping[str, str]) -> Section:
    """Return the first stream of a deserializer of HTK; like CNTK, do not read the others."""
    warn_of_unknown_keys(section, known)
    streams = _streams_of(section)
    if len(streams) > 1:
        names = ", ".join(repr(stream.name) for stream in streams[1:])
        section.warn("input", f"only the stream {streams[0].name!r} is read, not {names}", own=True)
    return streams[0]

"""Write the configuration of a `ReaderConfig`, or of deserializers. (docs/configuration.md, "Writing")

Invariant: reading a written configuration gives the same `ReaderConfig`; an option without a key is refused. The keys
come from the tables that reading uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from cntkio.config import keys
from cntkio.config.files import configuration
from cntkio.config.keys import Kind
from cntkio.config.language import BLANKS, VARIABLE, by_name
from cntkio.config.reader_config import Call, ReaderConfig
from cntkio.config.reading import read_section
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.cntk_options import FEATURE_STREAM, defaults_of
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.htk.options import paths_of
from cntkio.formats.mlf import HTKMLFDeserializer
from cntkio.storage.names import shown_pattern
from cntkio.storage.remote import Remote
from cntkio.streams import StreamDef, StreamDefs, non_default_items
from cntkio.timeline import WHOLE_DATA, Window, classic_binary_window, classic_text_window, composite_window

# ------------------------------------------------------------------------------------------------- from deserializers


def configuration_for(deserializers: Any, section: str = "train") -> tuple[str, str]:
    """Return the configuration that reads a corpus, or several that are joined, and the Python program for the same.

    Raises:
        ConfigError: A name cannot be written in a configuration, or an option has no key there.
        FormatError: A binary file, which is opened for its precision, breaks its format.
        OSError: A binary file cannot be read.

    Example:
        >>> text, program = configuration_for(CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
        >>> "dim = 2" in text, program.splitlines()[0]
        (True, 'from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs')
    """
    several = deserializers if isinstance(deserializers, Sequence) else [deserializers]
    calls = tuple(_call_for(deserializer) for deserializer in several)
    precision: keys.Precision = "double" if any(("dtype", "float64") in call.keywords for call in calls) else "float"
    kind = _KINDS.get(calls[0].target, "composite") if len(calls) == 1 else "composite"
    options: dict[str, Any] = {"window": _default_window(kind, calls), "local_timeline": kind == "composite"}
    described = ReaderConfig(f"{section}/reader", kind, calls, precision, **options)
    text = written_config(section, described)
    config = read_section(configuration([text]), (section, "reader"))
    # The text is read back, so that an option that no line of it sets cannot get lost without an error.
    if config != described:
        shown = ", ".join(map(repr, calls))
        raise ConfigError(f"{shown} cannot be written in a configuration: an option has no key")
    return text, config.to_python()


# The readers of a single deserializer.
_KINDS: dict[type, Kind] = {CTFDeserializer: "CNTKTextFormatReader", CBFDeserializer: "CNTKBinaryReader"}


def _call_for(deserializer: Any) -> Call:
    """Return the call that makes a deserializer, as reading a configuration would."""
    target = type(deserializer)
    if target not in keys.KEYWORDS:
        what = f"a deserializer of the type {target.__name__}"
        raise ConfigError(f"{what} cannot be written in a configuration", key="deserializers")
    options = {option.name for option in keys.KEYWORDS[target]}
    changed: dict[str, Any] = {}
    for name, default in defaults_of(target).items():
        value = getattr(deserializer, name)
        if name in _BY_OTHER_MEANS or value == default:
            continue
        if name not in options:
            raise ConfigError(f"{target.__name__}: {name}={value!r} has no key in a configuration", key=name)
        changed[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    # In the order of the table, as reading makes them, because calls are compared.
    keywords = [(option.name, changed[option.name]) for option in keys.KEYWORDS[target] if option.name in changed]
    return Call(target, _arguments(target, deserializer), (*keywords, *_precision(deserializer)))


# Fields of deserializers that are arguments, or that the reader's section sets.
_BY_OTHER_MEANS = ("filename", "streams", "label_mapping_file", "dtype", "convert")


def _arguments(target: type, deserializer: Any) -> tuple[Any, ...]:
    """Return the positional arguments of a deserializer."""
    if target is CTFDeserializer:
        return deserializer.filename, deserializer.streams
    if target is CBFDeserializer:
        renamed = {name: stream for name, stream in deserializer.streams.items() if stream.stream_alias != name}
        return (deserializer.filename, StreamDefs(renamed)) if renamed else (deserializer.filename,)
    if target is not HTKMLFDeserializer:
        return (_with_paths_as_texts(deserializer.streams),)
    mapping = deserializer.label_mapping_file
    return None if mapping is None else os.fspath(mapping), _with_paths_as_texts(deserializer.streams)


def _precision(deserializer: Any) -> tuple[tuple[str, Any], ...]:
    if type(deserializer) is not CBFDeserializer:
        return (("dtype", "float64"),) if np.dtype(deserializer.dtype) == np.float64 else ()
    precisions = {str(np.dtype(deserializer.dtype))}
    # The precision is a key of the configuration; without `dtype`, only the file knows it.
    if deserializer.dtype is None:
        with closing(deserializer.open()) as corpus:
            precisions = {str(info.dtype) for info in corpus.streams}
    if len(precisions) > 1:
        what = "streams of float32 and of float64; a configuration has one precision"
        raise ConfigError(f"{deserializer.filename}: {what}", key="precision")
    return ("dtype", precisions.pop()), ("convert", False)


def _with_paths_as_texts(streams: StreamDefs) -> StreamDefs:
    """Return the stream of a deserializer as reading makes it: paths are texts, and a list of one is that text."""
    if len(streams) > 1:
        message = "a configuration has a deserializer for each stream; expected one stream in each deserializer"
        raise ConfigError(message, key="streams")
    ((name, stream),) = streams.items()
    texts = {key: paths_of(stream[key]) for key in ("scp", "mlf") if key in stream}
    files = {key: paths[0] if len(paths) == 1 else list(paths) for key, paths in texts.items()}
    # Reading leaves these two at their defaults, and calls are compared.
    return StreamDefs({name: stream.updated_with(stream_alias=None, is_sparse=False, **files)})


# ----------------------------------------------------------------------------------------------- from a ReaderConfig


def written_config(section: str, config: ReaderConfig) -> str:
    """Return the configuration of a reader, which `read_config` and CNTK read, in the section of an action.

    Trace levels are not written. A name that a configuration cannot contain raises `ConfigError`.

    Example:
        >>> call = Call(CTFDeserializer, ("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
        >>> print(written_config("train", ReaderConfig("", "CNTKTextFormatReader", (call,))))
        command = train
        precision = "float"
        <BLANKLINE>
        train = [
            action = "train"
            reader = [
                readerType = "CNTKTextFormatReader"
                file = "a.ctf"
                input = [
                    x = [ alias = "x" ; dim = 2 ; format = "dense" ]
                ]
                randomize = false
            ]
        ]
        <BLANKLINE>
    """
    sizes = _entries(
        ("minibatchSize", config.minibatch_sizes, (256,)),
        ("epochSize", config.epoch_size, 0),
        ("maxEpochs", config.max_epochs, None),
    )
    reader = _group("reader", _LINES[config.kind](config))
    lines = [f"command = {section}", _entry("precision", config.precision), ""]
    lines += _group(section, [_entry("action", "train"), *_group("SGD", sizes), *reader])
    return "".join(f"{line}\n" for line in lines)


def _file_reader(config: ReaderConfig) -> list[str]:
    return [_entry("readerType", config.kind), *_file(config.calls[0]), *_window(config), *_attributes(config)]


def _htk_reader(config: ReaderConfig) -> list[str]:
    window = config.window
    lines = [_entry("readerType", config.kind)]
    # HTKDeserializers refuse `randomize = none` unless the method is `none`; HTKMLFReader has no such method in CNTK.
    if window is None and config.kind == "HTKDeserializers":
        lines.append(_entry("readMethod", "none"))
    else:
        size = "none" if window is None else "auto" if window == WHOLE_DATA else str(window.size)
        lines += _entries(("randomize", size, "auto"))
    return [*lines, *_attributes(config), *(line for call in config.calls for line in _stream(call))]


def _composite(config: ReaderConfig) -> list[str]:
    parts: list[str] = []
    for call in config.calls:
        content = _group("input", _stream(call)) if keys.has_text_keys(call.target) else _file(call)
        content = [_entry("type", call.target.cntk_type), _entry("module", keys.MODULES[call.target]), *content]
        parts += ["[", *(f"    {line}" for line in content), "] :"]
    parts[-1] = "]"
    return [*_window(config), *_attributes(config), "deserializers = (", *(f"    {line}" for line in parts), ")"]


_LINES: dict[Kind, Callable[[ReaderConfig], list[str]]] = {
    "CNTKTextFormatReader": _file_reader, "CNTKBinaryReader": _file_reader,
    "HTKMLFReader": _htk_reader, "HTKDeserializers": _htk_reader, "composite": _composite,
}  # fmt: skip


def _attributes(config: ReaderConfig) -> list[str]:
    return [_entry(option.key, value) for option, value in config.set_options()]


def _default_window(kind: Kind, calls: Sequence[Call]) -> Window | None:
    if kind == "composite":
        return composite_window(has_text_format=any(call.target is CTFDeserializer for call in calls))
    if kind == "CNTKBinaryReader":
        return classic_binary_window()
    chunk_size = dict(calls[0].keywords).get(keys.CHUNK_SIZE.name, keys.CHUNK_SIZE.default)
    return classic_text_window(chunk_size_in_bytes=chunk_size)


def _window(config: ReaderConfig) -> list[str]:
    window = config.window
    if window is None:
        return [_entry("randomize", False)]
    if window == _default_window(config.kind, config.calls):
        return []
    is_composite, in_samples = config.kind == "composite", window.unit == "samples"
    # In classic readers, counting samples without a number means all data; CNTK's composite reader needs the number.
    size = window.size if window != WHOLE_DATA or is_composite else None
    # By default, the composite reader counts samples, and the classic readers chunks.
    default = is_composite
    return _entries(("randomizationWindow", size, None), ("sampleBasedRandomizationWindow", in_samples, default))


def _file(call: Call) -> list[str]:
    path, *streams = call.arguments
    lines = [_entry("file", ";".join(paths_of(path))), *_keywords(call)]
    groups = []
    for name in sorted(streams[0] if streams else (), key=by_name):
        stream = streams[0][name]
        entries = [_entry("alias", stream.stream_alias)]
        if call.target is CTFDeserializer:
            entries += [_entry("dim", stream.dim), _entry("format", "sparse" if stream.is_sparse else "dense")]
            entries += _entries(("definesMBSize", stream.defines_mb_size, False))
        groups.append(f"{_quotable(name)} = [ {' ; '.join(entries)} ]")
    return lines + _group("input", groups)


def _stream(call: Call) -> list[str]:
    ((name, stream),) = call.arguments[-1].items()
    if call.target is HTKFeatureDeserializer:
        written = non_default_items(stream) | {"scp": ";".join(paths_of(stream.scp))}
        lines = [_entry(key, written[field]) for key, field in FEATURE_STREAM.items() if field in written]
    else:
        lines = _labels(name, stream, call)
    return _group(_quotable(name), [*lines, *_keywords(call)])


def _labels(name: str, stream: StreamDef, call: Call) -> list[str]:
    files = stream.mlf
    if files is None:
        lines = [_entry("mlfFileList", dict(call.keywords)["stream_options"][name]["mlfFileList"])]
    elif isinstance(files, str | os.PathLike):
        lines = [_entry("mlfFile", files)]
    else:
        lines = ["mlfFileList = ( " + " : ".join(f'"{_quotable(file)}"' for file in paths_of(files)) + " )"]
    mapping = call.arguments[0] if call.target is HTKMLFDeserializer else None
    return [*lines, *_entries(("labelMappingFile", mapping, None)), _entry("labelDim", stream.dim)]


def _group(name: str, lines: Sequence[str]) -> list[str]:
    return [f"{name} = [", *(f"    {line}" for line in lines), "]"] if lines else []


def _keywords(call: Call) -> list[str]:
    key_of = {option.name: option.key for option in keys.KEYWORDS[call.target]}
    given = dict(call.keywords)
    return [_entry(key, given[name]) for name, key in key_of.items() if name in given]


def _entries(*rows: tuple[str, Any, Any]) -> list[str]:
    """Return an entry for each row of key, value and default whose value is not the default."""
    return [_entry(key, value) for key, value, default in rows if value != default]


def _entry(key: str, value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return f'{key} = "{_quotable(os.fspath(value))}"'
    if isinstance(value, bool):
        return f"{key} = {str(value).lower()}"
    if isinstance(value, Remote):
        rows = _entries(*((option.key, getattr(value, option.name), option.default) for option in keys.REMOTE))
        return f"{key} = [ {' ; '.join(rows)} ]"
    if isinstance(value, tuple):
        return f"{key} = {':'.join(map(str, value))}"
    return f"{key} = {value}"


def _quotable(text: str) -> str:
    """Return the text if a configuration can contain it in quotes.

    Raises:
        ConfigError: A configuration cannot contain it.
    """
    shown = shown_pattern(text)
    if shown != text:
        what = "this URL has a user, a password or a query, which a configuration would show"
        advice = "leave them out, and put credentials into fsspec's configuration"
        raise ConfigError(f"{shown}: {what}; {advice}", key="file")
    hash_sign = text.find("#")  # a later '#' in a line begins no comment
    begins_comment = hash_sign == 0 or (hash_sign > 0 and text[hash_sign - 1] in BLANKS)
    # The language has no escapes, so a configuration cannot contain these texts in any form.
    if any(character in text for character in '"\n\r') or begins_comment or VARIABLE.search(text):
        what = "it contains a quote, a line end, ' #' or a variable"
        raise ConfigError(f"{text!r} cannot be written in a configuration: {what}")
    return text

"""What the command line does with configuration files: the parts of its verbs. (docs/configuration.md)

Its law: everything here returns what is to be printed. It prints nothing, draws no progress bar, and knows no options.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from cntkio.config.classic import configuration
from cntkio.config.readers import Call, ReaderConfig, read_section, readers_of, written_config
from cntkio.errors import ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.mlf import HTKMLFDeserializer
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDef, StreamDefs
from cntkio.timeline import classic_binary_window, classic_text_window, composite_window


def is_configuration(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a configuration.

    Example:
        >>> is_configuration("train.cntk"), is_configuration("train.ctf")
        (True, False)
    """
    return os.path.splitext(os.fspath(path))[1].lower() in (".cntk", ".config", ".bs")  # noqa: PTH122


def asked_readers(path: str | os.PathLike[str], arguments: Sequence[str]) -> list[ReaderConfig]:
    """The readers of a configuration that arguments ask for.

    Args:
        path: The configuration.
        arguments: ``key=value`` overrides; what has no ``=`` names a section. Without a section all readers of all
            actions are asked for, ``cvReader`` too.

    Raises:
        ConfigError: The configuration cannot be read, a section is not there, or a reader refuses it.
        OSError: The configuration cannot be read.
    """
    sections = [argument for argument in arguments if "=" not in argument]
    overrides = [argument for argument in arguments if "=" in argument]
    top = configuration([f"configFile={os.fspath(path)}", *overrides])
    found = [read_section(top, section, for_action=True) for section in sections or readers_of(top)]
    return found or [read_section(top)]


def understood(path: str | os.PathLike[str], arguments: Sequence[str]) -> list[dict[str, str]]:
    """What was understood of the readers asked for: facts by name, one after another. Errors as `asked_readers`."""
    return [config.facts() for config in asked_readers(path, arguments)]


def as_python(path: str | os.PathLike[str], arguments: Sequence[str]) -> str:
    """The Python programs of the readers asked for. Errors as `asked_readers`."""
    configs = asked_readers(path, arguments)
    return "\n\n".join(f"# {config.section}\n{config.to_python()}" for config in configs)


def read(
    config: ReaderConfig,
    num_epochs: int = 1,
    watch: Callable[[MinibatchSource, Minibatch, int], None] = lambda *_: None,
) -> dict[str, str]:
    """Read epochs, and say how much that was and how fast.

    Args:
        config: The reader.
        num_epochs: How many.
        watch: Called with the source, each minibatch, and the number of samples before it.

    Returns:
        Facts by name.

    Raises:
        CntkIoError: The data or the configuration are bad.
        OSError: A file cannot be read.
    """
    num_minibatches = num_sequences = num_samples = 0
    start = time.perf_counter()
    with config.open() as source:
        opened = time.perf_counter() - start
        for epoch in range(num_epochs):
            for minibatch in config.epoch(source, epoch):
                watch(source, minibatch, num_samples)
                num_minibatches += 1
                num_sequences += minibatch.num_sequences
                num_samples += max(data.num_samples for data in minibatch.values())
        streams = ", ".join(f"{info.name} {info.storage_format} {info.dim}" for info in source.stream_infos())
    seconds = time.perf_counter() - start
    return {
        "section": config.section,
        "reader": config.kind,
        "streams": streams,
        "epochs": f"{num_epochs:,}",
        "minibatches": f"{num_minibatches:,} of {config.minibatch_size():,} samples",
        "sequences": f"{num_sequences:,}",
        "samples": f"{num_samples:,}",
        "time": f"{seconds:.3f} s, {opened:.3f} s of it to open",
        "throughput": f"{num_samples / max(seconds - opened, 1e-9):,.0f} samples/s",
    }


def written(deserializers: Any, section: str = "train") -> tuple[str, str]:
    """The configuration that reads a corpus, and the Python program that does the same.

    Args:
        deserializers: The corpus, its streams given or inferred; or several that are joined.
        section: Name of the action's section.

    Raises:
        ConfigError: A name cannot be written in a configuration, or an option has no key there.
        FormatError: A binary file, which is opened for its precision, breaks its format.
        OSError: A binary file cannot be read.

    Example:
        >>> from cntkio import StreamDef, StreamDefs
        >>> made, program = written(CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
        >>> "dim = 2" in made, program.splitlines()[0]
        (True, 'from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs')
    """
    given = list(deserializers) if isinstance(deserializers, Sequence) else [deserializers]
    calls = tuple(_call_of(one) for one in given)
    double = [dict(call.keywords).get("dtype") == "float64" for call in calls if "dtype" in dict(call.keywords)]
    described = ReaderConfig(
        f"{section}/reader",
        "composite",
        calls,
        precision="double" if any(double) else "float",
        window=composite_window(has_text_format=any(call.name == "CTFDeserializer" for call in calls)),
        local_timeline=True,
    )
    if len(calls) == 1 and calls[0].name == "CTFDeserializer":
        window = classic_text_window(chunk_size_in_bytes=dict(calls[0].keywords).get("chunk_size_in_bytes", 32 << 20))
        described = dataclasses.replace(described, kind="CNTKTextFormatReader", window=window, local_timeline=False)
    elif len(calls) == 1 and calls[0].name == "CBFDeserializer":
        window = classic_binary_window()
        described = dataclasses.replace(described, kind="CNTKBinaryReader", window=window, local_timeline=False)
    text = written_config(section, described)
    config = read_section(configuration([text]), (section, "reader"))
    if config != described:
        raise ConfigError(f"{', '.join(map(repr, calls))} cannot be written in a configuration: an option has no key")
    return text, config.to_python()


# Of each deserializer the options that have a key, beside what it is called with.
_WITH_KEY = {
    "CTFDeserializer": ("skip_sequence_ids", "max_errors", "chunk_size_in_bytes", "cache_index"),
    "CBFDeserializer": (),
    "HTKFeatureDeserializer": ("prefix", "max_sequence_length"),
    "HTKMLFDeserializer": ("phoneBoundaries", "labelToTargetMappingFile", "targetDim"),
    "HTKMLFBinaryDeserializer": (),
}


def _call_of(deserializer: Any) -> Call:
    """The call that makes a deserializer, as a configuration would say it."""
    name = type(deserializer).__name__
    if name not in _WITH_KEY:
        raise ConfigError(f"{name} has no place in a configuration", key="deserializers")
    arguments: tuple[Any, ...]
    keywords: list[tuple[str, Any]] = []
    beside = {"filename", "streams", "label_mapping_file", "dtype", "convert"}
    for field in dataclasses.fields(deserializer):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(deserializer, field.name)
        if field.name in beside or value == default:
            continue
        if field.name not in _WITH_KEY[name]:
            raise ConfigError(f"{name}: {field.name}={value!r} has no key in a configuration", key=field.name)
        keywords.append((field.name, os.fspath(value) if isinstance(value, os.PathLike) else value))
    streams = deserializer.streams
    if isinstance(deserializer, CTFDeserializer):
        arguments = (deserializer.filename, streams)
        keywords += [("dtype", "float64")] if np.dtype(deserializer.dtype) == np.float64 else []
    elif isinstance(deserializer, CBFDeserializer):
        renamed = {name: it for name, it in streams.items() if it["stream_alias"] != name}
        arguments = (deserializer.filename, StreamDefs(renamed)) if renamed else (deserializer.filename,)
        keywords += [("dtype", _precision_of(deserializer)), ("convert", False)]
    elif isinstance(deserializer, HTKMLFDeserializer):
        mapping = deserializer.label_mapping_file
        arguments = (None if mapping is None else os.fspath(mapping), _as_texts(streams))
    else:
        arguments = (_as_texts(streams),)
    return Call(name, arguments, tuple(keywords))


def _precision_of(deserializer: CBFDeserializer) -> str:
    if deserializer.dtype is not None:
        return str(np.dtype(deserializer.dtype))
    with closing(deserializer.open()) as corpus:
        found = {str(info.dtype) for info in corpus.streams}
    if len(found) > 1:
        raise ConfigError(
            f"{deserializer.filename}: streams of float32 and of float64; a configuration has one precision",
            key="precision",
        )
    return found.pop()


def _as_texts(streams: StreamDefs) -> StreamDefs:
    """Streams as a configuration makes them: paths are texts, a list of one is that one."""
    if len(streams) > 1:
        raise ConfigError("several streams of features are several deserializers in a configuration", key="streams")
    ((name, stream),) = streams.items()
    fields = {
        key: value
        for key, value in stream.items()
        if key not in ("stream_alias", "dim", "is_sparse") and value != StreamDef().get(key)
    }
    for key in ("scp", "mlf"):
        if key in fields:
            paths = fields[key]
            texts = [os.fspath(one) for one in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
            fields[key] = texts[0] if len(texts) == 1 else texts
    return StreamDefs({name: StreamDef(shape=stream["dim"], **fields)})

"""What the command line does with configuration files: the parts of its verbs. (docs/configuration.md)

Its law: everything here returns what is to be printed. It prints nothing, draws no progress bar, and knows no options.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from cntkio.config.classic import configuration
from cntkio.config.readers import Call, ReaderConfig, read_section, readers_of, written_config
from cntkio.errors import ConfigError
from cntkio.formats.ctf import CTFDeserializer
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.timeline import classic_text_window


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


def written(deserializer: CTFDeserializer, section: str = "train") -> tuple[str, str]:
    """The configuration that reads a corpus, and the Python program that does the same.

    Args:
        deserializer: The corpus, its streams given or inferred.
        section: Name of the action's section.

    Raises:
        ConfigError: A name cannot be written in a configuration.

    Example:
        >>> from cntkio import StreamDef, StreamDefs
        >>> made, program = written(CTFDeserializer("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
        >>> "dim = 2" in made, program.splitlines()[0]
        (True, 'from cntkio import CTFDeserializer, MinibatchSource, StreamDef, StreamDefs')
    """
    options = ("skip_sequence_ids", "max_errors", "chunk_size_in_bytes", "cache_index")
    default = CTFDeserializer(deserializer.filename, deserializer.streams)
    keywords = [
        (name, getattr(deserializer, name)) for name in options if getattr(deserializer, name) != getattr(default, name)
    ]
    call = Call("CTFDeserializer", (deserializer.filename, deserializer.streams), tuple(keywords))
    described = ReaderConfig(
        f"{section}/reader", "CNTKTextFormatReader", (call,), window=classic_text_window(), minibatch_sizes=(256,)
    )
    text = written_config(section, described)
    config = read_section(configuration([text]), (section, "reader"))
    if config.calls != (call,):
        raise ConfigError(f"{deserializer.filename!r} or a stream's name cannot be written in a configuration")
    return text, config.to_python()

"""The command `cntkio`: what is in a corpus, how it reads, how fast. (docs/cli.md)

::

    inspect   what the corpus is made of
    head      its first sequences, readable
    read      minibatches, as a training program reads them, and the throughput; runs configurations, too
    config    what was understood of a configuration
    index     write the index cache
    convert   from one format to another

Law: a verb decides what to ask the library and how to print the answer, nothing else. Results go to standard output,
one fact a line; progress (on a terminal only) and complaints go to standard error. The exit status is 0 if all is
fine, 1 if the data is bad and 2 if the call is.

The standard library reads the arguments and draws the progress bar: the command has to work after an installation
without extras, and all that it would gain from more is colour.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cntkio import convert, speech
from cntkio.config import ReaderConfig, commands
from cntkio.config.reading import readers_asked_for
from cntkio.config.writing import configuration_for
from cntkio.errors import CntkIoError, ConfigError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.detect import FileKind, detect
from cntkio.formats.htk import CHUNK_FRAMES
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDef, StreamDefs, named

FINE, BAD_DATA, BAD_CALL = 0, 1, 2
INTERRUPTED = 130  # what a shell makes of Ctrl-C

_LINE_WIDTH = 100
_BAR_WIDTH = 40
# Reading for facts alone: enough samples to keep the loop short, few enough to keep the memory small.
_INSPECTED_SAMPLES_AT_ONCE = 16384
_ANY_NUMBER_OF_ERRORS = -1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What follows the command's name; those of the process when None.

    Returns:
        The exit status: 0 if all is fine, 1 if the data is bad, 2 if the call is.

    Raises:
        SystemExit: As argparse does, with 2 for arguments that it cannot read and 0 after `--help` and `--version`.

    Example:
        >>> main(["read", "examples/iris/iris.ctf", "--stream", "lengths:0"])
        2
    """
    options = _parser().parse_args(arguments)
    with _log_on_standard_error():
        try:
            status: int = options.verb(options)
            sys.stdout.flush()
        except ConfigError as error:
            return _complain(error, BAD_CALL)
        except CntkIoError as error:
            return _complain(error, BAD_DATA)
        except BrokenPipeError:
            # Whoever reads us (`cntkio head … | head -3`) has seen enough; the interpreter must not flush once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FINE
        except OSError as error:
            return _complain(f"{error.filename}: {error.strerror}" if error.filename else error, BAD_CALL)
        except KeyboardInterrupt:
            return INTERRUPTED
    return status


def _complain(error: object, status: int) -> int:
    print(f"cntkio: {error}", file=sys.stderr)
    return status


@contextmanager
def _log_on_standard_error() -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("cntkio: %(message)s"))
    logger = logging.getLogger("cntkio")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


# ---- The verbs ------------------------------------------------------------------------------------------------------


def _inspect(options: argparse.Namespace) -> int:
    kind = detect(options.file)
    if kind.form in ("scp", "mlf", "binary mlf"):
        return _inspect_speech(options, kind)
    if options.labels is not None:
        raise ConfigError("--labels goes with a list of HTK features (scp)", key="labels")
    kind.require_deserializer(options.file)
    if kind.form == "cbf":
        return _inspect_binary(options)
    streams = _streams(options)
    deserializer = CTFDeserializer(options.file, streams, max_errors=_ANY_NUMBER_OF_ERRORS)
    facts = {name: _StreamFacts() for name in streams}
    with MinibatchSource(deserializer, max_sweeps=1, randomize=False) as source:
        for minibatch in _with_progress(source, _INSPECTED_SAMPLES_AT_ONCE, num_sweeps=1):
            for name, fact in facts.items():
                fact.add(minibatch[name])
        errors, warnings = source.error_counts, source.warning_counts

    longest = max(fact.longest for fact in facts.values())
    _print_facts(
        {
            "file": os.fspath(options.file),
            "format": "CNTK text format (CTF)",
            "size": f"{options.file.stat().st_size:,} bytes",
            "chunks": f"{source.num_chunks:,} of at most {deserializer.chunk_size_in_bytes:,} bytes",
            "sequences": f"{source.num_sequences:,}",
            "samples": f"{source.num_samples:,}",
            "longest sequence": _count(longest, "sample"),
            **{f"stream {name}": f"{_form(streams[name])}, {fact}" for name, fact in facts.items()},
            "errors": _counts(errors),
            "warnings": _counts(warnings),
        }
    )
    _write_config(options, CTFDeserializer(options.file, streams))
    return BAD_DATA if errors else FINE


def _write_config(options: argparse.Namespace, deserializers: Any) -> None:
    """Write the configuration that reads a corpus, if that is asked for, and print the program that does the same."""
    if options.write_config is not None:
        text, program = configuration_for(deserializers)
        options.write_config.write_bytes(os.fsencode(text))
        print(f"\n{program}", end="")


def _inspect_binary(options: argparse.Namespace) -> int:
    deserializer = CBFDeserializer(os.fspath(options.file))
    with MinibatchSource(deserializer, max_sweeps=1, randomize=False) as source:
        facts = {info: _StreamFacts() for info in source.stream_infos()}
        for minibatch in _with_progress(source, _INSPECTED_SAMPLES_AT_ONCE, num_sweeps=1):
            for info, fact in facts.items():
                fact.add(minibatch[info])
        warnings = source.warning_counts
    _print_facts(
        {
            **_facts_of_file(options.file, "CNTK binary format (CBF)"),
            "chunks": f"{source.num_chunks:,}",
            "sequences": f"{source.num_sequences:,}",
            "samples": f"{source.num_samples:,}",
            "longest sequence": _count(max(fact.longest for fact in facts.values()), "sample"),
            **{f"stream {info.name}": f"{info.dtype}, {_form(info)}, {fact}" for info, fact in facts.items()},
            "warnings": _counts(warnings),
        }
    )
    _write_config(options, deserializer)
    return FINE


def _inspect_speech(options: argparse.Namespace, kind: FileKind) -> int:
    facts = _facts_of_file(options.file, kind.title)
    if kind.form != "scp":
        for key, given in (("write-config", options.write_config), ("labels", options.labels)):
            if given is not None:
                raise ConfigError(
                    f"--{key} goes with the features: cntkio inspect LIST.scp --labels {options.file}", key=key
                )
        labels = speech.open_labels(options.file, options.mapping)
        complaints = list(labels.complaints())
        for complaint in complaints:
            print(f"cntkio: {complaint}", file=sys.stderr)
        _print_facts({**facts, **labels.facts(), "warnings": _counts(labels.corpus.report.warnings)})
        return BAD_DATA if complaints else FINE
    deserializer = speech.features_of(options.file, StreamDefs(options.stream) if options.stream else None)
    ((name, _),) = deserializer.streams.items()
    stream = _StreamFacts()
    with MinibatchSource(deserializer, max_sweeps=1, randomize=False) as source:
        for minibatch in _with_progress(source, _INSPECTED_SAMPLES_AT_ONCE, num_sweeps=1):
            stream.add(minibatch[name])
        form_of_stream = _form(source[name])
        warnings = source.warning_counts
    _print_facts(
        {
            **facts,
            **speech.facts_of_features(deserializer),
            "chunks": f"{source.num_chunks:,} of more than {CHUNK_FRAMES:,} samples, the last of the rest",
            "sequences": f"{source.num_sequences:,}",
            "samples": f"{source.num_samples:,}",
            "longest sequence": _count(stream.longest, "sample"),
            f"stream {name}": f"{form_of_stream}, {stream}",
            "warnings": _counts(warnings),
        }
    )
    beside = [] if options.labels is None else [speech.named_labels(options.labels, options.mapping)]
    _write_config(options, [deserializer, *beside])
    return FINE


def _facts_of_file(path: Path, form: str) -> dict[str, str]:
    return {"file": os.fspath(path), "format": form, "size": f"{path.stat().st_size:,} bytes"}


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} ({kind})" for kind, count in kinds.items()) or "none"


class _StreamFacts:
    """What `inspect` says of a stream, added up over minibatches."""

    def __init__(self) -> None:
        self.num_samples = 0
        self.longest = 0
        self.num_values = 0
        self.num_not_zero = 0

    def add(self, data: MinibatchData) -> None:
        self.num_samples += data.num_samples
        self.longest = max(self.longest, data.num_steps)
        self.num_values += data.num_samples * data.stream.dim
        self.num_not_zero += int(np.count_nonzero(data.values))

    def __str__(self) -> str:
        density = 100 * self.num_not_zero / self.num_values if self.num_values else 0
        return f"{_count(self.num_samples, 'sample')}, at most {self.longest:,} in a sequence, {density:.3g} % not zero"


def _head(options: argparse.Namespace) -> int:
    kind = detect(options.file)
    if kind.form in ("mlf", "binary mlf"):
        for key, rows, count in speech.open_labels(options.file, options.mapping).entries(options.sequences):
            print(f"sequence {key}")
            print(f"  labels  {_shortened(rows, count, ' | ')}")
        return FINE
    with MinibatchSource(_deserializer(options, kind), max_sweeps=1, randomize=False) as source:
        streams = source.streams
        width = max(len(name) for name in streams)
        # A minibatch of one sample is one sequence: one that is longer than a minibatch comes alone.
        for minibatch in islice(source.minibatches(1), options.sequences):
            key = minibatch.keys_of_sequences[0]
            print(f"sequence {key.decode(errors='replace') if isinstance(key, bytes) else key}")
            for name, _ in named(streams):
                print(f"  {name:{width}}  {_readable(minibatch[name])}")
    return FINE


def _readable(data: MinibatchData) -> str:
    """Write the samples of one sequence in a line, as far as there is room for them."""
    return _shortened((_readable_sample(data, sample) for sample in range(data.num_samples)), data.num_samples, " | ")


def _readable_sample(data: MinibatchData, sample: int) -> str:
    if data.indices is None or data.indptr is None:
        values = data.values[sample].ravel()
        return _shortened((f"{value:g}" for value in values), len(values), " ")
    begin, end = int(data.indptr[sample]), int(data.indptr[sample + 1])
    entries = zip(data.indices[begin:end], data.values[begin:end], strict=True)
    return _shortened((f"{index}:{value:g}" for index, value in entries), end - begin, " ") or "(empty)"


def _shortened(texts: Iterator[str], count: int, separator: str) -> str:
    taken: list[str] = []
    width = 0
    for text in texts:
        width += len(text) + len(separator)
        if taken and width > _LINE_WIDTH:
            break
        taken.append(text)
    rest = f" … {count - len(taken):,} more" if len(taken) < count else ""
    return separator.join(taken) + rest


def _config(options: argparse.Namespace) -> int:
    readers = readers_asked_for(options.file, options.arguments)
    if options.python:
        print("\n\n".join(f"# {reader.section}\n{reader.to_python()}" for reader in readers), end="")
        return FINE
    for index, reader in enumerate(readers):
        print(end="\n" if index else "")
        _print_facts(reader.facts())
    return FINE


def _read_epochs(reader: ReaderConfig, num_epochs: int) -> dict[str, str]:
    bar = _Bar()

    def watch(source: MinibatchSource, _: Minibatch, done: int) -> None:
        bar.show(done, (reader.epoch_size or source.num_samples) * num_epochs)

    try:
        return commands.read(reader, num_epochs, watch)
    finally:
        bar.clear()


def _read_configuration(options: argparse.Namespace) -> int:
    for number, reader in enumerate(readers_asked_for(options.file, options.arguments)):
        facts = _read_epochs(reader, options.sweeps)
        print(end="\n" if number else "")
        _print_facts(facts)
    return FINE


def _read(options: argparse.Namespace) -> int:
    kind = detect(options.file)
    if kind.form == "configuration":
        return _read_configuration(options)
    if options.arguments:
        raise ConfigError(f"{options.arguments[0]!r}: sections and key=value go with a configuration file only")
    if kind.form in ("mlf", "binary mlf"):
        return _read_labels(options)
    is_list = kind.form == "scp"
    deserializer = _deserializer(options, kind)
    num_minibatches = num_sequences = num_values = 0
    start = time.perf_counter()
    with MinibatchSource(deserializer, max_sweeps=options.sweeps, randomize=options.randomize) as source:
        for minibatch in _with_progress(source, options.minibatch_size, options.sweeps):
            num_minibatches += 1
            num_sequences += minibatch.num_sequences
            num_values += sum(data.num_samples * data.stream.dim for data in minibatch.values() if is_list)
    seconds = time.perf_counter() - start

    num_samples = source.num_samples * options.sweeps
    # The size of a list says nothing of its features: they count as they are delivered.
    megabytes = 4 * num_values / 1e6 if is_list else options.file.stat().st_size * options.sweeps / 1e6
    _print_facts(
        {
            "file": os.fspath(options.file),
            "sweeps": f"{options.sweeps:,}, {'randomized' if options.randomize else 'in file order'}",
            "minibatches": f"{num_minibatches:,} of {_count(options.minibatch_size, 'sample')}",
            "sequences": f"{num_sequences:,}",
            "samples": f"{num_samples:,}",
            "time": f"{seconds:.3f} s",
            "throughput": f"{megabytes / seconds:,.1f} MB/s, {num_samples / seconds:,.0f} samples/s",
        }
    )
    return FINE


def _read_labels(options: argparse.Namespace) -> int:
    """Labels follow features, and make no minibatches of their own: tell how long it takes to read them."""
    start = time.perf_counter()
    labels = speech.open_labels(options.file, options.mapping)
    seconds = time.perf_counter() - start
    size = options.file.stat().st_size
    facts = labels.facts()
    _print_facts(
        {
            "file": os.fspath(options.file),
            **{name: facts[name] for name in ("sequences", "samples", "rows")},
            "time": f"{seconds:.3f} s",
            "throughput": f"{size / 1e6 / seconds:,.1f} MB/s",
        }
    )
    return FINE


def _convert(options: argparse.Namespace) -> int:
    if options.to is None:
        return convert.run(options)
    if hasattr(options, "convert"):
        raise ConfigError("--to and a converter's name exclude each other", key="to")
    if options.input is None or options.output is None:
        raise ConfigError(f"--to {options.to} needs --input FILE and --output FILE", key="to")
    kind = convert.format_of(options.input)
    is_table = kind in ("parquet", "arrow")
    streams = StreamDefs(options.stream or ())
    corpus: Any
    if kind == "cbf":
        corpus = CBFDeserializer(options.input, streams)
    elif kind == "ctf":
        corpus = CTFDeserializer(options.input, streams or infer_streams(options.input), max_errors=options.max_errors)
    with convert.progress_bar() as progress:
        if is_table or options.to in ("parquet", "arrow"):
            arrow = _arrow()
        if is_table:
            shapes = {name: stream.dim for name, stream in streams.items()}
            key = None if options.key == "key" else options.key
            corpus = arrow.read(options.input, key=key, shapes=shapes)
        if options.to in ("parquet", "arrow"):
            flat = options.flat or options.flat is not None
            write = arrow.write_parquet if options.to == "parquet" else arrow.write_arrow
            write(options.output, corpus, key=options.key, flat=flat, progress=progress)
        else:
            (convert.write_ctf if options.to == "ctf" else convert.write_cbf)(options.output, corpus, progress=progress)
    return FINE


def _arrow() -> Any:
    """The module of Arrow, loaded when it is needed: its library is large, and need not be there."""
    try:
        from cntkio import arrow
    except ModuleNotFoundError as error:
        raise ConfigError(str(error), key="to") from None
    return arrow


def _index(options: argparse.Namespace) -> int:
    kind = detect(options.file)
    if kind.form != "ctf":
        raise ConfigError(f"{options.file}: only text has an index; this file: {kind.title}", key="file")
    deserializer = CTFDeserializer(options.file, _streams(options), cache_index=True)
    milliseconds = []
    for _ in range(2):
        start = time.perf_counter()
        with closing(deserializer.open()) as corpus:
            milliseconds.append(1e3 * (time.perf_counter() - start))
            table = corpus.table
    _print_facts(
        {
            "file": os.fspath(options.file),
            "chunks": f"{table.num_chunks:,} of at most {deserializer.chunk_size_in_bytes:,} bytes",
            "sequences": f"{table.num_sequences:,}",
            "samples": f"{table.lengths.sum(dtype=np.int64):,}",
            "opened in": f"{milliseconds[0]:,.1f} ms",
            "opened again in": f"{milliseconds[1]:,.1f} ms",
        }
    )
    return FINE


# ---- What the verbs share -------------------------------------------------------------------------------------------


def _deserializer(options: argparse.Namespace, kind: FileKind) -> Any:
    """Return the deserializer of a corpus of features, text or a binary corpus.

    Raises:
        ConfigError: No deserializer reads the file.
    """
    kind.require_deserializer(options.file)
    if kind.form == "scp":
        return speech.features_of(options.file, StreamDefs(options.stream) if options.stream else None)
    if kind.form == "cbf":
        return CBFDeserializer(options.file, StreamDefs(options.stream or ()))
    return CTFDeserializer(options.file, _streams(options))


def _streams(options: argparse.Namespace) -> StreamDefs:
    return StreamDefs(options.stream) if options.stream else infer_streams(options.file)


def _form(stream: Any) -> str:
    return f"sparse, {stream.dim:,} wide" if stream.is_sparse else f"dense, {_count(stream.dim, 'value')}"


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _print_facts(facts: dict[str, str]) -> None:
    width = max(len(name) for name in facts)
    for name, fact in facts.items():
        print(f"{name:{width}}  {fact}")


def _with_progress(source: MinibatchSource, minibatch_size: int, num_sweeps: int) -> Iterator[Minibatch]:
    """Iterate over the minibatches and, if standard error is a terminal, show there how far they are."""
    total, done, bar = source.num_sequences * num_sweeps, 0, _Bar()
    try:
        for minibatch in source.minibatches(minibatch_size):
            yield minibatch
            done += minibatch.num_sequences
            bar.show(done, total)
    finally:
        bar.clear()


class _Bar:
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty()
        self._percent = -1

    def show(self, done: int, total: int) -> None:
        percent = min(100 * done // total, 100)
        if self._is_seen and percent > self._percent:
            self._percent = percent
            bar = "█" * (_BAR_WIDTH * percent // 100)
            print(f"\r{bar:░<{_BAR_WIDTH}} {percent:3} %", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """What follows, a result or a complaint, finds a clean line."""
        if self._is_seen:
            print(f"\r{'':{_BAR_WIDTH + 6}}\r", end="", file=sys.stderr, flush=True)


# ---- The arguments --------------------------------------------------------------------------------------------------


def _stream(text: str) -> tuple[str, Any]:
    """Read one `--stream NAME:DIM[:sparse|:dense][:ALIAS]`."""
    name, colon, rest = text.partition(":")
    size, _, rest = rest.partition(":")
    form, _, alias = rest.partition(":")
    if form not in ("sparse", "dense"):
        form, alias = "dense", rest
    if not name or not colon or not size.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:DIM[:sparse][:ALIAS], such as words:1323:sparse:w")
    return name, StreamDef(field=alias or name, shape=int(size), is_sparse=form == "sparse")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cntkio",
        description="Look at corpora in CNTK's formats and read them.",
        epilog="cntkio VERB --help shows an example of each.",
    )
    parser.add_argument("--version", action="version", version=f"cntkio {version('cntkio')}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def add(verb: Any, name: str, help: str, example: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=f"example:\n  $ {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(verb=verb)
        if verb is _config:
            added.add_argument("file", metavar="FILE", type=Path, help="a configuration of CNTK")
            return added
        takes_speech = verb is not _index
        kinds = ", a list of HTK features (scp) or a label file (MLF)" if takes_speech else ""
        added.add_argument("file", metavar="FILE", type=Path, help=f"a corpus in CNTK text format{kinds}")
        if takes_speech:
            added.add_argument(
                "--mapping", metavar="FILE", type=Path, help="for a label file: its names; without, those in it"
            )
        added.add_argument(
            "--stream",
            metavar="NAME:DIM[:sparse][:ALIAS]",
            type=_stream,
            action="append",
            help="a stream to read, dense unless it says sparse, with its name in the file if that is another one; "
            "may be repeated; without it all streams are read, as the file shows them",
        )
        return added

    inspect = add(_inspect, "inspect", "tell what a corpus is made of", "cntkio inspect examples/digits/train.ctf")
    inspect.add_argument(
        "--write-config",
        metavar="FILE",
        type=Path,
        help="write a configuration that reads the corpus to FILE, and print the same as a Python program",
    )
    inspect.add_argument(
        "--labels",
        metavar="FILE",
        type=Path,
        help="with --write-config and a list of features: the labels beside it",
    )
    head = add(_head, "head", "print the first sequences", "cntkio head -n 2 examples/alice/train.ctf")
    head.add_argument("-n", "--sequences", metavar="N", type=_positive, default=5, help="how many (5)")
    read = add(
        _read,
        "read",
        "read a corpus in minibatches and tell the throughput",
        "cntkio read --minibatch-size 256 --sweeps 2 examples/digits/train.ctf",
    )
    read.add_argument("--minibatch-size", metavar="SAMPLES", type=_positive, default=1024, help="in samples (1024)")
    read.add_argument("--sweeps", metavar="N", type=_positive, default=1, help="how often to read it all (1)")
    read.add_argument("--randomize", action="store_true", help="in CNTK's randomized order, not in file order")
    read.add_argument(
        "arguments",
        metavar="SECTION | KEY=VALUE",
        nargs="*",
        help="with a configuration file (.cntk) as FILE: the readers to run, all if none is named, and values to "
        "change; the configuration then says what a minibatch is, and --sweeps counts its epochs",
    )
    understood = add(
        _config,
        "config",
        "print what was understood of a configuration",
        "cntkio config --python examples/digits/digits.cntk Train",
    )
    understood.add_argument("arguments", metavar="SECTION | KEY=VALUE", nargs="*", help="as for `read`")
    understood.add_argument("--python", action="store_true", help="print the Python program that does the same")
    add(_index, "index", "write the index cache for a quick next start", "cntkio index examples/alice/train.ctf")
    _add_converters(verbs)
    return parser


def _add_converters(verbs: Any) -> None:
    converters = verbs.add_parser(
        "convert",
        help=convert.HELP,
        description=f"{convert.HELP[0].upper()}{convert.HELP[1:]}. With --to the input's format is found out.",
        epilog="example:\n  $ cntkio convert --to parquet --input examples/iris/iris.ctf --output iris.parquet",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_option = converters.add_argument
    add_option("--to", choices=("parquet", "arrow", "ctf", "cbf"), help="the format to be written")
    add_option("--input", metavar="FILE", type=Path, help="with --to: a corpus in any of these formats")
    add_option("--output", metavar="FILE", type=Path, help="with --to: the file to be written")
    add_option(
        "--stream",
        metavar="NAME:DIM[:sparse][:ALIAS]",
        type=_stream,
        action="append",
        help="with --to: a stream of a text to be read, or of a table that says no dimension; may be repeated; without "
        "it all streams, as the file shows them",
    )
    add_option(
        "--flat",
        metavar="NAME",
        nargs="*",
        help="with --to parquet or arrow: streams that have one sample in each sequence, and are written without the "
        "list around it; all if none is named",
    )
    add_option("--key", metavar="NAME", default="key", help="with --to: the column of the sequences' keys (key)")
    add_option("--max-errors", metavar="N", type=int, default=0, help="with --to: errors that a text is forgiven (0)")
    convert.add_arguments(converters)
    converters.set_defaults(verb=_convert)


if __name__ == "__main__":
    sys.exit(main())

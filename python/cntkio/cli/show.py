"""The corpora of a call, and what verbs print: facts in aligned lines or as JSON, complaints, pages, progress.

Invariants: text from a file is printed without control characters (`cntkio.errors.printable`), and numbers that JSON
does not have are null. An option that no file of the call takes is refused.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import sys
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

import numpy as np

from cntkio import corpora
from cntkio.arguments import Watcher
from cntkio.corpora import Described, Input, inputs, require_takers
from cntkio.displays import columns_of, counted
from cntkio.errors import ConfigError, FormatError, printable, without_secrets
from cntkio.formats.contract import Corpus, ReadingOptions, with_defaults
from cntkio.formats.ctf import guessed_streams, require_names
from cntkio.formats.pieces import Progress
from cntkio.formats.table import SequenceTable
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.storage.names import is_remote
from cntkio.storage.open_input import is_compressed
from cntkio.storage.output_file import written_whole
from cntkio.streams import StreamDefs, StreamInformation
from cntkio.survey import Block, blocks

FINE, BAD_DATA, BAD_CALL = 0, 1, 2
_Item = TypeVar("_Item")
_Refuse = Callable[[str, FormatError], None]

_LINE_WIDTH = 100
# Room for the name of a stream, and for the number of further items.
_REST_WIDTH = 24
_BAR_WIDTH = 40
# Columns next to the bar: a percentage, a rate and the remaining time; and with bytes their number and total.
_BESIDE_NUMBERS, _BESIDE_BYTES = 45, 52
# Seconds before the bar shows a rate, and between two drawings that only change the rate.
_FIRST_RATE = 1.0
_BETWEEN_RATES = 0.5
DELAY = 0.3
"""Seconds before a pass over a file is shown; most passes end sooner."""
# Readable on light and on dark backgrounds, unlike yellow, green, cyan, and blue that is not bold.
_COLOURS = {"red": 31, "magenta": 35, "blue": 34, "bold": 1}


class Facts:
    """Results of a verb, printed as one fact per line, or as a JSON object.

    Example:
        >>> facts = Facts(file="a.ctf", errors={"bad number": 2}, warnings={})
        >>> facts.add("longest sequence", 3, "3 samples")
        >>> facts.show(as_json=False)
        file              a.ctf
        errors            2 (bad number)
        warnings          none
        longest sequence  3 samples
        >>> facts.show(as_json=True)
        {"file": "a.ctf", "errors": {"bad number": 2}, "warnings": {}, "longest_sequence": 3}
    """

    def __init__(self, **facts: Any) -> None:
        self._fields: dict[str, Any] = {}
        self._lines: list[tuple[str, str]] = []
        self.add_all(facts)

    def add(self, name: str, value: Any, text: str | None = None) -> None:
        """Add a fact: its value for JSON, and its text for people; None: the text of the value."""
        self._fields[name.replace(" ", "_")] = value
        self._lines.append((name, _in_words(value) if text is None else text))

    def add_all(self, facts: Mapping[str, Any]) -> None:
        """Add facts by name, with the texts of their values."""
        for name, fact in facts.items():
            self.add(name, fact)

    def add_item(self, group: str, fields: Mapping[str, Any], label: str, text: str) -> None:
        """Add an item of a list: its fields for JSON, and a line for people."""
        self._fields.setdefault(group, []).append(fields)
        self.add_line(label, text)

    def add_line(self, label: str, text: str) -> None:
        """Add a line that JSON does not have."""
        self._lines.append((label, text))

    def add_field(self, name: str, value: Any) -> None:
        """Add a field that only JSON has."""
        self._fields[name] = value

    def show(self, *, as_json: bool) -> None:
        """Print the facts."""
        if as_json:
            show_json(self._fields)
            return
        names = [printable(name) for name, _ in self._lines]
        width = max(map(columns_of, names))
        for name, (_, text) in zip(names, self._lines, strict=True):
            line = wrapped(f"{name}{'':{width - columns_of(name)}}  {printable(text)}", width + 2)
            # Coloured last, because escape sequences would count as characters.
            print(coloured(name, "blue", "bold") + line.removeprefix(name) if name else line)


def separated(options: Namespace, items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items, and print an empty line before each further item, unless the call prints JSON."""
    for index, item in enumerate(items):
        if index and not options.json:
            print()
        yield item


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):  # the number of errors or warnings of each kind
        return ", ".join(f"{count:,} ({kind})" for kind, count in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show(line: str) -> None:
    """Print a line on standard output, without its control characters."""
    print(printable(line))


def show_json(value: Any) -> None:
    """Print a JSON value on a line of standard output."""
    print(json.dumps(_for_json(value), allow_nan=False))


def _for_json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_for_json(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def complain(complaint: object) -> None:
    """Print a complaint on standard error, without control characters and passwords."""
    mark = coloured("cntkio:", "magenta", "bold", stream=sys.stderr)
    print(f"{mark} {printable(without_secrets(str(complaint)))}", file=sys.stderr)


def write_page(options: Namespace, path: Path, text: str) -> None:
    """Write a file that an option of the call names, and say so."""
    with written_whole(path) as target:
        target.write(text.encode())
    if not options.quiet:
        complain(f"{path}: written")


def prints_any_text() -> None:
    """Make standard output escape the characters that its encoding lacks, and print nothing if it is closed."""
    for name in ("stdout", "stderr"):
        # Python starts with None for a stream that the caller has closed.
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def prints_to_the_end() -> None:
    """Let a verb continue after the reader of a pipe has seen enough, since its status is a result, too."""
    stdout = sys.stdout
    # Standard output without a buffer is a file itself.
    if isinstance(stdout, io.TextIOWrapper) and isinstance(stdout.buffer, io.BufferedWriter | io.FileIO):
        buffer = io.BufferedWriter(_Pipe(stdout.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(buffer, stdout.encoding, stdout.errors, line_buffering=stdout.line_buffering)


class _Pipe(io.FileIO):
    """A file that discards what is written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def coloured(text: str, *names: str, stream: TextIO | None = None) -> str:
    """Return a text in colours: never with `NO_COLOR`, always with `FORCE_COLOR`, or else if it goes to a terminal.

    Args:
        stream: Where it goes; None: standard output.

    Example:
        >>> coloured("text", "red")
        'text'
    """
    is_terminal = (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"
    if os.environ.get("NO_COLOR") or not (is_terminal or os.environ.get("FORCE_COLOR")):
        return text
    return f"\x1b[{';'.join(str(_COLOURS[name]) for name in names)}m{text}\x1b[0m"


def line_width() -> int:
    """Return the largest width of a line in characters: the width of the terminal, or else a fixed width."""
    is_terminal = sys.stdout.isatty()
    # `shortened` leaves `_REST_WIDTH` free, so without a terminal its items fill `_LINE_WIDTH`.
    return shutil.get_terminal_size((_LINE_WIDTH, 24)).columns if is_terminal else _LINE_WIDTH + _REST_WIDTH


def wrapped(text: str, indent: int) -> str:
    """Return a line, broken between words if standard output is a terminal that is too narrow for it.

    The line has no control characters. `indent` is the number of blanks before each further line.
    """
    if not sys.stdout.isatty() or len(text) <= line_width():
        return text
    room = max(line_width() - indent, 20)
    together = re.sub(r"(?<=\d:) (?=\d)|(?<=\d) (?=%)", "\xa0", text[indent:])  # as in "3: 12" and "5 %"
    lines = textwrap.wrap(together, room, break_long_words=False, break_on_hyphens=False)
    return text[:indent] + f"\n{'':{indent}}".join(lines).replace("\xa0", " ")


def shortened(texts: Iterable[str], total: int, separator: str) -> str:
    """Join the first texts, as many as fit into a line, and say how many more there are.

    Example:
        >>> shortened(map(str, range(1000)), 1000, " ")[-16:]
        '34 35 … 964 more'
    """
    shown: list[str] = []
    width = 0
    most = max(line_width() - _REST_WIDTH, 40)
    for text in texts:
        width += len(text) + len(separator)
        # The first text is always shown, even if it is too wide.
        if shown and width > most:
            break
        shown.append(text)
    rest = f" … {total - len(shown):,} more" if len(shown) < total else ""
    return separator.join(shown) + rest


def watcher_of(options: Namespace) -> Watcher | None:
    """Return the watcher that draws passes over files on standard error; None where `progress_bar` draws nothing."""
    return partial(_drawn, "bytes", delay=DELAY) if _draws(options) else None


def _draws(options: Namespace) -> bool:
    return not options.quiet and sys.stderr.isatty()


def progress_bar(options: Namespace, unit: str) -> AbstractContextManager[Progress | None]:
    """Draw a progress bar on standard error, and clear it at the end; None with `--quiet` or without a terminal."""
    return _drawn(unit) if _draws(options) else nullcontext()


@contextmanager
def _drawn(unit: str, name: str = "", delay: float = 0.0) -> Iterator[Progress]:
    bar = _Bar(unit, name, delay)
    try:
        yield bar.show
    finally:
        # Before a result or a complaint.
        if bar.longest:
            print(f"\r{'':{bar.longest}}\r", end="", file=sys.stderr, flush=True)


class _Bar:
    """A progress bar. The clock starts at the first number, and again at a number that is smaller than the last.

    Args:
        unit: Unit of the rate.
        name: Name of the work, to show before the bar.
        delay: Seconds before the first drawing.
    """

    longest = 0
    """Number of characters of the longest line so far."""

    def __init__(self, unit: str, name: str, delay: float) -> None:
        self._unit, self._name = unit, name and f"{name} "
        self._first_drawing = time.monotonic() + delay
        self._start, self._done_before, self._last = 0.0, 0, math.inf
        self._drawn, self._drawn_at = "", 0.0
        columns = shutil.get_terminal_size((80, 24)).columns
        beside = _BESIDE_BYTES if unit == "bytes" else _BESIDE_NUMBERS
        self._width = max(8, min(_BAR_WIDTH, columns - beside - len(self._name)))
        # A line that fills the terminal would move the cursor to the next line.
        self._columns = columns - 1

    def show(self, done: int, total: int) -> None:
        """Draw the bar if it has changed."""
        now = time.monotonic()
        if done < self._last:
            self._start, self._done_before = now, done
        self._last = done
        bar, part = self._number(done), min(done, total)
        if total:
            bar = f"{'█' * (self._width * part // total):░<{self._width}} {100 * part // total:3} %"
        is_same = bar == self._drawn or not total
        if now < self._first_drawing or (is_same and now - self._drawn_at < _BETWEEN_RATES):
            return
        self._drawn, self._drawn_at = bar, now
        line = f"{self._name}{bar}{self._rate(done, total, now - self._start)}"[: self._columns]
        # Padded to the longest line so far, to overwrite all of it.
        print(f"\r{line:{self.longest}}", end="", file=sys.stderr, flush=True)
        self.longest = max(self.longest, len(line))

    def _number(self, number: float) -> str:
        if self._unit != "bytes":
            return f"{number:,.0f} {self._unit}"
        # With three digits or more.
        return f"{number / 1e9:,.2f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"

    def _rate(self, done: int, total: int, seconds: float) -> str:
        of_total = f"  {self._number(done)} of {self._number(total)}" if total and self._unit == "bytes" else ""
        if seconds < _FIRST_RATE or done <= self._done_before:
            return of_total
        rate = (done - self._done_before) / seconds
        text = f"{of_total}  {self._number(rate)}/s"
        return f"{text}  {duration((total - done) / rate)} left" if total > done else text


def duration(seconds: float) -> str:
    """Return a duration in hours, minutes and seconds.

    Example:
        >>> duration(7), duration(83), duration(3700)
        ('0:07', '1:23', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---------------------------------------------------------------------------------------------- the corpora of a call


def reading_of(options: Namespace) -> ReadingOptions:
    """Return the options of the command that say how to read files; the parser names them as `ReadingOptions` does."""
    given = {name: value for name, value in vars(options).items() if name in ReadingOptions.__annotations__}
    tables = {name: dict(given.get(name) or ()) for name in ("streams", "one_hot")}
    return cast(ReadingOptions, {**given, "streams": StreamDefs(tables["streams"]), "one_hot": tables["one_hot"]})


def described(options: Namespace, file: Input, *, guesses_streams: bool = False, **defaults: Any) -> list[Described]:
    """Return the corpora of a file, as `cntkio.corpora.described` does. The defaults are for `with_defaults`.

    With `guesses_streams`, the streams of a text are guessed from its first lines, because no value is read. A stream
    that the call names, but no line has, is a `ConfigError`.
    """
    reading = with_defaults(reading_of(options), **defaults)
    if file.kind.names_streams and reading["streams"]:
        require_names(file.names, reading["streams"])
    elif guesses_streams and file.kind.names_streams:
        reading["streams"] = guessed_streams(file.names)
    return corpora.described(file, reading)


@contextmanager
def inputs_of(
    options: Namespace, names: Sequence[Path] | None = None, *, refuse: _Refuse | None = None
) -> Iterator[list[Input]]:
    """Detect the kinds of the files of a call, as `cntkio.corpora.inputs` does; refuse options that none of them takes.

    Without names, these are the file or the files that the option `file` names.
    """
    if names is None:
        names = options.file if isinstance(options.file, list) else [options.file]
    with inputs(names, refuse=refuse) as files:
        # If all files are damaged, none of them can say which options it takes.
        if files:
            require_takers(reading_of(options), files)
        refuse_remote_options(options, files)
        pages = (getattr(options, name, None) for name in ("html", "svg", "table"))
        refuse_to_replace(files, options.verb.__name__, filter(None, pages))
        yield files


def refuse_to_replace(files: Sequence[Input], verb: str, targets: Iterable[Path]) -> None:
    """Refuse to write to one of the files to read."""
    for target in (target for target in targets if target.exists()):
        status = target.stat()
        if any((status.st_dev, status.st_ino) in file.identities() for file in files):
            raise ConfigError(f"{target} is the file to read; {verb} never changes its input", key="output")


def refuse_remote_options(options: Namespace, files: Sequence[Input]) -> None:
    """Refuse options of remote stores for local files."""
    if any(file.kind.is_configuration or is_remote(str(file.path)) for file in files):
        return
    names = [name for file in files for name in file.files or [str(file.path)]]
    for name in ("cache", "cache_limit", "remote"):
        # A cache also keeps the text of compressed files that can only be read in order.
        if getattr(options, name, None) is not None and (name == "remote" or not any(map(is_compressed, names))):
            what = f"--{name.replace('_', '-')} applies only to files of remote stores (scheme://...)"
            raise ConfigError(f"{what}; {files[0].name} is a local file", key=name)


def surveyed(options: Namespace, corpus: Corpus) -> Iterator[Block]:
    """Iterate over the blocks of a corpus, and draw the progress."""
    with progress_bar(options, "sequences") as progress:
        yield from blocks(corpus, progress=progress)


def in_minibatches(
    options: Namespace, source: MinibatchSource, minibatch_size: int, num_sweeps: int
) -> Iterator[Minibatch]:
    """Iterate over the minibatches, and draw the progress."""
    total, done = source.num_sequences * num_sweeps, 0
    with progress_bar(options, "sequences") as progress:
        for minibatch in source.minibatches(minibatch_size):
            yield minibatch
            # After the yield: the caller has now used the minibatch.
            done += minibatch.num_sequences
            if progress is not None:
                progress(done, total)


def file_facts(file: Input, section: str = "") -> Facts:
    """Return facts about a file."""
    facts, optional = Facts(file=file.name), {"section": section, "files": len(file.files)}
    facts.add_all({name: value for name, value in optional.items() if value})
    facts.add("format", file.kind.form, file.kind.title)
    facts.add("size", file.size, f"{file.size:,} bytes")
    return facts


def add_size(facts: Facts, table: SequenceTable, longest: int | None = None) -> None:
    """Add the numbers of sequences and samples of a corpus, and the length of its longest sequence if it is given."""
    facts.add_all({"sequences": table.num_sequences, "samples": samples_in(table)})
    if longest is not None:
        facts.add("longest sequence", longest, counted(longest, "sample"))


def samples_in(table: SequenceTable) -> int:
    """Return the number of samples of a corpus."""
    # The lengths have 32 bits, but their sum may need more.
    return int(table.lengths.sum(dtype=np.int64))


def form_of(stream: StreamInformation) -> str:
    """Return whether a stream is dense or sparse, and its dimension."""
    return f"sparse, {stream.dim:,} wide" if stream.is_sparse else f"dense, {counted(stream.dim, 'value')}"

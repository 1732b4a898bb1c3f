"""CNTK's readers: what their sections say, and the objects that it makes here. (docs/configuration.md, "Readers")

::

    section ──tables of keys──> ReaderConfig: deserializers, options of the source, sizes ──open──> MinibatchSource

Its law: what CNTK's reader refuses is refused, at its key; what it does not look at is not looked at; and a key that no
reader knows is warned of. The tables say which keys there are; the functions below them what they do.

It reads no data: files named in a section are opened by the deserializers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np

from cntkio.config.classic import VARIABLE, Section, by_name, configuration, folded, truth
from cntkio.errors import ConfigError
from cntkio.htkmlf_reader import DEFAULT_MAX_UTTERANCE_LENGTH, HTKMLFReader, ReadMethod
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.streams import StreamDef, StreamDefs
from cntkio.timeline import (
    Window,
    classic_binary_window,
    classic_htk_window,
    classic_text_window,
    composite_window,
)

logger = logging.getLogger("cntkio")
_T = TypeVar("_T")

Kind = Literal["CNTKTextFormatReader", "CNTKBinaryReader", "HTKMLFReader", "HTKDeserializers", "composite"]
Packing = Literal["sequence", "frame", "truncated"]

_DEFAULT_CHUNK_SIZE = 32 << 20
_LARGEST_SPARSE_DIM = 2**31 - 1
_WHOLE_DATA = 2**62 - 1

# ---------------------------------------------------------------------------------------------------------- tables

_READERS: dict[str, Kind] = {
    "CNTKTextFormatReader": "CNTKTextFormatReader",
    "Cntk.Deserializers.TextFormat": "CNTKTextFormatReader",
    "CNTKBinaryReader": "CNTKBinaryReader",
    "Cntk.Deserializers.Binary": "CNTKBinaryReader",
    "HTKMLFReader": "HTKMLFReader",
    "Cntk.Reader.HTKMLF": "HTKMLFReader",
    "HTKDeserializers": "HTKDeserializers",
    "Cntk.Deserializers.HTK": "HTKDeserializers",
    "CompositeDataReader": "composite",
    "Cntk.Composite": "composite",
}
_CTF_INSTEAD = "convert the data to CTF and use CNTKTextFormatReader"
_CTF_OR_CBF_INSTEAD = "convert the data to CTF or CBF, and use CNTKTextFormatReader or CNTKBinaryReader"
_WORDS_INSTEAD = "map words to indices, write CTF and use CNTKTextFormatReader"
_NO_IMAGES = "images are not a format of this library"
_OTHER_READERS = {
    "UCIFastReader": _CTF_INSTEAD,
    "Cntk.Reader.UCIFast": _CTF_INSTEAD,
    "LibSVMBinaryReader": _CTF_OR_CBF_INSTEAD,
    "Cntk.Reader.SVMBinary": _CTF_OR_CBF_INSTEAD,
    "SparsePCReader": _CTF_OR_CBF_INSTEAD,
    "Cntk.Reader.SparsePC": _CTF_OR_CBF_INSTEAD,
    "DSSMReader": _CTF_OR_CBF_INSTEAD,
    "LMSequenceReader": _WORDS_INSTEAD,
    "Cntk.Reader.LMSequence": _WORDS_INSTEAD,
    "LUSequenceReader": _WORDS_INSTEAD,
    "Cntk.Reader.LUSequence": _WORDS_INSTEAD,
    "BinaryReader": "it is an old cache format, not CBF; write CBF and use CNTKBinaryReader",
    "Cntk.Reader.Binary": "it is an old cache format, not CBF; write CBF and use CNTKBinaryReader",
    "Kaldi2Reader": "convert the archives to HTK features or to CTF",
    "KaldiReader": "convert the archives to HTK features or to CTF",
    "Cntk.Reader.Kaldi2": "convert the archives to HTK features or to CTF",
    "ImageReader": _NO_IMAGES,
    "Cntk.Deserializers.Image": _NO_IMAGES,
    "ImageDeserializer": _NO_IMAGES,
    "Base64ImageDeserializer": _NO_IMAGES,
    "LatticeDeserializer": "sequence training with lattices is not supported",
}
_DESERIALIZERS = {
    "CNTKTextFormatDeserializer": "CNTKTextFormatReader",
    "CNTKBinaryFormatDeserializer": "CNTKBinaryReader",
    "HTKFeatureDeserializer": "HTKDeserializers",
    "HTKMLFDeserializer": "HTKDeserializers",
    "HTKMLFBinaryDeserializer": "HTKDeserializers",
}

# The keys that a section of each kind can have. In an `input` section, and in the section of an HTK reader, further
# keys are the names of streams.
_RANDOMIZATION = "randomize randomizationWindow sampleBasedRandomizationWindow randomizationSeed "
_KEYS = {
    "CNTKTextFormatReader": "readerType file input precision skipSequenceIds maxErrors traceLevel chunkSizeInBytes "
    "keepDataInMemory frameMode cacheIndex verbosity " + _RANDOMIZATION,
    "CNTKBinaryReader": "readerType file input precision keepDataInMemory traceLevel verbosity " + _RANDOMIZATION,
    "HTK": "readerType readMethod randomize randomizationSeed minibatchMode frameMode truncated truncationLength "
    "nbruttsineachrecurrentiter checkData useNumericSequenceKeys hashSequenceKeys verbosity action precision "
    "pageFilePath useMersenneTwisterRand maxUtteranceLength unigram traceLevel definesMBSize maxSequenceSize",
    "composite": "readerType deserializers frameMode truncated truncationLength rightSplice action precision "
    "traceLevel maxErrors useNumericSequenceKeys hashSequenceKeys checkData localTimeline multiThreadedDeserialization "
    "chunkSizeInBytes verbosity prefetch " + _RANDOMIZATION,
    "CNTKTextFormatDeserializer": "type module file input precision frameMode skipSequenceIds maxErrors "
    "chunkSizeInBytes traceLevel cacheIndex keepDataInMemory " + _RANDOMIZATION,
    "CNTKBinaryFormatDeserializer": "type module file input precision traceLevel keepDataInMemory " + _RANDOMIZATION,
    "HTKFeatureDeserializer": "type module input frameMode precision traceLevel definesMBSize maxSequenceSize "
    "expandToUtterance prefixPathInSCP dim contextWindow",
    "HTKMLFDeserializer": "type module input frameMode precision traceLevel definesMBSize maxSequenceSize "
    "chunkSizeInBytes phoneBoundaries labelMappingFile labelDim dim cacheIndex",
    "text stream": "dim format alias definesMBSize",
    "binary stream": "dim format alias definesMBSize",
    "features": "scpFile dim contextWindow type expandToUtterance prefixPathInSCP definesMBSize maxSequenceSize",
    "labels": "mlfFile mlfFileList labelMappingFile labelDim dim labelType type phoneBoundaries "
    "labelToTargetMappingFile targetDim cacheIndex definesMBSize maxSequenceSize",
}
_KEYS_AS_TEXT = "keys are compared as text, numbers by their digits"
_ALWAYS_CHECKED = ("checkData", True, "streams are always checked")
_NEVER_HASHED = ("hashSequenceKeys", False, "keys are compared as they are")
# Keys that change nothing, what they would have to say, and why.
_WITHOUT_EFFECT: dict[str, tuple[tuple[str, bool, str], ...]] = {
    "HTK": (_ALWAYS_CHECKED, ("useNumericSequenceKeys", False, _KEYS_AS_TEXT), _NEVER_HASHED),
    "HTKMLFReader": (("useMersenneTwisterRand", True, "the random numbers are always those of the Mersenne twister"),),
    "composite": (_ALWAYS_CHECKED, ("useNumericSequenceKeys", True, "keys that are numbers are always"), _NEVER_HASHED),
}
_KNOWN = {kind: {folded(key) for key in keys.split()} for kind, keys in _KEYS.items()}
# Keys of CNTK's other readers, which stand in many sections and change nothing; and the dots of the documents.
_PASSED_OVER = set().union(*_KNOWN.values()) | {
    folded(key)
    for key in "elementType sectionType wrecords windowSize numCPUThreads cropType cropRatio labelMappingType start "
    "useMersenneTwisterRand nbrUttsInEachRecurrentIter numberOfLabels labelFile labelTypes beginSequence endSequence "
    "unk wordclass mode noiseSampling startSequence ioNodeNames randomizeRange miniBatchMode ...".split()
}


# ----------------------------------------------------------------------------------------------------------- result


@dataclasses.dataclass(frozen=True)
class Call:
    """A deserializer of `cntkio`, as the call that makes it.

    Attributes:
        name: What is called.
        arguments: Its arguments.
        keywords: Its keyword arguments, in order.
        trace_level: What CNTK would print; it changes nothing.

    Example:
        >>> Call("CTFDeserializer", ("a.ctf",), (("max_errors", 3),))
        CTFDeserializer('a.ctf', max_errors=3)
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()
    trace_level: int = 1

    def __call__(self) -> Any:
        """Make the deserializer.

        Raises:
            ConfigError: Its options are not possible.
        """
        made = getattr(importlib.import_module("cntkio"), self.name, None)
        if made is None:
            raise ConfigError(f"this version of cntkio has no {self.name}", key="type")
        return made(*self.arguments, **dict(self.keywords))

    def __repr__(self) -> str:
        return self.text(None)

    def text(self, indent: int | None) -> str:
        """The call as Python, in one line or, from an indent on, with one argument a line."""
        given = [_python(value, indent) for value in self.arguments]
        given += [f"{key}={_python(value, indent)}" for key, value in self.keywords]
        return _call(self.name, given, indent)


@dataclasses.dataclass(frozen=True)
class ReaderConfig:
    """What a configuration says of a reader: frozen, comparable, and printable as the Python that does the same.

    Attributes:
        section: The path of the section that was read.
        kind: Which of CNTK's readers it describes.
        calls: The deserializers; `deserializers` makes them.
        precision: Of the values.
        packing: Whole sequences, single frames, or truncated sequences.
        window: How far sequences are shuffled; None: in order.
        randomization_seed: Sweep number k is shuffled with this seed + k.
        truncation_length: Steps of a truncated minibatch; 0: the minibatch size is that number, and
            `utterances_per_minibatch` sequences run side by side.
        right_splice: How many samples successive parts of a truncated sequence have in common.
        utterances_per_minibatch: By epochs, the last one repeating.
        read_method: How the HTKMLFReader shuffles.
        minibatch_mode: ``"full"`` leaves out a sweep's last minibatch where it is not full; HTKMLFReader.
        max_utterance_length: Longer utterances are skipped; HTKMLFReader.
        page_file_path: The folder of the page file; empty: the system's; HTKMLFReader.
        local_timeline: Whether a partition's minibatches are filled with its own share of the size.
        max_errors: How many sequences may be marked as invalid.
        keep_data_in_memory: Whether chunks are kept once they were read.
        trace_level: What CNTK would print; it changes nothing.
        minibatch_sizes: In samples, by epochs, the last one repeating.
        epoch_size: Samples of an epoch; 0: one sweep.
        max_epochs: How many epochs are trained; None where the action has none.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "train.cntk")
        >>> _ = path.write_text("train = [ reader = [ file = a.ctf ; input = [ x = [ dim = 2 ; format = dense ] ] ] ]")
        >>> config = read_config(path, "train=[SGD=[minibatchSize=32*2:64]]")
        >>> config.deserializers
        (CTFDeserializer('a.ctf', StreamDefs(x=StreamDef(field='x', shape=2))),)
        >>> config.window, config.minibatch_sizes
        (Window(size=128, unit='chunks'), (32, 32, 64))
    """

    section: str
    kind: Kind
    calls: tuple[Call, ...]
    precision: Literal["float", "double"] = "float"
    packing: Packing = "sequence"
    window: Window | None = None
    randomization_seed: int = 0
    truncation_length: int = 0
    right_splice: int = 0
    utterances_per_minibatch: tuple[int, ...] = (1,)
    read_method: ReadMethod = "blockRandomize"
    minibatch_mode: Literal["partial", "full"] = "partial"
    max_utterance_length: int = DEFAULT_MAX_UTTERANCE_LENGTH
    page_file_path: str = ""
    local_timeline: bool = False
    max_errors: int = 0
    keep_data_in_memory: bool = False
    trace_level: int = 1
    minibatch_sizes: tuple[int, ...] = (256,)
    epoch_size: int = 0
    max_epochs: int | None = None

    @property
    def deserializers(self) -> tuple[Any, ...]:
        """The deserializers, made anew."""
        return tuple(call() for call in self.calls)

    def minibatch_size(self, epoch: int = 0) -> int:
        """The configured minibatch size of an epoch."""
        return self.minibatch_sizes[min(epoch, len(self.minibatch_sizes) - 1)]

    def _truncation(self, epoch: int, minibatch_size: int | None) -> tuple[int, int]:
        """Steps of a minibatch, 0 where sequences are whole, and the samples to ask for."""
        size = self.minibatch_size(epoch) if minibatch_size is None else minibatch_size
        if self.packing != "truncated":
            return 0, size
        if self.truncation_length:
            return self.truncation_length, size
        count = self.utterances_per_minibatch[min(epoch, len(self.utterances_per_minibatch) - 1)]
        return size, size * count

    def source_options(self, *, minibatch_size: int | None = None) -> dict[str, Any]:
        """The keyword arguments of `MinibatchSource`, or of `HTKMLFReader`, but for those at their default."""
        if self.kind == "HTKMLFReader":
            return self._reader_options()
        options: dict[str, Any] = {}
        if self.window is None:
            options["randomize"] = False
        elif self.window != Window(128, "chunks"):
            options["randomization_window_in_chunks"] = self.window.size if self.window.unit == "chunks" else 0
            if self.window.unit == "samples":
                options["randomization_window_in_samples"] = self.window.size
        if self.window is not None and self.randomization_seed:
            options["randomization_seed"] = self.randomization_seed
        if self.packing == "frame":
            options["frame_mode"] = True
        if self.packing == "truncated":
            options["truncation_length"] = self._truncation(0, minibatch_size)[0]
        if self.right_splice:
            options["right_splice"] = self.right_splice
        if self.max_errors:
            options["max_errors"] = self.max_errors
        if self.keep_data_in_memory:
            options["keep_data_in_memory"] = True
        options["crosses_sweeps"] = False
        if not self.local_timeline:
            options["local_timeline"] = False
        return options

    def _reader_options(self) -> dict[str, Any]:
        counts = self.utterances_per_minibatch
        given: list[tuple[str, Any, Any]] = [
            ("readMethod", self.read_method, "blockRandomize"),
            ("randomize", "none" if self.window is None else self.window.size, _WHOLE_DATA),
            ("randomization_seed", self.randomization_seed, 0),
            ("minibatchMode", self.minibatch_mode, "partial"),
            ("frameMode", self.packing == "frame", True),
            ("truncated", self.packing == "truncated", False),
            ("truncationLength", self.truncation_length, 0),
            ("nbruttsineachrecurrentiter", counts[0] if len(counts) == 1 else list(counts), 1),
            ("maxUtteranceLength", self.max_utterance_length, DEFAULT_MAX_UTTERANCE_LENGTH),
            ("pageFilePath", self.page_file_path, ""),
            ("max_errors", self.max_errors, 0),
        ]
        return {key: value for key, value, default in given if value != default}

    def open(self, *, minibatch_size: int | None = None) -> MinibatchSource:
        """Open the reader's source. It never ends by itself; `epoch` reads one epoch of it.

        Args:
            minibatch_size: Instead of the configured one, where the truncation length depends on it.

        Raises:
            ConfigError: Options are not possible.
            CorpusError: The deserializers have no sequence in common.
            FormatError: A file breaks its format where the index is made.
            OSError: A file cannot be read.
        """
        options = self.source_options(minibatch_size=minibatch_size)
        if self.kind == "HTKMLFReader":
            return HTKMLFReader(self.deserializers, **options)
        return MinibatchSource(self.deserializers, **options)

    def epoch(
        self,
        source: MinibatchSource,
        number: int = 0,
        *,
        minibatch_size: int | None = None,
        epoch_size: int | None = None,
        num_data_partitions: int = 1,
        partition_index: int = 0,
    ) -> Iterator[Minibatch]:
        """Read one epoch, as CNTK's training does: samples ``number * size .. (number + 1) * size`` of the timeline.

        Args:
            source: What `open` gave.
            number: Which epoch, from 0.
            minibatch_size: Instead of the configured one.
            epoch_size: Instead of the configured one; 0: one sweep.
            num_data_partitions: How many readers share the data.
            partition_index: Which of them this is.

        Yields:
            Minibatches. One without sequences is not the end: another partition has the next ones.
        """
        size = self.epoch_size if epoch_size is None else epoch_size
        if isinstance(source, HTKMLFReader):
            samples = self.minibatch_size(number) if minibatch_size is None else minibatch_size
            yield from source.epoch(number, samples, size, num_data_partitions, partition_index)
            return
        size = size or source.num_samples
        steps, samples = self._truncation(number, minibatch_size)
        source.begin_epoch(number * size, (number + 1) * size, truncation_length=steps or None)
        for minibatch in source.minibatches(samples, num_data_partitions, partition_index):
            yield minibatch
            if source.has_ended:
                return

    def to_python(self) -> str:
        """The program that opens the same source and reads an epoch of it."""
        made = "HTKMLFReader" if self.kind == "HTKMLFReader" else "MinibatchSource"
        names = {call.name for call in self.calls} | {made}
        names |= {name for name in ("StreamDef", "StreamDefs") if any(name in repr(call) for call in self.calls)}
        options = [f"{key}={value!r}" for key, value in self.source_options().items()]
        calls = "[\n" + "".join(f"        {call.text(8)},\n" for call in self.calls) + "    ]"
        program = (
            f"from cntkio import {', '.join(sorted(names, key=lambda name: (name.lower(), name)))}\n\n"
            f"source = {_call(made, [calls, *options], 0)}\n"
        )
        if self.kind == "HTKMLFReader":
            sizes = [self.minibatch_size(), *([self.epoch_size] if self.epoch_size else [])]
            program += f"for minibatch in source.epoch(0, {', '.join(map(str, sizes))}):\n"
        else:
            end = f"{self.epoch_size}" if self.epoch_size else "source.num_samples"
            program += (
                f"source.begin_epoch(0, {end})\nfor minibatch in source.minibatches({self._truncation(0, None)[1]}):\n"
            )
        return program + "    print(minibatch.num_sequences, minibatch.end_of_sweep)\n"

    def facts(self) -> dict[str, str]:
        """What was understood, one fact a line, for people."""
        window = "none" if self.window is None else f"{self.window.size:,} {self.window.unit}"
        if self.window is not None and self.window.size == _WHOLE_DATA:
            window = "everything"
        facts = {"section": self.section, "reader": self.kind}
        for number, call in enumerate(self.calls):
            facts[f"deserializer {number}"] = repr(call)
        facts["precision"] = self.precision
        facts["packing"] = self.packing
        if self.packing == "truncated":
            facts["truncation"] = (
                f"{self.truncation_length} steps"
                if self.truncation_length
                else f"minibatch size; {_by_epochs(self.utterances_per_minibatch)} sequences side by side"
            )
        if self.kind == "HTKMLFReader":
            facts["read method"] = self.read_method
            facts["minibatch mode"] = self.minibatch_mode
        if self.kind == "HTKMLFReader" and self.packing == "sequence":
            facts["utterances"] = f"{_by_epochs(self.utterances_per_minibatch)} in a minibatch"
        facts["randomization window"] = window
        if self.window is not None:
            facts["randomization seed"] = str(self.randomization_seed)
        facts["minibatch size"] = _by_epochs(self.minibatch_sizes) + " samples"
        facts["epoch size"] = f"{self.epoch_size:,} samples" if self.epoch_size else "one sweep"
        if self.max_epochs is not None:
            facts["epochs"] = str(self.max_epochs)
        return facts


def _by_epochs(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) + (", ..." if len(values) > 1 else "")


def _call(name: str, arguments: list[str], indent: int | None) -> str:
    if indent is None or (not any("\n" in argument for argument in arguments) and sum(map(len, arguments)) < 80):
        return f"{name}({', '.join(arguments)})"
    blanks = " " * (indent + 4)
    return f"{name}(\n" + "".join(f"{blanks}{argument},\n" for argument in arguments) + " " * indent + ")"


def _python(value: Any, indent: int | None) -> str:
    """A value as Python that makes it again."""
    if isinstance(value, StreamDefs):
        inner = None if indent is None else indent + 4
        if all(name.isidentifier() and name != "self" for name in value):
            streams = [f"{name}={_python_stream(stream)}" for name, stream in value.items()]
        else:
            streams = ["{" + ", ".join(f"{name!r}: {_python_stream(it)}" for name, it in value.items()) + "}"]
        return _call("StreamDefs", streams, inner)
    if isinstance(value, np.dtype):
        return repr(str(value))
    return repr(value)


def _python_stream(stream: Any) -> str:
    names = {"stream_alias": "field", "dim": "shape"}  # they come first
    default = StreamDef()
    given = [
        f"{names.get(key, key)}={value!r}"
        for key, value in sorted(stream.items(), key=lambda item: item[0] not in names)
        if value != default.get(key) and not (key == "is_sparse" and "mlf" in stream)
    ]
    return f"StreamDef({', '.join(given)})"


# ---------------------------------------------------------------------------------------------------------- sections


def read_config(
    path: str | os.PathLike[str], *overrides: str, section: str | Sequence[str] | None = None
) -> ReaderConfig:
    """Read a CNTK configuration file, and say what its reader does. (docs/configuration.md)

    Args:
        path: The file.
        overrides: Further arguments as the program ``cntk`` takes them, such as ``"train=[reader=[maxErrors=5]]"``.
        section: The path of a reader's section, such as ``"train/reader"``, which is taken as it stands; or of an
            action's section, such as ``"train"``, whose ``reader`` is changed as the action does (``test`` and
            ``write`` read in order). None: the first action of ``command``.

    Raises:
        ConfigError: The text cannot be read, the section is not there, or the reader refuses it.
        OSError: The file cannot be read.
    """
    name = os.fspath(path)
    # A plus sign in a name is the separator of names only where CNTK's own argument is given.
    names = [name] if not isinstance(path, str) or os.path.exists(name) else name.split("+")  # noqa: PTH110
    top = configuration([*(f"configFile={one}" for one in names), *overrides])
    return read_section(top, section)


def readers_of(top: Section) -> list[str]:
    """The reader sections that a configuration's actions use, in order.

    Example:
        >>> readers_of(configuration(["command = A:B ; A = [ reader=[] ; cvReader=[] ] ; B = [ x ] ; reader=[]"]))
        ['A/reader', 'A/cvReader', 'B/reader']
    """
    found = []
    for name in actions_of(top):
        if not top.has(name, own=True):
            continue
        action = top.section(name, own=True)
        found += [f"{name}/{key}" for key in ("reader", "cvReader") if action.has(key)]
    return found


def actions_of(top: Section) -> tuple[str, ...]:
    """The sections that a configuration runs: those of ``command``, by default ``train``."""
    return top.texts("command", ("train",))


def read_section(top: Section, section: str | Sequence[str] | None = None, *, for_action: bool = False) -> ReaderConfig:
    """What the reader of a configuration does.

    Args:
        top: The global section.
        section: As for `read_config`.
        for_action: Whether a reader's section, too, is changed as the action around it does.

    Raises:
        ConfigError: The section is not there, or the reader refuses it.
    """
    if section is None:
        names = [name for name in actions_of(top) if top.has(name, own=True)]
        if not names and top.has("reader", own=True):
            section = ("reader",)
        else:
            section = (names or list(actions_of(top)))[:1]
    path = tuple(section.split("/")) if isinstance(section, str) else tuple(section)
    found = top
    for name in path:
        if not found.has(name):
            raise _no_section(found, name)
        found = found.section(name)
    if _looks_like_a_reader(found):
        around = found.parent
        is_in_action = for_action and around is not None and around.parent is not None
        return _Reading(found, action=_action_of(around) if is_in_action and around is not None else "").config()
    if not found.has("reader"):
        raise _no_section(found, "reader")
    return _Reading(found.section("reader"), action=_action_of(found)).config()


def _no_section(section: Section, name: str) -> ConfigError:
    near = difflib.get_close_matches(folded(name), [folded(key) for key in section.keys], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return section.error(name, f"there is no section {name!r}{hint}")


def _looks_like_a_reader(section: Section) -> bool:
    if folded(section.name).endswith("reader"):
        return True
    own = {folded(key) for key in section.keys}
    return bool(own & {"readertype", "deserializers", "input"}) and "reader" not in own


def _action_of(section: Section) -> str:
    actions = section.texts("action", ("train",))
    return folded(actions[0]) if actions else "train"


# ------------------------------------------------------------------------------------------------- one reader section


class _Reading:
    """The reading of one reader section."""

    def __init__(self, section: Section, action: str) -> None:
        self.section = section
        self.action = action
        self.precision: Literal["float", "double"] = "float"
        self.frame_mode = False

    def config(self) -> ReaderConfig:
        kind = self._kind()
        self.precision = self._word("precision", "float", ("float", "double"))  # type: ignore[assignment]
        read: dict[Kind, Callable[[], dict[str, Any]]] = {
            "CNTKTextFormatReader": self._text_reader,
            "CNTKBinaryReader": self._binary_reader,
            "HTKMLFReader": lambda: self._htk_reader("HTKMLFReader"),
            "HTKDeserializers": lambda: self._htk_reader("HTKDeserializers"),
            "composite": self._composite_reader,
        }
        fields = read[kind]()
        config = ReaderConfig(self.section.path, kind, precision=self.precision, **{**fields, **self._sizes()})
        for call in config.calls:
            if hasattr(importlib.import_module("cntkio"), call.name):
                self._try(call)
        return config

    def _try(self, call: Call) -> None:
        """Let the deserializer check its options, and say where they stand."""
        try:
            call()
        except OSError:
            pass  # `open` will tell
        except ConfigError as error:
            raise self.section.error(error.key or self.section.name, str(error)) from error

    def _kind(self) -> Kind:
        section = self.section
        if section.has("readers"):
            raise section.error(
                "readers", "several readers in one section are not supported; use deserializers = ( ... )"
            )
        name = section.text("readerType", "" if section.has("deserializers") else "CNTKTextFormatReader")
        if not name:
            return "composite"
        kind = _READERS.get(name)
        if kind is None:
            self._refuse("readerType", name, _READERS)
        if section.has("deserializers"):
            if kind != "composite":
                raise section.error("readerType", f"readerType = {name!r} and deserializers exclude each other")
        elif kind == "composite":
            raise section.error("deserializers", "'deserializers' is required, but missing")
        return kind

    def _refuse(self, key: str, name: str, known: Iterable[str], section: Section | None = None) -> NoReturn:
        help = _OTHER_READERS.get(name) or f"supported are {', '.join(known)}"
        raise (section or self.section).error(key, f"{key} = {name!r} is not supported: {help}")

    # ------------------------------------------------------------------------------------------- values of sections

    def _word(self, key: str, default: str, words: Sequence[str], section: Section | None = None) -> str:
        section = section or self.section
        word = section.text(key, default).lower()
        if word not in words:
            raise section.error(key, f"{key} = {word!r} is neither {' nor '.join(words)}")
        return word

    def _path(self, section: Section, key: str, *, own: bool = False) -> str:
        path = section.text(key, own=own)
        if "\0" in path:
            raise section.error(key, f"{key} = {path!r} cannot be a path", own=own)
        return _in_directory(section, path)

    def _is_randomized(self) -> bool:
        """``randomize`` of the readers that take a truth value."""
        section = self.section
        if self.action == "write" or (self.action in ("test", "eval") and not section.has("randomize")):
            return False
        text = section.text("randomize", "true")
        if text.lower() == "none":
            return False
        try:
            return truth(text)
        except ValueError:
            raise section.error("randomize", f"randomize = {text!r} is not a boolean (true, false or none)") from None

    def _window_size(self, *, own: bool = False) -> int | None:
        section = self.section
        if not section.has("randomizationWindow", own=own):
            return None
        if section.text("randomizationWindow", "") == "default":
            return None
        return section.size("randomizationWindow")

    def _chunk_size(self, section: Section) -> int:
        size = section.size("chunkSizeInBytes", _DEFAULT_CHUNK_SIZE)
        if not size:
            raise section.error("chunkSizeInBytes", "chunkSizeInBytes = 0; expected at least 1")
        return size

    def _warn_of_unknown(self, section: Section, kind: str, streams: Iterable[str] = ()) -> None:
        named = {folded(name) for name in streams}
        for key in section.keys:
            name = folded(key)
            if name in _KNOWN[kind] or name in named or (name in _PASSED_OVER):
                continue
            found = section.find(key, own=True)
            assert found is not None
            near = difflib.get_close_matches(name, sorted(_KNOWN[kind]), n=1, cutoff=0.7)
            spelled = {folded(one): one for one in _KEYS[kind].split()}
            if near:
                hint = f"; did you mean {spelled[near[0]]!r}?"
            elif found[0].is_flag:
                hint = "; is it the second half of a value that should stand in quotes?"
            else:
                hint = ""
            logger.warning(
                "%s: key %r is unknown here and ignored%s (section %s)", found[0].place, key, hint, section.path
            )

    def _sizes(self) -> dict[str, Any]:
        """Minibatch and epoch sizes, from the section of the action around the reader."""
        around = self.section.parent
        if around is None or around.parent is None:
            return {}
        action = self.action or _action_of(around)
        if action in ("train", "adapt") or not action:
            if not around.has("SGD") or not around.value("SGD").is_section:  # type: ignore[union-attr]
                return {}
            sgd = around.section("SGD")
            sizes: dict[str, Any] = {
                "minibatch_sizes": self._minibatch_sizes(sgd, (256,)),
                "epoch_size": self._epoch_size(sgd),
            }
            if sgd.has("maxEpochs"):
                sizes["max_epochs"] = sgd.size("maxEpochs")
            return sizes
        default = 2048 if action == "write" else 40960
        return {
            "minibatch_sizes": self._minibatch_sizes(around, (default,)),
            "epoch_size": self._epoch_size(around),
            "max_epochs": 1,
        }

    def _minibatch_sizes(self, section: Section, default: tuple[int, ...]) -> tuple[int, ...]:
        sizes = section.integers("minibatchSize", default) or default
        if min(sizes) < 1:
            raise section.error("minibatchSize", f"minibatchSize holds {min(sizes)}; expected at least 1")
        return sizes

    def _epoch_size(self, section: Section) -> int:
        return section.size("epochSize", 0)

    # ------------------------------------------------------------------------------------------------ CTF and CBF

    def _dtype(self) -> tuple[tuple[str, Any], ...]:
        return () if self.precision == "float" else (("dtype", "float64"),)

    def _input(self, section: Section) -> tuple[Section, list[Section]]:
        streams = section.section("input", own=True)
        if not streams.keys:
            raise section.error("input", "'input' is empty; expected a section for each stream", own=True)
        return streams, [streams.section(name, own=True) for name in streams.keys]

    def _text_file(self, section: Section, kind: str, trace_level: int | None = None) -> Call:
        self._warn_of_unknown(section, kind)
        path = self._path(section, "file")
        given = self._input(section)[1]
        made: dict[str, Any] = {}
        aliases: dict[str, str] = {}
        for stream in given:
            self._warn_of_unknown(stream, "text stream")
            dim = stream.size("dim", own=True)
            form = stream.text("format", own=True).lower()
            if form not in ("dense", "sparse"):
                raise stream.error("format", f"format = {form!r} is neither dense nor sparse", own=True)
            if dim < 1 or (form == "sparse" and dim > _LARGEST_SPARSE_DIM):
                raise stream.error("dim", f"dim = {dim}; expected 1 to {_LARGEST_SPARSE_DIM}", own=True)
            alias = stream.text("alias", stream.name, own=True)
            if not alias:
                raise stream.error("alias", "alias is empty", own=True)
            if alias in aliases:
                raise stream.error(
                    "alias", f"streams {aliases[alias]!r} and {stream.name!r} are both {alias!r} in the file"
                )
            aliases[alias] = stream.name
            defines = stream.boolean("definesMBSize", False)
            if defines and any(other["defines_mb_size"] for other in made.values()):
                raise stream.error("definesMBSize", "more than one stream defines the minibatch size")
            made[stream.name] = StreamDef(field=alias, shape=dim, is_sparse=form == "sparse", defines_mb_size=defines)
        keywords = [
            ("skip_sequence_ids", section.boolean("skipSequenceIds", False), False),
            ("max_errors", section.integer("maxErrors", 0), 0),
            ("chunk_size_in_bytes", self._chunk_size(section), _DEFAULT_CHUNK_SIZE),
            ("cache_index", section.boolean("cacheIndex", False), False),
        ]
        if trace_level is None:
            trace_level = section.integer("traceLevel", 1)
        given_keywords = tuple((key, value) for key, value, default in keywords if value != default)
        return Call("CTFDeserializer", (path, StreamDefs(made)), (*given_keywords, *self._dtype()), trace_level)

    def _text_reader(self) -> dict[str, Any]:
        section = self.section
        call = self._text_file(section, "CNTKTextFormatReader")
        window = None
        seed = 0
        if self._is_randomized():
            window = classic_text_window(
                self._window_size(),
                is_sample_based=section.boolean("sampleBasedRandomizationWindow", False),
                chunk_size_in_bytes=self._chunk_size(section),
            )
            seed = section.size("randomizationSeed", 0)
        return {
            "calls": (call,),
            "packing": "frame" if section.boolean("frameMode", False) else "sequence",
            "window": window,
            "randomization_seed": seed,
            "keep_data_in_memory": section.boolean("keepDataInMemory", False),
            "trace_level": call.trace_level,
        }

    def _binary_file(self, section: Section, kind: str, trace_level: int | None = None) -> Call:
        self._warn_of_unknown(section, kind)
        path = self._path(section, "file")
        renamed: dict[str, Any] = {}
        if section.has("input", own=True):
            streams = section.section("input", own=True)
            for name in streams.keys:
                stream = streams.section(name, own=True)
                self._warn_of_unknown(stream, "binary stream")
                alias = stream.text("alias", stream.name, own=True) or stream.name
                # Of two sections with one alias the last in the order of names has it.
                renamed = {key: value for key, value in renamed.items() if value["stream_alias"] != alias}
                renamed[stream.name] = StreamDef(field=alias)
        renamed = {name: stream for name, stream in renamed.items() if stream["stream_alias"] != name}
        if trace_level is None:
            trace_level = section.integer("traceLevel", 1)
        arguments: tuple[Any, ...] = (path, StreamDefs(renamed)) if renamed else (path,)
        dtype = "float32" if self.precision == "float" else "float64"
        return Call("CBFDeserializer", arguments, (("dtype", dtype), ("convert", False)), trace_level)

    def _binary_reader(self) -> dict[str, Any]:
        section = self.section
        call = self._binary_file(section, "CNTKBinaryReader")
        window = None
        seed = 0
        if self._is_randomized():
            is_sample_based = section.boolean("sampleBasedRandomizationWindow", False)
            window = classic_binary_window(self._window_size(), is_sample_based=is_sample_based)
            seed = section.size("randomizationSeed", 0)
        return {
            "calls": (call,),
            "window": window,
            "randomization_seed": seed,
            "keep_data_in_memory": section.boolean("keepDataInMemory", False),
            "trace_level": call.trace_level,
        }

    # -------------------------------------------------------------------------------------------------------- HTK

    def _features(self, stream: Section, around: Section, *, is_first: bool, checks_type: bool) -> Call:
        self._warn_of_unknown(stream, "features")
        path = self._path(stream, "scpFile", own=True)
        dim = stream.size("dim")
        if not 1 <= dim <= _LARGEST_SPARSE_DIM:
            raise stream.error("dim", f"dim = {dim}; expected 1 to {_LARGEST_SPARSE_DIM}")
        if checks_type:
            self._word("type", "real", ("real",), stream)
        fields: dict[str, Any] = {"scp": path, "shape": dim}
        if stream.has("contextWindow"):
            fields["context"] = self._context(stream)
        if stream.boolean("expandToUtterance", False):
            if is_first:
                raise stream.error("expandToUtterance", "the first feature stream cannot be expanded to utterances")
            fields["broadcast"] = True
        if self._either(stream, around, "definesMBSize", lambda section: section.boolean("definesMBSize", False)):
            fields["defines_mb_size"] = True
        keywords: list[tuple[str, Any]] = []
        prefix = stream.text("prefixPathInSCP", "")
        if "\0" in prefix:
            raise stream.error("prefixPathInSCP", f"prefixPathInSCP = {prefix!r} cannot be a path")
        if prefix:
            keywords.append(("prefix", prefix))
        longest = self._either(stream, around, "maxSequenceSize", lambda section: section.size("maxSequenceSize", 0))
        if longest:
            keywords.append(("max_sequence_length", longest))
        return Call("HTKFeatureDeserializer", (StreamDefs({stream.name: StreamDef(**fields)}),), tuple(keywords))

    @staticmethod
    def _either(stream: Section, around: Section, key: str, read: Callable[[Section], _T]) -> _T:
        """CNTK looks for some keys of a stream around its section, where nobody writes them: both places will do."""
        return read(stream if stream.has(key, own=True) or not around.has(key, own=True) else around)

    @staticmethod
    def _context(stream: Section) -> tuple[int, int]:
        counts = stream.integers("contextWindow", (1,))
        if len(counts) == 1 and counts[0] > 0 and counts[0] % 2:
            return counts[0] // 2, counts[0] // 2
        if len(counts) == 2 and min(counts) >= 0:
            return counts[0], counts[1]
        raise stream.error("contextWindow", f"contextWindow = {counts}; expected one odd number, or left:right")

    def _labels(self, stream: Section, *, checks_type: bool, has_targets: bool = False) -> Call:
        self._warn_of_unknown(stream, "labels")
        options: list[tuple[str, Any]] = []
        mlf: Any
        if stream.has("mlfFile", own=True):
            mlf = self._path(stream, "mlfFile", own=True)
        else:
            given = stream.text("mlfFileList", own=True)
            files = stream.texts("mlfFileList", own=True)
            if "\0" in given:
                raise stream.error("mlfFileList", f"mlfFileList = {given!r} cannot be a path", own=True)
            if ":" in given or len(files) > 1:
                mlf = [_in_directory(stream, file) for file in files]
            else:
                mlf = None
                listed = _in_directory(stream, files[0] if files else given)
                options.append(("stream_options", {stream.name: {"mlfFileList": listed}}))
        key = "labelDim" if stream.has("labelDim") else "dim"
        dim = stream.size(key)
        if not 1 <= dim <= _LARGEST_SPARSE_DIM:
            raise stream.error(key, f"{key} = {dim}; expected 1 to {_LARGEST_SPARSE_DIM}")
        if checks_type:
            self._word("labelType" if stream.has("labelType") else "type", "category", ("category",), stream)
        mapping = self._path(stream, "labelMappingFile") if stream.text("labelMappingFile", "") else None
        if stream.boolean("phoneBoundaries", False):
            if self.frame_mode:
                raise stream.error("phoneBoundaries", "phoneBoundaries and frameMode exclude each other")
            options.append(("phoneBoundaries", True))
        if stream.has("labelToTargetMappingFile") and not has_targets:
            logger.warning(
                "%s: labelToTargetMappingFile has no effect but in HTKMLFReader (section %s)", stream.place, stream.path
            )
        elif stream.text("labelToTargetMappingFile", ""):
            options.append(("labelToTargetMappingFile", self._path(stream, "labelToTargetMappingFile")))
            if stream.has("targetDim"):
                options.append(("targetDim", stream.size("targetDim")))
        fields: dict[str, Any] = {"shape": dim}
        if mlf is not None:
            fields["mlf"] = mlf
        return Call("HTKMLFDeserializer", (mapping, StreamDefs({stream.name: StreamDef(**fields)})), tuple(options))

    def _htk_streams(self, is_old: bool) -> list[Call]:
        """Sections are told apart by their keys, whatever their names."""
        section = self.section
        features: list[Section] = []
        labels: list[Section] = []
        names = []
        for name in section.keys:
            value = section.value(name, own=True)
            if value is None or not value.is_section:
                continue
            names.append(name)
            stream = section.section(name, own=True)
            if stream.has("scpFile", own=True):
                features.append(stream)
            elif stream.has("mlfFile", own=True) or stream.has("mlfFileList", own=True):
                labels.append(stream)
            elif stream.has("phoneFile", own=True) or stream.has("denlatTocFile", own=True):
                raise section.error(
                    name, f"{name!r} describes sequence training (HMMs or lattices), which is not supported"
                )
        self._warn_of_unknown(section, "HTK", names)
        if not features:
            raise section.error("scpFile", "no feature section: none of the sections has an scpFile")
        calls = [
            self._features(stream, section, is_first=number == 0, checks_type=True)
            for number, stream in enumerate(features)
        ]
        return calls + [self._labels(stream, checks_type=True, has_targets=is_old) for stream in labels]

    def _htk_reader(self, kind: Kind) -> dict[str, Any]:
        section = self.section
        is_old = kind == "HTKMLFReader"
        methods = ("blockrandomize", "rollingwindow") if is_old else ("blockrandomize", "none")
        method = self._word("readMethod", "blockRandomize".lower(), methods)
        is_write = self.action == "write" or section.text("action", "").lower() == "write"
        self.frame_mode = section.boolean("frameMode", True) and not is_write
        truncated = section.boolean("truncated", False) and not is_write
        if truncated and self.frame_mode:
            raise section.error(
                "truncated", "truncated and frameMode exclude each other; frameMode is true by default here"
            )
        calls = self._htk_streams(is_old)
        if is_old and len(calls) < 2 and not is_write:
            raise section.error("mlfFile", "HTKMLFReader wants at least two streams; there is one feature section only")
        window = None if is_write else self._htk_window(method)
        counts = section.integers("nbruttsineachrecurrentiter", (1,)) or (1,)
        if min(counts) < 1:
            raise section.error("nbruttsineachrecurrentiter", f"it holds {min(counts)}; expected at least 1")
        mode = self._word("minibatchMode", "partial", ("partial", "full"))
        fields: dict[str, Any] = {
            "calls": tuple(calls),
            "packing": "truncated" if truncated else "frame" if self.frame_mode else "sequence",
            "window": window,
            "utterances_per_minibatch": (1,) if is_write else counts,
            "trace_level": section.integer("traceLevel", 1),
        }
        self._warn_of_no_effect(_WITHOUT_EFFECT["HTK"])
        if is_old:
            return {**fields, **self._old_reader(method, mode, counts)}
        if mode == "full":
            self._warn("minibatchMode", "full has no effect in HTKDeserializers; HTKMLFReader has it")
        fields["randomization_seed"] = section.size("randomizationSeed", 0) if window is not None else 0
        fields["truncation_length"] = section.size("truncationLength", 0) if truncated else 0
        return fields

    def _old_reader(self, method: str, mode: str, counts: tuple[int, ...]) -> dict[str, Any]:
        """What the HTKMLFReader alone has."""
        section = self.section
        is_rolling = method == "rollingwindow"
        if is_rolling and not self.frame_mode and self.action != "write":
            raise section.error(
                "readMethod",
                "readMethod = rollingWindow shuffles frames, and frameMode is false; whole utterances are shuffled by "
                "blockRandomize",
            )
        if self.frame_mode and max(counts) > 1:
            raise section.error(
                "nbruttsineachrecurrentiter",
                f"nbruttsineachrecurrentiter = {max(counts)} and frameMode exclude each other; frameMode is true by "
                f"default here",
            )
        self._warn_of_no_effect(_WITHOUT_EFFECT["HTKMLFReader"])
        for key, why in (
            ("randomizationSeed", "sweep k is shuffled with k"),
            ("truncationLength", "the minibatch size is the truncation length"),
        ):
            if section.has(key) and section.text(key, "") != "0":
                self._warn(key, f"has no effect: {why}")
        longest = section.integer("maxUtteranceLength", DEFAULT_MAX_UTTERANCE_LENGTH)
        if longest < 1:
            raise section.error("maxUtteranceLength", f"maxUtteranceLength = {longest}; expected at least 1")
        folder = ""
        if section.has("pageFilePath") and not is_rolling:
            self._warn("pageFilePath", "has no effect without readMethod = rollingWindow")
        elif section.text("pageFilePath", ""):
            folder = self._path(section, "pageFilePath")
        found = section.find("unigram")
        if found is not None and found[0].values[0].is_section:
            raise section.error("unigram", "unigram models, for sequence training, are not supported")
        return {
            "read_method": "rollingWindow" if is_rolling and self.frame_mode else "blockRandomize",
            "minibatch_mode": mode,
            "max_utterance_length": longest,
            "page_file_path": folder if is_rolling and self.frame_mode else "",
        }

    def _warn(self, key: str, message: str) -> None:
        found = self.section.find(key)
        place = self.section.place if found is None else found[0].place
        logger.warning("%s: %s %s (section %s)", place, key, message, self.section.path)

    def _warn_of_no_effect(self, keys: Iterable[tuple[str, bool, str]]) -> None:
        """Warn of keys that ask for something else than what happens. What they hold does no harm."""
        for key, usual, why in keys:
            found = self.section.find(key)
            with contextlib.suppress(ValueError):
                if found is not None and truth(found[0].values[0].string) != usual:
                    self._warn(key, f"has no effect: {why}")

    def _htk_window(self, method: str) -> Window | None:
        section = self.section
        is_told_by_action = self.action in ("test", "eval") and not section.has("randomize")
        if method == "none" or is_told_by_action:
            return None
        text = section.text("randomize", "auto")
        word = text.lower()
        if word == "auto":
            return classic_htk_window("auto")
        size = 0 if word == "none" else section.size("randomize")
        if size:
            return classic_htk_window(size)
        if method == "blockrandomize":
            is_old = _READERS[section.text("readerType")] == "HTKMLFReader"
            other = "readMethod = rollingWindow beside it" if is_old else "readMethod = none"
            raise section.error(
                "randomize", f"randomize = {text!r} with readMethod = blockRandomize; to read in order write {other}"
            )
        return None

    # -------------------------------------------------------------------------------------------------- composite

    def _composite_reader(self) -> dict[str, Any]:
        section = self.section
        self._warn_of_unknown(section, "composite")
        is_write = self.action == "write" or section.text("action", "").lower() == "write"
        self.frame_mode = section.boolean("frameMode", False) and not is_write
        truncated = section.boolean("truncated", False) and not is_write
        length = 0
        if truncated:
            if self.frame_mode:
                raise section.error("truncated", "truncated and frameMode exclude each other")
            length = section.size("truncationLength", 0)
            if not length:
                raise section.error("truncationLength", "truncationLength is required with truncated, and above 0")
        splice = section.size("rightSplice", 0) if truncated else 0
        if splice >= max(length, 1):
            raise section.error("rightSplice", f"rightSplice = {splice} is not below truncationLength = {length}")
        given = section.sections("deserializers")
        if not given:
            raise section.error("deserializers", "'deserializers' is empty; expected at least one section")
        calls = [self._deserializer(one, number) for number, one in enumerate(given)]
        has_text_keys = any(call.name.startswith("HTK") for call in calls)
        self._warn_of_no_effect(_WITHOUT_EFFECT["HTK" if has_text_keys else "composite"])
        window = None
        seed = 0
        if self._is_randomized() and not is_write:
            window = self._composite_window(any(call.name == "CTFDeserializer" for call in calls))
            seed = section.size("randomizationSeed", 0)
        return {
            "calls": tuple(calls),
            "packing": "truncated" if truncated else "frame" if self.frame_mode else "sequence",
            "window": window,
            "randomization_seed": seed,
            "truncation_length": length,
            "right_splice": splice,
            "local_timeline": section.boolean("localTimeline", True),
            "max_errors": section.size("maxErrors", 0),
            "trace_level": section.integer("traceLevel", 1),
        }

    def _composite_window(self, has_text_format: bool) -> Window | None:
        section = self.section
        size = self._window_size(own=has_text_format)
        is_given = section.has("sampleBasedRandomizationWindow")
        is_sample_based = section.boolean("sampleBasedRandomizationWindow", True) if is_given else None
        if has_text_format and is_sample_based and size is None:
            if section.has("sampleBasedRandomizationWindow", own=True):
                raise section.error(
                    "randomizationWindow", "sampleBasedRandomizationWindow = true needs a randomizationWindow beside it"
                )
            is_sample_based = None
        return composite_window(
            size,
            is_sample_based=is_sample_based if size is not None else None,
            chunk_size_in_bytes=self._chunk_size(section) if has_text_format and size is None else _DEFAULT_CHUNK_SIZE,
            has_text_format=has_text_format,
        )

    def _deserializer(self, section: Section, number: int) -> Call:
        reader = self.section
        kind = section.text("type")
        if kind not in _DESERIALIZERS:
            self._refuse("type", kind, _DESERIALIZERS, section)
        if section.has("module") and section.text("module") != _DESERIALIZERS[kind]:
            raise section.error(
                "module", f"module = {section.text('module')!r}; for {kind} it is {_DESERIALIZERS[kind]!r}"
            )
        trace_level = reader.integer("traceLevel", 1) if reader.has("traceLevel") else None
        if kind == "CNTKTextFormatDeserializer":
            return self._text_file(section, kind, trace_level)
        if kind == "CNTKBinaryFormatDeserializer":
            if number:
                raise reader.error("deserializers", "a binary deserializer must be the first")
            return self._binary_file(section, kind, trace_level)
        is_features = kind == "HTKFeatureDeserializer"
        if not is_features and not number:
            raise reader.error("deserializers", "an MLF deserializer cannot be the first")
        if kind == "HTKMLFBinaryDeserializer":
            return self._binary_labels(section)
        self._warn_of_unknown(section, kind)
        streams, given = self._input(section)
        if len(given) > 1:
            names = ", ".join(repr(stream.name) for stream in given[1:])
            logger.warning("%s: only the stream %r is read, not %s", streams.place, given[0].name, names)
        if is_features:
            return self._features(given[0], streams, is_first=number == 0, checks_type=False)
        return self._labels(given[0], checks_type=False)

    def _binary_labels(self, section: Section) -> Call:
        _, given = self._input(section)
        stream = given[0]
        dim = stream.size("labelDim" if stream.has("labelDim") else "dim")
        mlf = self._path(stream, "mlfFile", own=True)
        return Call("HTKMLFBinaryDeserializer", (StreamDefs({stream.name: StreamDef(mlf=mlf, shape=dim)}),))


def _in_directory(section: Section, path: str) -> str:
    """A path, in the directory that the arguments changed to."""
    return os.path.join(section.directory, path) if section.directory else path  # noqa: PTH118 - texts with any bytes


def written_config(section: str, config: ReaderConfig) -> str:
    """The configuration that says what `config` does, to be read by `read_config` and by CNTK.

    Args:
        section: Name of the action's section.
        config: What it shall say, but for its `section` and for what CNTK would print.

    Raises:
        ConfigError: A name cannot be written in a configuration, or an option has no key there.

    Example:
        >>> call = Call("CTFDeserializer", ("a.ctf", StreamDefs(x=StreamDef(field="x", shape=2))))
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
    write: dict[Kind, Callable[[ReaderConfig], list[str]]] = {
        "CNTKTextFormatReader": _written_file_reader,
        "CNTKBinaryReader": _written_file_reader,
        "HTKMLFReader": _written_htk_reader,
        "HTKDeserializers": _written_htk_reader,
        "composite": _written_composite,
    }
    reader = _group("reader", write[config.kind](config))
    # The old reader reads in order, and features alone, where an action says so.
    action = "train"
    if config.kind == "HTKMLFReader" and config.window is None and config.read_method == "blockRandomize":
        action = "write" if len(config.calls) == 1 else "test"
    if config.kind == "HTKMLFReader" and len(config.calls) == 1 and action == "train":
        raise ConfigError("HTKMLFReader wants at least two streams but where it reads in order", key="mlfFile")
    sizes = {
        "minibatchSize": (":".join(map(str, config.minibatch_sizes)), "256" if action == "train" else ""),
        "epochSize": (str(config.epoch_size), "0"),
    }
    if action == "train":
        sizes["maxEpochs"] = (str(config.max_epochs), "None")
    given = [f"{key} = {value}" for key, (value, default) in sizes.items() if value != default]
    around = given if action != "train" else _group("SGD", given) if given else []
    lines = [
        f"command = {section}",
        f'precision = "{config.precision}"',
        "",
        *_group(section, [f'action = "{action}"', *around, *reader]),
    ]
    return "".join(f"{line}\n" for line in lines)


def _group(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name} = [", *(f"    {line}" for line in lines), "]"]


def _entry(key: str, value: Any) -> str:
    if isinstance(value, str):
        return f'{key} = "{_plain(value)}"'
    return f"{key} = {str(value).lower() if isinstance(value, bool) else value}"


def _entries(given: Iterable[tuple[str, Any, Any]]) -> list[str]:
    """Keys and values, but for those that are at their default."""
    return [_entry(key, value) for key, value, default in given if value != default]


def _written_window(config: ReaderConfig, default: Window | None, *, is_composite: bool = False) -> list[str]:
    window = config.window
    if window is None:
        return ["randomize = false"]
    lines = []
    if window != default:
        in_samples = window.unit == "samples"
        is_whole = in_samples and window.size == _WHOLE_DATA and not is_composite
        lines += [] if is_whole else [f"randomizationWindow = {window.size}"]
        if in_samples != is_composite:
            lines.append(f"sampleBasedRandomizationWindow = {str(in_samples).lower()}")
    return lines + _entries([("randomizationSeed", config.randomization_seed, 0)])


def _written_file_reader(config: ReaderConfig) -> list[str]:
    call = config.calls[0]
    default = classic_binary_window()
    if call.name == "CTFDeserializer":
        chunk_size = dict(call.keywords).get("chunk_size_in_bytes", _DEFAULT_CHUNK_SIZE)
        default = classic_text_window(chunk_size_in_bytes=chunk_size)
    return [
        _entry("readerType", config.kind),
        *_written_file(call),
        *_written_window(config, default),
        *_entries(
            [("keepDataInMemory", config.keep_data_in_memory, False), ("frameMode", config.packing == "frame", False)]
        ),
    ]


def _written_file(call: Call) -> list[str]:
    """The entries of a deserializer of one file."""
    path, *streams = call.arguments
    keywords = dict(call.keywords)
    lines = [_entry("file", os.fspath(path))]
    names = {
        "skip_sequence_ids": "skipSequenceIds",
        "max_errors": "maxErrors",
        "chunk_size_in_bytes": "chunkSizeInBytes",
        "cache_index": "cacheIndex",
    }
    lines += [_entry(key, keywords[name]) for name, key in names.items() if name in keywords]
    made = []
    for name in sorted(streams[0] if streams else (), key=by_name):
        stream = streams[0][name]
        entries = [_entry("alias", stream["stream_alias"])]
        if call.name == "CTFDeserializer":
            entries += [f"dim = {stream['dim']}", _entry("format", "sparse" if stream["is_sparse"] else "dense")]
            entries += _entries([("definesMBSize", stream["defines_mb_size"], False)])
        made.append(f"{_plain(name)} = [ {' ; '.join(entries)} ]")
    return lines + (_group("input", made) if made else [])


def _written_stream(call: Call) -> list[str]:
    """The section of the stream of a deserializer of HTK."""
    ((name, stream),) = call.arguments[-1].items()
    keywords = dict(call.keywords)
    if call.name == "HTKFeatureDeserializer":
        context = stream.get("context")
        return _group(
            _plain(name),
            [
                _entry("scpFile", _one_file(stream.scp)),
                f"dim = {stream.dim}",
                *([] if context is None else [f"contextWindow = {context[0]}:{context[1]}"]),
                *_entries(
                    [
                        ("expandToUtterance", bool(stream.get("broadcast", False)), False),
                        ("prefixPathInSCP", keywords.get("prefix", ""), ""),
                        ("definesMBSize", stream.defines_mb_size, False),
                        ("maxSequenceSize", keywords.get("max_sequence_length") or 0, 0),
                    ]
                ),
            ],
        )
    mlf = stream.get("mlf")
    if mlf is None:
        files = _entry("mlfFileList", keywords["stream_options"][name]["mlfFileList"])
    elif isinstance(mlf, str | os.PathLike):
        files = _entry("mlfFile", os.fspath(mlf))
    else:
        files = "mlfFileList = ( " + " : ".join(f'"{_plain(os.fspath(one))}"' for one in mlf) + " )"
    mapping = call.arguments[0] if len(call.arguments) > 1 else None
    return _group(
        _plain(name),
        [
            files,
            *([] if mapping is None else [_entry("labelMappingFile", os.fspath(mapping))]),
            f"labelDim = {stream.dim}",
            *_entries(
                [
                    ("phoneBoundaries", keywords.get("phoneBoundaries", False), False),
                    ("labelToTargetMappingFile", os.fspath(keywords.get("labelToTargetMappingFile") or ""), ""),
                    ("targetDim", keywords.get("targetDim"), None),
                ]
            ),
        ],
    )


def _one_file(files: Any) -> str:
    if isinstance(files, str | os.PathLike):
        return str(os.fspath(files))
    if len(files) > 1:
        raise ConfigError(f"several lists cannot be written in a configuration: {list(files)}", key="scpFile")
    return str(os.fspath(files[0]))


def _written_htk_reader(config: ReaderConfig) -> list[str]:
    window, is_old = config.window, config.kind == "HTKMLFReader"
    method, randomize = str(config.read_method), "auto"
    if window is None:
        method, randomize = ("rollingWindow", "none") if method == "rollingWindow" else ("none", "auto")
    elif window.size != _WHOLE_DATA:
        randomize = str(window.size)
    counts = config.utterances_per_minibatch
    lines = [_entry("readerType", config.kind)]
    if not is_old or method != "none":
        lines += _entries([("readMethod", method, "blockRandomize"), ("randomize", randomize, "auto")])
    return [
        *lines,
        *_entries(
            [
                ("randomizationSeed", config.randomization_seed, 0),
                ("minibatchMode", config.minibatch_mode, "partial"),
                ("frameMode", config.packing == "frame", True),
                ("truncated", config.packing == "truncated", False),
                ("truncationLength", config.truncation_length, 0),
                ("maxUtteranceLength", config.max_utterance_length, DEFAULT_MAX_UTTERANCE_LENGTH),
                ("pageFilePath", config.page_file_path, ""),
            ]
        ),
        *([f"nbruttsineachrecurrentiter = {':'.join(map(str, counts))}"] if counts != (1,) else []),
        *(line for call in config.calls for line in _written_stream(call)),
    ]


def _written_composite(config: ReaderConfig) -> list[str]:
    has_text_format = any(call.name == "CTFDeserializer" for call in config.calls)
    lines = _written_window(config, composite_window(has_text_format=has_text_format), is_composite=True)
    lines += _entries(
        [
            ("frameMode", config.packing == "frame", False),
            ("truncated", config.packing == "truncated", False),
            ("truncationLength", config.truncation_length, 0),
            ("rightSplice", config.right_splice, 0),
            ("localTimeline", config.local_timeline, True),
            ("maxErrors", config.max_errors, 0),
        ]
    )
    kinds = {"CTFDeserializer": "CNTKTextFormatDeserializer", "CBFDeserializer": "CNTKBinaryFormatDeserializer"}
    parts = []
    for call in config.calls:
        kind = kinds.get(call.name, call.name)
        inner = _written_file(call) if call.name in kinds else _group("input", _written_stream(call))
        lead = [_entry("type", kind), _entry("module", _DESERIALIZERS[kind])]
        parts.append(["[", *(f"    {line}" for line in [*lead, *inner]), "]"])
    for part in parts[:-1]:
        part[-1] += " :"
    return [*lines, "deserializers = (", *(f"    {line}" for part in parts for line in part), ")"]


def _plain(text: str) -> str:
    """A text that can stand in quotes in a configuration."""
    hash_at = text.find("#")  # later ones in a line begin no comment
    begins_comment = hash_at == 0 or (hash_at > 0 and text[hash_at - 1] in " \t")
    if any(character in text for character in '"\n\r') or begins_comment or VARIABLE.search(text):
        raise ConfigError(f"{text!r} cannot be written in a configuration: a quote, line end, ' #' or '$' is in it")
    return text

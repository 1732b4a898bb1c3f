"""HTK features: frames from feature files, by lists of utterances (scp). (docs/formats/htk.md)

::

    a.scp   u1=x.ark[0,299]     line -> key, file, first and last frame        cntkio.formats.htk.lists
            u2=x.ark[300,420]   file -> header: byte order, kind, dimension    cntkio.formats.htk.feature_files
                                frames, as they are in the file                cntkio.formats.htk.lists
                                values and windows, made by the packer         the compiled core

The defaults accept all input with only one possible meaning; `compatible=True` reads exactly as CNTK 2.7 does.
Nothing here loops over frames. Files are read one after the other; a run of successive utterances is read in one piece.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import caller, suggests_keywords
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.cntk_options import FEATURE_STREAM, FEATURES
from cntkio.formats.contract import (
    OPENING,
    Ahead,
    Corpus,
    CorpusInFiles,
    Format,
    Index,
    Loaded,
    OpenedFile,
    Opening,
    PlacesInFiles,
    ReadingOptions,
    Utterances,
)
from cntkio.formats.corpus import filled_files, fingerprint_of_files, opened_corpus, without_empty
from cntkio.formats.htk.feature_files import HEADER_SIZE, FeatureFile, FeatureFiles, HTKHeader
from cntkio.formats.htk.lists import (
    Frames,
    GatheredFrames,
    Listed,
    Lists,
    decoded,
    first_header,
    first_sound,
    joined_lists,
    repeated,
    runs_of,
    words_for_utterances,
)
from cntkio.formats.htk.options import (
    FeatureSettings,
    UtteranceOptions,
    entry_of,
    longest_of,
    merge_stream,
    paths_of,
    size_of,
    size_of_window,
    window_of,
)
from cntkio.formats.table import Keys, SequenceTable, digest_of, file_finder
from cntkio.storage.file_lists import listed_files
from cntkio.storage.manifest import comparison
from cntkio.storage.names import FileNames, shown, shown_files
from cntkio.storage.open_input import KeptObjects, ahead, loads_at_once
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import FileStamps, InputFile, Storage, sum_of_files
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs, StreamInformation, named

# Lists with more frames (186 hours at 10 ms) are compared with the sizes of all their files.
_MOST_UNCHECKED_FRAMES = 1 << 26
_MOST_UNCHECKED_FRAMES_OF_A_FILE = 1 << 20
CHUNK_FRAMES = 90_000
"""A chunk of utterances is full when it has more frames than this: 15 minutes at 10 ms."""


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class HTKFeatureDeserializer(UtteranceOptions):
    """Features in HTK files, by lists of utterances (scp). Each stream is a corpus of its own, joined by key.

    Options of CNTK can be set by their own names, too: ``deserializer["maxSequenceSize"] = 1000``.

    Args:
        streams: For each stream ``StreamDef(scp=..., shape=..., context=(left, right), broadcast=...)``. `scp` is a
            list of utterances, or several lists: a pattern, or a list of paths; `shape` is the number of values of a
            frame, or a multiple of it that implies the window.
        prefix: Text put before each path of the lists.
        unequal_lengths: Treatment of an utterance that is not as long as in the first corpus of the source:
            ``"error"``, ``"drop"`` it, or ``"keep"`` it as it is, which is also the meaning of None. Frame mode needs
            at least as many frames.
        max_sequence_length: Leave out longer utterances; None: leave out none. Streams may have their own limits.
        compatible: Read exactly as CNTK 2.7 does (docs/formats/htk.md, "Compatible").
        strict: Turn warnings into errors.
        memory_map: Map long runs of frames into memory instead of copying them, which saves time and memory. If another
            process truncates a mapped file during a read, the operating system kills this process (SIGBUS).
        stream_options: Further options of each stream by CNTK's names, such as ``{"F": {"contextWindow": 11}}``.
        defines_mb_size: Whether minibatch sizes count the samples of this deserializer's stream.
        dtype: Type of the delivered values, float32 or float64. Files contain float32.
        remote: As for `CTFDeserializer`, for lists and feature files.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio import StreamDef
        >>> HTKFeatureDeserializer(StreamDefs(F=StreamDef(scp="train.scp", shape=40, context=(5, 5)))).streams.F.context
        (5, 5)
    """

    streams: StreamDefs
    _: dataclasses.KW_ONLY
    prefix: str = ""
    max_sequence_length: int | None = None
    memory_map: bool = True
    cntk_type = "HTKFeatureDeserializer"
    cntk_options = FEATURES

    def __post_init__(self) -> None:
        self.streams = self.check_common(self.streams)
        if not self.streams:
            raise ConfigError("HTKFeatureDeserializer: no feature streams found", key="streams")
        for name in self.streams:
            self._settings(name)  # raises the errors of options now, and not when the corpus is opened

    def _settings(self, name: str) -> FeatureSettings:
        stream = merge_stream(name, self.streams[name], self.stream_options, FEATURE_STREAM)
        if not stream.get("scp"):
            what = f"no scp files specified for HTKFeatureDeserializer: stream {name!r}; expected StreamDef(scp=...)"
            raise ConfigError(what, key=name)
        limits = [self.max_sequence_length, longest_of(name, stream, compatible=self.compatible)]
        # CNTK ignores this field of a `StreamDef` of features.
        defines = entry_of(name, stream, "defines_mb_size") and not self.compatible
        return FeatureSettings(
            name=name,
            lists=paths_of(stream["scp"], "scp"),
            dim=size_of(name, stream.get("dim"), LARGEST_DIM, "values"),
            context=window_of(stream.get("context", (0, 0))),
            prefix=str(stream.get("prefix", self.prefix)),
            is_broadcast=entry_of(name, stream, "broadcast"),
            defines_mb_size=self.defines_mb_size or defines,
            max_sequence_length=min((limit for limit in limits if limit is not None), default=None),
            memory_map=self.memory_map,
            options=self,
        )

    def parts(self) -> Sequence[HTKFeatureDeserializer]:
        """Return a deserializer for each stream, in the order of the streams' numbers."""
        streams = named(self.streams)
        if len(streams) == 1:
            return (self,)
        return [dataclasses.replace(self, streams=StreamDefs({name: stream})) for name, stream in streams]

    def settings(self) -> FeatureSettings:
        """Return the settings of the only stream. If there are several streams, use each item of `parts()` instead.

        Raises:
            ConfigError: There are several streams.
        """
        count = len(self.streams)
        if count > 1:
            raise ConfigError(f"{count} streams are {count} corpora; open each item of parts()", key="streams")
        return self._settings(*self.streams)

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Read the lists of the only stream, and the header of the first utterance's file.

        Raises:
            OSError: A list, or the first file, cannot be read.
            FormatError: A list, or the first file, breaks the format.
            ConfigError: The shape does not fit the files, or there are several streams.
            CorpusError: No utterance is left.
        """
        return opened_corpus(HTKFormat(self.settings(), opening))


class HTKLayout(NamedTuple):
    """The format's own facts about lists of utterances.

    Attributes:
        model: Header of the first file, which all files must resemble.
        window: Number of frames before and after each frame.
        stamps: The stamps of the local files of `listed` when the corpus was opened.
        num_requests: Number of requests to keep under way while a chunk is read; 0: it has local files.
    """

    listed: Listed
    model: HTKHeader
    window: tuple[int, int]
    stamps: FileStamps
    num_requests: int


class HTKFormat(Format):
    """Reads a stream of features; a `Format`.

    All lists are one file of the corpus, because the rule about an utterance in two lists concerns them together. The
    feature files are open only while a chunk is read: a list may name 10^5 files, a chunk reads each of its files from
    beginning to end, and several threads load chunks, so files that stay open would cost locks and save little.
    """

    def __init__(self, settings: FeatureSettings, opening: Opening) -> None:
        self._settings, self._options = settings, settings.options
        self._stored = KeptObjects(self._options.remote)
        paths = listed_files(settings.lists, option="scp", remote=self._options.remote)
        self._lists = Lists(paths, settings.prefix, self._options.compatible, self._stored)
        self.report, self.is_strict = opening.report(shown_files(self._lists.paths)), self._options.strict

    def open(self, path: str, index: Index | None) -> OpenedFile:
        return OpenedFile(storage=Storage("", require_unchanged=comparison(self._stored.remote)))

    def index(self, file: object, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        settings = self._settings
        refuse = self.report.refuse if self.report.is_observed else None
        lists = filled_files(self, self._lists.paths, lambda path: self._lists.read(path, refuse))
        self._lists = dataclasses.replace(self._lists, paths=list(lists))
        listed, first_paths = joined_lists(list(lists.values()))
        # Each list has its own paths, so the path of an utterance identifies its list.
        listed = self._without_unwanted(listed, first_paths)
        keys, lengths = listed.keys, listed.lengths
        with closing(FeatureFiles(self._options.compatible, self._stored)) as opened:
            model = self._first_header(opened, listed)
        stamps = FileStamps(listed.paths)
        self._require_room(listed, model, stamps.sizes)
        window = self._window(model)
        dim = size_of_window(model.dim, window)
        if settings.is_broadcast and (lengths != 1).any():
            longer = np.argmax(lengths != 1)
            what = f"utterance {decoded(keys[longer])} has {lengths[longer]} frames"
            raise CorpusError(f"{self.report.name}: {what}; an utterance of a broadcast stream has one")
        # Files need not ascend within a list; it is enough that all files of a list come before the next list's.
        spans = [*itertools.pairwise(np.searchsorted(listed.files, first_paths).tolist())]
        starts, sums = [np.zeros(1, np.int64)], list[str]()
        for (first, last), first_path in zip(spans, first_paths.tolist(), strict=False):
            # No chunk spans lists.
            starts.append(first + _core.htk_chunk_starts(lengths[first:last], CHUNK_FRAMES)[1:])
            # With a fingerprint for each list, which does not depend on the other lists, the message about a checkpoint
            # can name the lists that differ.
            part = listed.only(slice(first, last))
            columns = part.keys, part.first, part.lengths, part.files - np.uint32(first_path)
            sums.append(f"{last - first}:{digest_of(columns)}")
        num_requests = self._stored.requests_for(map(os.fsdecode, listed.paths))
        # Names of objects without the passwords in their URLs.
        paths = [os.fsencode(shown(os.fsdecode(path))) for path in listed.paths] if num_requests else listed.paths
        options, files = (
            {"max_sequence_length": settings.max_sequence_length},
            file_finder(paths, listed.files.__getitem__),
        )
        table = SequenceTable(Keys(keys), lengths, np.concatenate(starts), options=options, files=files)
        utterances = Utterances(
            can_lead=not settings.is_broadcast,
            is_broadcast=settings.is_broadcast,
            unequal_lengths=self._options.unequal_lengths or "keep",
            is_literal=self._options.compatible,
        )
        stream = StreamInformation(settings.name, 0, "dense", self._options.dtype, dim, settings.defines_mb_size)
        layout = HTKLayout(listed, model, window, stamps, num_requests)
        fingerprint = sums[0] if len(sums) == 1 else fingerprint_of_files(self._lists.paths, sums)
        num_bytes = int(lengths.sum(dtype=np.int64)) * model.frame_size
        loads = loads_at_once(num_requests, num_bytes // table.num_chunks)
        return Index(
            (stream,), table, layout, fingerprint=fingerprint, num_bytes=num_bytes, loads_at_once=loads,
            utterances=utterances,
        ), []  # fmt: skip

    def _without_unwanted(self, listed: Listed, first_paths: npt.NDArray[np.int64]) -> Listed:
        """Leave out utterances that are too long, and all utterances whose key is listed several times."""
        # As in CNTK, long utterances are removed first, so they do not make a key count as repeated.
        longest = self._settings.max_sequence_length
        if longest is not None:
            too_long = listed.lengths > longest
            self._warn("utterance too long", listed.keys[too_long], f"longer than {longest} frames, and left out")
            listed = listed.only(~too_long)
        first, again = repeated(listed.keys)
        if len(again):
            if not self._options.compatible:
                self._refuse_common_keys(listed, first, first_paths)
            self._warn("repeated utterance", listed.keys[again], "listed several times, and left out altogether")
            listed = listed.only(~np.isin(first, first[again]))
        if not len(listed.keys):
            raise CorpusError(f"{self.report.name}: no utterance is left to read")
        return listed

    def _refuse_common_keys(
        self, listed: Listed, first: npt.NDArray[np.uint32], first_paths: npt.NDArray[np.int64]
    ) -> None:
        """Refuse an utterance that is in two lists; `first` contains, for each utterance, the first with its key."""
        list_of = span_at(first_paths, listed.files)
        common = np.flatnonzero(list_of != list_of[first])
        if len(common):
            index, count = common[0], len(common)
            path, other = (self._lists.paths[list_of[one]] for one in (index, first[index]))
            what = f"{other} has this utterance, too (utterances in several lists: {count}); expected keys that differ"
            key, stream = decoded(listed.keys[index]), self._settings.name
            raise FormatError(what, path=path, sequence=key, stream=stream, kind="repeated utterance")

    def _warn(self, kind: str, keys: npt.NDArray[np.bytes_], what: str) -> None:
        if not len(keys):
            return
        message = f"{self.report.name}: {words_for_utterances(keys, what)}"
        if self._options.strict:
            raise CorpusError(message)
        self.report.log_together(kind, len(keys), message)

    def _window(self, model: HTKHeader) -> tuple[int, int]:
        name, dim, frame_dim = self._settings.name, self._settings.dim, model.dim
        context, words = self._settings.context, caller().words
        num_frames, rest = divmod(dim, frame_dim)
        if any(context) and dim != frame_dim:
            advice = ": with a context, it is the number of values of one frame"
        elif rest or num_frames % 2 == 0:
            # A dimension below that of one frame is here, too: it gives 0, which is even.
            advice = ", or an odd multiple for a window"
        else:
            return context if any(context) else (num_frames // 2, num_frames // 2)
        values = f"{frame_dim} value{'s' * (frame_dim != 1)}"
        what = f"{words.option('shape')} is {dim}, but the files' frames have {values}"
        raise ConfigError(f"stream {name!r}: {what}; expected {words.setting('shape', frame_dim)}{advice}", key=name)

    def _error(
        self, listed: Listed, what: str, index: int, byte: int | None = None, kind: str | None = None
    ) -> FormatError:
        """Return the error about an utterance of a list."""
        what, path = f"{what} ({self._lists.place(listed, index)})", shown(os.fsdecode(listed.path_of(index)))
        key, stream = decoded(listed.keys[index]), self._settings.name
        return FormatError(what, path=path, byte=byte, sequence=key, stream=stream, kind=kind)

    def _check_range(self, listed: Listed, header: HTKHeader, which: slice) -> None:
        """Refuse utterances of a file, a slice of the list, that have frames beyond its end."""
        ends = listed.ends_of(which)
        if ends.max() > header.num_frames:
            index = which.start + int(ends.argmax())
            what = f"{_frames(listed, index)} are wanted, but the file has {header.num_frames}"
            raise self._error(listed, what, index, kind="range beyond the file")

    def _require_room(self, listed: Listed, model: HTKHeader, sizes: npt.NDArray[np.int64]) -> None:
        """Refuse lists that claim many more frames than their files have room for.

        In frame mode, every frame takes memory before the first file is read. Files with few frames are checked only if
        all files together have very many.
        """
        ends_of_utterances = listed.ends_of(slice(None))
        ends = np.zeros(len(listed.paths), np.int64)
        np.maximum.at(ends, listed.files, ends_of_utterances)
        most = 0 if listed.lengths.sum(dtype=np.int64) > _MOST_UNCHECKED_FRAMES else _MOST_UNCHECKED_FRAMES_OF_A_FILE
        # Any file may be compressed, so each value takes at least 2 bytes.
        least = np.where(ends > most, model.dim * 2 * ends + HEADER_SIZE, 0)
        small = np.flatnonzero((least > 0) & (sizes < least)).tolist()
        # The size of an object takes a request, and reading it takes no more memory than it has bytes.
        local = (file for file in small if not self._stored.has(os.fsdecode(listed.paths[file])))
        for file in itertools.islice(local, 1):
            last = int(np.argmax((listed.files == file) & (ends_of_utterances == ends[file])))
            # If the file cannot be read, this raises the error that names the list, the line and the utterance.
            with closing(FeatureFiles(self._options.compatible, self._stored)) as files:
                size = self._open(files, listed, last).size
            what = f"frames up to {ends[file] - 1} are wanted, but the file has {size} bytes"
            raise self._error(listed, what, last, 0)

    def place(self, file: object, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        listed: Listed = index.layout.listed
        files, first_of, path_indices = np.unique(listed.files[sequences], return_index=True, return_inverse=True)
        with closing(FeatureFiles(self._options.compatible, self._stored, index.layout.stamps)) as opened:
            headers = [self._open(opened, listed, int(sequences[index])).header for index in first_of]
        bounds = [(header.frames_offset, header.frame_size) for header in headers]
        offsets, sizes = np.array(bounds, np.int64).reshape(-1, 2).T
        begins = offsets[path_indices] + sizes[path_indices] * listed.first[sequences].astype(np.int64)
        return PlacesInFiles([shown(os.fsdecode(listed.paths[file])) for file in files], path_indices, begins)

    def parse(self, file: object, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        frames = self.read_frames(index, chunk_id, memory_map=self._settings.memory_map, sequences=sequences)
        return self.loaded(index, chunk_id, frames, sequences)

    def read_frames(
        self, index: Index, chunk_id: int, *, memory_map: bool, sequences: npt.NDArray[np.uint32] | None = None
    ) -> Frames:
        """Return the frames of a chunk, or of some of its utterances, as they are in the files.

        Frames are copied, or with `memory_map` mapped if runs are long.
        """
        model: HTKHeader = index.layout.model
        listed: Listed = index.layout.listed.only(_utterances(index, chunk_id, sequences))
        begins, ends = listed.first.astype(np.int64), listed.ends_of(slice(None)).astype(np.int64)
        bounds, sizes = runs_of(listed.files, begins, ends, model.frame_size, memory_map=memory_map)
        gathered = GatheredFrames(sizes, memory_map=memory_map)
        mixes = Counter[str]()
        runs = [*itertools.pairwise(bounds.tolist())]

        def opened(bounds: tuple[int, int]) -> FeatureFile:
            low, high = bounds
            return self._open(files, listed, low).with_frames(int(begins[low]), int(ends[high - 1]))

        with closing(FeatureFiles(self._options.compatible, self._stored, index.layout.stamps)) as files:
            for (low, high), coming in zip(runs, ahead(opened, runs, index.layout.num_requests), strict=True):
                file, run = coming(), slice(low, high)
                mixes.update(self._differences(model, listed, file.header, low))
                self._check_range(listed, file.header, run)
                num_read = gathered.add(file, begins[run], ends[run])
                file.require_unchanged()
                if num_read is not None:
                    end = int(begins[low]) + num_read // file.header.frame_size
                    # An utterance that ends with the file is complete.
                    broken = low + int(np.searchsorted(ends[run], end, side="right"))
                    what = f"the file ends within {_frames(listed, broken)}, which its header promises"
                    byte = file.header.frames_offset + int(begins[low]) * file.header.frame_size + num_read
                    raise self._error(listed, what, broken, byte)
        return gathered.of_utterances(begins, bounds, mixes)

    def content_sum(self, file: object, index: Index) -> str:
        paths, stamps = index.layout.listed.paths, index.layout.stamps
        # Objects in stores have no stamp, and their content is not summed.
        if any(self._stored.has(os.fsdecode(paths[file])) for file in np.flatnonzero(stamps.sizes < 0).tolist()):
            return ""

        def opened(number: int) -> InputFile:
            text = InputFile(os.fsdecode(paths[number]))
            stamps.require(number, text.path, text.storage.stamp)
            return text

        return sum_of_files(opened, stamps.sizes)

    def _first_header(self, files: FeatureFiles, listed: Listed) -> HTKHeader:
        """Return the header of the first file. Observers want to know about all files: they get the first sound one."""

        def header(index: int) -> HTKHeader:
            found = self._open(files, listed, index).header
            self._check_range(listed, found, slice(index, index + 1))
            return found

        return first_sound(header, listed.files if self.report.is_observed else listed.files[:1], self.report.refuse)

    def _open(self, files: FeatureFiles, listed: Listed, index: int) -> FeatureFile:
        """Open the file of an utterance. Errors name the utterance."""
        try:
            return self._lists.open(files, listed, index)
        except FormatError as error:
            raise self._error(listed, error.what, index, error.byte, error.kind) from None

    def loaded(
        self, index: Index, chunk_id: int, frames: Frames, sequences: npt.NDArray[np.uint32] | None = None
    ) -> Loaded:
        """Make a chunk from the frames of a chunk, or of some of its utterances. It takes over their bytes."""
        listed, model, context, *_ = index.layout
        lengths = listed.lengths[_utterances(index, chunk_id, sequences)]
        chunk = _core.frames_chunk(frames, lengths, model.dim, context, self._settings.is_broadcast)
        return Loaded(chunk_id, chunk, frames.mixes or None, sequences)

    def _differences(self, model: HTKHeader, listed: Listed, header: HTKHeader, index: int) -> list[str]:
        """Return the differences between the file of an utterance and the first file, and other peculiarities."""
        mixed, differences = "mixed files: ", []
        if header.dim != model.dim:
            what = f"frames of {header.dim} values, but the first file has frames of {model.dim}"
            raise self._error(listed, what, index, 0, "other dimension")
        if header.other_kind:
            what = f"{header.other_kind}, which is not for float vectors, but the file has the size of float vectors"
            differences.append(f"{what}, and is read as such")
        if (header.kind, header.qualifiers, header.guid) != (model.kind, model.qualifiers, model.guid):
            differences.append(f"{mixed}kind {header.kind_name}, but the first file's is {model.kind_name}")
        if header.period != model.period:
            what = f"a frame shift of {header.period} (in units of 100 ns), but the first file's is {model.period}"
            differences.append(mixed + what)
        # CNTK requires one kind and one frame shift in all files of a stream.
        if differences and (self._options.compatible or self._options.strict):
            raise self._error(listed, differences[0].removeprefix(mixed), index, 0)
        return differences

    def account(self, file: object, index: Index, loaded: Loaded) -> None:
        """Count and log differences between files."""
        for kind, count in loaded.findings.items():
            self.report.count(kind, count)
            self.report.log(kind, f"{self.report.name}: {kind}", most=1)


def _utterances(index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> npt.NDArray[np.int64]:
    begin, end = index.table.bounds_of(chunk_id)
    return np.arange(begin, end) if sequences is None else begin + sequences.astype(np.int64)


def _frames(listed: Listed, sequence_index: int) -> str:
    return f"frames {listed.first[sequence_index]} to {listed.ends_of(sequence_index) - 1}"


def _first_header(names: FileNames, prefix: str) -> HTKHeader:
    return next(without_empty(listed_files(names, option="FILE"), functools.partial(first_header, prefix=prefix)))


def in_files(names: FileNames, options: ReadingOptions) -> list[CorpusInFiles]:
    """Return lists as the verbs read them (see `cntkio.formats.contract`)."""
    prefix, streams = options.get("prefix") or "", StreamDefs(options.get("streams", {}))
    # All files need frames of the same size, so the first one shows the shape.
    streams = streams or StreamDefs(features=StreamDef(shape=_first_header(names, prefix).dim))
    if len(streams) != 1:
        raise ConfigError(f"a list of features has one stream; {len(streams)} are requested", key="stream")
    ((name, stream),) = streams.items()
    definition = StreamDef(scp=names, shape=stream.dim)
    strict = options.get("strict", False)
    deserializer = HTKFeatureDeserializer(StreamDefs({name: definition}), prefix=prefix, strict=strict)
    corpus = CorpusInFiles(
        deserializers=[deserializer],
        chunk_sizes=f" of more than {CHUNK_FRAMES:,} samples, the last with the rest",
        facts=functools.partial(_facts, deserializer, names),
    )
    return [corpus]


def _facts(deserializer: HTKFeatureDeserializer, names: FileNames) -> dict[str, int | str]:
    """Return facts about the files of a list."""
    header = _first_header(names, deserializer.prefix)
    with closing(deserializer.open()) as corpus:
        num_files = len(np.unique(corpus.index.layout.listed.files))
    order = "big-endian" if header.is_big_endian else "little-endian"
    return {
        "feature files": num_files,
        "first of them": f"{header.kind_name}, {header.dim} values, {header.period / 10_000:g} ms a frame, {order}",
    }

"""The options of Kaldi's files, the opened corpus, and whole archives: into arrays, and from anything to be written."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio._threads import num_threads
from cntkio.arguments import check_word, float_type, suggests_keywords, whole_number
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.contract import (
    CHUNK_SIZE,
    OPENING,
    Ahead,
    Corpus,
    CorpusInFiles,
    Format,
    Index,
    Loaded,
    Opening,
    PlacesInFiles,
    ReadingOptions,
    Utterances,
)
from cntkio.formats.corpus import FilesDeserializer, filled_files, opened_corpus
from cntkio.formats.htk import window_of
from cntkio.formats.htk.lists import Frames, decoded, repeated, words_for_utterances
from cntkio.formats.htk.options import Unequal, size_of_window
from cntkio.formats.kaldi.objects import (
    CLASSES,
    DOUBLES,
    MAP,
    TEXTS,
    VECTORS,
    Content,
    FilesOfObjects,
    Objects,
    fault_words,
    found_in,
    joined,
    shown_content,
)
from cntkio.formats.losses import Rounded, log_rounded, precision_that_keeps
from cntkio.formats.mlf import read_mapping
from cntkio.formats.pieces import read_corpus
from cntkio.formats.table import Column, Keys, SequenceTable, digest_of, file_finder
from cntkio.minibatch import Minibatch
from cntkio.storage.file_lists import listed_files
from cntkio.storage.names import FileNames, shown, shown_files
from cntkio.storage.open_input import ahead, loads_at_once
from cntkio.storage.remote import Remote
from cntkio.storage.text_input import MARK_INSIDE, Stamp, explained, sum_of_files
from cntkio.streams import LARGEST_DIM, StreamInformation, storage_format

_EXPECTED = {"frames": "matrices", "vectors": "vectors", "classes": "whole numbers", "map": "lines of a map"}


_ReadObjects = Callable[[Any, Objects], Any]
"""Reads objects from a source: returns their numbers, and the fault that ends the pass."""


@suggests_keywords
@dataclasses.dataclass(eq=False)
class KaldiDeserializer(FilesDeserializer):
    """Matrices, vectors, alignments or maps of Kaldi: an archive (ark), a list (scp), or a text such as utt2spk.

    Each object is a sequence, whose key is the utterance. The corpus joins with others by it.

    Args:
        filename: The archive, list or map; or several files that are one corpus: a pattern or a list; also URLs
            (docs/where-corpora-can-be.md).
        stream: Name of the stream.
        content: ``"frames"``: a row of a matrix is a frame, a number of a vector is a frame of one value;
            ``"vectors"``: a vector is the only frame of its utterance; ``"classes"``: whole numbers are the classes of
            frames; ``"map"``: a word is the class of an utterance. None: what the files show; a map never is.
        shape: Values of a frame, or number of classes; None: as the files have it.
        context: Frames to the left and to the right of each frame, ``(left, right)``, or an odd total.
        broadcast: Whether the only frame of an utterance stands for all frames of its partner.
        mapping: For a map: a file with the words in the order of their classes; None: in the order of the map.
        as_class_ids: Deliver the class of each frame (int32, shape ``()``) instead of a sparse vector.
        unequal_lengths: As for `HTKFeatureDeserializer`; None: an utterance of classes must be as long as its partner,
            others are kept as they are.
        max_sequence_length: Leave out longer utterances; None: leave out none.
        defines_mb_size: Whether minibatch sizes count the samples of this stream.
        dtype: Type of the delivered values, float32 or float64; class ids are always int32.
        chunk_size_in_bytes: Bytes of values that are read together, roughly.
        remote: As for `CTFDeserializer`.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> import pathlib, tempfile
        >>> from cntkio import MinibatchSource
        >>> path = pathlib.Path(tempfile.mkdtemp(), "a.ark")
        >>> _ = path.write_text("u1  [\\n  1 2\\n  3 4 ]\\nu2  [\\n  5 6 ]\\n")
        >>> with MinibatchSource(KaldiDeserializer(path), randomize=False, max_sweeps=1) as source:
        ...     minibatch = source.next_minibatch(9)
        >>> minibatch["features"].values.tolist(), minibatch.keys_of_sequences.tolist()
        ([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], ['u1', 'u2'])
    """

    filename: FileNames
    _: dataclasses.KW_ONLY
    stream: str | None = None
    content: Content | None = None
    shape: int | None = None
    context: Any = (0, 0)
    broadcast: bool = False
    mapping: str | os.PathLike[str] | None = None
    as_class_ids: bool = False
    unequal_lengths: Unequal | None = None
    max_sequence_length: int | None = None
    defines_mb_size: bool = False
    dtype: npt.DTypeLike = np.float32
    chunk_size_in_bytes: int = 32 << 20
    remote: Remote | None = None
    has_text_keys = True

    def __post_init__(self) -> None:
        """Check all options that can be checked without the files."""
        self.check_files()
        self.dtype = float_type("dtype", self.dtype)
        if self.content is not None:
            check_word("content", self.content, *get_args(Content))
        self.context = window_of(self.context)
        if self.shape is not None and not 1 <= self.shape <= LARGEST_DIM:
            raise ConfigError(f"shape is {self.shape}; expected 1 to {LARGEST_DIM}", key="shape")
        whole_number("chunk_size_in_bytes", self.chunk_size_in_bytes, least=1)
        if self.unequal_lengths is not None:
            check_word("unequal_lengths", self.unequal_lengths, *get_args(Unequal))
        if self.broadcast and (any(self.context) or self.dtype == np.float64):
            raise ConfigError("broadcast excludes a context, and float64", key="broadcast")

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Find the objects in the files; no values are read, except for text.

        Raises:
            OSError: A file cannot be read, or no file matches a pattern.
            FormatError: A file breaks its format, or has an utterance twice.
            ConfigError: The options do not fit the files.
        """
        return opened_corpus(_KaldiFormat(self, opening))


class _Layout(NamedTuple):
    """The format's own facts; `dim` has the values of a frame, or the number of classes."""

    objects: Objects
    content: Content
    dim: int


class _KaldiFormat(Format):
    """Reads a stream of Kaldi's files; a `Format`.

    All files are one file of the corpus, because lists name archives, and share them. The archives are open only while
    a chunk is read, as the feature files of HTK are.
    """

    def __init__(self, options: KaldiDeserializer, opening: Opening) -> None:
        self._options = options
        self._paths = listed_files(options.filename, remote=options.remote)
        self._files = FilesOfObjects(options.remote)
        self.report = opening.report(shown_files(self._paths))

    def index(self, file: object, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        options = self._options
        found = filled_files(
            self, self._paths, lambda path: found_in(self._files, path, options.content, self._stream, self.report)
        )
        objects = joined(list(found.values()))
        content = self._content(objects)
        if content == "frames":
            is_vector = np.isin(objects.kinds, VECTORS)
            if is_vector.any():  # a vector is a row in its file
                objects = objects._replace(
                    rows=np.where(is_vector, objects.cols, objects.rows),
                    cols=np.where(is_vector, objects.rows, objects.cols),
                    lengths=np.where(is_vector, objects.dims, objects.lengths),
                    dims=np.where(is_vector, objects.lengths, objects.dims),
                )
        objects = self._wanted(objects)
        is_class = content in ("classes", "map")
        if content == "map":
            classes, dim = self._classes_of_map(objects)
            objects = objects._replace(classes=classes)
        else:
            dim = self._num_classes(objects) if is_class else self._frame_dim(objects)
        left, right = options.context
        if is_class and (left or right or options.broadcast):
            raise ConfigError("context and broadcast are for frames and vectors", key="context")
        if not is_class and options.as_class_ids:
            raise ConfigError("as_class_ids is for classes and maps", key="as_class_ids")
        if options.broadcast and (objects.lengths != 1).any():
            longer = int(np.argmax(objects.lengths != 1))
            what = f"{objects.lengths[longer]} frames; an utterance of a broadcast stream has one"
            raise self._error(objects, longer, what)
        form = storage_format(is_class and not options.as_class_ids)
        dtype = np.int32 if options.as_class_ids else options.dtype
        shape = () if options.as_class_ids else dim if is_class else size_of_window(dim, options.context)
        # A frame of classes takes at most one run, which is two numbers of 32 bits.
        size = 8 if is_class else dim * np.dtype(options.dtype).itemsize
        stream = StreamInformation(self._stream(objects.kinds), 0, form, dtype, shape, options.defines_mb_size)
        settings = {"content": content, "max_sequence_length": options.max_sequence_length}
        files, starts = (
            file_finder([*map(shown, objects.paths)], objects.files.__getitem__),
            self._chunk_starts(objects, size),
        )
        table = SequenceTable(Keys(objects.keys), objects.lengths, starts, options=settings, files=files)
        utterances = Utterances(
            can_lead=not options.broadcast,
            is_broadcast=options.broadcast,
            unequal_lengths=options.unequal_lengths or ("error" if content == "classes" else "keep"),
            refuses_frame_mode="a map has one sample for each utterance" if content == "map" else None,
        )
        # Without the paths, because a corpus may move to another folder or store.
        columns = objects.keys, objects.files, objects.offsets, objects.first_rows, objects.lengths, objects.first_cols
        sums = "\n".join(objects.sums).encode()
        fingerprint = f"{len(objects.keys)}:{digest_of(columns, sums)}"
        layout, num_bytes = _Layout(objects, content, dim), int((objects.ends - objects.begins).sum(dtype=np.uint64))
        loads = loads_at_once(self._files.stored.requests_for(objects.paths), num_bytes // table.num_chunks)
        return Index(
            (stream,), table, layout, fingerprint=fingerprint, num_bytes=num_bytes, loads_at_once=loads,
            utterances=utterances,
        ), []  # fmt: skip

    def _stream(self, kinds: npt.NDArray[np.uint8]) -> str:
        """Return the name of the stream, by the kinds of the objects: the first object decides for all."""
        content = self._options.content or shown_content(kinds)
        return self._options.stream or ("labels" if content in ("classes", "map") else "features")

    def _error(
        self, objects: Objects, index: int, what: str, kind: str | None = None, byte: int | None = None
    ) -> FormatError:
        return objects.error(index, what, self._stream(objects.kinds), kind, byte)

    def _content(self, objects: Objects) -> Content:
        """Return what the objects are, and refuse objects that are something else."""
        is_class, is_vector, is_map = (np.isin(objects.kinds, kinds) for kinds in (CLASSES, VECTORS, [MAP]))
        # The first object decides for all, so that an archive of mixed objects is refused at the first other object.
        shows = shown_content(objects.kinds)
        wanted = self._options.content or shows
        fits = {"map": is_map, "classes": is_class, "vectors": is_vector, "frames": ~(is_map | is_class)}[wanted]
        # A number of a vector is a frame only on request.
        if self._options.content is None and shows == "frames":
            fits = fits & ~is_vector
        if not fits.all():
            index = int(np.argmin(fits))
            code = int(objects.kinds[index])
            kind = "a line of a map" if code == MAP else f"a {_core.KALDI_KINDS[code]}"
            because = "" if self._options.content else ", as the first object"
            what = f"{kind}; expected {_EXPECTED[wanted]}{because} (content={wanted!r})"
            raise self._error(objects, index, what, "other content")
        return wanted

    def _wanted(self, objects: Objects) -> Objects:
        """Leave out utterances that are too long; refuse utterances without frames, and repeated utterances."""
        is_empty = (objects.lengths == 0) | (objects.dims == 0)
        if is_empty.any():
            what = f"no frames ({int(is_empty.sum())} such utterances); expected at least one"
            raise self._error(objects, int(np.argmax(is_empty)), what, "no frames")
        name, longest = self.report.name, self._options.max_sequence_length
        if longest is not None:
            is_long = objects.lengths > longest
            keys = objects.keys[is_long]
            if len(keys):
                what = words_for_utterances(keys, f"longer than {longest} frames, and left out")
                self.report.log_together("utterance too long", len(keys), f"{name}: {what}")
            if is_long.all():
                raise CorpusError(f"{name}: no utterance is left to read")
            objects = objects.only(~is_long)
        if (has_mark := np.strings.startswith(objects.keys, codecs.BOM_UTF8)).any():
            raise self._error(objects, int(np.argmax(has_mark)), f"the key begins with {MARK_INSIDE}")
        first, again = repeated(objects.keys)
        if len(again):
            other = objects.paths[int(objects.files[first[again[0]]])]
            what = f"a second object of this utterance ({len(again)} in all), the first is in {other}; expected one"
            raise self._error(objects, int(again[0]), what, "repeated utterance")
        return objects

    def _frame_dim(self, objects: Objects) -> int:
        dim = int(objects.dims[0])
        if (objects.dims != dim).any():
            index = int(np.argmax(objects.dims != dim))
            what = f"frames of {objects.dims[index]} values, but the first utterance has frames of {dim}"
            raise self._error(objects, index, what, "other dimension")
        if dim > LARGEST_DIM:
            raise self._error(objects, 0, f"frames of {dim} values; expected at most {LARGEST_DIM}")
        if self._options.shape not in (None, dim):
            what = f"shape is {self._options.shape}, but the frames of {self.report.name} have {dim} values"
            raise ConfigError(f"{what}; expected shape={dim}", key="shape")
        return dim

    def _chunk_starts(self, objects: Objects, frame_size: int) -> npt.NDArray[np.int64]:
        """Return the first utterance of each chunk and, last, the number of utterances."""
        # The core takes the frames of a chunk as an unsigned number of 64 bits; no corpus has more.
        num_frames = min(self._options.chunk_size_in_bytes // frame_size, 2**64 - 1)
        return _core.htk_chunk_starts(objects.lengths, max(1, num_frames))

    def _num_classes(self, objects: Objects) -> int:
        """Return the number of classes; without `shape`, read all alignments for the largest."""
        if self._options.shape is not None:
            return self._options.shape
        chunks = itertools.pairwise(self._chunk_starts(objects, 8).tolist())
        integers = (self._integers(objects.only(slice(begin, end)), LARGEST_DIM) for begin, end in chunks)
        return 1 + max(int(numbers.max(initial=0)) for numbers in integers)

    def _classes_of_map(self, objects: Objects) -> tuple[npt.NDArray[np.uint32], int]:
        """Return the class of each line of a map, and the number of classes."""
        options = self._options
        if options.mapping is None:
            classes, known = objects.classes, options.shape or len(objects.names)
        else:
            numbers = {name: number for number, name in enumerate(read_mapping(options.mapping, options.remote))}
            known = options.shape or len(numbers)
            # A class beyond all others, so that the check below refuses the word.
            unknown = max(known, len(numbers))
            classes = np.array([numbers.get(name, unknown) for name in objects.names], np.uint32)[objects.classes]
        if (classes >= known).any():
            index = int(np.argmax(classes >= known))
            name = decoded(objects.names[objects.classes[index]])
            where = "shape" if options.mapping is None else str(options.mapping)
            what = f"{name!r} is not among the {known} classes of {where}"
            raise self._error(objects, index, what, "unknown label")
        return classes, known

    # ----------------------------------------------------------------------------------------------------------- data

    def content_sum(self, file: object, index: Index) -> str:
        objects: Objects = index.layout.objects
        sizes = [int(size.partition(":")[0]) for size in objects.sums]
        stamps = [stamp for stamp in objects.stamps if isinstance(stamp, Stamp)]
        if [stamp.size for stamp in stamps] != sizes:
            return ""  # in a store, or compressed
        open_file = self._files.open
        return sum_of_files(lambda number: open_file(objects.paths[number], stamps[number]), np.array(sizes))

    def log_rounded(self, path: str, index: Index) -> None:
        layout: _Layout = index.layout
        objects, dtype = layout.objects, np.dtype(self._options.dtype)
        rounded = Rounded(dtype)
        if layout.content in ("map", "classes"):
            return
        for number in np.unique(objects.files[np.isin(objects.kinds, TEXTS)]).tolist():
            log_rounded(objects.paths[number], "kaldi", dtype, remote=self._options.remote)
        has_doubles = dtype == np.float32 and np.isin(objects.kinds, DOUBLES).any()
        for begin, end in itertools.pairwise(index.table.chunk_starts.tolist() if has_doubles else ()):
            part = objects.only(slice(begin, end))
            part = part.only(np.isin(part.kinds, DOUBLES))
            if len(part.keys):
                read = functools.partial(_read_rows, dim=layout.dim, block=None)
                rounded.add(self._numbers(part, read, layout.dim))
        rounded.log(index.name)

    def parse(self, file: object, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        layout: _Layout = index.layout
        begin, end = index.table.bounds_of(chunk_id)
        # 64 bits, because the sum of the first sequence and an index may exceed 32 bits.
        which = slice(begin, end) if sequences is None else begin + sequences.astype(np.int64)
        objects = layout.objects.only(which)
        if layout.content == "map":
            chunk = self._runs(objects, objects.classes, layout.dim)
        elif layout.content == "classes":
            chunk = self._runs(objects, self._integers(objects, layout.dim), layout.dim)
        elif self._options.dtype == np.float64:
            chunk = self._doubles(objects, layout.dim)
        else:
            chunk = self._frames(objects, layout.dim)
        return Loaded(chunk_id, chunk, sequences=sequences)

    def _frames(self, objects: Objects, dim: int) -> _core.Chunk:
        # Decoded values look like one feature file of HTK that was read, so contexts and broadcasts are HTK's code.
        block = _core.FileBytes(0)
        _, order, starts = self._read(objects, functools.partial(_read_rows, dim=dim, block=block))
        offsets = np.empty(len(order), np.uint64)
        offsets[order] = (starts[:-1] * (4 * dim)).astype(np.uint64)
        zeros = np.zeros(len(order), np.uint32)
        frames = Frames(block, zeros, [_core.FrameEncoding(False, None)], zeros, offsets, Counter())
        return _core.frames_chunk(frames, objects.lengths, dim, self._options.context, self._options.broadcast)

    def _doubles(self, objects: Objects, dim: int) -> _core.Chunk:
        values = self._numbers(objects, functools.partial(_read_rows, dim=dim, block=None), dim)
        lengths, (left, right) = objects.lengths, self._options.context
        if left or right:
            values = _core.kaldi_windows(values, lengths, dim, left, right)
        # Chunks of frames have only float32 values, so float64 values become an ordinary column of whole windows.
        offsets = np.append(0, np.cumsum(lengths, dtype=np.uint64)).astype(np.uint32)
        return _core.Chunk.from_columns(len(lengths), [Column(offsets, values, dim * (1 + left + right), None)])

    def _integers(self, objects: Objects, num_classes: int) -> npt.NDArray[np.int32]:
        """Return the whole numbers of vectors, one vector after the other; refuse numbers that are not classes."""
        values = self._numbers(objects, _core.kaldi_integers, 1)
        is_wrong = (values < 0) | (values >= num_classes)
        if is_wrong.any():
            place = int(np.argmax(is_wrong))
            ends = np.cumsum(objects.lengths, dtype=np.int64)
            index = int(np.searchsorted(ends, place, side="right"))
            frame = place - int(ends[index] - objects.lengths[index])
            what = f"class {values[place]} of frame {frame}; expected 0 to {num_classes - 1}, or a larger shape"
            raise self._error(objects, index, what, "large class")
        return values

    def _numbers(self, objects: Objects, read: _ReadObjects, width: int) -> npt.NDArray[Any]:
        """Read objects, and return the numbers in their rows of this width, one utterance after the other."""
        values, order, starts = self._read(objects, read)
        # Archives, and lists in the order of their archives, need no copy.
        if (order[1:] > order[:-1]).all():
            return values
        first = np.empty(len(order), np.int64)
        first[order] = starts[:-1]
        lengths = objects.lengths.astype(np.int64)
        begins = np.cumsum(lengths) - lengths
        rows: npt.NDArray[Any] = values.reshape(-1, width)
        return rows[np.repeat(first - begins, lengths) + np.arange(len(rows))].reshape(-1)

    def _read(
        self, objects: Objects, read: _ReadObjects
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Read objects of numbers, file by file, in the order of their offsets.

        Returns:
            The numbers; the order of the objects; and in that order their first rows and, last, the number of rows.
        """
        results: list[npt.NDArray[Any]] = []
        order = np.lexsort((objects.begins, objects.files))
        files = objects.files[order]
        # Each file is opened once for all its objects, and read from its beginning to its end.
        bounds = [0, *(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(order)]
        runs = [order[begin:end] for begin, end in itertools.pairwise(bounds)]
        num_requests = self._files.stored.requests_for(objects.paths)
        for coming in ahead(functools.partial(self._files.request, objects), runs, num_requests):
            found, parts = coming()
            with closing(found) as text, explained(text):
                for part, source in parts:
                    values, fault = read(source, part)
                    if fault is not None:
                        kind, words = fault_words(fault.fault)
                        raise self._error(part, fault.object, words, kind, fault.byte)
                    results.append(values)
                # The stamp was compared at the opening; this finds a change during the reads.
                text.storage.require_unchanged()
        return np.concatenate(results), order, np.append(0, np.cumsum(objects.lengths[order], dtype=np.int64))

    def _runs(self, objects: Objects, classes: npt.NDArray[Any], dim: int) -> _core.Chunk:
        """Return a chunk of the classes of all frames, in runs of one class."""
        lengths = objects.lengths
        ends = np.cumsum(lengths, dtype=np.int64)
        begins = ends - lengths
        is_start = np.ones(len(classes), np.bool_)
        is_start[1:] = classes[1:] != classes[:-1]
        # A run never spans utterances, even if the last and the first class are the same.
        is_start[begins] = True
        places = np.flatnonzero(is_start)
        offsets = np.searchsorted(places, np.append(begins, ends[-1:])).astype(np.uint32)
        starts = (places - np.repeat(begins, np.diff(offsets))).astype(np.uint32)
        return _core.runs_chunk(lengths, offsets, starts, classes[places].astype(np.uint32), dim, False)

    def place(self, file: object, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        objects: Objects = index.layout.objects
        assert index.table.files is not None
        paths, which = index.table.files(sequences)
        return PlacesInFiles(paths.tolist(), which, objects.offsets[sequences].astype(np.int64))


def _read_rows(source: Any, part: Objects, *, dim: int, block: _core.FileBytes | None) -> Any:
    return _core.kaldi_read(source, part, dim, block, num_threads())


def in_files(names: FileNames, options: ReadingOptions, content: Content | None = None) -> list[CorpusInFiles]:
    """Return archives, lists or lines as the verbs read them (see `cntkio.formats.contract`)."""
    size, asked = options.get("chunk_size_in_bytes") or CHUNK_SIZE, options.get("dtype")
    dtype = asked or "float32"
    if "written" in options:
        with closing(KaldiDeserializer(names, content=content).open(Opening(trace_level=0))) as corpus:
            objects: Objects = corpus.index.layout.objects
        if np.isin(objects.kinds, TEXTS).any():
            dtype = precision_that_keeps(objects.paths, "kaldi", asked, options["written"])
        elif np.isin(objects.kinds, DOUBLES).any():
            dtype = asked or "float64"
    deserializer = KaldiDeserializer(names, content=content, dtype=dtype, chunk_size_in_bytes=size)
    return [CorpusInFiles(deserializers=[deserializer], chunk_sizes=f" of about {size:,} bytes")]


def maps_in_files(names: FileNames, options: ReadingOptions) -> list[CorpusInFiles]:
    """Return maps as the verbs read them (see `cntkio.formats.contract`)."""
    return in_files(names, options, "map")


# --------------------------------------------------------------------------------------------------------------
# Whole archives.


def read_kaldi(path: FileNames, **options: Any) -> Minibatch:
    """Read archives, lists or maps of Kaldi into arrays, in their order.

    Args:
        path: The file; or several, a pattern or a list, as for `KaldiDeserializer`.
        options: As for `KaldiDeserializer`.

    Returns:
        All sequences; `keys_of_sequences` has the utterances.

    Raises:
        ConfigError: An option is not possible.
        FormatError: A file breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "ali.txt")
        >>> _ = path.write_text("u1 0 0 2\\nu2 1\\n")
        >>> data = read_kaldi(path, as_class_ids=True)
        >>> data["labels"].values, data["labels"].offsets
        (array([0, 0, 2, 1], dtype=int32), array([0, 3, 4]))
    """
    with closing(KaldiDeserializer(path, **options).open()) as corpus:
        return read_corpus(corpus)

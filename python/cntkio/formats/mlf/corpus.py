"""HTK labels: master label files (MLF), text and binary. (docs/formats/htk.md, "Label files")

::

    states.list   a name on each line; its class is the index of the line       cntkio.formats.mlf.entries
    a.mlf         entry: key, rows of start, end, label  ── the compiled core ──>  runs: first frame, class
    a.bmlf        the same in binary, with classes instead of labels            cntkio.formats.mlf.entries

Opening reads whole files. Invariant: a fault in an entry is an error only if the entry is needed. The error names the
file, the line, the utterance and the row.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cntkio._core as _core
from cntkio.arguments import suggests_keywords
from cntkio.errors import ConfigError, CorpusError, FormatError
from cntkio.formats.cntk_options import BINARY_LABELS, LABEL_STREAM, LABELS
from cntkio.formats.contract import (
    OPENING,
    Ahead,
    Corpus,
    CorpusInFiles,
    Deserializer,
    Format,
    Index,
    Loaded,
    OpenedFile,
    Opening,
    PlacesInFiles,
    ReadingOptions,
    Utterances,
)
from cntkio.formats.corpus import filled_files, fingerprint_of_files, opened_corpus
from cntkio.formats.detect import detect
from cntkio.formats.htk.lists import decoded, repeated
from cntkio.formats.htk.options import UtteranceOptions, entry_of, longest_of, merge_stream, paths_of, size_of
from cntkio.formats.mlf.entries import (
    FAULT_WORDS,
    FRAME_PERIOD,
    LAST_INVALID,
    REMARKS_ON_LABELS,
    Entries,
    LabelSettings,
    Names,
    Targets,
    Times,
    infer_labels,
    read_entries,
    read_mapping,
    read_targets,
    scan_binary,
)
from cntkio.formats.report import EMPTY_FILE, NUM_IN_FULL, first_few
from cntkio.formats.table import Keys, SequenceTable, digest_of, file_finder
from cntkio.storage.file_lists import listed_files
from cntkio.storage.manifest import comparison
from cntkio.storage.names import FileNames, path_in_list, shown, shown_files
from cntkio.storage.open_input import open_stored, whole_text
from cntkio.storage.remote import Remote, default_remote
from cntkio.storage.spans import span_at
from cntkio.storage.text_input import Locator, Storage
from cntkio.streams import LARGEST_DIM, StreamDef, StreamDefs, StreamInformation, storage_format

_LARGEST_DIM_OF_CNTK = 65535


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class LabelOptions(UtteranceOptions):
    """Options that the deserializers of text and of binary label files have in common, besides their `streams`.

    Attributes:
        as_class_ids: Deliver the class of each frame instead of a sparse vector.
    """

    as_class_ids: bool = False

    def _label_settings(self, streams: StreamDefs, *, cache_index: bool = False, **more: Any) -> LabelSettings:
        """Return the settings of the only stream; `stream_options` may ask for an index cache, too.

        Args:
            more: Entries of the stream that `stream_options` may replace, and settings of text files.
        """
        compatible = self.compatible
        if len(streams) != 1:
            raise ConfigError(f"{self.label} only accepts a single stream; it has {len(streams)}", key="streams")
        ((name, stream),) = streams.items()
        # These arguments become entries of the stream, so that `stream_options` can replace or remove them.
        entries = {entry: more.pop(entry) for entry in LABEL_STREAM.values() if entry in more}
        merged = merge_stream(name, {**stream, **entries}, self.stream_options, LABEL_STREAM)
        paths = (*paths_of(merged.get("mlf") or (), "mlf"), *_listed_paths(merged.get("mlf_list") or (), self.remote))
        if not paths:
            raise ConfigError("no master label files specified: StreamDef(mlf=...) is missing", key=name)
        if longest_of(name, merged, compatible=compatible) is not None:
            what = "set max_sequence_length on the feature deserializer; labels have no limit of their own"
            raise ConfigError(what, key=name)
        return LabelSettings(
            name=name,
            paths=paths,
            dim=size_of(name, merged.get("dim"), _LARGEST_DIM_OF_CNTK if compatible else LARGEST_DIM, "classes"),
            mapping_file=merged.get("label_mapping_file"),
            target_file=merged.get("target_file"),
            target_dim=merged.get("target_dim"),
            as_class_ids=self.as_class_ids,
            marks_starts=entry_of(name, merged, "phone_boundaries"),
            defines_mb_size=self.defines_mb_size or entry_of(name, merged, "defines_mb_size"),
            cache_index=cache_index or entry_of(name, merged, "cache_index"),
            options=self,
            **more,
        )


def _listed_paths(lists: Any, remote: Remote | None) -> tuple[str, ...]:
    """Return the label files that a file names, one on each line, or that a sequence contains."""
    paths = paths_of(lists, "mlfFileList")
    if not isinstance(lists, str | bytes | os.PathLike):
        return paths
    lines = map(str.strip, os.fsdecode(whole_text(paths[0], remote)).split("\n"))
    return tuple(path_in_list(paths[0], line) for line in lines if line)


_CHUNK_FRAMES = 1 << 20


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class HTKMLFDeserializer(LabelOptions):
    """Labels in master label files of HTK.

    Args:
        label_mapping_file: File with the names of the labels in the order of their classes; None: the fourth column is
            the class.
        streams: One stream, ``StreamDef(mlf=..., shape=number of classes)``; `mlf` is a file, or several files: a
            pattern, or a list of paths.
        phoneBoundaries: Whether the first frame of each row has the value 2 instead of 1.
        times: Unit of the rows' times: ``"100ns"``, ``"frames"``, or ``"auto"``, which detects it for each entry.
        frame_period: Duration of a frame in units of 100 ns.
        as_class_ids: Deliver the class of each frame (int32, shape ``()``) instead of a sparse vector.
        labelToTargetMappingFile: Deliver a dense vector of 0s and 1s for each class instead. The file has a line for
            each class, in order: its name, a blank, and 0s and 1s (docs/formats/htk.md).
        targetDim: Number of 0s and 1s; None: as many as on the file's first line.
        unequal_lengths: Treatment of an utterance that is not as long as its features: ``"error"``, ``"drop"`` it,
            or ``"keep"`` it as it is.
        cache_index: Keep the entries in a file next to each label file, or else in the user's cache folder.
        compatible: Read exactly as CNTK 2.7 does (docs/formats/htk.md, "Compatible").
        strict: Turn warnings into errors.
        remote: As for `CTFDeserializer`.
        stream_options: Further options of the stream by CNTK's names, such as ``{"L": {"labelMappingFile": None}}``.
        defines_mb_size: Whether minibatch sizes count the labels.
        dtype: Type of the delivered values, float32 or float64; class ids are always int32.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio import StreamDef
        >>> HTKMLFDeserializer("states.list", StreamDefs(L=StreamDef(mlf="train.mlf", shape=132))).streams.L.mlf
        'train.mlf'
    """

    label_mapping_file: str | os.PathLike[str] | None
    streams: StreamDefs
    phoneBoundaries: bool = False  # noqa: N815 - CNTK's name
    _: dataclasses.KW_ONLY
    times: Times = "auto"
    frame_period: float = FRAME_PERIOD
    labelToTargetMappingFile: str | os.PathLike[str] | None = None  # noqa: N815 - CNTK's name
    targetDim: int | None = None  # noqa: N815 - CNTK's name
    cache_index: bool = False
    cntk_type = "HTKMLFDeserializer"
    cntk_options = LABELS

    def __post_init__(self) -> None:
        if isinstance(self.label_mapping_file, Mapping):
            raise ConfigError(
                f"label_mapping_file is {self.label_mapping_file!r}; expected the mapping file first, then the streams",
                key="label_mapping_file",
            )
        self.streams = self.check_common(self.streams)
        self._settings()  # raises the errors of options now, and not when the corpus is opened

    def _settings(self) -> LabelSettings:
        return self._label_settings(
            self.streams, label_mapping_file=self.label_mapping_file, phone_boundaries=self.phoneBoundaries,
            target_file=self.labelToTargetMappingFile, target_dim=self.targetDim, cache_index=self.cache_index,
            is_text=True, times=self.times, frame_period=self.frame_period,
        )  # fmt: skip

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Read the files, or their index caches.

        Raises:
            OSError: A file cannot be read.
            FormatError: A label file or the mapping file breaks its format.
        """
        mapping = self._settings().mapping_file
        return self.open_with(read_mapping(mapping, self.remote) if mapping else None, opening)

    def open_with(self, names: Names, opening: Opening = OPENING) -> Corpus:
        """Read the files with these names of classes instead of a mapping file; None: the fourth column is the class.

        Raises:
            OSError, FormatError: See `open`.
        """
        settings = self._settings()
        targets = None
        if settings.target_file:
            # The mapping file may have more names than the stream has classes.
            known = None if names is None else names[: settings.dim]
            targets = read_targets(settings.target_file, settings.dim, known, settings.target_dim, self.remote)
        return opened_corpus(MLFFormat(settings, opening, names, targets))


@suggests_keywords
@dataclasses.dataclass(eq=False, repr=False)
class HTKMLFBinaryDeserializer(LabelOptions):
    """Labels in binary master label files.

    Args:
        streams: One stream, ``StreamDef(mlf=..., shape=number of classes)``; `mlf` is a file, or several files: a
            pattern, or a list of paths.
        as_class_ids: Deliver the class of each frame (int32, shape ``()``) instead of a sparse vector.
        unequal_lengths: As for `HTKMLFDeserializer`.
        compatible: As for `HTKMLFDeserializer`.
        strict: Turn warnings into errors.
        remote: As for `CTFDeserializer`.
        stream_options: Further options of the stream, by CNTK's names.
        defines_mb_size: Whether minibatch sizes count the labels.
        dtype: Type of the delivered values, float32 or float64; class ids are always int32.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> from cntkio import StreamDef
        >>> HTKMLFBinaryDeserializer(StreamDefs(L=StreamDef(mlf="train.bmlf", shape=132))).streams.L.dim
        132
    """

    streams: StreamDefs
    _: dataclasses.KW_ONLY
    cntk_type = "HTKMLFBinaryDeserializer"
    cntk_options = BINARY_LABELS

    def __post_init__(self) -> None:
        self.streams = self.check_common(self.streams)
        self._label_settings(self.streams)

    def open(self, opening: Opening = OPENING) -> Corpus:
        """Read the files.

        Raises:
            OSError: A file cannot be read.
            FormatError: A file breaks the format.
        """
        return opened_corpus(MLFFormat(self._label_settings(self.streams), opening))


class MLFLayout(NamedTuple):
    """The format's own facts about label files.

    Attributes:
        settings: The options of the stream.
        paths: The files.
        first_of_file: First entry of each file and, last, the number of entries.
        entries: The entries of all files.
        run_bounds: First run of each entry and, last, the number of runs.
        known_lines: Of each file: the places of some lines, for errors (see `Locator`).
    """

    settings: LabelSettings
    paths: list[str]
    first_of_file: npt.NDArray[np.int64]
    entries: Entries
    run_bounds: npt.NDArray[np.int64]
    known_lines: dict[str, list[tuple[int, int]]]

    @classmethod
    def of(cls, settings: LabelSettings, files: Mapping[str, Entries]) -> MLFLayout:
        """Put the entries of files one after the other."""
        entries = Entries.joined([*files.values()])
        # A broken utterance may have no frames. It is never delivered, but the table needs a length of at least 1.
        frames = np.where(entries.faults > LAST_INVALID, np.maximum(entries.frames, 1), entries.frames)
        first_of_file = np.cumsum([0, *(len(file.keys) for file in files.values())])
        run_bounds = np.append(0, entries.run_ends.astype(np.int64))
        lines = {path: [(0, 1)] for path in files}
        return cls(settings, list(files), first_of_file, entries._replace(frames=frames), run_bounds, lines)

    @property
    def num_rows(self) -> int:
        """Number of rows of all entries, without empty rows."""
        return len(self.entries.starts.low)

    def rows(self, sequence_index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        """Return the number of frames and the class of each row of an entry."""
        own = slice(*self.run_bounds[sequence_index : sequence_index + 2].tolist())
        bounds = np.append(self.entries.starts.only(own), self.entries.frames[sequence_index]).astype(np.int64)
        return bounds[1:] - bounds[:-1], self.entries.classes.only(own)

    def path_of(self, sequence_index: int) -> str:
        """Return the file of an entry."""
        return self.paths[int(span_at(self.first_of_file, sequence_index))]

    def error(self, sequence_index: int, byte: int, what: str, kind: str | None = None) -> FormatError:
        path, key = self.path_of(sequence_index), decoded(self.entries.keys[sequence_index])
        details: dict[str, Any] = {"sequence": key, "stream": self.settings.name, "kind": kind}
        if self.settings.is_text:
            return _located(path, self.settings.options.remote, byte, what, self.known_lines[path], **details)
        return FormatError(what, path=shown(path), byte=byte, **details)

    def complaint(self, sequence_index: int) -> FormatError:
        """Return the error about an invalid or broken entry."""
        entries = self.entries
        fault, byte = _core.MLF_FAULTS[entries.faults[sequence_index]], int(entries.fault_offsets[sequence_index])
        what = FAULT_WORDS[fault]
        if fault == "large class":
            what += f", which is {self.settings.dim}"
        if self.settings.is_text and fault != "no frames":
            # The labels do not keep the text, so the row is read again.
            with closing(open_stored(self.path_of(sequence_index), self.settings.options.remote)) as text:
                row = decoded(text.read(byte, 200).split(b"\n", 1)[0].rstrip(b"\r"))
            what += f": {row!r}"
        if fault == "unknown label" and self.settings.mapping_file is not None:
            names = read_mapping(self.settings.mapping_file, self.settings.options.remote)
            listed = first_few((repr(decoded(name)) for name in names), len(names))
            what += f"; the file has {listed}" if names else "; the file is empty"
        return self.error(sequence_index, byte, what, fault)


class MLFFormat(Format):
    """Reads labels; a `Format`. The index contains all labels, so no file stays open.

    All label files are one file of the corpus: their chunks may span files. Without `targets`, labels are classes.
    """

    def __init__(
        self, settings: LabelSettings, opening: Opening, names: Names = None, targets: Targets | None = None
    ) -> None:
        self._settings, self._options = settings, settings.options
        self._names, self._targets = names, targets
        self._paths = listed_files(settings.paths, option="mlf", remote=self._options.remote)
        self.report, self.is_strict = opening.report(shown_files(self._paths)), self._options.strict

    def open(self, path: str, index: Index | None) -> OpenedFile:
        return OpenedFile(storage=Storage("", require_unchanged=comparison(self._options.remote or default_remote())))

    def index(self, file: object, ahead: Ahead) -> tuple[Index, list[_core.Chunk]]:
        settings, options, targets = self._settings, self._options, self._targets
        files = filled_files(self, self._paths, self._entries)
        self._warn_of_remarks(files)
        layout = MLFLayout.of(settings, files)
        entries = layout.entries
        self._refuse_repeated(layout)
        form = storage_format(targets is None and not settings.as_class_ids)
        dtype = np.int32 if settings.as_class_ids else options.dtype
        shape = () if settings.as_class_ids else settings.dim if targets is None else targets.dim
        stream = StreamInformation(settings.name, 0, form, dtype, shape, settings.defines_mb_size)
        chunk_starts = _core.htk_chunk_starts(entries.frames, _CHUNK_FRAMES)
        files_of = file_finder([*map(shown, files)], functools.partial(span_at, layout.first_of_file))
        table = SequenceTable(Keys(entries.keys), entries.frames, chunk_starts, files=files_of)
        # The core's faults are in the order: sound, invalid, broken.
        is_broken = entries.faults > LAST_INVALID
        is_invalid = (entries.faults > 0) & ~is_broken
        utterances = Utterances(
            can_lead=False,  # as in CNTK
            unequal_lengths=options.unequal_lengths or ("keep" if options.compatible else "error"),
            refuses_frame_mode="phoneBoundaries and frame mode exclude each other" if settings.marks_starts else None,
            invalid=is_invalid if is_invalid.any() else None,
            broken=is_broken if is_broken.any() else None,
            is_literal=options.compatible,
            is_pattern=entries.is_pattern if entries.is_pattern.any() else None,
            complaint=layout.complaint,
        )
        fingerprint = self._fingerprint(layout, files)
        return Index((stream,), table, layout, fingerprint=fingerprint, utterances=utterances), []

    def _entries(self, path: str) -> Entries:
        settings = self._settings
        found = (
            read_entries(path, self._names, settings)
            if settings.is_text
            else scan_binary(path, settings.dim, self._options.remote)
        )
        if not len(found.keys):
            hint = "; an entry begins with its name in quotes, as in '\"*/u1.lab\"'" if settings.is_text else ""
            raise CorpusError(f"{path}: no entry is left to read{hint}", kind=EMPTY_FILE)
        return found

    def _refuse_repeated(self, layout: MLFLayout) -> None:
        _, again = repeated(layout.entries.keys)
        if len(again):
            what = f"a second entry for this utterance ({len(again)} in all)"
            error = layout.error(again[0], int(layout.entries.offsets[again[0]]), what, "repeated utterance")
            if not self._options.compatible:
                raise error
            self.report.log_together("repeated utterance", len(again), f"{error}; the first counts")

    def _warn_of_remarks(self, files: Mapping[str, Entries]) -> None:
        for path, file in files.items():
            for (kind, words), (count, offsets) in zip(REMARKS_ON_LABELS, file.remarks, strict=True):
                errors = [functools.partial(_located, path, self._options.remote, byte, words) for byte in offsets]
                if count:
                    self.report.remark(kind, count, errors, is_strict=self._options.strict)

    def _fingerprint(self, layout: MLFLayout, files: Mapping[str, Entries]) -> str:
        # Targets change the delivered values, but not the labels.
        rows = np.frombuffer(b"" if self._targets is None else self._targets.rows, np.uint8)

        def digest(entries: Entries) -> str:
            return digest_of([entries.keys, entries.frames, *entries.classes, *entries.starts, rows])

        # With a fingerprint for each file, the message about a checkpoint can name the files that differ.
        if len(files) > 1:
            return fingerprint_of_files(layout.paths, list(map(digest, files.values())))
        return f"{len(layout.entries.keys)}:{digest(layout.entries)}"

    def parse(self, file: object, index: Index, chunk_id: int, sequences: npt.NDArray[np.uint32] | None) -> Loaded:
        layout: MLFLayout = index.layout
        begin, end = index.table.bounds_of(chunk_id)
        # The runs of a whole chunk are neighbours, so a slice selects them.
        if sequences is None:
            bounds, lengths = layout.run_bounds[begin : end + 1], layout.entries.frames[begin:end]
            runs: slice | npt.NDArray[np.int64] = slice(*bounds[[0, -1]].tolist())
            bounds = bounds - bounds[0]
        else:
            entries = begin + sequences.astype(np.int64)
            begins, lengths = layout.run_bounds[entries], layout.entries.frames[entries]
            sizes = layout.run_bounds[entries + 1] - begins
            bounds = np.append(0, np.cumsum(sizes))
            # No loop over entries: there may be very many.
            runs = np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], sizes)
        chunk = _core.runs_chunk(
            lengths, bounds.astype(np.uint32), layout.entries.starts.only(runs), layout.entries.classes.only(runs),
            self._settings.dim, self._settings.marks_starts, self._targets,
        )  # fmt: skip
        return Loaded(chunk_id, chunk, sequences=sequences)

    def place(self, file: object, index: Index, sequences: npt.NDArray[np.int64]) -> PlacesInFiles:
        layout: MLFLayout = index.layout
        path_indices = span_at(layout.first_of_file, sequences)
        begins = layout.entries.offsets[sequences].astype(np.int64)
        lines = np.empty(len(sequences), np.int64)
        # By file, because one pass over a file counts all of its lines.
        for number in np.unique(path_indices).tolist() if self._settings.is_text else ():
            mine = path_indices == number
            with closing(open_stored(layout.paths[number], self._options.remote)) as text:
                lines[mine] = Locator(text).lines_of(begins[mine])
        paths = [*map(shown, layout.paths)]
        return PlacesInFiles(paths, path_indices, begins, lines if self._settings.is_text else None)


def _located(
    path: str, remote: Remote | None, byte: int, what: str, known: list[tuple[int, int]] | None = None, **details: Any
) -> FormatError:
    with closing(open_stored(path, remote)) as text:
        return Locator(text, known).error(byte, what, **details)


# --------------------------------------------------------------------------------------------------------------
# Label files as the verbs read them.

_LARGEST_CLASS = 65536  # of a binary file


class Labels(NamedTuple):
    """An opened label file, and the names of its classes; empty if they have none."""

    corpus: Corpus
    names: list[bytes]

    def complaints(self) -> Iterator[str]:
        """Yield complaints about the first invalid or broken utterances."""
        layout = self.corpus.index.layout
        for index in layout.entries.faults.nonzero()[0][:NUM_IN_FULL].tolist():
            yield str(layout.complaint(index))

    def entries(self, indices: Iterable[int]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Yield utterances: key, and for each row its label and number of frames."""
        for index in indices:
            lengths, classes = (column.tolist() for column in self.corpus.index.layout.rows(index))
            labels = [self.names[label].decode(errors="replace") if self.names else str(label) for label in classes]
            key = self.corpus.table.keys[index]
            yield key, list(zip(labels, lengths, strict=True))


class _NamedLabels(NamedTuple):
    """The deserializer of a label file that opens it with names that no mapping file contains."""

    deserializer: HTKMLFDeserializer
    names: list[bytes]
    has_text_keys: bool = True

    def parts(self) -> list[Deserializer]:
        return [self]

    def open(self, opening: Opening = OPENING) -> Corpus:
        return self.deserializer.open_with(self.names, opening)


def labels_of(
    path: FileNames, mapping: str | os.PathLike[str] | None, *, knows_mapping: bool = True
) -> tuple[HTKMLFBinaryDeserializer | HTKMLFDeserializer | _NamedLabels, list[bytes]]:
    """Return the deserializer of a label file, and the names of its classes: by default the labels in the file.

    Args:
        knows_mapping: Whether the deserializer of a text reads the mapping file itself, and its errors name that file.
    """
    names = [] if mapping is None else read_mapping(mapping)
    files = listed_files(path, option="FILE")
    if not all(detect(file).is_text for file in files):
        return HTKMLFBinaryDeserializer(StreamDefs(labels=StreamDef(mlf=path, shape=_LARGEST_CLASS))), names
    if mapping is None:
        names = sorted(set().union(*map(infer_labels, files)))
    streams = StreamDefs(labels=StreamDef(mlf=path, shape=max(1, len(names))))
    if mapping is not None and knows_mapping:
        return HTKMLFDeserializer(os.fspath(mapping), streams), names
    return _NamedLabels(HTKMLFDeserializer(None, streams), names), names


def in_files(path: FileNames, options: ReadingOptions) -> list[CorpusInFiles]:
    """Return label files as the verbs read them; without a mapping file the labels in the files are the names."""

    @functools.cache  # opening reads the whole file, and verbs open it twice
    def opened(opening: Opening) -> Labels:
        deserializer, names = labels_of(path, options.get("mapping"), knows_mapping=False)
        return Labels(deserializer.open(opening), names)

    return [CorpusInFiles(open_labels=opened)]

"""The compiled part of cntkio. Not public: its functions change without notice."""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from cntkio.formats.cbf.corpus import ChunkInFile
from cntkio.formats.cbf.header import StreamHeader
from cntkio.formats.ctf.corpus import ParseRules
from cntkio.formats.ctf.index import Area, ChunkPlaces, FirstPass, Notes, StreamSchema
from cntkio.formats.htk.lists import Frames
from cntkio.formats.kaldi.objects import Objects
from cntkio.formats.table import Column
from cntkio.storage.text_input import PackedText
from cntkio.survey.contents import Wanted
from cntkio.timeline import selection
from cntkio.timeline.budget import Limits, Pool, Schedules
from cntkio.timeline.modes import WholeSequences
from cntkio.timeline.partition import GlobalPartition
from cntkio.timeline.schedule import Schedule
from cntkio.timeline.timeline import TruncatedSequences

__version__: str
CHECK_SUM_BLOCK: int
THREAD_LIMITS: str
CTF_NUM_ERROR_KINDS: int
CTF_NUM_COSTLY_KINDS: int
# Names of numbered results; a name's index is the result's number.
CTF_KINDS: tuple[str, ...]
KALDI_FAULTS: tuple[str, ...]
KALDI_KINDS: tuple[str, ...]
KALDI_LINE_FAULTS: tuple[str, ...]
LIST_FAULTS: tuple[str, ...]
MLF_FAULTS: tuple[str, ...]
MLF_REMARKS: tuple[str, ...]
MLF_STOPS: tuple[str, ...]

_Ragged = tuple[npt.NDArray[Any], npt.NDArray[np.int64], tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None]

@final
class Chunk:
    """Consecutive sequences, parsed: immutable columns, one for each stream."""

    @staticmethod
    def from_columns(
        num_sequences: int,
        columns: list[Column],
        is_packed: bool = False,
    ) -> Chunk: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def lengths(self, stream: int) -> npt.NDArray[np.uint32]: ...
    def in_full_width(self) -> Chunk: ...
    def only(self, sequences: npt.NDArray[np.uint32]) -> Chunk: ...
    def in_order(self, columns: list[int]) -> Chunk: ...

@final
class Packed:
    """A large minibatch, or several small minibatches that were gathered together. Their streams are ragged.

    Array objects are created on first use.
    """

    def num_sequences(self, number: int = 0) -> int: ...
    def longest(self, stream: int) -> list[int]: ...
    def arrays(self, stream: int, number: int = 0) -> _Ragged: ...

@final
class Whole:
    """The streams of the chunks appended so far, as ragged arrays."""

    def __new__(cls, streams: list[tuple[int, bool, int]], num_sequences: int) -> Whole: ...
    def append(self, chunk: Chunk, num_threads: int) -> None: ...
    def finish(self) -> Packed: ...

@final
class PackRequest:
    """The contents of several minibatches."""

    def __new__(
        cls,
        chunks: list[Chunk],
        chunk_indices: npt.NDArray[np.uint32],
        indices_in_chunk: npt.NDArray[np.uint32],
        streams: list[tuple[int, bool, int]],
        bounds: list[int],
        parts: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]] | None = None,
    ) -> PackRequest: ...

@final
class Packing:
    """The minibatches of several requests, packed in order by `run`, and taken in order by another thread."""

    num_bytes: int
    def __new__(
        cls,
        requests: list[PackRequest],
        firsts: list[int],
        num_minibatches: int,
        num_threads: int,
        bytes_ahead_per_thread: int,
    ) -> Packing: ...
    def run(self) -> None: ...
    def take(self) -> tuple[list[list[Packed]], int]: ...
    def resume(self) -> bool: ...
    def is_complete(self) -> bool: ...
    def stop(self) -> None: ...

@final
class Misfit:
    """A sequence with another number of samples in a stream than its length."""

    sequence: int
    stream: int
    num_samples: int

def places(packed: Sequence[Packed], stream: int) -> tuple[list[Packed], list[int], list[int]]: ...
def pack(requests: list[PackRequest], num_threads: int) -> tuple[list[list[Packed]], int]: ...
def spread(
    chunks: list[Chunk],
    refs: selection.ChunkRefs,
    parts: selection.Parts,
    cells: npt.NDArray[np.int64],
    streams: list[tuple[int, int, int]],
    num_cells: int,
) -> tuple[list[npt.NDArray[Any]], Misfit | None]: ...
def pad(
    values: npt.NDArray[Any], sequence_offsets: npt.NDArray[np.int64], steps: int, dim: int
) -> npt.NDArray[Any]: ...
def check_sums(bytes: npt.NDArray[np.uint8], num_threads: int) -> npt.NDArray[np.uint64]: ...

@final
class StreamFigures:
    """Figures of a stream of a chunk."""

    @property
    def num_samples(self) -> int: ...
    @property
    def num_values(self) -> int: ...
    @property
    def lowest(self) -> float: ...
    @property
    def highest(self) -> float: ...
    @property
    def is_finite(self) -> bool: ...
    @property
    def first_row(self) -> npt.NDArray[np.float64]: ...
    @property
    def constant(self) -> npt.NDArray[np.uint32]: ...
    @property
    def num_tried(self) -> int: ...
    @property
    def num_zeros(self) -> int: ...
    @property
    def are_whole(self) -> bool: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def second(self) -> int: ...
    @property
    def forms(self) -> list[list[int]]: ...
    @property
    def not_one_hot(self) -> npt.NDArray[np.uint32] | None: ...
    @property
    def counts(self) -> npt.NDArray[np.int64]: ...

def survey(
    chunk: Chunk,
    streams: list[Wanted],
    num_threads: int,
) -> tuple[npt.NDArray[np.uint64], list[StreamFigures]]: ...
def hashes(
    bytes: npt.NDArray[np.uint8],
    size: int,
    bounds: npt.NDArray[np.int64],
    seeds: npt.NDArray[np.uint64],
    num_threads: int,
) -> npt.NDArray[np.uint64]: ...
def repeated(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]: ...
def file_check_sum(file: tuple[int, int], num_threads: int) -> int: ...
def read_checked(
    file: int, at: int, size: int, range: tuple[int, int], sums: npt.NDArray[np.uint64], num_threads: int
) -> npt.NDArray[np.uint8] | None: ...

@final
class FrameSums:
    """Checksums of frames of zstd: for each frame with text the end of its text, and the low 32 bits of its XXH64."""

    def __new__(cls, ends: npt.NDArray[np.uint64], sums: npt.NDArray[np.uint32]) -> FrameSums: ...

@final
class CompressedStream:
    """A decompressor that reads all data in order, and records access points."""

    def __new__(
        cls, name: str, packed: int = 0, text: int = 0, *, spacing: int | None = None, sums: FrameSums | None = None
    ) -> CompressedStream: ...
    def feed(self, source: _Text, end: int, skip: int, out: npt.NDArray[np.uint8]) -> Fed: ...
    @property
    def position(self) -> tuple[int, int]: ...
    @property
    def is_between(self) -> bool: ...
    def take_points(self) -> AccessPoints: ...

@final
class Fed:
    """Numbers of bytes of text that were skipped and written, and the error about the data after this text."""

    num_skipped: int
    num_written: int
    damage: DamagedDataError | None

@final
class AccessPoints:
    """Access points of compressed data: offsets in the text, places in the data, ends of windows, and the windows."""

    @property
    def texts(self) -> npt.NDArray[np.uint64]: ...
    @property
    def places(self) -> npt.NDArray[np.uint64]: ...
    @property
    def window_ends(self) -> npt.NDArray[np.uint64]: ...
    @property
    def windows(self) -> npt.NDArray[np.uint8]: ...

class DamagedDataError(Exception):
    """Compressed data are damaged. Its arguments: offset in the compressed data, offset in the text, what is wrong."""

@final
class Decoders:
    """Decoders kept from earlier calls for a text, whose memory later calls reuse, and checksums to check."""

    def __new__(cls, most: int, sums: FrameSums | None = None) -> Decoders: ...

def decompress(text: PackedText, begin: int, out: npt.NDArray[np.uint8], num_threads: int) -> None: ...
def zstd_frame(text: bytes, level: int) -> bytes: ...
def zstd_points(source: _Text, spacing: int) -> tuple[AccessPoints, int] | None: ...

_Text = tuple[int, int] | tuple[npt.NDArray[np.uint8], int] | npt.NDArray[np.uint8]

@final
class CTFWordScan:
    """The sequences of a block whose ids are words."""

    @property
    def num_head_lines(self) -> int: ...
    @property
    def words(self) -> tuple[npt.NDArray[np.uint8], int]: ...
    @property
    def starts(self) -> npt.NDArray[np.uint64]: ...
    @property
    def lengths(self) -> npt.NDArray[np.uint32]: ...
    @property
    def nul(self) -> int | None: ...
    @property
    def long(self) -> int | None: ...

@final
class CTFSeen:
    """Statistics of the samples of a name."""

    @property
    def name(self) -> bytes: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_plain(self) -> int: ...
    @property
    def num_indexed(self) -> int: ...
    @property
    def most_values(self) -> int: ...
    @property
    def largest_index(self) -> int: ...
    @property
    def sizes(self) -> list[tuple[int, int]]: ...
    @property
    def magnitudes(self) -> list[int]: ...
    @property
    def largest_at(self) -> int: ...

def ctf_scan_words(block: npt.NDArray[np.uint8], defining: bytes | None) -> CTFWordScan: ...
def ctf_infer(block: npt.NDArray[np.uint8]) -> list[CTFSeen] | None: ...

@final
class Spare:
    """Memory of released chunks, kept for later chunks."""

    def __new__(cls, limit: int) -> Spare: ...

@final
class CTFSchema:
    """The streams of a text corpus, and the other properties of the corpus that the parser needs."""

    def __new__(
        cls,
        streams: Sequence[StreamSchema],
        *,
        defining: int | None = None,
        has_words: bool = False,
        is_compact: bool = False,
        is_subset: bool = False,
        notes: Notes | None = None,
        svmlight: SvmlightLayout | None = None,
    ) -> CTFSchema: ...

@final
class SvmlightLayout:
    """The form of a svmlight text: the index of its first feature, and whether larger features are errors."""

    def __new__(cls, base: int, *, has_queries: bool, is_bounded: bool) -> SvmlightLayout: ...

def ctf_chunk_borders(text: _Text, first: int, chunk_size_in_bytes: int, in_lines: bool) -> list[int]: ...

@final
class CTFScan:
    """The sequences of a part of a text: their keys, places and numbers of lines."""

    @property
    def num_head_lines(self) -> int: ...
    @property
    def keys(self) -> npt.NDArray[np.unsignedinteger[Any]]: ...
    @property
    def begin(self) -> int: ...
    @property
    def starts(self) -> npt.NDArray[np.uint32]: ...
    @property
    def lengths(self) -> npt.NDArray[np.unsignedinteger[Any]]: ...
    @property
    def hollow(self) -> npt.NDArray[np.uint32]: ...

def ctf_index(area: Area, in_lines: bool, defining: bytes | None, num_threads: int) -> CTFIndexed: ...

@final
class CTFIndexed:
    """The sequences of an area; or the offset of a line without a fitting id, or of a line of 4 GiB or more."""

    scans: list[CTFScan]
    bad_id: int | None
    long_line: int | None

@final
class CTFIndexedChunk:
    """A chunk, and the scans of its pieces."""

    scans: list[CTFScan]
    chunk: Chunk

@final
class SvmlightFacts:
    """The least and the largest index of a feature, and the largest label."""

    least_index: int
    largest_index: int
    largest_label: int

def svmlight_index(area: Area, by_query: bool, num_threads: int) -> tuple[CTFIndexed, SvmlightFacts]: ...
def ctf_are_nothing(
    text: _Text, begins: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64], num_threads: int
) -> list[bool]: ...

@final
class CTFBegun:
    """The chunks that begin in a part of a text, and the ends of the chunks that end in it."""

    @property
    def firsts(self) -> npt.NDArray[np.int64]: ...
    @property
    def begins(self) -> npt.NDArray[np.uint64]: ...
    @property
    def ends(self) -> npt.NDArray[np.uint64]: ...
    @property
    def open(self) -> tuple[int, int] | None: ...

def ctf_place(
    begin: int,
    starts: npt.NDArray[Any],
    sizes: npt.NDArray[np.uint32] | None,
    end: int,
    limit: int,
    open: tuple[int, int] | None,
) -> CTFBegun: ...
def ctf_are_distinct(keys: npt.NDArray[Any], num_threads: int) -> bool: ...
def ctf_index_chunks(
    text: _Text,
    borders: list[int],
    in_lines: bool,
    schema: CTFSchema,
    first_pass: FirstPass,
    num_threads: int,
) -> list[CTFIndexedChunk | None]: ...

@final
class CTFFinding:
    """An error or a warning that the parser found.

    Attributes:
        kind: Its index in `CTF_KINDS`.
        offset: Its byte, counted from the first byte of the chunk.
        sequence: Its sequence, counted from the first sequence that was parsed.
        stream: Its stream, if it has one.
        found: A number that was found; its meaning depends on the kind.
    """

    @property
    def kind(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def found(self) -> int: ...

@final
class CTFChunk:
    """A chunk, the number of findings of each kind, the first of each, and the error that exceeded the budget."""

    @property
    def chunk(self) -> Chunk: ...
    @property
    def counts(self) -> list[int]: ...
    @property
    def first(self) -> list[CTFFinding]: ...
    @property
    def last_straw(self) -> CTFFinding | None: ...

def ctf_parse(
    text: _Text | PackedText,
    places: ChunkPlaces,
    lengths: npt.NDArray[np.unsignedinteger[Any]],
    schema: CTFSchema,
    rules: ParseRules,
    spare: Spare | None,
) -> CTFChunk: ...
def chunk_order(num_chunks: int, seed: int) -> npt.NDArray[np.uint32]: ...
def deal(
    loads: npt.NDArray[np.uint32],
    bounds: list[int],
    num_ranks: int,
    rank: int,
    by_padded_area: bool,
    budget: Budget | None,
) -> tuple[npt.NDArray[np.uint32], list[int]]: ...
def deal_slices(
    lengths: npt.NDArray[np.uint32], bounds: list[int], num_ranks: int, rank: int, row_length: int
) -> tuple[npt.NDArray[np.uint32], list[int]]: ...
def shuffled(count: int, seed: int) -> npt.NDArray[np.uint32]: ...
def steps_of_lanes(
    lengths: npt.NDArray[np.uint32], bounds: list[int], lanes: list[int], num_steps: int, seed: int
) -> npt.NDArray[np.uint32]: ...

_Rows = tuple[npt.NDArray[np.uint8], int]
_Numbers = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]

@final
class MLFLabels:
    """The entries of a label file, in the order of the file."""

    @property
    def keys(self) -> _Rows: ...
    @property
    def is_pattern(self) -> npt.NDArray[np.bool_]: ...
    @property
    def offsets(self) -> npt.NDArray[np.uint64]: ...
    @property
    def frames(self) -> npt.NDArray[np.uint32]: ...
    @property
    def faults(self) -> npt.NDArray[np.uint8]: ...
    @property
    def fault_offsets(self) -> npt.NDArray[np.uint64]: ...
    @property
    def run_ends(self) -> npt.NDArray[np.uint64]: ...
    @property
    def starts(self) -> _Numbers: ...
    @property
    def classes(self) -> _Numbers: ...
    @property
    def remarks(self) -> list[tuple[int, list[int]]]: ...
    @property
    def stop(self) -> tuple[int, int] | None: ...

@final
class HTKList:
    """The utterances of a list, in the order of the list: the key, file, first frame and last frame of each."""

    @property
    def keys(self) -> _Rows: ...
    @property
    def paths(self) -> list[bytes]: ...
    @property
    def files(self) -> npt.NDArray[np.uint32]: ...
    @property
    def first_frames(self) -> npt.NDArray[np.uint32]: ...
    @property
    def last_frames(self) -> npt.NDArray[np.uint32]: ...

@final
class ListError:
    """A line of a list or a map that cannot be read; `fault` is an index in the names of its format's faults."""

    @property
    def line(self) -> int: ...
    @property
    def byte(self) -> int: ...
    @property
    def fault(self) -> int: ...

def htk_scan_list(
    text: bytes, is_compatible: bool, folder: bytes | None, prefix: bytes, turns_backslashes: bool
) -> HTKList | ListError: ...
def rolling_order(num_frames: int, window: int, seed: int) -> npt.NDArray[np.uint32]: ...

@final
class ChunkRefs:
    """The chunks of sequences, and where in them the sequences are: the fields of `cntkio.timeline.ChunkRefs`."""

    @property
    def chunk_ids(self) -> list[int]: ...
    @property
    def firsts(self) -> list[int]: ...
    @property
    def chunk_indices(self) -> npt.NDArray[np.uint32]: ...
    @property
    def indices_in_chunk(self) -> npt.NDArray[np.uint32]: ...

def find_chunks(
    sequences: npt.NDArray[np.int64], partners: npt.NDArray[np.uint32] | None, chunk_starts: npt.NDArray[np.int64]
) -> ChunkRefs: ...
def chunks_of_reads(chunk_indices: npt.NDArray[np.uint32], bounds: list[int]) -> list[list[int]]: ...

@final
class FrameFinder:
    """Finds the utterances of frames, and the chunk of each utterance in each of several corpora."""

    def __new__(
        cls,
        frame_starts: npt.NDArray[np.int64],
        corpora: list[tuple[npt.NDArray[np.uint32] | None, npt.NDArray[np.int64]]],
    ) -> FrameFinder: ...
    def find(self, frames: npt.NDArray[np.int64]) -> FoundFrames: ...

@final
class FoundFrames:
    """The utterance of each frame, the frame's number in it, and for each corpus the result of `find_chunks`."""

    utterances: npt.NDArray[np.int64]
    frames: npt.NDArray[np.uint32]
    refs: list[ChunkRefs]

def htk_chunk_starts(lengths: npt.NDArray[np.uint32], limit: int) -> npt.NDArray[np.int64]: ...
def first_same(rows: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.uint32]: ...

@final
class FileBytes:
    def __new__(cls, size: int) -> FileBytes: ...
    def read(self, source: _Text, at: int, size: int) -> int: ...
    def copy(self) -> bytes: ...
    def show(
        self,
        file: int,
        name: str,
        at: int,
        size: int,
        wanted: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None,
    ) -> int: ...

@final
class FrameEncoding:
    """The encoding of a file's values: whether it is big-endian, and the vectors `a` and `b` of a compressed file."""

    def __new__(
        cls, is_big_endian: bool, scales: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None
    ) -> FrameEncoding: ...

def frames_chunk(
    frames: Frames,
    lengths: npt.NDArray[np.uint32],
    frame_dim: int,
    context: tuple[int, int],
    is_broadcast: bool,
) -> Chunk: ...
def runs_chunk(
    lengths: npt.NDArray[np.uint32],
    offsets: npt.NDArray[np.uint32],
    starts: npt.NDArray[np.uint32],
    classes: npt.NDArray[np.uint32],
    dim: int,
    marks_starts: bool,
    targets: tuple[int, bytes] | None = None,
) -> Chunk: ...

@final
class KaldiObjects:
    """Objects of an archive: kinds as indices in `KALDI_KINDS`, rows, columns, and begins and ends of their values."""

    @property
    def kinds(self) -> npt.NDArray[np.uint8]: ...
    @property
    def rows(self) -> npt.NDArray[np.uint32]: ...
    @property
    def cols(self) -> npt.NDArray[np.uint32]: ...
    @property
    def begins(self) -> npt.NDArray[np.uint64]: ...
    @property
    def ends(self) -> npt.NDArray[np.uint64]: ...

@final
class KaldiScan:
    """Objects of an archive, the byte after the last one, and the fault that ends the pass."""

    @property
    def keys(self) -> _Rows: ...
    @property
    def offsets(self) -> npt.NDArray[np.uint64]: ...
    @property
    def objects(self) -> KaldiObjects: ...
    @property
    def next(self) -> int: ...
    @property
    def fault(self) -> KaldiFault | None: ...

@final
class KaldiFault:
    """A fault of an object, which is counted from the first of the call; `fault` is an index in `KALDI_FAULTS`."""

    object: int
    byte: int
    fault: int

@final
class KaldiWritten:
    """An archive and the first byte of each object; or the number of a sequence that cannot be written."""

    bytes: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint64]
    unwritable: int | None

def kaldi_scan(text: _Text, begin: int, total: int) -> KaldiScan: ...
def kaldi_objects(
    text: _Text, offsets: npt.NDArray[np.uint64], total: int
) -> tuple[KaldiObjects, KaldiFault | None]: ...
def kaldi_read(
    text: _Text, objects: Objects, num_cols: int, bytes: FileBytes | None, num_threads: int
) -> tuple[npt.NDArray[np.float64], KaldiFault | None]: ...
def kaldi_integers(text: _Text, objects: Objects) -> tuple[npt.NDArray[np.int32], KaldiFault | None]: ...
def kaldi_windows(
    values: npt.NDArray[np.float64], lengths: npt.NDArray[np.uint32], dim: int, left: int, right: int
) -> npt.NDArray[np.float64]: ...
def kaldi_write(chunk: Chunk, keys: npt.NDArray[np.uint8], width: int, column: int, is_text: bool) -> KaldiWritten: ...

@final
class KaldiList:
    @property
    def keys(self) -> tuple[npt.NDArray[np.uint8], int]: ...
    @property
    def names(self) -> list[bytes]: ...
    @property
    def name_of(self) -> npt.NDArray[np.uint32]: ...
    @property
    def lines(self) -> npt.NDArray[np.uint64]: ...
    @property
    def offsets(self) -> npt.NDArray[np.uint64]: ...
    @property
    def ranges(self) -> list[npt.NDArray[np.uint32]]: ...

def kaldi_list(text: bytes) -> KaldiList | ListError: ...
def kaldi_map(text: bytes) -> KaldiList | ListError: ...
def mlf_scan(
    text: _Text,
    is_compatible: bool,
    times: tuple[bool | None, float],
    names: list[bytes] | None,
    dim: int,
    num_threads: int,
) -> MLFLabels: ...
def mlf_names(text: _Text) -> list[bytes]: ...
def mlf_scan_binary(data: bytes, dim: int) -> MLFLabels: ...

@final
class Cursor:
    """A bookmark of a `TimelineReader`.

    Attributes:
        position: Position in samples.
        sweep: The sweep.
        index: Index in the sweep.
        rank: Rank of the chunk.
        count: Running count of sequences.
        batch: Minibatches of the pool that were delivered.
    """

    def __new__(
        cls, position: int, *, sweep: int = 0, index: int = 0, rank: int = 0, count: int = 0, batch: int = 0
    ) -> Cursor: ...
    @property
    def position(self) -> int: ...
    @property
    def sweep(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def batch(self) -> int: ...

_Longs = npt.NDArray[np.int64]

@final
class Dealt:
    """The sequences of several reads that a rank keeps: the part of each, its index in its chunk, and the reads."""

    @property
    def sequences(self) -> npt.NDArray[np.int64]: ...
    @property
    def parts(self) -> npt.NDArray[np.int64]: ...
    @property
    def indices(self) -> npt.NDArray[np.uint32]: ...
    @property
    def bounds(self) -> list[int]: ...

@final
class Shares:
    """The sequences of each chunk that were dealt to a rank."""

    def __new__(cls, num_samples: int, chunk_starts: npt.NDArray[np.int64], budget: Budget | None = None) -> Shares: ...
    def deal(
        self,
        all: selection.Selection,
        bounds: list[int],
        ends: list[int],
        partition: GlobalPartition,
        by_padded_area: bool,
    ) -> Dealt: ...
    def filled(self, parts: list[int]) -> list[int]: ...
    def part(self, part: int) -> npt.NDArray[np.uint32]: ...
    def forget(self, sweep: int, parts: list[int]) -> None: ...
    def refs(self, parts: npt.NDArray[np.int64], indices: npt.NDArray[np.uint32]) -> ChunkRefs: ...

@final
class Budget:
    """The limits of a minibatch, and how the order is cut into pools."""

    def __new__(cls, limits: Limits, pool: Pool | None, schedules: Schedules | None) -> Budget: ...
    def longest_at(self, position: int) -> int: ...
    def batches(self, lengths: npt.NDArray[np.uint32], seed: int, position: int) -> CutMinibatches: ...

@final
class CutMinibatches:
    """The index of each sequence in delivered order, what it is dealt by (length or row), and the minibatches."""

    order: npt.NDArray[np.uint32]
    loads: npt.NDArray[np.uint32]
    bounds: list[int]

def scheduled(limit: Schedule, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]: ...
def cells_in_rows(lengths: npt.NDArray[np.uint32], row_length: int) -> npt.NDArray[np.int64]: ...

@final
class Cursors:
    """A `Cursor` for each of several reads, each created on request."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Cursor: ...
    def __iter__(self) -> Iterator[Cursor]: ...

@final
class SeveralReads:
    """The results of several reads of a `TimelineReader`."""

    sequences: _Longs
    chunks: _Longs
    bounds: list[int]
    ends_of_sweep: list[bool]
    cursors: Cursors
    refs: ChunkRefs | None
    loads: npt.NDArray[np.uint32] | None

@final
class TruncatedRead:
    """A truncated minibatch: columns for the parts of sequences."""

    slot: _Longs
    sequences: _Longs
    chunks: _Longs
    first_sample: _Longs
    num_samples: _Longs
    step: _Longs
    continues: npt.NDArray[np.bool_]
    end_of_sweep: bool
    position: int

@final
class TimelineReader:
    """A reader of the timeline of a table."""

    def __new__(
        cls,
        lengths: npt.NDArray[np.unsignedinteger[Any]],
        chunk_starts: npt.NDArray[np.int64],
        *,
        window: Any,
        seed: int,
        end: int,
    ) -> TimelineReader: ...
    def leave_out(self, since: npt.NDArray[np.uint8], from_positions: list[int]) -> None: ...
    @property
    def lengths(self) -> npt.NDArray[np.unsignedinteger[Any]]: ...
    @property
    def chunk_starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def cursor(self) -> Cursor: ...
    def rewind(self, cursor: Cursor) -> None: ...
    def hold(self, cursor: Cursor) -> None: ...
    def set_count(self, count: int) -> None: ...
    def set_batch(self, batch: int) -> None: ...
    @property
    def num_batches(self) -> int: ...
    def set_end(self, end: int) -> None: ...
    def set_position(self, position: int, known: int | None = None) -> None: ...
    def change_partition(self, index: int, count: int, num_slots: int) -> None: ...
    def read_several(self, rules: WholeSequences, most: int) -> SeveralReads | None: ...
    def pass_reads(self, rules: WholeSequences, most: int, until: int) -> int: ...
    def pass_truncated(self, rules: TruncatedSequences, most: int) -> int: ...
    def read_truncated(self, rules: TruncatedSequences) -> TruncatedRead | None: ...
    @property
    def pending(self) -> list[list[tuple[int, int, bool]]]: ...
    def restore_pending(self, slots: list[list[tuple[int, int, bool]]]) -> None: ...
    @property
    def pending_chunks(self) -> list[int]: ...
    @property
    def rank(self) -> tuple[int, int] | None: ...
    @property
    def ranks(self) -> tuple[int, int, int] | None: ...
    def rank_at(self, cursor: Cursor) -> tuple[int, int] | None: ...
    def chunks_at(self, sweep: int, rank: int, last: int, index: int, count: int) -> tuple[list[int], int]: ...
    def chunks_from(self, sweep: int, rank: int, limit: int, index: int, count: int) -> tuple[list[int], int]: ...

@final
class CBFFault:
    """A fault in a chunk, or in sequences that cannot be written.

    Attributes:
        kind: Index of its name in `cntkio.formats.cbf.header.FAULTS`.
        offset: Its byte, counted from the beginning of the chunk.
        sequence: Its sequence, counted from the first of the chunk, if it has one.
        found: A number that was found; its meaning depends on the kind.
        limit: The number with which it was compared.
    """

    @property
    def kind(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def stream(self) -> int | None: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def found(self) -> int: ...
    @property
    def limit(self) -> int: ...

@final
class CBFChunk:
    """A chunk, the number of bytes that were used, and in the documented layout the lengths; or a fault."""

    @property
    def chunk(self) -> Chunk | None: ...
    @property
    def num_used(self) -> int: ...
    @property
    def lengths(self) -> npt.NDArray[np.uint32]: ...
    @property
    def fault(self) -> CBFFault | None: ...

@final
class BinaryFile:
    """An open file, or bytes in memory. With `memory_map`, chunks of a file are maps; otherwise they are copies."""

    def __new__(cls, source: _Text, name: str, memory_map: bool) -> BinaryFile: ...
    def read(
        self,
        chunk: ChunkInFile,
        streams: Sequence[StreamHeader],
        own: npt.NDArray[np.uint32] | None,
        spare: Spare,
        num_threads: int,
    ) -> CBFChunk: ...

def cbf_sizes(
    sequences: list[tuple[Chunk, slice]], columns: list[tuple[int, bool]], is_documented: bool
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]: ...
def cbf_write(
    sequences: list[tuple[Chunk, slice]],
    columns: list[tuple[int, bool]],
    lengths: npt.NDArray[np.uint32],
    is_documented: bool,
    out: npt.NDArray[np.uint8],
) -> CBFFault | None: ...

_Bytes = npt.NDArray[np.uint8]

@final
class UnwritableSequence:
    """A sequence that cannot be written, because of a value of a stream, or because it has no sample."""

    sequence: int
    stream: int | None
    value: float | None

@final
class UnreadLine:
    """A line with a wrong number of columns or an unknown token, or with neither if it is not UTF-8."""

    line: int
    num_columns: int | None
    column: int | None
    token: str | None

def text_write(
    chunk: Chunk,
    first: int,
    keys: npt.NDArray[np.uint64],
    streams: list[tuple[int, bytes, bool]],
    num_threads: int,
    piece: int,
) -> tuple[list[_Bytes], UnwritableSequence | None]: ...
def svmlight_write(
    chunk: Chunk,
    keys: npt.NDArray[np.uint64],
    columns: tuple[int, int, int | None],
    base: int,
    num_threads: int,
    piece: int,
) -> tuple[list[_Bytes], UnwritableSequence | None]: ...
def begin_in_fork() -> None: ...
def begin_thread() -> None: ...
def release_kept_memory() -> int: ...
def available_parallelism() -> int: ...
def file_read(file: int, at: int, size: int) -> bytes: ...
def file_read_into(file: int, at: int, buffer: npt.NDArray[np.uint8]) -> int: ...
def text_line_ends(
    text: _Text, begin: int, offsets: npt.NDArray[np.uint64], num_threads: int
) -> npt.NDArray[np.uint64]: ...
def file_stamp(file: int) -> list[int]: ...
def file_stamps(paths: list[bytes], num_threads: int) -> npt.NDArray[np.int64]: ...
def file_write(file: int, at: int, bytes: bytes) -> None: ...

@final
class Dictionary:
    """Tokens and their numbers. A token is a line of a text, and its number is the line's number from 0."""

    def __new__(cls, text: str) -> Dictionary: ...
    def __len__(self) -> int: ...
    def __contains__(self, token: str, /) -> bool: ...

@final
class ConvertedText:
    """A text, its lines, the columns of tokens that have none and the first line with one; or a fault."""

    @property
    def text(self) -> _Bytes: ...
    @property
    def num_lines(self) -> int: ...
    @property
    def num_empty(self) -> int: ...
    @property
    def first_empty(self) -> int | None: ...
    @property
    def fault(self) -> UnreadLine | None: ...

def text_tokens(
    block: bytes,
    first_key: int,
    dictionaries: list[Dictionary],
    names: list[bytes],
    unknown: str | None,
    is_annotated: bool,
) -> ConvertedText: ...

@final
class TextLosses:
    """The numbers that float32 and that float64 change, with the offset of the first of each, and the comments."""

    num_single: int
    first_single: int
    num_double: int
    first_double: int
    num_comments: int

@final
class Categories:
    """The names of categories of labels, the dimension of their vector, and whether it is written as index:1."""

    def __new__(cls, names: Dictionary, dim: int, is_sparse: bool) -> Categories: ...

def text_losses(block: _Bytes, form: str, fields: Sequence[bytes], num_threads: int) -> TextLosses: ...
def text_numbers(
    block: bytes,
    features: tuple[int, int],
    labels: tuple[int, int] | None,
    categories: Categories | None,
    separator: int | None,
) -> ConvertedText: ...

"""The compiled part of cntkio. Not public: its functions change without notice."""

from typing import Any, final

import numpy as np
import numpy.typing as npt

__version__: str
CTF_NUM_ERROR_KINDS: int

_Finding = tuple[int, int, int, int | None, int]
_Ragged = tuple[npt.NDArray[Any], npt.NDArray[np.int64], tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None]

@final
class Chunk:
    """The parsed form of a run of consecutive sequences: immutable columns, one for each stream."""

    @staticmethod
    def from_columns(
        num_sequences: int,
        columns: list[
            tuple[
                npt.NDArray[np.uint32],
                npt.NDArray[Any],
                int,
                tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]] | None,
            ]
        ],
    ) -> Chunk: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

def gather(
    chunks: list[Chunk],
    places: npt.NDArray[np.uint32],
    sequences: npt.NDArray[np.uint32],
    streams: list[tuple[int, bool, bool]],
) -> list[_Ragged]: ...
def pad(
    values: npt.NDArray[Any], sequence_offsets: npt.NDArray[np.int64], steps: int, dim: int
) -> npt.NDArray[Any]: ...
def ctf_scan(
    block: npt.NDArray[np.uint8], in_lines: bool, defining: bytes | None
) -> tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32], int, int | None]: ...
def ctf_chunk_starts(
    starts: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint32], chunk_size_in_bytes: int
) -> npt.NDArray[np.int64]: ...
def ctf_infer(block: npt.NDArray[np.uint8]) -> list[tuple[bytes, int, int, int, int, int]] | None: ...
def ctf_parse(
    text: npt.NDArray[np.uint8],
    first_byte: int,
    starts: npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.uint32],
    lengths: npt.NDArray[np.uint32],
    streams: list[tuple[bytes, bool, int, bool]],
    defining: int | None,
    budget: int,
    is_strict: bool,
    num_threads: int,
) -> tuple[Chunk, list[int], list[_Finding], _Finding | None]: ...

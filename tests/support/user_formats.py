"""User-defined deserializers for tests, and their minibatches as plain data."""

from typing import Any

import numpy as np
from cntkio import MinibatchSource, StreamInformation
from cntkio.formats.user import UserDeserializer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from scipy import sparse

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
CORPORA = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=7)
"""Return the lengths of the sequences of each chunk."""


class Numbers(UserDeserializer):
    """A corpus of sequences of the given lengths: stream x counts all samples, y has an index for each sequence."""

    def __init__(self, lengths=((2, 1), (3,), (1, 1, 2)), **options):
        super().__init__(**options)
        self.lengths = [list(chunk) for chunk in lengths]
        self.calls: list[int] = []

    def stream_infos(self):
        return [
            StreamInformation("x", 0, "dense", np.float32, (2,)),
            StreamInformation("y", 1, "sparse", np.float32, (9,)),
        ]

    def num_chunks(self):
        return len(self.lengths)

    def get_chunk(self, chunk_id):
        self.calls.append(chunk_id)
        lengths = self.lengths[chunk_id]
        first = 2 * sum(map(sum, self.lengths[:chunk_id]))
        values = np.arange(first, first + 2 * sum(lengths), dtype=np.float32).reshape(-1, 2)
        y = [sparse.csr_matrix(([1.0], ([0], [(chunk_id + j) % 9])), (1, 9), np.float32) for j in range(len(lengths))]
        return {"x": np.split(values, np.cumsum(lengths)[:-1]), "y": y}


class Named(Numbers):
    """`Numbers` with keys and lengths, for the main timeline."""

    timeline = "global"

    def chunk_lengths(self, chunk_id):
        return self.lengths[chunk_id]

    def get_keys(self, chunk_id):
        first = sum(map(len, self.lengths[:chunk_id]))
        return [f"key{number}" for number in range(first, first + len(self.lengths[chunk_id]))]


class OneStream(Numbers):
    """Stream x alone."""

    def stream_infos(self):
        return super().stream_infos()[:1]

    def get_chunk(self, chunk_id):
        return {"x": super().get_chunk(chunk_id)["x"]}


def arrays_of(data: Any) -> list[Any]:
    found = [data.values.tolist()]
    for name in ("offsets", "indices", "indptr", "mask"):
        array = getattr(data, name, None)
        found.append(None if array is None else array.tolist())
    return found


def plain_data(minibatch: Any) -> dict[str, Any]:
    return {name: [*arrays_of(data), data.end_of_sweep] for name, data in minibatch.items()}


def all_of(source: MinibatchSource, *arguments: int) -> list[dict[str, Any]]:
    return [plain_data(minibatch) for minibatch in source.minibatches(*arguments)]

"""User-defined deserializers read the recorded cases as CNTK 2.7 does."""

import numpy as np
import pytest
from cntkio import MinibatchSource, StreamInformation
from cntkio.formats.user import UserDeserializer
from scipy import sparse
from support.recorded import Case, cases, comparable, run


class Recorded(UserDeserializer):
    """The deserializer of a recorded case."""

    def __init__(self, spec, **options):
        super().__init__(**options)
        self.spec = spec

    def stream_infos(self):
        return [
            StreamInformation(
                name,
                number,
                "sparse" if stream.get("is_sparse") else "dense",
                np.float32,
                (stream["shape"],),
                stream.get("defines_mb_size", False),
            )
            for number, (name, stream) in enumerate(sorted(self.spec["streams"].items()))
        ]

    def num_chunks(self):
        return len(self.spec["chunks"])

    def get_chunk(self, chunk_id):
        def made(name, sequence):
            array = np.array(sequence, np.float32)
            return sparse.csr_matrix(array) if self.spec["streams"][name].get("is_sparse") else array

        return {n: [made(n, sequence) for sequence in all_] for n, all_ in self.spec["chunks"][chunk_id].items()}


def user_cases():
    return [case for case in cases("timeline") if case.spec.get("deserializers", [{}])[0].get("type") == "user"]


@pytest.mark.parametrize("case", user_cases(), ids=str)
def test_a_recorded_case_agrees(case: Case):
    def source(case):
        return MinibatchSource([Recorded(spec) for spec in case.spec["deserializers"]], **case.spec["source"])

    expected = dict(case.expected)
    if expected["error"]:  # CNTK refuses at the first read, cntkio when the source is created
        expected["streams"] = {}
    assert comparable(run(case, source)) == comparable(expected)

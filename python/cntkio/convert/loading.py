"""All chunks of a corpus in order, loaded by threads ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from cntkio._threads import Job, Workers
from cntkio.convert import tuning
from cntkio.errors import FormatError
from cntkio.formats.contract import Corpus, Loaded


def chunks_in_order(
    corpus: Corpus, chunk_ids: range | None = None, refuse: Callable[[FormatError], None] | None = None
) -> Iterator[Loaded]:
    """Yield the chunks with these ids (None: all), and count their errors. Load the next few while the caller works.

    Drop each chunk before you request the next: its memory is used again.

    Args:
        corpus: The corpus.
        chunk_ids: The chunks.
        refuse: Called with the error of each chunk that breaks the format; the other chunks follow. None: the error is
            raised.

    Raises:
        FormatError: A chunk breaks the format, and `refuse` is None.
        OSError: The file cannot be read.
    """
    parsed = corpus.take_parsed()

    def load(chunk_id: int) -> Loaded:
        return parsed.pop(chunk_id, None) or corpus.load(chunk_id)

    def accounted(job: Job[Loaded]) -> Iterator[Loaded]:
        try:
            loaded = job.result()
            corpus.account_for(loaded)
        except FormatError as error:
            if refuse is None:
                raise
            refuse(error)
        else:
            yield loaded

    coming: deque[Job[Loaded]] = deque()
    with Workers(tuning.NUM_LOADERS, "cntkio-load") as loaders:
        for chunk_id in range(corpus.table.num_chunks) if chunk_ids is None else chunk_ids:
            coming.append(loaders.do(load, chunk_id))
            if len(coming) > tuning.NUM_LOADERS:
                yield from accounted(coming.popleft())
        while coming:
            yield from accounted(coming.popleft())

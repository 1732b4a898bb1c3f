"""`HTKMLFReader`: features and labels of HTK, read as CNTK's old reader did. (docs/formats/htk.md, "The HTKMLFReader")

::

    blockRandomize   chunks are shuffled, and frames or utterances within a window     cntkio.timeline
    rollingWindow    frames move by at most half a window                              order
                     and features that do not fit into memory wait in a file           page_file

A reader is a source with a recipe of its own, which opens deserializers, makes the timeline, and defines what a
minibatch size counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from cntkio.errors import ConfigError
from cntkio.formats.contract import Deserializer
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.htkmlf_reader.options import DEFAULT_MAX_UTTERANCE_LENGTH, HTKMLFOptions
from cntkio.htkmlf_reader.recipe import HTKMLFRecipe
from cntkio.minibatch import Minibatch
from cntkio.source import MinibatchSource
from cntkio.timeline import INFINITELY_REPEAT


class HTKMLFReader(MinibatchSource):
    """A source that delivers features and labels of HTK as CNTK's HTKMLFReader did. (docs/formats/htk.md)

    The parameters have the names of the reader's configuration. Checkpoints, partitions, pickling and reading ahead are
    the same as for `MinibatchSource`, except that no minibatch crosses the end of a sweep. The reader skips an
    utterance if a stream lacks it or has another length for it, or if it is too long. If it would skip more than half
    of the utterances, it raises an error.

    In frame mode, a minibatch size counts the frames of all partitions. A minibatch of whole utterances has
    `nbruttsineachrecurrentiter` utterances, whatever the size. The size of truncated minibatches is their number of
    steps.

    Args:
        deserializers: The deserializers, the first of which reads features.
        readMethod: ``"blockRandomize"``: chunks in random order, and in them frames or utterances, as in other
            sources; ``"rollingWindow"``: frames that move from their position by at most half of `randomize`;
            ``"none"``: in order.
        randomize: The window in frames; ``"auto"``: everything; ``"none"`` or 0: in order.
        minibatchMode: ``"partial"``: the last minibatch of a sweep or an epoch may be short; ``"full"``: in frame mode
            such a minibatch is left out, unless a whole sweep is shorter than a minibatch.
        frameMode: Deliver frames, not utterances.
        truncated: Cut utterances: the minibatch size is the number of steps.
        truncationLength: Steps of a truncated minibatch, whatever its size; 0: the size.
        nbruttsineachrecurrentiter: Number of parallel utterances; or a list with a number for each epoch, whose last
            number repeats. A minibatch has this number of whole utterances, whatever its size. In frame mode it is 1.
        maxUtteranceLength: Longer utterances are skipped where whole utterances are delivered. Utterances of more than
            65535 frames are always skipped.
        pageFilePath: The folder of the page file of ``readMethod="rollingWindow"``; None: the system's folder for
            temporary files.
        randomization_seed: Sweep number k is shuffled with ``randomization_seed + k``.
        max_samples: As for `MinibatchSource`.
        max_sweeps: As for `MinibatchSource`.
        max_errors: Number of utterances that may have invalid labels.
        page_limit_in_bytes: Largest size of features that stay in memory, without a page file.
        read_ahead_in_bytes: As for `MinibatchSource`.
        trace_level: As for `MinibatchSource`.

    Attributes:
        skipped: Number of utterances that were skipped, by kind.

    Raises:
        ConfigError: A parameter is invalid, or two exclude each other.
        CorpusError: More than half of the utterances would be skipped, or none is in all streams.
        FormatError: A list or a label file breaks its format.
        OSError: A file cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from cntkio import StreamDef, StreamDefs
        >>> from cntkio.formats import htk
        >>> folder = Path(tempfile.mkdtemp())
        >>> utterances = [("u1", np.array([[1.0], [2.0], [3.0]])), ("u2", np.array([[4.0], [5.0]]))]
        >>> _ = htk.write_archive(folder / "a.ark", folder / "a.scp", utterances)
        >>> features = HTKFeatureDeserializer(StreamDefs(x=StreamDef(scp=folder / "a.scp", shape=1)))
        >>> reader = HTKMLFReader(features, readMethod="rollingWindow", randomize=4, randomization_seed=2, max_sweeps=1)
        >>> [minibatch["x"].values.ravel().tolist() for minibatch in reader.minibatches(3)]
        [[2.0, 3.0, 1.0], [5.0, 4.0]]
        >>> reader.close()
    """

    def __init__(
        self,
        deserializers: Deserializer | Sequence[Deserializer],
        *,
        readMethod: str = "blockRandomize",  # noqa: N803 - these are CNTK's names
        randomize: int | str = "auto",
        minibatchMode: str = "partial",  # noqa: N803
        frameMode: bool = True,  # noqa: N803
        truncated: bool = False,
        truncationLength: int = 0,  # noqa: N803
        nbruttsineachrecurrentiter: int | Sequence[int] = 1,
        maxUtteranceLength: int = DEFAULT_MAX_UTTERANCE_LENGTH,  # noqa: N803
        pageFilePath: str | os.PathLike[str] | None = None,  # noqa: N803
        randomization_seed: int = 0,
        max_samples: int = INFINITELY_REPEAT,
        max_sweeps: int = INFINITELY_REPEAT,
        max_errors: int = 0,
        page_limit_in_bytes: int = 1 << 30,
        read_ahead_in_bytes: int = 256 << 20,
        trace_level: int = 1,
    ) -> None:
        listed = list(deserializers) if isinstance(deserializers, Sequence) else [deserializers]
        if listed and not isinstance(listed[0], HTKFeatureDeserializer):
            raise ConfigError(
                f"the first deserializer is of the type {type(listed[0]).__name__}; expected an HTKFeatureDeserializer",
                key="deserializers",
            )
        options = HTKMLFOptions.of(
            read_method=readMethod,
            randomize=randomize,
            minibatch_mode=minibatchMode,
            frame_mode=frameMode,
            truncated=truncated,
            truncation_length=truncationLength,
            counts=nbruttsineachrecurrentiter,
            max_utterance_length=maxUtteranceLength,
            page_folder=pageFilePath,
            page_limit_in_bytes=page_limit_in_bytes,
        )
        window = options.window
        recipe = HTKMLFRecipe(options)
        super().__init__(
            listed,
            max_samples=max_samples,
            max_sweeps=max_sweeps,
            randomization_window_in_chunks=0,
            randomization_window_in_samples=0 if window is None else window.size,
            randomization_seed=randomization_seed,
            frame_mode=options.frame_mode,
            truncation_length=(options.truncation_length or 1) if options.truncated else 0,
            randomize=window is not None,
            max_errors=max_errors,
            read_ahead_in_bytes=read_ahead_in_bytes,
            trace_level=trace_level,
            crosses_sweeps=False,
            # A size in frames counts all partitions; parallel utterances are divided among the partitions.
            local_timeline=not options.frame_mode,
            recipe=recipe,
        )
        self.skipped = dict(recipe.skipped)

    def epoch(
        self,
        number: int,
        minibatch_size_in_samples: int,
        epoch_size: int = 0,
        num_data_partitions: int | None = None,
        partition_index: int | None = None,
    ) -> Iterator[Minibatch]:
        """Read one epoch: the frames ``number * epoch_size .. (number + 1) * epoch_size`` of the endless timeline.

        Args:
            number: Number of the epoch, from 0, as `nbruttsineachrecurrentiter` counts them.
            minibatch_size_in_samples: As for `next_minibatch`.
            epoch_size: Frames of an epoch; 0: one sweep.
            num_data_partitions: As for `next_minibatch`.
            partition_index: As for `next_minibatch`.

        Yields:
            Minibatches. A minibatch without sequences is not the end: another partition has the next sequences.
        """
        size = epoch_size or self.num_samples
        self.begin_epoch(number * size, (number + 1) * size, number=number)
        for minibatch in self.minibatches(minibatch_size_in_samples, num_data_partitions, partition_index):
            yield minibatch
            if self.has_ended:
                return

    def __setstate__(self, state: dict[str, Any]) -> None:
        HTKMLFReader.__init__(self, **state["arguments"])
        self.load_state_dict(state["state"])

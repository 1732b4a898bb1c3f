"""Batches of tables as tensors, for loaders of other libraries. (docs/ray.md)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cntkio.torch.tensors import Layout, TensorMinibatch, convert


class Collate:
    """Turns batches of rows into tensors: for Ray's `iter_torch_batches(collate_fn=...)`. It needs pyarrow.

    A row is a sequence, as in the tables of `cntkio.arrow.RecordBatches` and the data sets of `cntkio.ray`.

    Args:
        shapes: As for `cntkio.arrow.read`: the schema of the corpus, or the shapes of samples.
        one_hot: As for `cntkio.arrow.read`.
        layout: As for `convert`.
        device: As for `convert`.

    Example:
        >>> import numpy as np
        >>> words = np.empty(2, object)  # sequences of different lengths, as in Ray's NumPy batches
        >>> words[:] = [np.array([3, 5]), np.array([4])]
        >>> tensors = Collate(one_hot={"w": 9}, layout="padded_ids")({"key": np.array([7, 9]), "w": words})
        >>> tensors["w"].values.tolist(), tensors.keys_of_sequences.tolist()
        ([[3, 5], [4, 0]], [7, 9])
    """

    def __init__(
        self,
        shapes: Any = None,
        *,
        one_hot: Mapping[str, int] | None = None,
        layout: Layout | Mapping[str, Layout] | None = None,
        device: Any = None,
    ) -> None:
        self._shapes, self._one_hot, self._layout, self._device = shapes, one_hot, layout, device

    def __call__(self, batch: Any) -> TensorMinibatch[Any]:
        """Return the tensors of a batch: an Arrow table, or a mapping of names to columns of NumPy.

        Raises:
            ConfigError: A column is not a stream, its shape is unknown, or a layout does not fit.
            CorpusError: Samples of a column differ in size, or an index is beyond the dimension.
        """
        from cntkio.arrow import read_minibatch

        return convert(read_minibatch(batch, shapes=self._shapes, one_hot=self._one_hot), self._device, self._layout)

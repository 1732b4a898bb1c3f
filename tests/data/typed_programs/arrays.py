"""A program whose types are right, if type checkers know the JAX arrays of each layout."""

from typing import Any, assert_type

import jax
from cntkio import Budget, read_ctf
from cntkio.jax import Padded, Ragged, convert

minibatch = read_ctf("examples/alice/test.ctf")
budget = Budget(padded=2048, pool=300, buckets=(64, 256))
assert_type(convert(minibatch)["ch"], Ragged)
assert_type(convert(minibatch, "cpu")["ch"].offsets, jax.Array)
assert_type(convert(minibatch, layout="ragged_ids")["w"], Ragged)
assert_type(convert(minibatch, layout="padded")["ch"], Padded)
assert_type(convert(minibatch, layout="padded_ids", pad_to=(64, 256))["w"].mask, jax.Array)
assert_type(convert(minibatch, pad_to=256)["ch"], Padded)
assert_type(convert(minibatch, num_sequences=256)["ch"], Padded)
assert_type(convert(minibatch, budget=budget)["ch"], Padded)
assert_type(convert(minibatch, layout="ids")["w"], jax.Array)
assert_type(convert(minibatch, None, {"w": "ids"})["w"], Any)
padded: dict[str, Padded] = convert(minibatch, None, {"w": "padded_ids"}, budget=budget)

"""A program whose types are right, if type checkers know the tensors of each layout."""

from typing import Any, assert_type

import torch
from cntkio import read_ctf
from cntkio.torch import Padded, Ragged, TensorMinibatch, convert

minibatch = read_ctf("examples/alice/test.ctf")
assert_type(convert(minibatch, layout="ragged")["ch"], Ragged)
assert_type(convert(minibatch, layout="padded").to("cpu")["ch"].lengths, torch.Tensor)
assert_type(convert(minibatch, "cpu", layout="csr")["w"], torch.Tensor)
assert_type(convert(minibatch, layout={"w": "ids"})["w"], Any)
padded: TensorMinibatch[Padded] = convert(minibatch, None, {"w": "padded_ids"})
assert_type(padded["w"].mask, torch.Tensor)

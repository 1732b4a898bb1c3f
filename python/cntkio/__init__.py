"""CNTK's data formats and reader semantics for today's frameworks."""

from cntkio.errors import CheckpointError, CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.minibatch import Minibatch, MinibatchData
from cntkio.streams import StreamDef, StreamDefs, StreamInformation

__all__ = [
    "CTFDeserializer",
    "CheckpointError",
    "CntkIoError",
    "ConfigError",
    "CorpusError",
    "FormatError",
    "Minibatch",
    "MinibatchData",
    "StreamDef",
    "StreamDefs",
    "StreamInformation",
    "infer_streams",
]

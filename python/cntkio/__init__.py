"""CNTK's data formats and reader semantics for today's frameworks."""

from cntkio.corpus import read_ctf
from cntkio.errors import CheckpointError, CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer
from cntkio.minibatch import Minibatch, MinibatchData, TruncatedMinibatchData
from cntkio.source import MinibatchSource, TraceLevel
from cntkio.streams import StreamDef, StreamDefs, StreamInformation
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, FULL_DATA_SWEEP, INFINITELY_REPEAT

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS",
    "FULL_DATA_SWEEP",
    "INFINITELY_REPEAT",
    "CTFDeserializer",
    "CheckpointError",
    "CntkIoError",
    "ConfigError",
    "CorpusError",
    "FormatError",
    "HTKFeatureDeserializer",
    "HTKMLFBinaryDeserializer",
    "HTKMLFDeserializer",
    "Minibatch",
    "MinibatchData",
    "MinibatchSource",
    "StreamDef",
    "StreamDefs",
    "StreamInformation",
    "TraceLevel",
    "TruncatedMinibatchData",
    "infer_streams",
    "read_ctf",
]

"""CNTK's data formats and reader semantics for today's frameworks."""

from cntkio import transforms
from cntkio.absent import Base64ImageDeserializer, ImageDeserializer, LatticeDeserializer
from cntkio.config import ReaderConfig, read_config
from cntkio.convert import sequence_to_cntk_text_format, write_cbf, write_ctf
from cntkio.corpus import read_ctf
from cntkio.errors import CheckpointError, CntkIoError, ConfigError, CorpusError, FormatError, UnsupportedError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer
from cntkio.formats.user import UserDeserializer
from cntkio.minibatch import Minibatch, MinibatchData, TruncatedMinibatchData, Value
from cntkio.source import MinibatchSource, TraceLevel
from cntkio.streams import Record, StreamConfiguration, StreamDef, StreamDefs, StreamInformation
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, FULL_DATA_SWEEP, INFINITELY_REPEAT
from cntkio.user_source import MinibatchSourceFromData, UserMinibatchSource

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS",
    "FULL_DATA_SWEEP",
    "INFINITELY_REPEAT",
    "Base64ImageDeserializer",
    "CBFDeserializer",
    "CTFDeserializer",
    "CheckpointError",
    "CntkIoError",
    "ConfigError",
    "CorpusError",
    "FormatError",
    "HTKFeatureDeserializer",
    "HTKMLFBinaryDeserializer",
    "HTKMLFDeserializer",
    "ImageDeserializer",
    "LatticeDeserializer",
    "Minibatch",
    "MinibatchData",
    "MinibatchSource",
    "MinibatchSourceFromData",
    "ReaderConfig",
    "Record",
    "StreamConfiguration",
    "StreamDef",
    "StreamDefs",
    "StreamInformation",
    "TraceLevel",
    "TruncatedMinibatchData",
    "UnsupportedError",
    "UserDeserializer",
    "UserMinibatchSource",
    "Value",
    "infer_streams",
    "read_config",
    "read_ctf",
    "sequence_to_cntk_text_format",
    "transforms",
    "write_cbf",
    "write_ctf",
]

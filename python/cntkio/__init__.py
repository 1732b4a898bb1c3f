"""CNTK's data formats and reader semantics for today's frameworks."""

from cntkio.config import ReaderConfig, read_config
from cntkio.convert import sequence_to_cntk_text_format, write_cbf, write_ctf
from cntkio.corpus import read_ctf
from cntkio.errors import CheckpointError, CntkIoError, ConfigError, CorpusError, FormatError
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.htk import write_archive as write_htk_archive
from cntkio.formats.htk import write_features as write_htk_features
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer, write_binary_mlf, write_mlf
from cntkio.formats.mlf import write_mapping as write_label_mapping
from cntkio.formats.user import UserDeserializer
from cntkio.htkmlf_reader import HTKMLFReader
from cntkio.minibatch import Minibatch, MinibatchData, TruncatedMinibatchData
from cntkio.source import MinibatchSource, TraceLevel
from cntkio.streams import StreamDef, StreamDefs, StreamInformation
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, FULL_DATA_SWEEP, INFINITELY_REPEAT
from cntkio.user_source import MinibatchSourceFromData, UserMinibatchSource

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS",
    "FULL_DATA_SWEEP",
    "INFINITELY_REPEAT",
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
    "HTKMLFReader",
    "Minibatch",
    "MinibatchData",
    "MinibatchSource",
    "MinibatchSourceFromData",
    "ReaderConfig",
    "StreamDef",
    "StreamDefs",
    "StreamInformation",
    "TraceLevel",
    "TruncatedMinibatchData",
    "UserDeserializer",
    "UserMinibatchSource",
    "infer_streams",
    "read_config",
    "read_ctf",
    "sequence_to_cntk_text_format",
    "write_binary_mlf",
    "write_cbf",
    "write_ctf",
    "write_htk_archive",
    "write_htk_features",
    "write_label_mapping",
    "write_mlf",
]

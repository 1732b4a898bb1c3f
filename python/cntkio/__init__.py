"""CNTK's data formats and reader semantics for today's frameworks."""

import importlib
from typing import TYPE_CHECKING, Any

from cntkio import transforms
from cntkio.config import ReaderConfig, read_config
from cntkio.convert import read_ctf, sequence_to_cntk_text_format, write_cbf, write_ctf
from cntkio.errors import (
    CheckpointError,
    CntkIoError,
    ConfigError,
    CorpusError,
    FormatError,
    OutOfRangeError,
    UnsupportedError,
)
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer, infer_streams
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.htk import write_archive as write_htk_archive
from cntkio.formats.htk import write_features as write_htk_features
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer, write_binary_mlf, write_mlf
from cntkio.formats.mlf import write_mapping as write_label_mapping
from cntkio.formats.user import UserDeserializer
from cntkio.hints import did_you_mean
from cntkio.htkmlf_reader import HTKMLFReader
from cntkio.minibatch import Minibatch, MinibatchData, TruncatedMinibatchData, Value
from cntkio.source import MinibatchSource, TraceLevel
from cntkio.streams import Record, StreamConfiguration, StreamDef, StreamDefs, StreamInformation
from cntkio.timeline import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    BalancedPartition,
    Partition,
)
from cntkio.unsupported import Base64ImageDeserializer, ImageDeserializer, LatticeDeserializer
from cntkio.user_source import MinibatchSourceFromData, UserMinibatchSource

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS",
    "FULL_DATA_SWEEP",
    "INFINITELY_REPEAT",
    "BalancedPartition",
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
    "HTKMLFReader",
    "ImageDeserializer",
    "LatticeDeserializer",
    "Minibatch",
    "MinibatchData",
    "MinibatchSource",
    "MinibatchSourceFromData",
    "OutOfRangeError",
    "Partition",
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
    "write_binary_mlf",
    "write_cbf",
    "write_ctf",
    "write_htk_archive",
    "write_htk_features",
    "write_label_mapping",
    "write_mlf",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Load the module of a framework when it is asked for; of another name tell the near one."""
        if name in ("arrow", "jax", "torch"):
            return importlib.import_module(f"cntkio.{name}")
        raise AttributeError(f"module 'cntkio' has no attribute {name!r}{did_you_mean(name, __all__)}")

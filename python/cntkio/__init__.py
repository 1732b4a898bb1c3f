"""CNTK's data formats and reader semantics for today's frameworks."""

from cntkio import _start as _start  # first: it handles Ctrl-C while the rest is imported

# isort: split
import importlib
import sys
from typing import TYPE_CHECKING, Any

from cntkio import io
from cntkio._core import __version__
from cntkio.config import ReaderConfig, read_config
from cntkio.convert import CommentedMinibatch, read_ctf, write_cbf, write_ctf
from cntkio.errors import (
    CheckpointError,
    CntkIoError,
    ConfigError,
    CorpusError,
    FormatError,
    OutOfRangeError,
    UnsupportedError,
)
from cntkio.formats.ctf import Vocabulary, infer_streams, read_vocabularies
from cntkio.formats.htk import write_archive as write_htk_archive
from cntkio.formats.htk import write_features as write_htk_features
from cntkio.formats.kaldi import KaldiDeserializer, read_kaldi, write_kaldi
from cntkio.formats.mlf import write_binary_mlf, write_mlf
from cntkio.formats.mlf import write_mapping as write_label_mapping
from cntkio.formats.svmlight import SvmlightDeserializer, read_svmlight, write_svmlight
from cntkio.htkmlf_reader import HTKMLFReader
from cntkio.io import (
    DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS,
    FULL_DATA_SWEEP,
    INFINITELY_REPEAT,
    Base64ImageDeserializer,
    CBFDeserializer,
    CTFDeserializer,
    HTKFeatureDeserializer,
    HTKMLFBinaryDeserializer,
    HTKMLFDeserializer,
    ImageDeserializer,
    LatticeDeserializer,
    MinibatchData,
    MinibatchSource,
    MinibatchSourceFromData,
    Record,
    StreamConfiguration,
    StreamDef,
    StreamDefs,
    StreamInformation,
    TraceLevel,
    UserDeserializer,
    UserMinibatchSource,
    Value,
    sequence_to_cntk_text_format,
    transforms,
)
from cntkio.minibatch import Minibatch, TruncatedMinibatchData
from cntkio.mixture import Mixture, SequenceMixture
from cntkio.rows import PackedRows, SplitRows, packed
from cntkio.source import ExplainedStep, Ledger, PlannedSteps, Sequences, SourcePlan
from cntkio.storage.remote import Remote
from cntkio.survey import Finding, Findings, check
from cntkio.timeline import BalancedPartition, Budget, GlobalPartition, Partition
from cntkio.unsupported import NamesOfCntk, no_attribute

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS", "FULL_DATA_SWEEP", "INFINITELY_REPEAT", "BalancedPartition",
    "Base64ImageDeserializer", "Budget", "CBFDeserializer", "CTFDeserializer", "CheckpointError", "CntkIoError",
    "CommentedMinibatch", "ConfigError", "CorpusError", "ExplainedStep", "Finding", "Findings", "FormatError",
    "GlobalPartition", "HTKFeatureDeserializer", "HTKMLFBinaryDeserializer", "HTKMLFDeserializer", "HTKMLFReader",
    "ImageDeserializer", "KaldiDeserializer", "LatticeDeserializer", "Ledger", "Minibatch", "MinibatchData",
    "MinibatchSource", "MinibatchSourceFromData", "Mixture", "OutOfRangeError", "PackedRows", "Partition",
    "PlannedSteps", "ReaderConfig", "Record", "Remote", "SequenceMixture", "Sequences", "SourcePlan", "SplitRows",
    "StreamConfiguration", "StreamDef",
    "StreamDefs", "StreamInformation", "SvmlightDeserializer", "TraceLevel", "TruncatedMinibatchData",
    "UnsupportedError", "UserDeserializer", "UserMinibatchSource", "Value", "Vocabulary", "__version__", "check",
    "infer_streams", "io", "packed", "read_config", "read_ctf", "read_kaldi", "read_svmlight", "read_vocabularies",
    "sequence_to_cntk_text_format", "transforms", "write_binary_mlf", "write_cbf", "write_ctf", "write_htk_archive",
    "write_htk_features", "write_kaldi", "write_label_mapping", "write_mlf", "write_svmlight",
]  # fmt: skip

# Loaded on first use: they need libraries that are optional, and slow to import.
_FRAMEWORKS = ("arrow", "jax", "ray", "spark", "torch")
# Last, so that it sees only names that no other finder has.
sys.meta_path.append(NamesOfCntk([*__all__, *_FRAMEWORKS]))


def __dir__() -> list[str]:
    """List the public names, and the modules of frameworks, which are loaded on first use."""
    return [*__all__, *_FRAMEWORKS]


# Type checkers would accept every name of a module that has `__getattr__`.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Load the module of a framework on first use; refuse any other name, with the nearest name."""
        if name in _FRAMEWORKS:
            return importlib.import_module(f"cntkio.{name}")
        raise no_attribute("cntkio", name, __dir__())

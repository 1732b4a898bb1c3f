"""HTK features: feature files and lists of utterances (scp). (docs/formats/htk.md)"""

from cntkio.formats.htk.corpus import CHUNK_FRAMES, HTKFeatureDeserializer, HTKFormat, in_files
from cntkio.formats.htk.feature_files import (
    KINDS,
    QUALIFIERS,
    HTKHeader,
    check_sum,
    encode_features,
    parse_header,
    parse_kind,
    write_archive,
    write_features,
)
from cntkio.formats.htk.lists import Frames, Listed, first_header, read_list
from cntkio.formats.htk.options import FeatureSettings, window_of

__all__ = [
    "CHUNK_FRAMES", "KINDS", "QUALIFIERS", "FeatureSettings", "Frames", "HTKFeatureDeserializer", "HTKFormat",
    "HTKHeader", "Listed", "check_sum", "encode_features", "first_header", "in_files", "parse_header", "parse_kind",
    "read_list", "window_of", "write_archive", "write_features",
]  # fmt: skip

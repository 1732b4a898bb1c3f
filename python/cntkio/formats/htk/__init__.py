"""HTK features: feature files and lists of utterances (scp). (docs/formats/htk.md)"""

from cntkio.formats.htk.corpus import HTKFeatureDeserializer, HTKFormat, in_files
from cntkio.formats.htk.lists import Frames, read_list
from cntkio.formats.htk.options import FeatureSettings, window_of
from cntkio.formats.htk.writer import encode_features, write_archive, write_features

__all__ = [
    "FeatureSettings", "Frames", "HTKFeatureDeserializer", "HTKFormat", "encode_features", "in_files", "read_list",
    "window_of", "write_archive", "write_features",
]  # fmt: skip

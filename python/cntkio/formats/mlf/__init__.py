"""HTK labels: master label files (MLF), text and binary, and mapping files. (docs/formats/htk.md)"""

from cntkio.formats.mlf.corpus import HTKMLFBinaryDeserializer, HTKMLFDeserializer, Labels, in_files, labels_of
from cntkio.formats.mlf.entries import infer_labels, read_mapping, read_targets
from cntkio.formats.mlf.writer import write_binary_mlf, write_mapping, write_mlf

__all__ = [
    "HTKMLFBinaryDeserializer", "HTKMLFDeserializer", "Labels", "in_files", "infer_labels", "labels_of",
    "read_mapping", "read_targets", "write_binary_mlf", "write_mapping", "write_mlf",
]  # fmt: skip

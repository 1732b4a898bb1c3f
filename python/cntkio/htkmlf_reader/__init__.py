"""`HTKMLFReader`: features and labels of HTK in the order of CNTK's old reader. (docs/formats/htk.md)"""

from cntkio.htkmlf_reader.options import DEFAULT_MAX_UTTERANCE_LENGTH, LONGEST_UTTERANCE, READ_METHODS, ReadMethod
from cntkio.htkmlf_reader.reader import HTKMLFReader

__all__ = ["DEFAULT_MAX_UTTERANCE_LENGTH", "LONGEST_UTTERANCE", "READ_METHODS", "HTKMLFReader", "ReadMethod"]

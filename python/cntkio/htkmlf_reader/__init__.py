"""`HTKMLFReader`: features and labels of HTK in the order of CNTK's old reader. (docs/formats/htk.md)"""

from cntkio.htkmlf_reader.reader import DEFAULT_MAX_UTTERANCE_LENGTH, HTKMLFReader, ReadMethod

__all__ = ["DEFAULT_MAX_UTTERANCE_LENGTH", "HTKMLFReader", "ReadMethod"]

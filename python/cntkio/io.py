"""The names of `cntk.io`: a program only has to replace `cntk` with `cntkio`. (docs/cntk-names.md, "Names")

Example:
    >>> import cntkio as C
    >>> C.io.StreamDef(field="x", shape=3)
    StreamDef(field='x', shape=3)
"""

import sys
from typing import TYPE_CHECKING, Any

from cntkio import transforms
from cntkio.convert import sequence_to_cntk_text_format
from cntkio.formats.cbf import CBFDeserializer
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.htk import HTKFeatureDeserializer
from cntkio.formats.mlf import HTKMLFBinaryDeserializer, HTKMLFDeserializer
from cntkio.formats.user import UserDeserializer
from cntkio.minibatch import MinibatchData, Value
from cntkio.source import MinibatchSource, TraceLevel
from cntkio.streams import Record, StreamConfiguration, StreamDef, StreamDefs, StreamInformation
from cntkio.timeline import DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS, FULL_DATA_SWEEP, INFINITELY_REPEAT
from cntkio.unsupported import Base64ImageDeserializer, ImageDeserializer, LatticeDeserializer, no_attribute
from cntkio.user_source import MinibatchSourceFromData, UserMinibatchSource

__all__ = [
    "DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS", "FULL_DATA_SWEEP", "INFINITELY_REPEAT", "Base64ImageDeserializer",
    "CBFDeserializer", "CTFDeserializer", "HTKFeatureDeserializer", "HTKMLFBinaryDeserializer", "HTKMLFDeserializer",
    "ImageDeserializer", "LatticeDeserializer", "MinibatchData", "MinibatchSource", "MinibatchSourceFromData", "Record",
    "StreamConfiguration", "StreamDef", "StreamDefs", "StreamInformation", "TraceLevel", "UserDeserializer",
    "UserMinibatchSource", "Value", "sequence_to_cntk_text_format", "transforms",
]  # fmt: skip

sys.modules["cntkio.io.transforms"] = transforms  # for `import cntkio.io.transforms as xforms`


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__]


# Type checkers would accept every name of a module that has `__getattr__`.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Refuse an unknown name, with the nearest name."""
        raise no_attribute("cntkio.io", name, __all__)

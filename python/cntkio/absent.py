"""Deserializers that CNTK has and cntkio does without: each says, when called, what to use instead.

Images are read better by the libraries that came after CNTK; lattices had no use outside its speech trainer.
(docs/coming-from-cntk.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from cntkio.errors import UnsupportedError


def ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: a map file of images and classes is read by a PyTorch dataset, with torchvision.

    Example:
        >>> ImageDeserializer("map.txt", {})
        Traceback (most recent call last):
        cntkio.errors.UnsupportedError: ImageDeserializer: cntkio reads no images; ...
    """
    raise UnsupportedError(
        "ImageDeserializer: cntkio reads no images; read the map file (a path, a tab and a class per line) with "
        "torchvision.io.decode_image in a torch.utils.data.Dataset, or bring the images into a UserDeserializer, which "
        "can be joined with text by sequence id (docs/coming-from-cntk.md)",
        key="ImageDeserializer",
    )


def Base64ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: what ``base64.b64decode`` gives is read by ``torchvision.io.decode_image``."""
    raise UnsupportedError(
        "Base64ImageDeserializer: cntkio reads no images; give base64.b64decode of each line's last column to "
        "torchvision.io.decode_image in a torch.utils.data.Dataset, or bring the images into a UserDeserializer, which "
        "can be joined with text by sequence id (docs/coming-from-cntk.md)",
        key="Base64ImageDeserializer",
    )


def LatticeDeserializer(lattice_index_file: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: lattices were input of CNTK's own sequence training; k2 has today's counterpart."""
    raise UnsupportedError(
        "LatticeDeserializer: cntkio reads no lattices, which only CNTK's sequence training took; train sequence "
        "criteria with k2 (lattice-free MMI), and read the features with HTKFeatureDeserializer "
        "(docs/coming-from-cntk.md)",
        key="LatticeDeserializer",
    )

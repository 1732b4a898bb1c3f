"""Deserializers of CNTK that cntkio leaves out. Each raises an error that names the replacement.

Later libraries read images better than CNTK did; only CNTK's own speech trainer used lattices.
(docs/coming-from-cntk.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from cntkio.errors import UnsupportedError


def ImageDeserializer(filename: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: read a map file of images and classes in a PyTorch dataset, with torchvision.

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
    """Raise `UnsupportedError`: pass the result of ``base64.b64decode`` to ``torchvision.io.decode_image``."""
    raise UnsupportedError(
        "Base64ImageDeserializer: cntkio reads no images; give base64.b64decode of each line's last column to "
        "torchvision.io.decode_image in a torch.utils.data.Dataset, or bring the images into a UserDeserializer, which "
        "can be joined with text by sequence id (docs/coming-from-cntk.md)",
        key="Base64ImageDeserializer",
    )


def LatticeDeserializer(lattice_index_file: str, streams: Mapping[str, Any]) -> NoReturn:  # noqa: N802 - CNTK's name
    """Raise `UnsupportedError`: lattices were input of CNTK's own sequence training; use k2 instead."""
    raise UnsupportedError(
        "LatticeDeserializer: cntkio reads no lattices, which only CNTK's sequence training took; train sequence "
        "criteria with k2 (lattice-free MMI), and read the features with HTKFeatureDeserializer "
        "(docs/coming-from-cntk.md)",
        key="LatticeDeserializer",
    )

"""CNTK's image transforms. Each raises an error that names the replacement. (docs/coming-from-cntk.md)"""

from __future__ import annotations

from typing import NoReturn

from cntkio.errors import UnsupportedError

__all__ = ["color", "crop", "mean", "scale"]


def _instead(name: str, use: str) -> UnsupportedError:
    what = f"cntkio does not read images, so it has no transform {name!r}; use {use} in the PyTorch dataset that reads"
    return UnsupportedError(f"{what} the images (docs/coming-from-cntk.md)", key="transforms")


# The parameters are CNTK's, so that a call of a CNTK program gets this error and no TypeError.
def crop(
    crop_type: str = "center", crop_size: int | tuple[int, int] = 0, side_ratio: float | tuple[float, float] = 0.0,
    area_ratio: float | tuple[float, float] = 0.0, aspect_ratio: float | tuple[float, float] = 1.0,
    jitter_type: str = "none",
) -> NoReturn:  # fmt: skip
    """Raise `UnsupportedError`: torchvision has ``CenterCrop`` and ``RandomResizedCrop``."""
    raise _instead("crop", "torchvision.transforms.v2.CenterCrop, RandomCrop or RandomResizedCrop")


def scale(
    width: int, height: int, channels: int, interpolations: str = "linear", scale_mode: str = "fill",
    pad_value: int = -1,
) -> NoReturn:  # fmt: skip
    """Raise `UnsupportedError`: torchvision has ``Resize``."""
    raise _instead("scale", "torchvision.transforms.v2.Resize")


def mean(filename: str) -> NoReturn:
    """Raise `UnsupportedError`: torchvision has ``Normalize``."""
    raise _instead("mean", "torchvision.transforms.v2.Normalize with the values of the file")


def color(brightness_radius: float = 0.0, contrast_radius: float = 0.0, saturation_radius: float = 0.0) -> NoReturn:
    """Raise `UnsupportedError`: torchvision has ``ColorJitter``."""
    raise _instead("color", "torchvision.transforms.v2.ColorJitter")

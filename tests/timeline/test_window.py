"""Windows, and the defaults of each front end. (docs/timeline.md, "Default windows")"""

from __future__ import annotations

from typing import Any

import pytest
from cntkio.errors import ConfigError
from cntkio.timeline import (
    WHOLE_DATA,
    Window,
    classic_binary_window,
    classic_htk_window,
    classic_text_window,
    composite_window,
    python_window,
)


def test_a_window_of_zero_samples_counts_as_one_sample() -> None:
    assert Window(0, "samples") == Window(1, "samples")


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (python_window(), Window(128, "chunks")),
        (python_window(5), Window(5, "chunks")),
        (python_window(0, 7), Window(7, "samples")),
        (python_window(0, 0), None),
        (python_window(5, 7, randomize=False), None),
        (composite_window(), Window(128, "chunks")),
        (composite_window(chunk_size_in_bytes=2**31), Window(2, "chunks")),
        (composite_window(chunk_size_in_bytes=2**33), Window(1, "chunks")),
        (classic_text_window(chunk_size_in_bytes=2**32), Window(1, "chunks")),
        (composite_window(9), Window(9, "samples")),
        (composite_window(9, is_sample_based=False), Window(9, "chunks")),
        (composite_window(is_sample_based=False), Window(128, "chunks")),
        (composite_window(has_text_format=False), Window(2**62 - 1, "samples")),
        (composite_window(0), None),
        (classic_text_window(), Window(128, "chunks")),
        (classic_text_window(chunk_size_in_bytes=2**24), Window(256, "chunks")),
        (classic_text_window(chunk_size_in_bytes=2**32 + 1), None),
        (classic_text_window(9, chunk_size_in_bytes=2**33), Window(9, "chunks")),
        (classic_text_window(9), Window(9, "chunks")),
        (classic_text_window(9, is_sample_based=True), Window(9, "samples")),
        (classic_text_window(is_sample_based=True), WHOLE_DATA),
        (classic_text_window(0), None),
        (classic_binary_window(), Window(128, "chunks")),
        (classic_binary_window(9), Window(9, "chunks")),
        (classic_binary_window(is_sample_based=True), WHOLE_DATA),
        (classic_htk_window(), WHOLE_DATA),
        (classic_htk_window("none"), None),
        (classic_htk_window(300), Window(300, "samples")),
    ],
)
def test_every_front_end_has_its_default_window(window: Window | None, expected: Window | None) -> None:
    assert window == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: python_window(3, 4), "exclude each other"),
        (lambda: composite_window(is_sample_based=True), "needs a randomizationWindow"),
        (lambda: Window(-1, "chunks"), "not -1 chunks"),
        (lambda: Window(1, "sweeps"), "not 1 sweeps"),  # type: ignore[arg-type]
    ],
)
def test_impossible_windows_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()

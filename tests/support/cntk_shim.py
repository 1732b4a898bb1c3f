"""A thin substitute for the package `cntk`, so that programs and tests written for `cntk.io` run on cntkio.

`install()` makes `import cntk`, `from cntk.io import ...`, `from cntk.cntk_py import ...` and `import ctf2bin` work. As
a plugin of pytest this module runs the reader tests in the wheel of CNTK (CONTRIBUTING.md says how). The names of
`cntk.io` are cntkio's own; this file adds names of `cntk.cntk_py` and of the rest of CNTK.
"""

from __future__ import annotations

import enum
import sys
from types import ModuleType
from typing import Any

import cntkio
import numpy as np
import pytest
from cntkio.convert import ctf_to_cbf
from cntkio.timeline import python_window


class _Flag:
    def __init__(self) -> None:
        self.value = False

    def set(self, value: bool) -> None:
        self.value = bool(value)


class MinibatchSourceConfig:
    """Configuration that CNTK's constructor of `MinibatchSource` fills in."""

    def __init__(self, deserializers: list[Any], randomize: bool = True) -> None:
        self.deserializers = deserializers
        self.max_samples = self.max_sweeps = cntkio.INFINITELY_REPEAT
        self.randomization_window_in_chunks = cntkio.DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS if randomize else 0
        self.randomization_window_in_samples = self.randomization_seed = 0
        self.trace_level: int = cntkio.TraceLevel.Warning
        self.is_multithreaded = _Flag()
        self.is_frame_mode_enabled = False
        self.truncation_length = self.max_errors = 0


def to_dictionary(config: MinibatchSourceConfig) -> dict[str, Any]:
    """Check a configuration by opening a source with it, and return it as CNTK's dictionary."""
    cntkio.MinibatchSource(
        config.deserializers,
        max_samples=config.max_samples,
        max_sweeps=config.max_sweeps,
        randomization_window_in_chunks=config.randomization_window_in_chunks,
        randomization_window_in_samples=config.randomization_window_in_samples,
        randomization_seed=config.randomization_seed,
        trace_level=config.trace_level,
        multithreaded_deserializer=config.is_multithreaded.value,
        frame_mode=config.is_frame_mode_enabled,
        truncation_length=config.truncation_length,
        max_errors=config.max_errors,
    ).close()
    window = python_window(config.randomization_window_in_chunks, config.randomization_window_in_samples)
    made: dict[str, Any] = {
        "frameMode": config.is_frame_mode_enabled,
        "multiThreadedDeserialization": config.is_multithreaded.value,
        "traceLevel": config.trace_level,
        "randomize": window is not None,
        "deserializers": config.deserializers,
    }
    if window is not None:
        made["randomizationWindow"] = window.size
        made["sampleBasedRandomizationWindow"] = window.unit == "samples"
        made["randomizationSeed"] = config.randomization_seed
    if config.truncation_length:
        made["truncated"], made["truncationLength"] = True, config.truncation_length
    if config.max_errors:
        made["maxErrors"] = config.max_errors
    return made


def DictionaryValue(value: Any) -> Any:
    """CNTK's wrapper of an option's value; cntkio expects the value itself."""
    return value


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal."""
    return one.shape == other.shape and np.array_equal(one.asarray(), other.asarray())


def is_tensor(data: Any) -> bool:
    """Return whether `sequence_to_cntk_text_format` treats an object as dense: an array, or nested lists of numbers."""
    if isinstance(data, np.ndarray):
        return True
    return isinstance(data, list) and all(
        isinstance(item, int | float | np.number) or (isinstance(item, list) and is_tensor(item)) for item in data
    )


class Variable:
    """A key for `input_map`, and the argument of `as_sequences` for sparse streams."""

    def __init__(self, shape: Any = (), is_sparse: bool = False, name: str = "") -> None:
        self.shape, self.is_sparse, self.name = shape, is_sparse, name


class ElementType(enum.IntEnum):
    """A class of CNTK's script `ctf2bin`."""

    FLOAT = 0
    DOUBLE = 1


def ctf2bin_process(text: str, binary: str, header: list[str], element_type: ElementType) -> None:
    """The function `process` of CNTK's script `ctf2bin`."""
    streams = {}
    for line in header:
        name, alias, form, dim = line.split()
        streams[name] = cntkio.StreamDef(field=alias, shape=int(dim), is_sparse=form == "sparse")
    dtype = np.float32 if element_type == ElementType.FLOAT else np.float64
    ctf_to_cbf(text, binary, cntkio.StreamDefs(streams), dtype=dtype)


def _module(name: str, names: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    module.__path__ = []  # a package, so that its submodules can be imported
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def install() -> None:
    """Make `import cntk` import this substitute."""
    names = {name: getattr(cntkio, name) for name in cntkio.__all__}
    _module("cntk", {"Value": cntkio.Value, "input_variable": Variable})
    _module("cntk.io", {**names, "_is_tensor": is_tensor})
    sys.modules["cntk.io.transforms"] = cntkio.transforms
    _module("cntk.core", {"Value": cntkio.Value})
    _module("cntk.logging", {"TraceLevel": cntkio.TraceLevel})
    _module("cntk.sequence", {"input_variable": Variable})
    _module("cntk.device", {"cpu": lambda: None})
    _module(
        "cntk.cntk_py",
        {
            "MinibatchSourceConfig": MinibatchSourceConfig,
            "to_dictionary": to_dictionary,
            "DictionaryValue": DictionaryValue,
            "are_equal": are_equal,
        },
    )
    _module("cntk.ops", {})
    _module("cntk.ops.tests", {})
    _module("cntk.ops.tests.ops_test_utils", {"cntk_device": lambda _: None})
    _module("ctf2bin", {"process": ctf2bin_process, "ElementType": ElementType})


# CNTK's tests of images and of training, which need more than readers.
_NO_READER_TESTS = {
    "test_image", "test_image_with_crop_range", "test_create_two_image_deserializers", "test_base64_image_deserializer",
    "test_base64_is_equal_image", "test_crop_dimensionality", "test_composite_source_synced_transforms",
    "test_usermbsource_training",
}  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect CNTK's tests of images and of training; pytest reports their number."""
    left_out = [item for item in items if getattr(item, "originalname", item.name) in _NO_READER_TESTS]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


# CNTK's tests of names that this file defines: they pass without any code of cntkio, or with its own checks only.
_OWN_TESTS = {
    "test_is_tensor", "test_minibatch_source_config_constructor", "test_minibatch_source_config_sweeps_and_samples",
    "test_minibatch_source_config_randomization", "test_minibatch_source_config_other_properties",
}  # fmt: skip


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many of the passes are of names that this file defines."""
    passed = [report.nodeid.split("::")[-1].split("[")[0] for report in terminalreporter.stats.get("passed", [])]
    num_own = sum(name in _OWN_TESTS for name in passed)
    if num_own:
        terminalreporter.write_line(
            f"{num_own} of the {len(passed)} passes are of names that the substitute defines (_is_tensor, "
            f"MinibatchSourceConfig); {len(passed) - num_own} are of cntkio"
        )


@pytest.fixture
def device_id() -> int:
    """CNTK's number of the CPU, for tests that ask for a device."""
    return -1


if __name__ != "__main__" and "cntk" not in sys.modules:
    install()

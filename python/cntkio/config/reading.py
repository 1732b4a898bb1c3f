"""Reader sections: the choice of a section, and the meaning of its keys. (docs/configuration.md, "Readers")

::

    path ──find──> section ──a function for each kind of reader──> ReaderConfig

Invariants: what CNTK's reader refuses is refused here, at its key; a key that CNTK does not look at is not looked at.

This module opens no data: `ReaderConfig.open` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from cntkio import timeline
from cntkio.arguments import CONFIGURATION, calling, did_you_mean, path_text, suggests_keywords
from cntkio.config import deserializers, keys
from cntkio.config.deserializers import Asked
from cntkio.config.files import configuration, warn_of_unused
from cntkio.config.keys import Kind
from cntkio.config.language import Section, folded_key
from cntkio.config.reader_config import Call, Packing, ReaderConfig
from cntkio.errors import ConfigError
from cntkio.formats.cntk_options import truth
from cntkio.formats.contract import CorpusInFiles, ReadingOptions
from cntkio.formats.ctf import CTFDeserializer
from cntkio.formats.detect import other_than
from cntkio.htkmlf_reader import ReadMethod
from cntkio.timeline import WHOLE_DATA, Window

# --------------------------------------------------------------------------------------------- the choice of a section


@suggests_keywords
def read_config(
    path: str | os.PathLike[str], *overrides: str, section: str | Sequence[str] | None = None
) -> ReaderConfig:
    """Read a CNTK configuration file, and return the meaning of its reader. (docs/configuration.md)

    Args:
        path: The file.
        overrides: Further arguments as the program ``cntk`` takes them, such as ``"train=[reader=[maxErrors=5]]"``.
        section: The path of a reader's section, such as ``"train/reader"``, which is read as it is written; or of an
            action's section, such as ``"train"``, whose ``reader`` is read as the action reads it (``test`` and
            ``write`` read in order). None: the first action of ``command``.

    Raises:
        ConfigError: The text cannot be read, the section is missing, or the reader refuses it.
        OSError: The file cannot be read.

    Example:
        >>> read_config("examples/digits/digits.cntk", section="train/reader").open().num_sequences
        1348
    """
    name = path_text("path", path)
    if not all(isinstance(override, str) for override in overrides):
        raise ConfigError(f'overrides are {overrides!r}; expected texts such as "train=[reader=[maxErrors=5]]"')
    if not isinstance(section, str | Sequence | None):
        raise ConfigError(f'section is {section!r}; expected a path such as "train/reader"', key="section")
    # Only a text may name several files, as CNTK's argument does; a `Path` is a single file.
    with _opened(_files(name) if isinstance(path, str) else [name], overrides) as top:
        return read_section(top, section)


def _files(path: str) -> list[str]:
    """Return the files that a plus sign separates, as in CNTK's argument, unless a file has the whole name."""
    return [path] if os.path.exists(path) else path.split("+")  # noqa: PTH110


@contextlib.contextmanager
def _opened(paths: Sequence[str], overrides: Sequence[str]) -> Iterator[Section]:
    """Yield the global section of a configuration, and warn afterwards of overrides that nothing in the block used.

    An error names the kind of a file that is not a configuration.
    """
    arguments = [*(f"configFile={path}" for path in paths), *overrides]
    try:
        top = configuration(arguments)
        yield top
    except ConfigError as error:
        # Changed in place, so that the error keeps its key, path and line.
        error.args = (f"{error}{next(filter(None, (other_than('configuration', path) for path in paths)), '')}",)
        raise
    # Not after an error: reading ended early, so nothing has used most of the arguments.
    warn_of_unused(top, arguments)


def read_section(top: Section, section: str | Sequence[str] | None = None, *, in_action: bool = False) -> ReaderConfig:
    """Return the meaning of a reader of a configuration. `section` is as for `read_config`.

    With `in_action`, a reader that the call names itself is read as the action around it reads it.
    """
    reader, around = _find_reader(top, section)
    if in_action and around is None:
        around = _around(reader)
    action, level = "" if around is None else _action_of(around), 1
    with contextlib.suppress(ConfigError):  # the error is raised where the value is needed
        level = keys.TRACE_LEVEL.of(reader)
    with reader.shared.reading(level):
        return _read(reader, action)


class Attempt(NamedTuple):
    """A reader, or the reason why it cannot be read; and the path of its section, or of the section of its action."""

    section: str
    config: ReaderConfig | None
    error: ConfigError | None = None


def attempts(path: str | os.PathLike[str], arguments: Sequence[str]) -> tuple[list[Attempt], str]:
    """Try to read the readers of a configuration that arguments of the command line name.

    Each reader is read as the action around it reads it, even if an argument names the reader itself.

    Args:
        path: The configuration; or several with a plus sign between them, if no file has the whole name.
        arguments: ``key=value`` overrides; an argument without ``=`` names a section. Without a section all readers of
            all actions are read, ``cvReader`` included; if no action has one, all sections with readers.

    Returns:
        The attempts, and the reason why these are all sections that have readers, since nothing says which of them to
        use; empty: the arguments or the actions say it.
    """
    sections = [argument for argument in arguments if "=" not in argument]
    overrides = [argument for argument in arguments if "=" in argument]
    name, why_all = os.fspath(path), ""
    with _opened(_files(name), overrides) as top:
        asked = sections or readers_of(top) or (["reader"] if top.has("reader", own=True) else [])
        if not asked:
            asked, actions = with_readers(top), ", ".join(map(repr, _actions_of(top)))
            why_all = f"no section that 'command' names ({actions}) has a reader"
            if not top.has("command"):
                why_all = f"the file has no 'command', and no section {actions} with a reader"
        if not asked:
            expected = "train = [ reader = [ file = ... ] ] or similar, perhaps in a file that includes this file"
            raise ConfigError(f"{name}: no section has a reader; expected {expected}", path=name)
        found = []
        for section in asked:
            try:
                found.append(Attempt(section, read_section(top, section, in_action=True)))
            except ConfigError as error:
                # A reader that is refused must not hide the others.
                found.append(Attempt(section, None, error))
        return found, why_all


def readers_asked_for(path: str | os.PathLike[str], arguments: Sequence[str]) -> list[ReaderConfig]:
    """Return the readers of a configuration that arguments of the command line name, as for `attempts`.

    Raises:
        ConfigError: Nothing says which of the readers to use, or one cannot be read.
    """
    found, why_all = attempts(path, arguments)
    if why_all:
        sections = ", ".join(attempt.section for attempt in found)
        raise ConfigError(f"{os.fspath(path)}: {why_all}; name a section as an argument: {sections}")
    for attempt in found:
        if attempt.error is not None:
            raise attempt.error
    return [attempt.config for attempt in found if attempt.config is not None]


def in_files(path: str, options: ReadingOptions) -> list[CorpusInFiles]:
    """Return the readers of a configuration as the verbs read them (see `cntkio.formats.contract`)."""
    forgives = options.get("max_errors") == -1
    return [
        CorpusInFiles(
            deserializers=[(_forgiving(call) if forgives else call)() for call in reader.calls],
            section=reader.section,
            forgives_errors=forgives,
            located=reader.located,
        )
        for reader in readers_asked_for(path, [])
    ]


def _forgiving(call: Call) -> Call:
    # Of the deserializers in configurations, only that of texts forgives errors itself.
    if call.target is not CTFDeserializer:
        return call
    return dataclasses.replace(call, keywords=tuple({**dict(call.keywords), "max_errors": -1}.items()))


def readers_of(top: Section) -> list[str]:
    """Return the paths of the reader sections that a configuration's actions use, in order.

    Example:
        >>> readers_of(configuration(["command = A:B ; A = [ reader=[] ; cvReader=[] ] ; B = [ x ] ; reader=[]"]))
        ['A/reader', 'A/cvReader', 'B/reader']
    """
    paths = []
    for name in _actions_of(top):
        if top.has(name, own=True):
            action = top.section(name, own=True)
            # Not only an action's own readers: a reader at the top level serves all actions.
            paths += [f"{name}/{key}" for key in ("reader", "cvReader") if action.has(key)]
    return paths


def _find_reader(top: Section, asked: str | Sequence[str] | None) -> tuple[Section, Section | None]:
    """Find a reader's section and, if the call names an action, the action's section."""
    if asked is None:
        actions = _actions_of(top)
        names = [name for name in actions if top.has(name, own=True)]
        # A file may consist of a reader alone. If it has neither, the error names the first action.
        if not names and top.has("reader", own=True):
            names = ["reader"]
        asked = (names or actions)[:1]
    section = top
    for name in asked.split("/") if isinstance(asked, str) else asked:
        section = _inner(section, name, top)
    # CNTK lets the caller choose the name of a reader's section; `reader` and `cvReader` are usual.
    own = {folded_key(key) for key in section.keys}
    looks_like_a_reader = "reader" not in own and not own.isdisjoint({"readertype", "deserializers", "input"})
    if folded_key(section.name).endswith("reader") or looks_like_a_reader:
        return section, None
    return _inner(section, "reader", top), section


def _inner(section: Section, name: str, top: Section) -> Section:
    """Return a section of a section. If it is missing, raise an error that lists the sections that have readers."""
    if not section.has(name):
        readers = ", ".join(with_readers(top)) or "none; expected a section such as train = [ reader = [ file = ... ] ]"
        hint = did_you_mean(name, section.keys)
        raise section.error(name, f"there is no section {name!r}{hint}; sections with readers: {readers}")
    return section.section(name)


def with_readers(top: Section) -> list[str]:
    """Return the names of the sections that have readers, or are readers."""
    names = []
    for entry in top.entries:
        # An entry that is not a section, or that cannot be read, has no readers to list.
        with contextlib.suppress(ConfigError):
            inner = top.section(entry.key, own=True)
            if any(folded_key(key).endswith("reader") for key in [entry.key, *inner.keys]):
                names.append(entry.key)
    return names


def _actions_of(top: Section) -> tuple[str, ...]:
    """Return the names of the sections that ``command`` runs, by default ``train``."""
    return top.texts("command", ("train",))


def _around(reader: Section) -> Section | None:
    """Return the section of the action around a reader. The global section, which has no parent, is not an action."""
    return None if reader.parent is None or reader.parent.parent is None else reader.parent


def _action_of(section: Section) -> str:
    """Return the kind of an action's section, such as ``"test"``."""
    actions = section.texts("action", ("train",))
    return folded_key(actions[0]) if actions else "train"


# -------------------------------------------------------------------------------------------------------- any reader


def _read(section: Section, action: str) -> ReaderConfig:
    """Return the meaning of a reader when an action uses it; action "": as it is written."""
    section.shared.places.clear()
    kind, around = _kind_of(section), _around(section)
    precision = section.word("precision", "float", keys.PRECISIONS)
    deserializers.warn_of_no_effect(section, keys.READER_WITHOUT_EFFECT[kind])
    # HTKMLFReader depends on the action around it even if the call names the reader itself.
    if kind == "HTKMLFReader" and not action and around is not None:
        action = _action_of(around)
    config = _READ[kind](Asked(section, kind, action, precision))
    if section.has(keys.TRACE_LEVEL.key):
        level = keys.TRACE_LEVEL.of(section)
    else:  # each deserializer may have a trace level of its own, but a source has a single one
        level = max(call.trace_level for call in config.calls)
    # Reading the section has filled `places`, so this comes after it.
    places = {**section.shared.places, "": section.position}
    config = dataclasses.replace(config, trace_level=max(level, 0), places=places)
    if around is not None:
        config = _with_sizes(config, around, action)
    for call in config.calls:
        with contextlib.suppress(OSError), calling(words=CONFIGURATION):  # `ReaderConfig.open` reports files
            try:
                # Made only for its checks: while `section` is at hand, an error can name the key and its line.
                call()
            except ConfigError as error:
                raise section.error(error.key or section.name, str(error)) from error
    return config


def _kind_of(section: Section) -> Kind:
    # CNTK's old way to combine readers: names of sections, each with a `readerType` of its own.
    if section.has("readers"):
        raise section.error("readers", "several readers in one section are not supported; use deserializers = ( ... )")
    has_deserializers = section.has("deserializers")
    name = section.text("readerType", "" if has_deserializers else "CNTKTextFormatReader")
    if not name:
        return "composite"
    kind = keys.READERS.get(name)
    if kind is None:
        deserializers.refuse_kind(section, "readerType", name, keys.READERS)
    if has_deserializers and kind != "composite":
        raise section.error("readerType", f"readerType = {name!r} and deserializers exclude each other")
    return kind


def _with_sizes(config: ReaderConfig, around: Section, action: str) -> ReaderConfig:
    """Take minibatch and epoch sizes from the section of the action around a reader."""
    # A reader that is read as it is written still has the sizes of the action around it.
    action = action or _action_of(around)
    max_epochs: int | None
    if action in ("train", "adapt", ""):
        sgd = around.value("SGD")
        if sgd is None or not sgd.is_section:
            return config
        section, default = around.section("SGD"), 256
        max_epochs = section.size("maxEpochs") if section.has("maxEpochs") else None
    else:
        section, default = around, 2048 if action == "write" else 40960
        max_epochs = 1
    sizes = section.integers("minibatchSize", (default,)) or (default,)
    if min(sizes) < 1:
        raise section.error("minibatchSize", f"minibatchSize holds {min(sizes)}; expected at least 1")
    epoch_size = section.size("epochSize", 0)
    return dataclasses.replace(config, minibatch_sizes=sizes, epoch_size=epoch_size, max_epochs=max_epochs)


def _packing(section: Section, frame_mode: keys.ConfigOption[bool], *, is_write: bool, hint: str = "") -> Packing:
    """Return the packing of a reader that also has ``truncated``. An action that writes needs whole sequences."""
    has_frames, is_truncated = frame_mode.of(section), keys.TRUNCATED.of(section)
    if is_write:
        return "sequence"
    if has_frames and is_truncated:
        raise section.error("truncated", f"truncated and frameMode exclude each other{hint}")
    return "frame" if has_frames else "truncated" if is_truncated else "sequence"


def _warn_of_truncation(section: Section, packing: Packing) -> None:
    for option in (keys.TRUNCATION_LENGTH, keys.RIGHT_SPLICE):
        if packing != "truncated" and section.has(option.key, own=True) and option.of(section):
            section.warn(option.key, f"{option.key} has no effect without truncated = true")


def _is_randomized(asked: Asked) -> bool:
    section = asked.section
    if asked.reads_in_order():
        return False
    text = section.text("randomize", "true")
    if text.lower() == "none":
        return False
    try:
        return truth(text)
    except ValueError:
        raise section.error("randomize", f"randomize = {text!r} is not a boolean (true, false or none)") from None


def _window_size(section: Section, *, own: bool = False) -> int | None:
    # 'default' means that the key is absent, but `Section.size` would refuse it without a default.
    if not section.has("randomizationWindow", own=own) or section.text("randomizationWindow", "") == "default":
        return None
    return section.size("randomizationWindow")


# --------------------------------------------------------------------------------------------------- text and binary


def _text_reader(asked: Asked) -> ReaderConfig:
    section = asked.section
    call = deserializers.text_deserializer(section, asked, keys.TEXT_READER)
    window = partial(timeline.classic_text_window, chunk_size_in_bytes=deserializers.chunk_size_of(section))
    return _classic_reader(asked, call, window, packing="frame" if keys.FRAME_MODE.of(section) else "sequence")


def _binary_reader(asked: Asked) -> ReaderConfig:
    call = deserializers.binary_deserializer(asked.section, asked, keys.BINARY_READER)
    return _classic_reader(asked, call, timeline.classic_binary_window)


def _classic_reader(
    asked: Asked, call: Call, window: Callable[..., Window | None], packing: Packing = "sequence"
) -> ReaderConfig:
    section, is_randomized, found = asked.section, _is_randomized(asked), None
    if is_randomized:
        is_sample_based = section.boolean("sampleBasedRandomizationWindow", False)
        found = window(_window_size(section), is_sample_based=is_sample_based)
    keeps_data = keys.KEEP_DATA.of(section)
    return asked.config([call], found, has_seed=is_randomized, packing=packing, keep_data_in_memory=keeps_data)


# ---------------------------------------------------------------------------------------------------------------- HTK

_FRAME_MODE_HINT = "; frameMode is true by default here"


def _htk_reader(asked: Asked) -> ReaderConfig:
    section = asked.section
    method: ReadMethod = section.word("readMethod", "blockRandomize", ("blockRandomize", "none"))
    if asked.is_write() and method != "none":
        raise section.error("readMethod", f"readMethod = {method} with action = write; expected readMethod = none")
    packing, calls, window, counts = _of_htk(asked, method, is_old=False)
    keys.MINIBATCH_MODE.of(section)  # only a check
    length = keys.TRUNCATION_LENGTH.of(section) if packing == "truncated" else 0
    _warn_of_truncation(section, packing)
    if counts != keys.COUNTS.default and (length or packing != "truncated"):
        message = f"{keys.COUNTS.key} has an effect only with truncated and without truncationLength"
        section.warn(keys.COUNTS.key, message)
    return asked.config(
        calls, window, has_seed=window is not None, packing=packing, truncation_length=length,
        utterances_per_minibatch=counts, keep_data_in_memory=keys.KEEP_DATA.of(section),
    )  # fmt: skip


def _old_htk_reader(asked: Asked) -> ReaderConfig:
    section = asked.section
    methods: tuple[ReadMethod, ...] = ("blockRandomize", "rollingWindow", "none")
    method = section.word("readMethod", "blockRandomize", methods)
    packing, calls, window, counts = _of_htk(asked, method, is_old=True)
    mode = keys.MINIBATCH_MODE.of(section)
    # Without a window the reader reads in order, and its method does not matter.
    if method == "rollingWindow" and packing != "frame" and window is not None:
        advice = "whole utterances are shuffled by blockRandomize"
        message = f"readMethod = rollingWindow shuffles frames, but frameMode is false; {advice}"
        raise section.error("readMethod", message)
    if packing == "frame" and max(counts) > 1:
        message = f"{keys.COUNTS.key} = {max(counts)} and frameMode exclude each other{_FRAME_MODE_HINT}"
        raise section.error(keys.COUNTS.key, message)
    if mode == "full" and packing != "frame":
        section.warn(keys.MINIBATCH_MODE.key, "minibatchMode = full has no effect without frameMode")
    longest = keys.MAX_LENGTH.of(section)
    if section.has(keys.MAX_LENGTH.key) and packing != "sequence":
        section.warn(keys.MAX_LENGTH.key, "maxUtteranceLength has an effect only where utterances stay whole")
    if longest < 1:
        raise section.error(keys.MAX_LENGTH.key, f"maxUtteranceLength = {longest}; expected at least 1")
    folder = ""
    if method == "rollingWindow":
        folder = section.optional_file("pageFilePath") or ""
    elif section.has("pageFilePath"):
        section.warn("pageFilePath", "pageFilePath has no effect without readMethod = rollingWindow")
    unigram = section.entry("unigram")
    if unigram is not None and unigram.values[0].is_section:
        raise section.error("unigram", "unigram models, for sequence training, are not supported")
    is_rolling = method == "rollingWindow" and packing == "frame"
    return asked.config(
        calls, window, has_seed=False, packing=packing, minibatch_mode=mode, max_utterance_length=longest,
        utterances_per_minibatch=(1,) if asked.is_write() else counts,
        read_method="rollingWindow" if is_rolling else "blockRandomize",
        page_file_path=folder if is_rolling else "",
    )  # fmt: skip


def _of_htk(
    asked: Asked, method: ReadMethod, *, is_old: bool
) -> tuple[Packing, list[Call], Window | None, tuple[int, ...]]:
    """Return what both readers of HTK have: packing, deserializers, window, parallel utterances."""
    section, is_write = asked.section, is_old and asked.is_write()
    packing = _packing(section, keys.HTK_FRAME_MODE, is_write=is_write, hint=_FRAME_MODE_HINT)
    calls = deserializers.stream_deserializers(dataclasses.replace(asked, frame_mode=packing == "frame"))
    window = _htk_window(asked, method, is_old=is_old)
    counts = keys.COUNTS.of(section) or keys.COUNTS.default
    if min(counts) < 1:
        raise section.error(keys.COUNTS.key, f"{keys.COUNTS.key} holds {min(counts)}; expected at least 1")
    return packing, calls, window, counts


def _htk_window(asked: Asked, method: ReadMethod, *, is_old: bool) -> Window | None:
    """Return the window of a reader of HTK.

    The old HTKMLFReader also accepts truth values. With False it reads in order, whatever its ``readMethod`` is.
    """
    section = asked.section
    if asked.is_write() or method == "none" or asked.reads_in_order():
        return None
    text = section.text("randomize", "auto")
    if text.lower() == "auto":
        return timeline.classic_htk_window("auto")
    # 0 and 1 are truth values, too, but here every number is a size.
    if is_old and not text.isdecimal():
        with contextlib.suppress(ValueError):
            return timeline.classic_htk_window("auto") if text and truth(text) else None
    size = 0 if text.lower() == "none" else section.size("randomize")
    if size:
        return timeline.classic_htk_window(size)
    if not is_old:
        advice = "to read in order write readMethod = none"
        raise section.error("randomize", f"randomize = {text!r} with readMethod = blockRandomize; {advice}")
    return None


# ---------------------------------------------------------------------------------------------------------- composite


def _composite_reader(asked: Asked) -> ReaderConfig:
    section = asked.section
    deserializers.warn_of_unknown_keys(section, keys.COMPOSITE_READER)
    is_write = asked.is_write()
    packing = _packing(section, keys.FRAME_MODE, is_write=is_write)
    length = splice = 0
    if packing == "truncated":
        length, splice = keys.TRUNCATION_LENGTH.of(section), keys.RIGHT_SPLICE.of(section)
        if not length:
            raise section.error("truncationLength", "truncationLength is required with truncated, and above 0")
        if splice >= length:
            message = f"rightSplice = {splice}; expected less than truncationLength = {length}"
            raise section.error("rightSplice", message)
    _warn_of_truncation(section, packing)
    calls = deserializers.composite_deserializers(dataclasses.replace(asked, frame_mode=packing == "frame"))
    # In CNTK the default of `useNumericSequenceKeys` depends on whether a deserializer of HTK is in the list.
    has_text_keys = any(keys.has_text_keys(call.target) for call in calls)
    without_effect = keys.TEXT_KEYS_WITHOUT_EFFECT if has_text_keys else keys.NUMERIC_KEYS_WITHOUT_EFFECT
    deserializers.warn_of_no_effect(section, without_effect)
    window, is_randomized = None, _is_randomized(asked) and not is_write
    if is_randomized:
        window = _composite_window(section, has_text_format=any(call.target is CTFDeserializer for call in calls))
    return asked.config(
        calls, window, has_seed=is_randomized, packing=packing, truncation_length=length, right_splice=splice,
        local_timeline=keys.LOCAL_TIMELINE.of(section), max_errors=keys.MAX_ERRORS.of(section),
        keep_data_in_memory=any(map(keys.KEEP_DATA.of, (section, *section.sections("deserializers")))),
    )  # fmt: skip


def _composite_window(section: Section, *, has_text_format: bool) -> Window | None:
    # With a text format, CNTK takes a window only from the reader's own section; otherwise its default applies.
    size = _window_size(section, own=has_text_format)
    key = "sampleBasedRandomizationWindow"
    is_sample_based = section.boolean(key, True) if section.has(key) else None
    if size is not None:
        return timeline.composite_window(size, is_sample_based=is_sample_based, has_text_format=has_text_format)
    if not has_text_format:
        return timeline.composite_window(has_text_format=False)
    # An error in CNTK, although its documentation says that the window is then the whole data set.
    if is_sample_based and section.has(key, own=True):
        return WHOLE_DATA
    # CNTK uses the chunk size of the reader's section, not that of the deserializer.
    return timeline.composite_window(chunk_size_in_bytes=deserializers.chunk_size_of(section), has_text_format=True)


_READ: dict[Kind, Callable[[Asked], ReaderConfig]] = {
    "CNTKTextFormatReader": _text_reader,
    "CNTKBinaryReader": _binary_reader,
    "HTKMLFReader": _old_htk_reader,
    "HTKDeserializers": _htk_reader,
    "composite": _composite_reader,
}

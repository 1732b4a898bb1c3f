"""Streams: the request of a user (`StreamDef`), and the description by a source (`StreamInformation`).

Names, arguments and record keys are as in CNTK 2.7 (docs/timeline.md, "Python interface").
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, Self

import numpy as np
import numpy.typing as npt

from cntkio.arguments import check_word, did_you_mean, flag, sizes, suggests_keywords, there_are, whole_number
from cntkio.displays import Description, counted, shape_text
from cntkio.errors import ConfigError

StorageFormat = Literal["dense", "sparse"]
LARGEST_DIM = 2**31 - 1
"""Largest dimension of a stream."""
DEFAULT_MAX_SEQUENCE_LENGTH = 65535
"""Default `max_sequence_length` of a `StreamDef`. CNTK 2.7 ignores it, so it is not a limit."""
NUMBER_TYPES = tuple(map(np.dtype, ("float32", "float64", "int32", "int64")))
"""Types of values. The core knows them by their index."""
_ARGUMENT_OF = {"stream_alias": "field", "dim": "shape"}
"""Arguments of `StreamDef` whose names differ from CNTK's keys, by key. They come first in the text of a stream."""


class Record(dict[str, Any]):
    """An immutable mapping whose items are attributes too.

    Example:
        >>> Record(a=1).a
        1
        >>> Record(a=1).b
        Traceback (most recent call last):
        AttributeError: record has no attribute 'b'; it has: a
        >>> Record(a=1).updated_with(b=2)
        Record(a=1, b=2)
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = f"it has: {', '.join(self) or 'none'}{did_you_mean(name, self)}"
            raise AttributeError(f"record has no attribute {name!r}; {known}") from None

    def __missing__(self, name: object) -> Any:
        raise KeyError(f"no {name!r}{there_are(name, self)}")

    def updated_with(self, **items: Any) -> Self:
        """Return a copy with items added or replaced."""
        return type(self)({**self, **items})

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise AttributeError("record is immutable")

    # Also the methods of `dict`, which do not call `__setitem__`.
    __setattr__ = __delattr__ = __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would set the items of a dict one by one, which a record refuses.
        return (type(self), (dict(self),))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        """Return the call that makes this record."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.items())})"


class StreamDefs(Record):
    """The streams of a deserializer, by name; mappings with keys or arguments of a `StreamDef` are converted to it.

    Example:
        >>> streams = StreamDefs(features=StreamDef(field="x", shape=784), labels=StreamDef(field="y", shape=10))
        >>> streams.features.dim
        784
        >>> streams
        StreamDefs(features=StreamDef(field='x', shape=784), labels=StreamDef(field='y', shape=10))
    """

    def __init__(self, *arguments: Any, **streams: Any) -> None:
        try:
            super().__init__(*arguments, **streams)
        except (TypeError, ValueError):
            raise _not_streams(arguments[0] if len(arguments) == 1 else arguments) from None
        for name, stream in self.items():
            if not isinstance(stream, Mapping):
                if "stream_alias" in self:  # a single StreamDef
                    raise _not_streams(arguments[0] if arguments else dict(self))
                expected = f"{name}=StreamDef(field=..., shape=...)"
                raise ConfigError(f"stream {name!r} is {stream!r}; expected StreamDefs({expected})", key=name)
            dict.__setitem__(self, name, StreamDef().updated_with(**stream))  # keys, or names of arguments

    def __repr__(self) -> str:
        return f"StreamDefs({', '.join(arguments_of(self))})"

    def _repr_html_(self) -> str:
        return described_streams(f"StreamDefs: {counted(len(self), 'stream')}", self).html()


def arguments_of(streams: StreamDefs) -> list[str]:
    """Return the texts of the arguments that make `StreamDefs`."""
    # A stream named self would be the first parameter of the constructor.
    if all(name.isidentifier() and name != "self" for name in streams):
        return [f"{name}={stream!r}" for name, stream in streams.items()]
    return [repr(dict(streams))]


def described_streams(title: str, streams: Mapping[str, Any]) -> Description:
    """Return a table of the streams of a deserializer."""
    return Description(title, ("stream", "definition"), [[name, repr(stream)] for name, stream in streams.items()])


def _not_streams(found: Any) -> ConfigError:
    expected = "expected StreamDefs(name=StreamDef(field=..., shape=...)), with a name for each stream"
    return ConfigError(f"streams is {found!r}; {expected}", key="streams")


@suggests_keywords
@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class StreamDef(Mapping[str, Any]):
    """A stream of a deserializer: a mapping with CNTK's keys, which are attributes too.

    The keys are ``stream_alias`` (the field), ``is_sparse``, ``defines_mb_size``, ``max_sequence_length`` and, where
    given, ``dim`` (the shape), ``transforms``, ``context``, ``scp``, ``mlf`` and ``broadcast``. The attribute of a
    missing key is None. A stream is equal to each mapping with the same items, and hashable if its values are.

    Args:
        field: Its name in the file (the alias).
        shape: Number of values of a sample, or the bound of its indices; or a tuple of sizes.
        is_sparse: True if samples are lists of index and value.
        transforms: Image transforms; they have no effect.
        context: Frames to the left and to the right of each frame (HTK features).
        scp: List files of HTK features.
        mlf: HTK label files; makes the stream sparse.
        broadcast: True if one frame stands for a whole sequence (HTK features).
        defines_mb_size: True if minibatch sizes count the samples of this stream.
        max_sequence_length: Longer utterances are left out (HTK features); it has no effect elsewhere.

    Raises:
        ConfigError: `shape` is not a whole number or a tuple of whole numbers, or another argument has a wrong type.

    Example:
        >>> stream = StreamDef(field="x", shape=3)
        >>> stream.stream_alias, stream["dim"], stream.scp, "scp" in stream
        ('x', 3, None, False)
    """

    stream_alias: str | None
    is_sparse: bool
    defines_mb_size: bool
    max_sequence_length: int
    dim: int | tuple[int, ...] | None = None
    transforms: Any = None
    context: tuple[int, int] | None = None
    scp: Any = None
    mlf: Any = None
    broadcast: bool | None = None

    def __init__(
        self,
        field: str | None = None,
        shape: int | tuple[int, ...] | None = None,
        is_sparse: bool = False,
        transforms: Any = None,
        context: tuple[int, int] | None = None,
        scp: Any = None,
        mlf: Any = None,
        broadcast: bool | None = None,
        defines_mb_size: bool = False,
        max_sequence_length: int = DEFAULT_MAX_SEQUENCE_LENGTH,
    ) -> None:
        if field is not None and not isinstance(field, str):
            raise ConfigError(f"field is {field!r}; expected a text: the stream's name in the file", key="field")
        optional = {
            "dim": None if shape is None else _checked_shape(shape), "transforms": transforms, "context": context,
            "scp": scp, "mlf": mlf, "broadcast": None if broadcast is None else flag("broadcast", broadcast),
        }  # fmt: skip
        vars(self).update(  # the items: the attribute of a key that was not given is the class's None
            stream_alias=field,
            # Labels are classes, which are sparse in CNTK, whatever `is_sparse` is.
            is_sparse=flag("is_sparse", is_sparse) or mlf is not None,
            defines_mb_size=flag("defines_mb_size", defines_mb_size),
            max_sequence_length=whole_number("max_sequence_length", max_sequence_length),
            **{key: value for key, value in optional.items() if value is not None},
        )

    def __getitem__(self, key: str) -> Any:
        if key in vars(self):
            return vars(self)[key]
        raise KeyError(f"no {key!r}{there_are(key, self)}")

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        """Return the call that makes this stream."""
        items = non_default_items(self)
        if self.mlf is not None:  # makes the stream sparse
            items.pop("is_sparse", None)
        keys = sorted(items, key=lambda key: key not in _ARGUMENT_OF)
        return f"StreamDef({', '.join(f'{_ARGUMENT_OF.get(key, key)}={items[key]!r}' for key in keys)})"

    def updated_with(self, **items: Any) -> StreamDef:
        """Return a copy with items added or replaced.

        Example:
            >>> StreamDef(field="x", shape=3).updated_with(dim=4)
            StreamDef(field='x', shape=4)
        """
        return StreamDef(**{_ARGUMENT_OF.get(key, key): value for key, value in {**self, **items}.items()})


def non_default_items(stream: StreamDef) -> dict[str, Any]:
    """Return the items of a stream that are not the defaults.

    Example:
        >>> non_default_items(StreamDef(field="x", is_sparse=True))
        {'stream_alias': 'x', 'is_sparse': True}
    """
    default = StreamDef()
    return {key: value for key, value in stream.items() if value != default.get(key)}


def _checked_shape(shape: Any) -> int | tuple[int, ...]:
    checked = sizes("shape", shape)
    if not checked:
        raise ConfigError("shape is empty; expected a whole number, or a tuple of at least one", key="shape")
    # A number stays a number, as CNTK's key `dim` shows it.
    return checked[0] if isinstance(shape, int | np.integer) else checked


def storage_format(is_sparse: bool) -> StorageFormat:
    """Return the form of samples."""
    return "sparse" if is_sparse else "dense"


def cntk_name(attribute: str) -> property:
    """Return a property that has CNTK's name, and the value of an attribute."""
    return property(operator.attrgetter(attribute), doc=f"CNTK's name for `{attribute}`.")


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class StreamConfiguration:
    """A stream of a text corpus, in CNTK's older form; `as_stream_def` converts it to a `StreamDef`.

    Attributes:
        name: The stream's name in Python.
        dim: Number of values of a sample, or the bound of its indices.
        is_sparse: True if samples are lists of index and value.
        stream_alias: Its name in the file; empty: the same.
        defines_mb_size: True if minibatch sizes count the samples of this stream.

    Example:
        >>> words = StreamConfiguration("words", 1323, is_sparse=True, stream_alias="w")
        >>> StreamDefs({words.name: words.as_stream_def()}).words.stream_alias
        'w'
    """

    name: str
    dim: int
    is_sparse: bool = False
    stream_alias: str = ""
    defines_mb_size: bool = False

    m_stream_name = cntk_name("name")
    m_dim = cntk_name("dim")
    m_is_sparse = cntk_name("is_sparse")
    m_stream_alias = cntk_name("stream_alias")
    m_defines_mb_size = cntk_name("defines_mb_size")

    def as_stream_def(self) -> StreamDef:
        """Return the stream as a `StreamDef`."""
        field, definer = self.stream_alias or self.name, self.defines_mb_size
        return StreamDef(field=field, shape=self.dim, is_sparse=self.is_sparse, defines_mb_size=definer)


@dataclasses.dataclass(frozen=True, init=False)
class StreamInformation:
    """Description of a stream by its source; hashable, and equal if all attributes are equal.

    Attributes:
        name: The stream's name in Python.
        stream_id: Its index in its source.
        storage_format: ``"dense"`` or ``"sparse"``.
        dtype: Type of the values: float32 or float64; also int32 or int64, except in CNTK's formats.
        shape: Shape of a sample.
        defines_mb_size: True if minibatch sizes count the samples of this stream.

    Example:
        >>> StreamInformation("x", 0, "dense", np.float32, (3,)).m_sample_layout
        (3,)
    """

    name: str
    stream_id: int
    storage_format: StorageFormat
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    defines_mb_size: bool = False

    def __init__(
        self,
        name: str,
        stream_id: int,
        storage_format: StorageFormat,
        dtype: npt.DTypeLike,
        shape: int | Iterable[int],
        defines_mb_size: bool = False,
    ) -> None:
        check_word("storage_format", storage_format, "dense", "sparse")
        try:
            dtype = np.dtype(dtype)
        except TypeError:
            raise ConfigError(f"dtype is {dtype!r}; expected a type of NumPy, such as float32", key="dtype") from None
        values = (name, stream_id, storage_format, dtype, sizes("shape", shape), bool(defines_mb_size))
        fields = [field.name for field in dataclasses.fields(self)]
        self.__setstate__(dict(zip(fields, values, strict=True)))

    def __hash__(self) -> int:
        """Return the stored hash: programs look up streams in every minibatch."""
        stored: int = self.__dict__["_hash"]
        return stored

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hash, which differs between processes."""
        return {key: value for key, value in self.__dict__.items() if key != "_hash"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The hash of a text differs from process to process.
        vars(self).update(state, _hash=hash(tuple(state.values())))

    @property
    def is_sparse(self) -> bool:
        """True if samples are lists of index and value."""
        return self.storage_format == "sparse"

    @property
    def are_class_ids(self) -> bool:
        """True if values are the classes of one-hot samples: int32 without a dimension, as `ids` of readers makes."""
        return self.dtype == np.int32 and not self.shape

    @property
    def m_is_binary(self) -> bool:
        """False, as for every stream of CNTK's deserializers."""
        return False

    @property
    def form(self) -> str:
        """The samples in a few words, such as ``"dense float32 [2, 3]"``."""
        return f"{self.storage_format} {self.dtype} {shape_text(self.shape)}"

    @property
    def dim(self) -> int:
        """Number of values of a sample, or the bound of its indices."""
        return math.prod(self.shape)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """CNTK's name for `shape`."""
        return self.shape

    m_name = cntk_name("name")
    m_id = cntk_name("stream_id")
    m_storage_format = cntk_name("storage_format")
    m_element_type = cntk_name("dtype")
    m_sample_layout = cntk_name("shape")
    m_defines_mb_size = cntk_name("defines_mb_size")


def num_values(shape: int | Iterable[int]) -> int:
    """Return the number of values of a sample of this shape.

    Example:
        >>> num_values(5), num_values((2, 3))
        (5, 6)
    """
    checked = _checked_shape(shape)
    return checked if isinstance(checked, int) else math.prod(checked)


def places_among(expected: Sequence[StreamInformation], streams: Sequence[StreamInformation]) -> list[int] | None:
    """Return where each expected stream is among some streams, in any order; None: they are not the same streams.

    Example:
        >>> x, y = (StreamInformation(name, place, "dense", np.float32, (1,)) for place, name in enumerate("xy"))
        >>> places_among([x, y], [y, x]), places_among([x], [y])
        ([1, 0], None)
    """
    places = {info.name: place for place, info in enumerate(streams)}
    are_same = len(streams) == len(expected) and all(
        info.name in places and dataclasses.replace(streams[places[info.name]], stream_id=info.stream_id) == info
        for info in expected
    )
    return [places[info.name] for info in expected] if are_same else None


def check_definers(names: Sequence[str], where: str = "") -> None:
    """Check that at most one stream defines the minibatch size.

    Args:
        where: Beginning of the message.

    Example:
        >>> check_definers(["x", "y"], "a.ctf: ")
        Traceback (most recent call last):
        cntkio.errors.ConfigError: a.ctf: only a single stream may define the minibatch size, but these do: 'x', 'y'
    """
    if len(names) > 1:
        what = f"only a single stream may define the minibatch size, but these do: {', '.join(map(repr, names))}"
        raise ConfigError(where + what, key="defines_mb_size")


def named(streams: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the items of the streams in the order in which streams are numbered: by name, case ignored."""
    return sorted(streams.items(), key=lambda item: (item[0].lower(), item[0]))


class StreamsByName:
    """Base of sources: their streams, by name."""

    def stream_infos(self) -> Sequence[StreamInformation]:
        """Return the streams."""
        raise NotImplementedError(f"{type(self).__name__}.stream_infos")

    @property
    def streams(self) -> Record:
        """The streams by name, as attributes and as items."""
        return Record({info.name: info for info in self.stream_infos()})

    def stream_info(self, name: str) -> StreamInformation:
        """Return the stream of that name.

        Raises:
            ConfigError: No stream has that name.
        """
        infos = self.stream_infos()
        for info in infos:
            if info.name == name:
                return info
        raise ConfigError(f"no stream has the name {name!r}{there_are(name, [info.name for info in infos])}", key=name)

    def __getitem__(self, name: str) -> StreamInformation:
        """Return the stream of that name."""
        return self.stream_info(name)

    # With `__getitem__` alone, Python would iterate with the numbers 0, 1, 2 as names.
    def __iter__(self) -> NoReturn:
        loop = "`while minibatch := source.next_minibatch(size):`"
        raise TypeError(
            f"a {type(self).__name__} does not know the size of minibatches; write {loop}; for PyTorch, write "
            "DataLoader(MinibatchDataset(source, size), batch_size=None)"
        )

    __len__ = __iter__

    # Without this, the truth of a source would be asked of `__len__`, which raises an error.
    def __bool__(self) -> bool:
        return True

    def _ipython_key_completions_(self) -> list[str]:
        return [info.name for info in self.stream_infos()]


def packed_columns(streams: Iterable[StreamInformation]) -> list[tuple[int, bool, int]]:
    """Return for each column of chunks its index, whether it is sparse, and the type of its values as a number."""
    return [(column, info.is_sparse, NUMBER_TYPES.index(info.dtype)) for column, info in enumerate(streams)]

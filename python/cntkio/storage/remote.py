"""Options for corpora in remote stores (docs/remote-stores.md, "Remote stores"), and identities of objects.

An identity is a hash, under which caches keep an object's bytes, of all that decides which bytes a name stands for: the
kind of the store, its options, and the whole path or URL. It leaves out what only grants access, namely keys, passwords
and signatures, so that caches survive new credentials. If in doubt, two objects have different identities, which costs
only time. (docs/remote-stores.md, "Cache on a local disk")
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from cntkio._threads import ForkLock
from cntkio.arguments import caller, suggests_keywords
from cntkio.errors import ConfigError

_WITH_USERS = r"(?:^|(?<=::))(?:https?|ftps?|sftp|ssh|smb|hdfs|webhdfs|webdavs?|davs?)://"
_PASSWORD = re.compile(rf"({_WITH_USERS}[^/?#:@]*):[^/?#]*(?=@)", re.IGNORECASE)
_QUERY = re.compile(r"((?:^|(?<=::))https?://[^?#]*)\?([^#]*)", re.IGNORECASE | re.DOTALL)
# Parameters that only sign, by the parameters that each query with such a signature has.
_SIGNATURES = {
    ("x-amz-signature",): "x-amz-(algorithm|credential|date|expires|signedheaders|signature|security-token)",
    ("x-goog-signature",): "x-goog-(algorithm|credential|date|expires|signedheaders|signature)",
    ("awsaccesskeyid", "signature"): "awsaccesskeyid|signature|expires|x-amz-security-token",
    ("googleaccessid", "signature"): "googleaccessid|signature|expires",
    ("key-pair-id", "signature"): "key-pair-id|signature|expires|policy",
    ("sig", "sv"): "sig|sv|ss|srt|sp|se|st|spr|sr|sip|skoid|sktid|skt|ske|sks|skv",
}
_OF_ACCOUNT = re.compile(r"\b(AccountKey|SharedAccessSignature)=[^;]*", re.IGNORECASE)
_GRANTS_ACCESS = re.compile(
    r"(\w+_)?(key|key_id|secret|token|password|passwd|passphrase|credentials?|sas|anon)"
    "|anonymous|skip_signature|credential_provider",
    re.IGNORECASE,
)
_ENVIRONMENT = re.compile(r"AWS_PROFILE|(AWS|AZURE|GOOGLE|GCS|STORAGE)_\w*(ENDPOINT|EMULATOR|ACCOUNT_NAME|BASE_URL)\w*")
_IN_MEMORY = re.compile("memory|mock", re.IGNORECASE)
_IS_LOCAL = re.compile('Local|"(file|local)"')
# An object may refer to itself, so descriptions end at this depth.
_DEEPEST = 12


class OwnIdentity:
    """Identity of a store that nothing describes, such as a store in memory. A pickled copy and a fork have another."""

    def __init__(self) -> None:
        self._text = secrets.token_hex(16)

    def __reduce__(self) -> tuple[type[OwnIdentity], tuple[()]]:
        return OwnIdentity, ()

    def __str__(self) -> str:
        return f"{self._text} {os.getpid()}"


OF_PROCESS = OwnIdentity()
"""For stores that a URL names, which are the same in the whole process."""


def identity_of(store: Any, paths: Sequence[str], own: OwnIdentity) -> str:
    """Return the identity of an object: 32 hexadecimal digits.

    Args:
        paths: Its path in the store, and its URL `without_access` if it has one.
        own: The identity of the store if its description does not tell it from all other stores.
    """
    described = json.dumps(_described(store, str(own), _DEEPEST))
    # These variables change which end point or account a name belongs to.
    environment = sorted(item for item in os.environ.items() if _ENVIRONMENT.fullmatch(item[0]))
    folder = os.getcwd() if _IS_LOCAL.search(described) else ""  # noqa: PTH109 - paths may begin in it
    text = json.dumps([described, folder, paths, environment])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def without_access(url: str) -> str:
    """Return a URL without passwords, and without the parts of its query that only sign.

    Example:
        >>> without_access("http://me:secret@host/a?id=1&X-Amz-Date=2&X-Amz-Signature=3")
        'http://me@host/a?id=1'
        >>> without_access("http://host/a?id=1&signature=3"), without_access("http://host/a?sig=4")
        ('http://host/a?id=1&signature=3', 'http://host/a?sig=4')
    """
    return _QUERY.sub(_unsigned, _PASSWORD.sub(r"\1", url))


def _unsigned(found: re.Match[str]) -> str:
    items = found[2].split("&")
    names = [item.partition("=")[0].lower() for item in items]
    signs = [pattern for needed, pattern in _SIGNATURES.items() if set(needed) <= set(names)]
    signing = {name for name in names for sign in signs if re.fullmatch(sign, name)}
    kept = [item for item, name in zip(items, names, strict=True) if name not in signing]
    return f"{found[1]}?{'&'.join(kept)}" if kept else found[1]


def _described(value: Any, own: str, depth: int) -> Any:
    """Return a description of a value for JSON, without what only grants access; `own` for what cannot be described."""
    depth -= 1
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | bytes | os.PathLike):
        text = os.fsdecode(value)
        return own if _IN_MEMORY.fullmatch(text) else [type(value).__name__, _OF_ACCOUNT.sub("", without_access(text))]
    name = getattr(value, "__qualname__", None)
    if name is not None:
        # A local function, or a function of the main program, may be another function in another process.
        return own if "<" in name or value.__module__ == "__main__" else [str(value.__module__), name]
    if depth < 0 or _IN_MEMORY.search(type(value).__name__) or not _is_known(type(value)):
        return own
    if isinstance(value, Mapping):
        items = [[str(key), _described(item, own, depth)] for key, item in value.items()]
        return ["mapping", sorted((item for item in items if not _GRANTS_ACCESS.fullmatch(item[0])), key=itemgetter(0))]
    if isinstance(value, list | tuple):
        return ["sequence", *(_described(item, own, depth) for item in value)]
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # a store of any kind may refuse
        return own
    kind = [type(value).__module__, type(value).__qualname__]
    return own if isinstance(reduced, str) else [*kind, *(_described(part, own, depth) for part in reduced)]


def _is_known(kind: type) -> bool:
    """Return whether a description of an object tells it from all other objects.

    That is so for the values of Python, and for the file systems that fsspec knows, but not for the classes of others,
    whose objects may have data that no argument names.
    """
    library = kind.__module__.partition(".")[0]
    if library in sys.stdlib_module_names or library in ("obstore", "pyarrow"):
        return True
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        return False
    return any(library == str(found["class"]).partition(".")[0] for found in known_implementations.values())


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a `pathlib.Path` turns two slashes into one
REMOTE_NUMBERS = ("num_requests", "num_retries", "timeout_in_seconds")
"""Options that are numbers."""
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_UNITS = " kmgt"


class RequestSlots:
    """Limit on the number of simultaneous requests. A fork has its own slots, all of them free.

    Example:
        >>> with RequestSlots(8):
        ...     pass
    """

    def __init__(self, number: int) -> None:
        self._number, self._lock = number, ForkLock()
        self._free, self._process = threading.Semaphore(number), os.getpid()

    def __reduce__(self) -> tuple[type[RequestSlots], tuple[int]]:
        return RequestSlots, (self._number,)

    def __enter__(self) -> None:
        with self._lock.inner:
            # Slots that the parent's threads held at the fork would never become free.
            if self._process != os.getpid():
                self._free, self._process = threading.Semaphore(self._number), os.getpid()
        self._free.acquire()

    def __exit__(self, *_: object) -> None:
        self._free.release()


@suggests_keywords
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Remote:
    """Options for reading the files of a remote store.

    Args:
        storage_options: Options of fsspec's file system for the scheme, such as credentials and end points. `repr` does
            not show them.
        store: Read from this store instead of the store that the URL names: a store of obstore, a file system of
            pyarrow, or a file system of fsspec. File names are then paths in the store.
        cache: Folder on a local disk that keeps the bytes read, for later sweeps and other processes of this user; "~"
            is your home folder. It also keeps the text of zstd frames that are too large to be read in any order, even
            of local files.
        manifest: The object, as a URL, that ``cntkio index --manifest`` wrote for the files. Opening then asks for
            nothing else. It is read once for each `Remote`. (docs/remote-stores.md)
        cache_limit: Most bytes of the cache, as a number or as a text such as "50 GB"; None: no limit.
        num_requests: Most simultaneous requests, for all files with these options together.
        num_retries: How often a request is repeated after errors that may pass, such as a status of 500, a timeout or
            a broken connection. The default survives an outage of half a minute. Permanent errors, such as a missing
            permission, are raised at once.
        timeout_in_seconds: Longest time of a request. It applies to asynchronous file systems of fsspec, such as those
            for S3, Google, Azure and HTTP; other stores have options of their own.

    Raises:
        ConfigError: An option is not possible.

    Example:
        >>> Remote(cache="~/.cache/corpora", cache_limit="50 GB").cache_limit
        50000000000
    """

    storage_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    store: Any = None
    cache: str | os.PathLike[str] | None = None
    # Its URL may contain a signature.
    manifest: str | os.PathLike[str] | None = dataclasses.field(default=None, repr=False)
    cache_limit: int | str | None = None
    num_requests: int = 8
    num_retries: int = 10
    timeout_in_seconds: float = 60.0
    slots: RequestSlots = dataclasses.field(init=False, compare=False, repr=False)
    own_identity: OwnIdentity = dataclasses.field(init=False, compare=False, repr=False, default_factory=OwnIdentity)

    def __post_init__(self) -> None:
        for name, least in (("num_requests", 1), ("num_retries", 0)):
            number = getattr(self, name)
            if type(number) is not int or number < least:
                raise ConfigError(f"{name} is {number!r}; expected a whole number of at least {least}", key=name)
        timeout = self.timeout_in_seconds
        # `not timeout > 0` refuses NaN, too.
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            what = f"timeout_in_seconds is {timeout!r}; expected a number greater than 0"
            raise ConfigError(what, key="timeout_in_seconds")
        if self.store is not None and self.storage_options:
            raise ConfigError("storage_options and store are both given; expected one of them", key="storage_options")
        if self.cache is not None and _URL.match(os.fsdecode(self.cache)):
            raise ConfigError(f"cache is {self.cache!r}; expected a folder of a local disk", key="cache")
        if self.cache is None and self.cache_limit is not None:
            raise ConfigError("cache_limit is given without cache; expected the folder, too", key="cache_limit")
        for name in ("cache", "manifest"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else os.fsdecode(given))
        object.__setattr__(self, "cache_limit", num_bytes("cache_limit", self.cache_limit))
        object.__setattr__(self, "slots", RequestSlots(self.num_requests))

    def __repr__(self) -> str:
        """Print the options that differ from their defaults; credentials are never shown."""
        fields = ((item.name, getattr(self, item.name), item.default) for item in dataclasses.fields(self) if item.repr)
        shown = (f"{name}={value!r}" for name, value, default in fields if value != default)
        return f"Remote({', '.join(shown)})"


def num_bytes(name: str, value: Any) -> int | None:
    """Return a size in bytes; as a text, it may have a decimal unit (kB, MB, GB, TB) or a binary unit (KiB, MiB, ...).

    Raises:
        ConfigError: The value is not a size.

    Example:
        >>> num_bytes("cache_limit", "1.5 GiB"), num_bytes("cache_limit", "200 MB"), num_bytes("cache_limit", 7)
        (1610612736, 200000000, 7)
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        size = int(float(found[1]) * (1024 if found[3] else 1000) ** _UNITS.index(found[2].lower() or " "))
        if size > 0:
            return size
    raise ConfigError(f'{name} is {value!r}; expected a number of bytes, or a text such as "50 GB"', key=name)


_default = Remote()


def default_remote() -> Remote:
    """Return the options for files that have none. These files share the limit on requests."""
    remote: Remote | None = caller().remote
    return remote or _default

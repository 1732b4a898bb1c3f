"""Identities of remote objects, under which caches keep their bytes.

An identity is a hash of all that decides which bytes a name stands for: the kind of the store, its options, and the
whole path or URL. It leaves out what only grants access, namely keys, passwords and signatures, so that caches survive
new credentials. If in doubt, two objects have different identities, which costs only time.
(docs/where-corpora-can-be.md, "Cache on a local disk")
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

_WITH_USERS = r"(?:^|(?<=::))(?:https?|ftps?|sftp|ssh|smb|hdfs|webhdfs|webdavs?|davs?)://"
_PASSWORD = re.compile(rf"({_WITH_USERS}[^/?#:@]*):[^/?#]*(?=@)", re.IGNORECASE)
_QUERY = re.compile(r"((?:^|(?<=::))https?://[^?#]*)\?([^#]*)", re.IGNORECASE | re.DOTALL)
# Parameters that only sign, by a parameter that each query with such a signature has.
_SIGNATURES = {
    "x-amz-signature": re.compile(r"x-amz-(algorithm|credential|date|expires|signedheaders|signature|security-token)"),
    "x-goog-signature": re.compile(r"x-goog-(algorithm|credential|date|expires|signedheaders|signature)"),
    "awsaccesskeyid": re.compile("awsaccesskeyid|signature|expires|x-amz-security-token"),
    "googleaccessid": re.compile("googleaccessid|signature|expires"),
    "key-pair-id": re.compile("key-pair-id|signature|expires|policy"),
    "sig": re.compile("sig|sv|ss|srt|sp|se|st|spr|sr|sip|skoid|sktid|skt|ske|sks|skv"),
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
        store: Its store.
        paths: Its path in the store, and its URL `without_access` if it has one.
        own: The identity of the store if its description does not tell it from all other stores.
    """
    described = json.dumps(_described(store, str(own), _DEEPEST))
    environment = sorted(item for item in os.environ.items() if _ENVIRONMENT.fullmatch(item[0]))
    folder = os.getcwd() if _IS_LOCAL.search(described) else ""  # noqa: PTH109 - paths may begin in it
    text = json.dumps([described, folder, paths, environment])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def without_access(url: str) -> str:
    """Return a URL without passwords, and without the parts of its query that only sign.

    Example:
        >>> without_access("http://me:secret@host/a?id=1&X-Amz-Date=2&X-Amz-Signature=3")
        'http://me@host/a?id=1'
        >>> without_access("http://host/a?id=1&signature=3")
        'http://host/a?id=1&signature=3'
    """
    return _QUERY.sub(_unsigned, _PASSWORD.sub(r"\1", url))


def _unsigned(found: re.Match[str]) -> str:
    items = found[2].split("&")
    names = [item.partition("=")[0].lower() for item in items]
    signs = [pattern for name, pattern in _SIGNATURES.items() if name in names]
    kept = [item for item, name in zip(items, names, strict=True) if not any(sign.fullmatch(name) for sign in signs)]
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

"""A run of the command: its arguments, its exit status, and its complaints on standard error."""

from __future__ import annotations

import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cntkio._start import ends_quietly
from cntkio.arguments import COMMAND, calling
from cntkio.cli.arguments import parser
from cntkio.cli.show import BAD_CALL, BAD_DATA, FINE, complain, prints_any_text, prints_to_the_end, watcher_of
from cntkio.errors import CntkIoError, ConfigError
from cntkio.storage.remote import Remote

_VERDICTS = ("check", "diff")  # verbs whose status says what they found
_INTERRUPTED = 130  # the status that a shell reports for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Words after the name of the command; None: the arguments of the process.

    Returns:
        The exit status: 0 for success, 1 for bad data, 2 for a wrong call.

    Raises:
        SystemExit: With 2 if argparse cannot read the arguments, and with 0 after `--help` and `--version`.

    Example:
        >>> main(["bench", "examples/iris/iris.ctf", "--stream", "lengths:0"])
        2
    """
    try:
        if ends_quietly:  # from now on, Ctrl-C raises `KeyboardInterrupt`, as in other programs
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(words: list[str]) -> int:
    # `convert` has the options of this script of CNTK.
    if words[:2] == ["convert", "ctf2bin"]:
        words[1:2] = ["--to", "cbf"]
    options = parser(words).parse_args(words)
    prints_any_text()
    if words[0] in _VERDICTS:
        prints_to_the_end()
    with _log_on_standard_error(options.quiet), calling(words=COMMAND, watcher=watcher_of(options)):
        try:
            with calling(remote=_remote(options)):
                status: int = options.verb(options)
            sys.stdout.flush()
            return status
        except (ConfigError, ModuleNotFoundError) as error:  # an optional package may be missing
            complain(error)
        except CntkIoError as error:
            complain(error)
            return BAD_DATA
        except BrokenPipeError:
            # The reader of the pipe (`cntkio head … | head -3`) has seen enough. The interpreter must not flush again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FINE
        except OSError as error:
            complain(f"{error.filename}: {error.strerror}" if error.filename else error)
        except MemoryError as error:
            complain(f"out of memory: {error}" if str(error) else "out of memory")
    return BAD_CALL


def _remote(options: Namespace) -> Remote | None:
    """Return how remote stores are read; None: the options do not say it."""
    named: dict[str, Any] = dict(getattr(options, "remote", None) or ())
    named |= {name: value for name in ("cache", "cache_limit") if (value := getattr(options, name, None)) is not None}
    return Remote(**named) if named else None


@contextmanager
def _log_on_standard_error(is_quiet: bool) -> Iterator[None]:
    handler: logging.Handler = logging.NullHandler() if is_quiet else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("cntkio: %(message)s"))
    logger = logging.getLogger("cntkio")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)

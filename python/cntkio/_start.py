"""The start of the command `cntkio`: until `main` runs, Ctrl-C ends the process without a traceback.

`main` cannot catch an interrupt that comes while the package is being imported. This module is imported first.
"""

import itertools
import signal
import sys
from pathlib import PurePath


def _is_command() -> bool:
    words = sys.orig_argv[1:]
    is_script = bool(words) and PurePath(words[0]).stem == "cntkio"
    return is_script or ("-m", "cntkio") in itertools.pairwise(words)


_ends_quietly = _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _ends_quietly:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begin_main() -> None:
    """Make Ctrl-C raise `KeyboardInterrupt` from now on, as in other programs."""
    if _ends_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)

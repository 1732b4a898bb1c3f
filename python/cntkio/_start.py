"""The start of the command `cntkio`: until `main` runs, Ctrl-C ends the process without a traceback.

`main` cannot catch an interrupt that comes while the package is being imported. This module is imported first,
and imports little itself.
"""

import itertools
import os
import signal
import sys


def _is_command() -> bool:
    words = sys.orig_argv[1:]
    is_script = bool(words) and os.path.basename(words[0]).partition(".")[0] == "cntkio"  # noqa: PTH119 - quick to import
    return is_script or ("-m", "cntkio") in itertools.pairwise(words)


# A shell starts background jobs with Ctrl-C ignored, and this stays so.
ends_quietly = _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if ends_quietly:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

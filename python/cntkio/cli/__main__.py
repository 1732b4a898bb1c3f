"""`python -m cntkio.cli`, the same as the command `cntkio`."""

import sys

from cntkio.cli.command import main

if __name__ == "__main__":
    sys.exit(main())

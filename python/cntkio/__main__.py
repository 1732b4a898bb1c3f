"""`python -m cntkio`, the same as the command `cntkio`."""

import sys

from cntkio.cli import main

if __name__ == "__main__":
    sys.exit(main())

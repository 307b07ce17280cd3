"""``python -m rltrace``: the same as the command ``rltrace``."""

import sys

from rltrace.commands.main import main

if __name__ == "__main__":
    sys.exit(main())

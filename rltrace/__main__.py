"""``python -m rltrace``: the same as the command ``rltrace``."""

from __future__ import annotations

import sys

from rltrace.commands.main import main

if __name__ == "__main__":
    sys.exit(main())

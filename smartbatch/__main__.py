"""``python -m smartbatch`` is the command ``smartbatch``."""

from __future__ import annotations

import sys

from smartbatch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m p2pmesh`` is the command ``p2pmesh``."""

import sys

from p2pmesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m xbench`, which torchrun needs: `torchrun ... -m xbench compare`."""

import sys

from xbench.cli import main

if __name__ == "__main__":
    sys.exit(main())

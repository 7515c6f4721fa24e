"""The command: python -m tests.fuzz --cases 20000 --seed 0 [--only npz,yaml]"""

import sys

from tests.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())

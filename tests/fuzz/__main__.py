"""The command: python tests/fuzz --cases 20000 --seed 0 [--only npz,yaml]"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent / "src"), str(TESTS), str(TESTS / "support")]

from fuzz.run import main  # noqa: E402 (the paths come first)

if __name__ == "__main__":
    sys.exit(main())

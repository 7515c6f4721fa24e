"""`python -m calmrl` is the command `calmrl`."""

from calmrl.cli import main

main()

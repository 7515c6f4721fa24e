"""One function per command of `calmrl`, from a config or plain arguments to a directory and a result."""

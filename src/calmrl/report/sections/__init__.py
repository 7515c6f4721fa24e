"""The parts of the report of results. Each takes results and gives the blocks it has data for."""

"""Search in a table of items, whatever modalities each of them has."""

from calmrl.search.table import Hit, search_table, write_table

__all__ = ["Hit", "search_table", "write_table"]

from .hits import Hit as Hit
from .table import search_table as search_table
from .table import write_table as write_table

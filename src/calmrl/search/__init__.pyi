from .hits import Hit as Hit
from .hits import Item as Item
from .index import Index as Index
from .query import parse_query as parse_query
from .table import search_table as search_table
from .table import write_table as write_table
from .update import Change as Change

from .hits import Answer as Answer
from .hits import Contribution as Contribution
from .hits import Hit as Hit
from .hits import Item as Item
from .index import Index as Index
from .syntax import parse_query as parse_query
from .update import Change as Change
from .upgrade import Upgrade as Upgrade

from .run import Reproduction as Reproduction
from .run import reproduce as reproduce
from .tables import PAPER_TABLES as PAPER_TABLES

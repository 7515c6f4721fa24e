from .registry import PAPER_TABLES as PAPER_TABLES
from .run import Reproduction as Reproduction
from .run import reproduce as reproduce

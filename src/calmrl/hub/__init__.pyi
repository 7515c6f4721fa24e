from .card import Card as Card
from .card import Data as Data
from .on_hub import OnHub as OnHub

from .build import load_towers as load_towers
from .checkpoints import load_vast as load_vast
from .model import VastModel as VastModel
from .section import TOWERS as TOWERS

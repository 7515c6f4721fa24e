from .checkpoints import load_vast as load_vast
from .model import VastModel as VastModel
from .start import load_towers as load_towers
from .towers import TOWERS as TOWERS

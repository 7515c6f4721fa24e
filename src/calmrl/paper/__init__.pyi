from . import reproduce as reproduce
from . import vast as vast
from .encoders import imagebind_features as imagebind_features
from .vast.build import load_towers as load_towers
from .vast.checkpoints import load_vast as load_vast
from .vast.model import VastModel as VastModel
from .vast.section import TOWERS as TOWERS

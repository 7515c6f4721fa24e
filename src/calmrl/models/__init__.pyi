from .heads import Heads as Heads
from .joint import JointModel as JointModel
from .registry import MODELS as MODELS
from .saved import Trained as Trained
from .saved import load as load
from .saved import save as save

from .contrastive import ContrastiveLoss as ContrastiveLoss
from .contrastive import VastLoss as VastLoss
from .gram import GramLoss as GramLoss
from .matching import InstanceMatching as InstanceMatching
from .pmrl import PMRLLoss as PMRLLoss
from .registry import LOSSES as LOSSES
from .triangle import TriangleLoss as TriangleLoss

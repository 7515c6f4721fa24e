from calmrl.latent.gradient import GaussianLatent as GaussianLatent

from . import gaussian as gaussian
from .auto import AutoImputer as AutoImputer
from .gaussian import GaussianImputer as GaussianImputer
from .gfa import GFAImputer as GFAImputer
from .kernel import KernelImputer as KernelImputer
from .knowledge_bridger import KnowledgeBridgerImputer as KnowledgeBridgerImputer
from .registry import IMPUTERS as IMPUTERS
from .registry import make_imputer as make_imputer
from .simple import KNNImputer as KNNImputer
from .simple import MeanImputer as MeanImputer
from .simple import RidgeImputer as RidgeImputer
from .smil import SMILImputer as SMILImputer
from .variational import MoPoEImputer as MoPoEImputer
from .variational import MVAEImputer as MVAEImputer

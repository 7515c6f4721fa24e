from .gradient import GaussianLatent as GaussianLatent
from .imputer import GaussianImputer as GaussianImputer

from . import aligner as aligner
from . import alignment as alignment
from . import anchors as anchors
from . import arrays as arrays
from . import config as config
from . import data as data
from . import datasets as datasets
from . import encoders as encoders
from . import errors as errors
from . import evaluate as evaluate
from . import hub as hub
from . import imputers as imputers
from . import interop as interop
from . import losses as losses
from . import metrics as metrics
from . import models as models
from . import report as report
from . import search as search
from . import server as server
from . import training as training
from . import workflows as workflows
from .aligner.estimator import Aligner as Aligner
from .alignment import CalibratedAlignment as CalibratedAlignment
from .imputers.gaussian import GaussianImputer as GaussianImputer
from .models.saved import load as load
from .search.index import Index as Index

__version__: str

from .base import load_baseline as load_baseline
from .correlation import CCA as CCA
from .correlation import GCCA as GCCA
from .correlation import MCCA as MCCA
from .maps import ASIF as ASIF
from .maps import ProcrustesMap as ProcrustesMap
from .maps import RidgeMap as RidgeMap
from .registry import BASELINES as BASELINES

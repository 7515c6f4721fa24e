from .estimator import Aligner as Aligner

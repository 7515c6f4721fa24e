from .estimator import Aligner as Aligner
from .sentence_side import to_sentence_transformer as to_sentence_transformer

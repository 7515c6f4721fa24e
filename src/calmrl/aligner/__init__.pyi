from .base import found_in as found_in
from .base import load_base as load_base
from .base import shared_space as shared_space
from .bases import BASES as BASES
from .estimator import Aligner as Aligner
from .sentence_side import to_sentence_transformer as to_sentence_transformer

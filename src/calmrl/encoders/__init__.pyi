from .base import Encoder as Encoder
from .registry import ENCODERS as ENCODERS
from .registry import EncoderSpec as EncoderSpec
from .registry import load_encoder as load_encoder

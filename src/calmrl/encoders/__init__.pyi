from .base import Encoder as Encoder
from .encoder_set import EncoderSet as EncoderSet
from .registry import ENCODERS as ENCODERS
from .registry import EncoderSpec as EncoderSpec
from .registry import default_encoders as default_encoders
from .registry import load_encoder as load_encoder

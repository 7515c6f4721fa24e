from .diagnose.examine import diagnose as diagnose
from .evaluate import evaluate as evaluate
from .extract import extract as extract
from .train import train as train

from .diagnose.examine import diagnose as diagnose
from .evaluate import evaluate as evaluate
from .extract import extract as extract
from .impute import Imputation as Imputation
from .impute import impute as impute
from .train import train as train

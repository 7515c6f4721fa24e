from .registry import DATASETS as DATASETS
from .registry import load_dataset as load_dataset

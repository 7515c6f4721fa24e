from .metrics import *

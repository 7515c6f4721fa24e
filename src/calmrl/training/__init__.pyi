from .loop import Trainer as Trainer
from .methods import METHODS as METHODS
from .methods import Method as Method
from .optimise import make_optimiser as make_optimiser
from .plan import Outcome as Outcome
from .plan import Stage as Stage
from .records import read_records as read_records
from .step import Step as Step

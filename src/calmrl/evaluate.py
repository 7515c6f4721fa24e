"""The measures under the name of the verb: everything that `calmrl.metrics` exports."""

from calmrl.metrics import *  # noqa: F403
from calmrl.metrics import __all__ as __all__

from .mteb_model import MTEBFeatures as MTEBFeatures
from .mteb_model import MTEBModel as MTEBModel
from .mteb_task import mixed_pool_task as mixed_pool_task

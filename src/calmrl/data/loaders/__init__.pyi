from .batches import Batches as Batches
from .batches import RowSource as RowSource
from .feature_rows import FeatureRows as FeatureRows
from .media_rows import MediaRows as MediaRows

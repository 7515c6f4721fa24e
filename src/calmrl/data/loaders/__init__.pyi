from .feature_batches import Batches as Batches
from .media_batches import MediaBatches as MediaBatches
from .media_rows import MediaRows as MediaRows
from .mixed_batches import Mixture as Mixture

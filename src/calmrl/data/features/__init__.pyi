from .feature_set import FeatureSet as FeatureSet
from .feature_set import open_features as open_features
from .shards import Shards as Shards
from .shards import write_shards as write_shards
from .writer import FeatureWriter as FeatureWriter
from .writer import write_features as write_features

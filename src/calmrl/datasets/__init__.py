"""Data to try things on: `load_dataset(name)` returns a `FeatureSet`; `DATASETS` is what there is."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

from .public_collection import CollectionRows as CollectionRows
from .public_collection import PublicCollection as PublicCollection
from .registry import COLLECTIONS as COLLECTIONS

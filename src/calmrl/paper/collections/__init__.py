"""A reader for every public collection of the paper; `calmrl.data.media.public_collections` names them."""

"""Raw files: manifests, annotation layouts of public collections, and decoding."""

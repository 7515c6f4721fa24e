"""The `Aligner` as a model that trains, compares, saves and loads like the others."""

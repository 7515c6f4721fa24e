"""Batches for training: rows of features or media, mixed from several sources."""

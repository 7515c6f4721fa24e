"""Projectors on frozen features: the model for people who have embeddings."""

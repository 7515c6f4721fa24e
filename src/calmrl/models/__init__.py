"""Trainable models: modalities in, one unit vector per modality out."""

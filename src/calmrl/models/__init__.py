"""Trainable models on raw media: vision, audio and text towers with the public checkpoints' layouts."""

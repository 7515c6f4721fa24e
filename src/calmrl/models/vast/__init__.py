"""The model of the paper: vision, audio and text towers, heads and a matching encoder, from public checkpoints."""

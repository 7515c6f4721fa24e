"""The model of the paper: EVA01-CLIP, BEATs and BERT with heads and a matching encoder, on raw video, audio and text."""

"""Damaged files for every reader: python tests/fuzz --cases 20000 --seed 0 [--only npz,yaml]"""

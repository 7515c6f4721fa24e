"""Damaged files for every reader: python -m tests.fuzz --cases 20000 --seed 0 [--only npz,yaml]"""

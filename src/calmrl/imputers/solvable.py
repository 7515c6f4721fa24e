"""Equations without a solution are an error about the data that they came from."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from calmrl.errors import InputError


@contextmanager
def solvable() -> Iterator[None]:
    """A matrix that cannot be factorised becomes an `InputError`; as a context or as a decorator."""
    try:
        yield
    except torch.linalg.LinAlgError as error:
        raise InputError(
            "the equations of the imputer have no solution for these values: some columns are far from zero for how "
            "little they vary, or differ too much in size; subtract the column means and divide by the standard deviations"
        ) from error

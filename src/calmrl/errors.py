"""The errors a user can cause. They carry a sentence that says what is wrong, what was got and what to do."""

import importlib
from types import ModuleType


class InputError(ValueError):
    """Data, a config or an argument that cannot be used as it is. Commands turn it into exit code 2."""


class JobError(RuntimeError):
    """One of many jobs failed: which one, and the traceback of where it ran, as text. Commands show all of it."""


class ProcessLost(RuntimeError):
    """One of several processes that work together has ended or does not answer. Commands turn it into exit code 1."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed."""


def need(module: str, extra: str, why: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f'{why} needs the package "{module.split(".")[0]}", which is not installed; '
            f'install it with: pip install "calmrl[{extra}]"'
        ) from error

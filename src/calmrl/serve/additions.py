"""Add an item from a form, and remove one."""

import json
import re
import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

from calmrl.errors import InputError
from calmrl.serve.limits import Limits
from calmrl.serve.parameters import checked_text
from calmrl.serve.uploads import Form, checked_files

FIELDS = ("id", "text", "label")
NAME = re.compile(r"[^A-Za-z0-9]+")
CHANGING = threading.Lock()  # one change at a time


def add(index: Any, form: Form, limits: Limits) -> str:
    """Put an item into the collection; its id is the client's or a new one."""
    raise NotImplementedError


def remove(index: Any, id: str) -> None:
    """Take an item out of the collection."""
    with CHANGING:
        index.remove([id])

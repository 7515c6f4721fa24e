"""Small files beside a model of `transformers`: how its inputs are prepared."""

import json
from types import ModuleType
from typing import Any


def preprocessor(transformers: ModuleType, name: str) -> dict[str, Any]:
    """What preprocessor_config.json says; nothing if there is none."""
    for place in ("preprocessor_config.json", "video_preprocessor_config.json"):
        file = read_file(transformers, name, place)
        if file is not None:
            return json.loads(file)
    merged = json.loads(read_file(transformers, name, "processor_config.json") or "{}")
    return merged.get("image_processor") or merged.get("video_processor") or merged.get("feature_extractor") or {}


def read_file(transformers: ModuleType, name: str, file: str) -> str | None:
    path = transformers.utils.cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return None
    with open(path, encoding="utf-8") as stream:
        return stream.read()

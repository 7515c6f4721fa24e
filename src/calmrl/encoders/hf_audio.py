"""Sounds for models of `transformers`."""

from typing import Any

import numpy as np
import torch

from calmrl.encoders.hf_pooling import pooled


def hear(model: Any, extractor: Any, pooling: str | None, device: str, items: list[np.ndarray]) -> np.ndarray:
    """One sound at a time: sounds differ in length, and padding would change the features.

    Sounds that are longer than the model can hear are cut into windows, and the windows' vectors averaged.
    """
    longest = _longest_sound(extractor)
    rows = []
    for samples in items:
        windows = [samples[start : start + longest] for start in range(0, len(samples), longest)]
        vectors = torch.cat([_window(model, extractor, pooling, device, window) for window in windows])
        weight = torch.tensor([len(window) / len(samples) for window in windows], device=vectors.device)
        rows.append(weight[None] @ vectors)
    return torch.cat(rows).cpu().numpy()


def _longest_sound(extractor: Any) -> int:
    """Samples after which the feature extractor would cut: of CLAP (at random), Whisper, and AST."""
    for name in ("nb_max_samples", "n_samples"):
        if getattr(extractor, name, None):
            return int(getattr(extractor, name))
    if getattr(extractor, "max_length", None) and getattr(extractor, "num_mel_bins", None):
        return int(extractor.max_length) * extractor.sampling_rate // 100  # frames of 10 ms
    return 1 << 62


@torch.inference_mode()
def _window(model: Any, extractor: Any, pooling: str | None, device: str, samples: np.ndarray) -> torch.Tensor:
    inputs = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt").to(device)
    if hasattr(model, "get_audio_features"):
        return pooled(model.get_audio_features(**inputs), None, None, True).float()
    run = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    values = {key: value for key, value in inputs.items() if "mask" not in key}
    output = run(**values)
    return pooled(output, _heard(output, extractor, len(samples)), pooling, True).float()


def _heard(output: Any, extractor: Any, samples: int) -> torch.Tensor | None:
    """(1, steps) which steps of Whisper's encoder begin within the sound; it fills every sound up to 30 s with silence."""
    whole = getattr(extractor, "n_samples", None)
    if not whole:
        return None
    steps = output.last_hidden_state.shape[1]
    begins = torch.arange(steps, device=output.last_hidden_state.device) * (whole / steps)
    return (begins < samples)[None]

"""Like imagebind.data: paths in, stacked tensors out."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from imagebind import CALLS


def _bytes(path, *shape):
    content = np.frombuffer(Path(path).read_bytes(), np.uint8).astype(np.float32) / 255
    return torch.from_numpy(np.resize(content, shape))


def load_and_transform_vision_data(image_paths, device):
    CALLS.append(("vision", list(image_paths), device))
    pictures = [Image.open(path).convert("RGB").resize((224, 224)) for path in image_paths]
    return torch.stack([torch.from_numpy(np.asarray(p).copy()).permute(2, 0, 1) / 255 for p in pictures]).to(device)


def load_and_transform_video_data(video_paths, device, clip_duration=2, clips_per_video=5, sample_rate=16000):
    CALLS.append(("video", list(video_paths), device))
    return torch.stack([_bytes(path, 3 * clips_per_video, 3, 2, 224, 224) for path in video_paths]).to(device)


def load_and_transform_audio_data(audio_paths, device, num_mel_bins=128, target_length=204, clips_per_video=3):
    CALLS.append(("audio", list(audio_paths), device))
    if any(Path(path).read_bytes()[:4] != b"RIFF" for path in audio_paths):
        raise RuntimeError("Failed to open the input")
    return torch.stack([_bytes(path, clips_per_video, 1, num_mel_bins, target_length) for path in audio_paths]).to(
        device
    )


def load_and_transform_text(text, device):
    CALLS.append(("text", list(text), device))
    codes = [[ord(c) % 1000 for c in one[:77]] for one in text]
    return torch.tensor([line + [0] * (77 - len(line)) for line in codes]).to(device)

"""Speed of `mvae` and `mopoe` against MVAE and MoPoE of multivae 1.0.3: fit and impute, one thread, processor time.

The same data with 40 % of the blocks hidden (mask 1), 40 epochs without early stopping, batches of 128, 32 latents;
multivae with learning rate 1e-3, ours with its default.
`ratio` is theirs / ours. Their networks are, in turn, the perceptrons of multivae (without the sigmoid of the decoder,
which cannot reach standardised values) and calmrl's, so that the second ratio owes nothing to the size of the network.
MVAE runs without its subsampling, as its documentation advises for incomplete data, which is also the faster way.

multivae is no extra of calmrl, because it asks for torchvision, of which it uses nothing here. Install it beside, with
    pip install --no-deps multivae==1.0.3 pythae==0.1.2 nltk regex
and, where they are absent, cloudpickle, matplotlib, pandas, pillow, pydantic, scikit-learn and tqdm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.latent_quality import complete
from benchmarks.latent_speed import normalised_error
from calmrl.data.hiding import hide
from calmrl.imputers import IMPUTERS
from calmrl.imputers.neural import SkipMLP

EPOCHS, BATCH, LATENTS, LEARNING_RATE = 40, 128, 32, 1e-3
DATASETS, METHODS, NETWORKS = ("digits", "synth"), ("mvae", "mopoe"), ("multivae's", "calmrl's")
Arrays = dict[str, np.ndarray]


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    if importlib.util.find_spec("multivae") is None:
        missing = "multivae is not installed; the first lines of benchmarks/vae_speed.py say how to"
        return [
            {
                "case": "multivae / ours",
                "ours_s": None,
                "theirs_s": None,
                "ratio": None,
                "target": ">= 2",
                "note": missing,
            }
        ]
    rows = []
    for dataset in DATASETS:
        truth = complete(dataset)
        present = hide(np.ones((len(next(iter(truth.values()))), len(truth)), bool), 0.4, np.random.default_rng(1))
        for name in METHODS:
            with_ours(name, truth, present, epochs=1)  # warm-up
            start = time.process_time()
            filled = with_ours(name, truth, present, EPOCHS)
            ours, error = time.process_time() - start, normalised_error(filled, truth, ~present)
            for networks in NETWORKS:
                with_multivae(name, networks, truth, present, epochs=1)  # warm-up
                start = time.process_time()
                guess = with_multivae(name, networks, truth, present, EPOCHS)
                theirs = time.process_time() - start
                rows.append(
                    {
                        "case": f"{dataset}: {name}, {networks} networks",
                        "ours_s": ours,
                        "theirs_s": theirs,
                        "ratio": theirs / ours,
                        "target": ">= 2",
                        "note": f"{theirs:.1f} s / {ours:.1f} s; normalised error multivae "
                        f"{normalised_error(guess, truth, ~present):.4f}, ours {error:.4f}",
                    }
                )
    return rows


def with_ours(name: str, truth: Arrays, present: np.ndarray, epochs: int) -> Arrays:
    """All epochs, because patience is as long as they are; the weights kept are those of the best epoch."""
    imputer = IMPUTERS[name](latent_dim=LATENTS, epochs=epochs, batch_size=BATCH, patience=epochs)
    return imputer.fit(truth, present).transform(truth, present)


def with_multivae(method: str, networks: str, truth: Arrays, present: np.ndarray, epochs: int) -> Arrays:
    """Trains on standardised columns, zero where missing; hidden blocks are decoded from the mean given the others."""
    with torchvision_or_stub():
        from multivae.data.datasets.base import IncompleteDataset, MultimodalBaseDataset
        from multivae.models import MVAE, MoPoE, MoPoEConfig, MVAEConfig
        from multivae.trainers import BaseTrainer, BaseTrainerConfig

    shift = {name: array[present[:, j]].mean(0) for j, (name, array) in enumerate(truth.items())}
    scale = {name: array[present[:, j]].std(0) for j, (name, array) in enumerate(truth.items())}
    z = {
        name: torch.as_tensor(np.where(present[:, [j]], (array - shift[name]) / scale[name], 0.0), dtype=torch.float32)
        for j, (name, array) in enumerate(truth.items())
    }
    torch.manual_seed(0)
    encoders, decoders = their_networks({name: block.shape[1] for name, block in z.items()}, networks, method)
    sizes = {
        "n_modalities": len(z),
        "latent_dim": LATENTS,
        "input_dims": {name: tuple(block.shape[1:]) for name, block in z.items()},
    }
    model = (
        MVAE(MVAEConfig(**sizes, use_subsampling=False), encoders, decoders)
        if method == "mvae"
        else MoPoE(MoPoEConfig(**sizes), encoders, decoders)
    )
    masks = {name: torch.as_tensor(present[:, j]) for j, name in enumerate(z)}
    with tempfile.TemporaryDirectory() as folder, quiet():
        settings = BaseTrainerConfig(
            output_dir=folder,
            num_epochs=epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=LEARNING_RATE,
            no_cuda=True,
            seed=0,
        )
        BaseTrainer(model, IncompleteDataset(z, masks), training_config=settings).train()
    filled = {name: array.copy() for name, array in truth.items()}
    model.eval()
    for pattern in np.unique(present, axis=0):
        at = np.flatnonzero((present == pattern).all(1))
        known = [name for name, has in zip(z, pattern, strict=True) if has]
        wanted = [name for name, has in zip(z, pattern, strict=True) if not has]
        with torch.no_grad():
            some = MultimodalBaseDataset({name: block[at] for name, block in z.items()})
            decoded = model.decode(model.encode(some, cond_mod=known, return_mean=True), wanted) if wanted else {}
        for name in wanted:
            filled[name][at] = decoded[name].numpy() * scale[name] + shift[name]
    return filled


def their_networks(widths: dict[str, int], networks: str, method: str) -> tuple[Any, Any]:
    """Encoders and decoders as multivae wants them: its own, or calmrl's inside."""
    from multivae.models.base.base_config import BaseAEConfig
    from multivae.models.nn.default_architectures import Decoder_AE_MLP, Encoder_VAE_MLP
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn.base_architectures import BaseDecoder, BaseEncoder

    class Encoder(BaseEncoder):
        def __init__(self, width: int, hidden: int) -> None:
            super().__init__()
            self.latent_dim, self.inner = LATENTS, SkipMLP(width, hidden, 2 * LATENTS)

        def forward(self, x: torch.Tensor) -> Any:
            centre, log_variance = self.inner(x).chunk(2, dim=1)
            return ModelOutput(embedding=centre, log_covariance=log_variance.clone())  # MVAE writes into it

    class Decoder(BaseDecoder):
        def __init__(self, width: int, hidden: int) -> None:
            super().__init__()
            self.inner = SkipMLP(LATENTS, hidden, width)

        def forward(self, latents: torch.Tensor) -> Any:
            return ModelOutput(reconstruction=self.inner(latents))

    if networks == "calmrl's":
        hidden = IMPUTERS[method]().hidden
        return {m: Encoder(w, hidden) for m, w in widths.items()}, {m: Decoder(w, hidden) for m, w in widths.items()}
    settings = {m: BaseAEConfig(input_dim=(w,), latent_dim=LATENTS) for m, w in widths.items()}
    decoders = {m: Decoder_AE_MLP(setting) for m, setting in settings.items()}
    for decoder in decoders.values():
        decoder.layers[-1] = decoder.layers[-1][0]  # the linear layer without its sigmoid
    return {m: Encoder_VAE_MLP(setting) for m, setting in settings.items()}, decoders


@contextlib.contextmanager
def torchvision_or_stub() -> Iterator[None]:
    """While multivae is imported, empty classes stand for torchvision's if that is not installed."""

    class Stub(types.ModuleType):
        __path__ = ()

        def __getattr__(self, name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    parts = ("", ".datasets", ".datasets.utils", ".models", ".transforms", ".utils")
    stubs = {f"torchvision{part}": Stub(f"torchvision{part}") for part in parts}
    if importlib.util.find_spec("torchvision") is not None:
        stubs = {}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, no log lines."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)

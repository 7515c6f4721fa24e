"""Models of `transformers` with all their weights: what a checkpoint lacks or what would be dropped is an error."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

import torch

from calmrl.errors import InputError

SHOWN = 3
NEVER_USED = ("masked_spec_embed", "*.masked_spec_embed", "*position_ids")  # of training, or counted anew
HEADS = (  # of the tasks that checkpoints were trained for; no encoder needs them
    *("cls.*", "classifier.*", "lm_head.*", "qa_outputs.*", "score.*", "predictions.*", "sop_classifier.*"),
    *("cls_classifier.*", "distillation_classifier.*", "fc_norm.*", "decoder.*", "encoder_to_decoder.*", "mask_token"),
    *("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*", "discriminator_predictions.*"),
    *("quantizer.*", "project_q.*", "project_hid.*", "projector.*", "layer_weights"),
)


def load_model(
    transformers: ModuleType, name: str, config: Any, *, unused: Sequence[str] = (), allow: Sequence[str] = ()
) -> Any:
    """The model of a checkpoint, in single precision.

    Parameters
    ----------
    transformers : module
    name : str
        Local path or name.
    config : config of transformers
        Its `architectures` tell whether the checkpoint has a projection, which is then kept.
    unused : sequence of str
        Patterns of weights that the features do not depend on, so that they may be missing.
    allow : sequence of str
        Patterns of weights that the user allows to be missing or dropped.

    Raises
    ------
    InputError
        If a weight is missing, which would be random, or dropped, and its name matches none of the patterns.
    """
    maker = _with_projection(transformers, config) or transformers.AutoModel
    bars = transformers.utils.logging
    shown, level = bars.is_progress_bar_enabled(), bars.get_verbosity()
    bars.disable_progress_bar()
    bars.set_verbosity_error()  # its report of keys; ours is below
    try:
        model, report = maker.from_pretrained(name, dtype=torch.float32, output_loading_info=True)
    finally:
        bars.set_verbosity(level)
        if shown:
            bars.enable_progress_bar()
    missing = _others(report["missing_keys"], [*NEVER_USED, *unused, *allow])
    dropped = _others(report["unexpected_keys"], [*NEVER_USED, *HEADS, *allow])
    if missing:
        advice = " or a pooling that does without it (+cls, +mean)" if any("pooler" in key for key in missing) else ""
        raise InputError(
            f'the checkpoint "{name}" has no {_some(missing)}, which would be random; take one that has it{advice}, or '
            f"allow it by name: +allow={_pattern(missing)}"
        )
    if dropped:
        raise InputError(
            f'the checkpoint "{name}" holds {_some(dropped)}, for which {type(model).__name__} has no place, so that its '
            f"features would be others; allow it by name if that does not matter: +allow={_pattern(dropped)}"
        )
    return model


def unused_parts(config: Any, pooler: bool) -> list[str]:
    """Patterns of weights that do not touch the features: a pooling layer that is not asked, and decoders."""
    parts = [] if pooler else ["pooler.*", "*.pooler.*"]
    return [*parts, "decoder.*"] if getattr(config, "is_encoder_decoder", False) else parts


def _with_projection(transformers: ModuleType, config: Any) -> Any:
    """The class of a checkpoint of one side of a joint model with its projection; None for other checkpoints."""
    names = getattr(config, "architectures", None) or []
    named = [name for name in names if name.endswith("WithProjection") and hasattr(transformers, name)]
    return getattr(transformers, named[0]) if named else None


def _others(keys: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return sorted(key for key in keys if not any(fnmatchcase(key, pattern) for pattern in patterns))


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(f'"{key}"' for key in keys[:SHOWN]) + more


def _pattern(keys: list[str]) -> str:
    """A pattern for the first of them: the part that it belongs to."""
    return f"{keys[0].split('.')[0]}.*" if "." in keys[0] else keys[0]

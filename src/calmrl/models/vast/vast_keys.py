"""What the keys of published checkpoints of VAST, GRAM and PMRL are called here."""

VAST_KEYS = (  # theirs -> ours, by prefix; "" is known but has no use here
    ("vision_encoder.visual.head.", ""),
    ("vision_encoder.visual.", "vision."),
    ("vision_encoder.text.", ""),
    ("vision_encoder.logit_scale", ""),
    ("audio_encoder.", "audio."),
    ("multimodal_encoder.bert.pooler.", ""),
    ("multimodal_encoder.bert.", "bert."),
    ("multimodal_encoder.cls.", ""),  # masked language model
    ("contra_head_v.linear.", "heads.vision."),
    ("contra_head_a.linear.", "heads.audio."),
    ("contra_head_t.linear.", "heads.text."),
    ("contra_head_s.linear.", "heads.subtitle."),
    ("contra_head_d.", ""),  # depth
    ("contra_head_va.", "fused.va."),
    ("contra_head_vs.", "fused.vs."),
    ("contra_head_vas.", "fused.vas."),
    ("contra_temp", "matching.temperature"),
    ("itm_head.", "matching.head."),
    ("hidden_trans_vision_multimodal.", "matching.project.vision."),
    ("hidden_trans_audio_multimodal.", "matching.project.audio."),
    ("hidden_trans_subtitle_multimodal.", "matching.project.subtitle."),
    ("vision_frame_embedding", "matching.frame.vision"),
    ("audio_frame_embedding", "matching.frame.audio"),
    ("vision_type_embeddings", "matching.kind.vision"),
    ("audio_type_embeddings", "matching.kind.audio"),
    ("subtitle_type_embeddings", "matching.kind.subtitle"),
)
OLD_NAMES = (("video", "vision"), ("evaclip_model.", "vision_encoder."), ("clip_model.", "vision_encoder."))


def name_today(name: str) -> str:
    """A key of a VAST file as it is called now."""
    today = name.removeprefix("module.")
    for before, after in OLD_NAMES:
        today = today.replace(before, after)
    return today

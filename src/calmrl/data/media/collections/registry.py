"""The public collections by name."""

from calmrl._support.registry import Registry
from calmrl.data.media.collections.publisher import Publisher

HERE = "calmrl.data.media.collections"
COLLECTIONS: Registry[type[Publisher]] = Registry(
    "collection",
    {
        "msrvtt": f"{HERE}.video_captions:MsrVtt",
        "didemo": f"{HERE}.video_captions:DiDeMo",
        "activitynet": f"{HERE}.video_captions:ActivityNet",
        "vatex": f"{HERE}.video_captions:Vatex",
        "audiocaps": f"{HERE}.sounds:AudioCaps",
        "clotho": f"{HERE}.sounds:Clotho",
        "vggsound": f"{HERE}.sounds:VggSound",
        "ucf101": f"{HERE}.video_captions:Ucf101",
        "audioset": f"{HERE}.sounds:AudioSet",
        "esc50": f"{HERE}.sounds:Esc50",
        "vast150k": f"{HERE}.video_captions:Vast150K",
        "vast27m": f"{HERE}.video_captions:Vast27M",
    },
)

"""The public collections by name."""

from calmrl._support.registry import Registry
from calmrl.data.media.collections.publisher import Publisher

HERE = "calmrl.data.media.collections"
COLLECTIONS: Registry[type[Publisher]] = Registry(
    "collection",
    {
        "msrvtt": f"{HERE}.msrvtt:MsrVtt",
        "didemo": f"{HERE}.didemo:DiDeMo",
        "activitynet": f"{HERE}.activitynet:ActivityNet",
        "vatex": f"{HERE}.vatex:Vatex",
        "audiocaps": f"{HERE}.audiocaps:AudioCaps",
        "clotho": f"{HERE}.clotho:Clotho",
        "vggsound": f"{HERE}.vggsound:VggSound",
        "ucf101": f"{HERE}.ucf101:Ucf101",
        "audioset": f"{HERE}.audioset:AudioSet",
        "esc50": f"{HERE}.esc50:Esc50",
        "vast150k": f"{HERE}.vast:Vast150K",
        "vast27m": f"{HERE}.vast:Vast27M",
    },
)

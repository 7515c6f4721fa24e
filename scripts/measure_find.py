"""A folder of named pictures: are they found by their own names, and by words that they mostly are not called?

    apt-get download openclipart-png && dpkg -x openclipart-png_*.deb DIR
    python scripts/measure_find.py --clipart DIR --work WORK

600 pictures are drawn from folders of things. QUERIES and the words in a name that make it relevant were written before any
result was seen; the base that stands beside was not learned from these pictures.
"""

from __future__ import annotations

import argparse
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from calmrl.encoders import EncoderSet
from calmrl.search.words import name_words
from calmrl.workflows.index import open_index

FOLDERS = ("animals", "buildings", "food", "plants", "recreation", "tools", "transportation")
PICTURES, NAMED, FIRST = 600, 200, 5
QUERIES = {
    "pets": "dog cat puppy kitten hamster rabbit goldfish parrot",
    "something to drink": "beer wine coffee tea juice cocktail milk martini soda cola drink champagne lemonade",
    "breakfast": "egg bacon toast pancake cereal coffee bread croissant waffle muffin milk bagel",
    "sweets": "cake candy chocolate cookie lollipop icecream ice donut pie cupcake muffin brownie pudding",
    "a big cat": "lion tiger leopard panther cheetah puma jaguar",
    "farm animals": "cow pig horse sheep goat chicken hen rooster duck donkey bull turkey",
    "sea creature": "fish whale shark dolphin octopus crab lobster seahorse squid shell starfish seal turtle",
    "bird": "bird eagle owl duck penguin parrot swan rooster hen turkey dove pigeon chicken flamingo toucan crow goose",
    "insect": "ant bee butterfly beetle fly ladybug ladybird mosquito dragonfly grasshopper wasp bug caterpillar",
    "fruit": "fruit apple banana orange pear grape strawberry lemon cherry pineapple melon watermelon kiwi peach plum mango "
    "lime raspberry blueberry",
    "vegetable": "vegetable carrot tomato potato onion pepper cabbage corn pea lettuce broccoli cucumber eggplant garlic "
    "pumpkin celery radish mushroom bean",
    "vehicle on the road": "car truck bus van motorcycle motorbike taxi scooter jeep ambulance lorry tractor bicycle bike",
    "ship": "ship boat yacht sailboat sailing ferry canoe submarine liner kayak",
    "flying machine": "plane airplane aeroplane helicopter jet rocket balloon shuttle aircraft glider",
    "musical instrument": "guitar piano violin drum trumpet flute saxophone harp banjo accordion horn cello clarinet trombone "
    "tuba bass",
    "ball game": "football soccer basketball tennis baseball volleyball golf rugby bowling ball",
    "tool for cutting": "scissors saw knife axe blade chainsaw hatchet sickle scythe shears cutter",
    "flower": "flower rose tulip daisy lily orchid sunflower iris poppy daffodil hibiscus bouquet lotus",
    "tree": "tree oak pine palm fir maple birch",
    "building": "building house church castle tower barn home hut temple mosque",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clipart", type=Path, required=True, help="where openclipart-png was unpacked")
    parser.add_argument("--work", type=Path, required=True, help="where the folder and its index are made")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, place = options.work / f"clipart-{options.seed}", options.work / f"clipart-{options.seed}.index"
    if not folder.exists():
        _draw(options.clipart, folder, options.seed)
    index = open_index(folder, place, report=print).index
    ids = sorted(row["id"] for row in index.rows(["id"]))
    own = [id for id in ids if name_words(id)]
    asked = [own[n] for n in np.random.default_rng(options.seed).permutation(len(own))[:NAMED]]
    first = [index.search(text=_stem(id), k=1)[0].id for id in asked]
    alike = sum(_stem(found).lower() == _stem(id).lower() for found, id in zip(first, asked, strict=True))
    print(f"{len(asked)} own names: first in {100 * alike / len(asked):.1f} %")
    words = {id: set(_tokens(id)) for id in ids}
    ways = {
        "calmrl search": lambda query: [hit.id for hit in index.search(text=query, k=FIRST)],
        "its vectors alone": lambda query: [hit.id for hit in index.search(text=query, k=FIRST, words=False)],
        "cosine of the texts": _cosine(ids),
        "BM25 of the names": _bm25(ids),
        "names alone": lambda query: _nonzero({id: len(words[id] & set(_split(query))) for id in ids}),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for query, listed in QUERIES.items():
        right = {id for id in ids if words[id] & set(_split(listed))}
        for name, way in ways.items():
            found[name].append(len(right & set(way(query))) / min(FIRST, max(1, len(right))))
        print(f"{query} ({len(right)}): " + ", ".join(f"{values[-1]:.1f}" for values in found.values()))
    for name, values in found.items():
        print(f"| {name} | {np.mean(values):.2f} |")


def _draw(clipart: Path, folder: Path, seed: int) -> None:
    (root,) = clipart.rglob("openclipart/png")
    files = sorted(file for top in FOLDERS for file in (root / top).rglob("*.png") if not file.is_symlink())
    for number in np.random.default_rng(seed).permutation(len(files))[:PICTURES]:
        target = folder / files[number].relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[number], target)


def _stem(id: str) -> str:
    return id.rpartition("/")[2].replace("_", " ").replace("-", " ").strip()


def _split(text: str) -> list[str]:
    return [word.removesuffix("s") if len(word) > 3 else word for word in text.lower().split()]


def _tokens(id: str) -> list[str]:
    return _split("".join(letter if letter.isalpha() else " " for letter in _stem(id)))


def _nonzero(scores: dict[str, float]) -> list[str]:
    return [id for id in sorted(scores, key=lambda id: -scores[id])[:FIRST] if scores[id] > 0]


def _cosine(ids: list[str]):
    encoder = EncoderSet({"text": "use_multilingual"}, dtype="float32")
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)  # noqa: E731
    gallery = unit(encoder.encode([{"text": name_words(id) or _stem(id)} for id in ids])[0]["text"])

    def nearest(query: str) -> list[str]:
        return [ids[n] for n in np.argsort(-(gallery @ unit(encoder.encode([{"text": query}])[0]["text"])[0]))[:FIRST]]

    return nearest


def _bm25(ids: list[str], k: float = 1.2, b: float = 0.75):
    texts = {id: _split(" ".join([*id.split("/")[:-1], " ".join(_tokens(id))])) for id in ids}
    holding = Counter(word for text in texts.values() for word in set(text))
    mean = np.mean([len(text) for text in texts.values()])

    def score(words: list[str], text: list[str]) -> float:
        return sum(
            math.log(1 + (len(ids) - holding[word] + 0.5) / (holding[word] + 0.5))
            * text.count(word) * (k + 1) / (text.count(word) + k * (1 - b + b * len(text) / mean))
            for word in words
        )  # fmt: skip

    return lambda query: _nonzero({id: score(_split(query), text) for id, text in texts.items()})


if __name__ == "__main__":
    main()

"""Files that are repeated under other names: is what an index expects of files never heard what is measured?

    apt-get download tuxpaint-stamps-default && dpkg -x tuxpaint-stamps-default_*.deb DIR
    python scripts/measure_repeats.py --stamps DIR --work WORK

Each recording stands in four items under other names, with its caption in one of four languages. Three quarters of the
recordings are indexed, without a base; the others play new items, in galleries of their own, once for each quarter.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from calmrl import Aligner, Index
from calmrl.encoders import EncoderSet

LANGUAGES = ("en", "de", "fr", "es")
QUARTERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stamps", type=Path, required=True, help="where tuxpaint-stamps-default was unpacked")
    parser.add_argument("--work", type=Path, required=True, help="where the folders and their indexes are made")
    options = parser.parse_args()
    sounds = {
        file: captions
        for file in sorted(options.stamps.rglob("*.ogg"))
        if "_desc" not in file.name
        and "symbols" not in file.parts
        and len(captions := _captions(file)) == len(LANGUAGES)
    }
    files = list(sounds)
    print(f"{len(files)} recordings")
    print(
        "| left out | direction | R@1 expected | R@1 measured | R@10 expected | R@10 measured |\n|---|---|---|---|---|---|"
    )
    order = np.random.default_rng(0).permutation(len(files))
    for number, held in enumerate(np.array_split(order, QUARTERS), start=1):
        home = options.work / f"quarter-{number}"
        if not home.exists():
            _write({file: sounds[file] for n, file in enumerate(files) if n not in held}, home)
        index = Index.build(home, options.work / f"quarter-{number}.index", base=None)
        for direction, (expected, found) in _measured(index, [files[n] for n in held], sounds).items():
            interval = f"{expected['R@1']:.1f} ({expected['low']:.0f} to {expected['high']:.0f})"
            print(
                f"| {number} | {direction} | {interval} | {found[1]:.1f} | {expected['R@10']:.1f} | {found[10]:.1f} |",
                flush=True,
            )
        if number == 1:
            z = {
                name: np.stack([index.features_of(row["id"])[name] for row in index.rows(["id"])])
                for name in ("text", "sound")
            }
            print("taken for different ones:", Aligner(random_state=0).fit(z).expected(len(held)))


def _captions(sound: Path) -> dict[str, str]:
    """Language -> caption, as Tux Paint keeps them beside a stamp."""
    file = sound.with_suffix(".txt")
    if not file.exists():
        return {}
    first, *lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    said = dict(line.split(".utf8=", 1) for line in lines if ".utf8=" in line)
    return {language: text for language, text in {**said, "en": first}.items() if language in LANGUAGES}


def _write(sounds: dict[Path, dict[str, str]], home: Path) -> None:
    home.mkdir(parents=True)
    for number, (sound, captions) in enumerate(sounds.items()):
        for language, text in captions.items():
            (home / f"{language} {number:03}.txt").write_text(text, encoding="utf-8")
            shutil.copyfile(sound, home / f"{language} {number:03}.ogg")


def _measured(
    index: Index, held: list[Path], sounds: dict[Path, dict[str, str]]
) -> dict[str, tuple[dict[str, float], dict[int, float]]]:
    """Direction -> (what is expected in such a gallery, R@1 and R@10 in percent, the mean over the languages)."""
    assert index.aligner is not None, "sounds and texts were not aligned"
    encoders = EncoderSet({"text": "use_multilingual", "sound": "yamnet"}, dtype="float32")
    heard = index.aligner.embed({"sound": encoders.encode([{"sound": str(file)} for file in held])[0]["sound"]})
    ranks: dict[str, list[np.ndarray]] = {"sound->text": [], "text->sound": []}
    for language in LANGUAGES:
        said = index.aligner.embed(
            {"text": encoders.encode([{"text": sounds[file][language]} for file in held])[0]["text"]}
        )
        similar = heard @ said.T
        for direction, scores in (("sound->text", similar), ("text->sound", similar.T)):
            ranks[direction].append(1 + (scores > scores.diagonal()[:, None]).sum(axis=1))
    expected = index.aligner.expected(len(held))
    return {
        direction: (expected[direction], {k: 100 * float((np.stack(found) <= k).mean()) for k in (1, 10)})
        for direction, found in ranks.items()
    }


if __name__ == "__main__":
    main()

"""The items of the packages that `base_sources.py` encodes: pictures, voices and sounds with their names."""

from __future__ import annotations

import ast
import html
import re
import struct
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bundling import debian_package, rasterise
from emoji_sources import speak

from calmrl.datasets import load_dataset

PACKAGES = {  # of Debian -> version
    "openclipart-svg": "1:0.18+dfsg-19",
    "openclipart-png": "1:0.18+dfsg-19",
    "tuxpaint-stamps-default": "2022.06.04-1",
    "pysiogame": "4.20.01-1",
    "gcompris-qt-data": "3.1-2",
    "scratch": "1.4.0.6~dfsg1-6.1",
    "wesnoth-1.16-data": "1:1.16.9-1",
    "openttd-opensfx": "1.0.3-2",
    "ktuberling-data": "4:22.12.3-1",
    "flite": "2.2-5",
    "libflite1": "2.2-5",
}

TIMM = "1.0.20"  # of PyPI; only its lists of names are read


def unpack(name: str, work: Path) -> Path:
    """The folder that stands for "/" with this package in it."""
    return debian_package(name, PACKAGES[name], work)


@dataclass
class Item:
    """What is known about one thing: captions in English and perhaps another language, and paths of files."""

    id: str
    caption: str
    group: str
    image: Path | str = ""
    other: str = ""  # the caption in another language
    speech: Path | str = ""
    sound: Path | str = ""

    def cell(self, modality: str) -> str:
        known = {"text": self.caption, "multilingual": self.caption, "multilingual2": self.other}
        return known[modality] if modality in known else str(getattr(self, modality))


COLLECTIONS = 4  # a title of more items names a collection and not what is to be seen
NO_THINGS = ("computer/icons", "computer/buttons", "buttons", "special", "shapes", "logos", "signs_and_symbols/led",
             "signs_and_symbols/flags/semaphore", "recreation/games/cards")  # fmt: skip
NO_ENGLISH = ("Rollandin", "GUILLOU", "Hevia", "Rinc", "Biele")  # who named their drawings in another language
FLAGS = 60  # looked at, at most


def clipart(work: Path) -> list[Item]:
    """Drawings of Open Clip Art with their titles, without icons, shapes and most flags. To test with, not to learn from."""
    root = unpack("openclipart-svg", work) / "usr/share/openclipart"
    unpack("openclipart-png", work)
    found, flags = [], 0
    for path in sorted(root.glob("svg/**/*.svg")):
        name = path.relative_to(root / "svg").with_suffix("").as_posix()
        content = path.read_text(encoding="utf-8", errors="ignore")
        title = re.search("<dc:title>(.*?)</dc:title>", content, re.S)
        creator = re.search("<dc:creator>.*?<dc:title>(.*?)</dc:title>", content, re.S)
        foreign = creator and any(part in creator[1] for part in NO_ENGLISH)
        if title and not title[1].startswith("Clipart by") and not name.startswith(NO_THINGS) and not foreign:
            found.append((name, html.unescape(title[1]).strip()))
    count = Counter(title for _, title in found)
    items = []
    for name, title in found:
        caption, is_flag = plain_title(title), "/flags/" in name
        flags += is_flag
        if count[title] <= COLLECTIONS and len(caption) >= 3 and not (is_flag and flags > FLAGS):
            items.append(Item(f"{len(items):04d}", caption, caption, root / f"png/{name}.png"))
    return items


def plain_title(title: str) -> str:
    """The words of a title or file name: without numbers and remarks, and lower case but for names in capitals."""
    words = re.sub(r"\(.*?\)|[_.-]", " ", title)
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", words)  # "arrowRight"
    words = re.sub(r"#?\b\d+\b|(?<=[a-z])\d+\b", " ", words)
    return " ".join(word.lower() if word.istitle() else word for word in words.split())


def words_of(file: Path) -> str:
    """The words of a file name without the letter of a variant: "dog" for dog1-a.png."""
    return re.sub(r"(?<=.) [a-e]$", "", plain_title(file.stem)).lower()


def drawn(file: Path) -> Path:
    """The picture itself, or an SVG rasterised beside it."""
    target = file.with_suffix(".png")
    if file.suffix == ".svg" and not target.exists():
        target.write_bytes(rasterise(file))
    return target if file.suffix == ".svg" else file


def named(files: Iterable[Path], root: Path, modality: str) -> list[Item]:
    """An item for each of these pictures or sounds that has a name."""
    found = [(file, words_of(file)) for file in sorted(files)]
    return [
        Item(file.relative_to(root).as_posix(), words, words, **{modality: drawn(file)})
        for file, words in found
        if words
    ]


def pysiogame(work: Path) -> list[Item]:
    """Cartoons of things, animals and actions with their English and French names."""
    root = unpack("pysiogame", work) / "usr/share/games/pysiogame"
    lists = root / "i18n/custom"
    english, french = (word_lists(lists / name) for name in ("a4a_words.py", "a4a_py/fr.py"))
    items = []
    for topic, words in english.items():
        folder = root / "res/images/art4apps" / topic.removeprefix("a4a_")
        for word, other in zip(words, french[topic], strict=True):
            file = folder / f"{word.replace(' ', '_')}.jpg"
            if file.exists():
                items.append(Item(file.relative_to(root).as_posix(), word, word, file, other.replace("<1>", "")))
    return items


def word_lists(path: Path) -> dict[str, list[str]]:
    """The lists that a Python file assigns: d["a4a_animals"] = ["cow", ...]."""
    assigned = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    return {
        ast.literal_eval(node.targets[0].slice): ast.literal_eval(node.value)
        for node in assigned
        if isinstance(node.targets[0], ast.Subscript)
    }


GCOMPRIS_PICTURES = re.compile(
    "/(lang/resource/words_sample|categorization/resource/images/(?!alphabets|numbers)|babymatch/resource/images|memory/resource"
    "|babyshapes/resource/food|erase/resource|explore_(farm|world)_animals/resource/animals|explore_monuments/resource|algorithm/resource"
    "|instruments/resource|solar_system/resource|family/resource|memory-sound/resource)"
)
GCOMPRIS_SCENERY = re.compile(
    "backg|farm-animals|question|scene|gcompris|tux|son[0-9]|melody|LaPause|Weird|Unworld|backcard", re.I
)


def gcompris(work: Path) -> list[Item]:
    """Photographs, drawings and sounds with their names, from the resource files of the activities."""
    root = unpack("gcompris-qt-data", work) / "usr/share/gcompris-qt/rcc"
    out = work / "files"
    for archive in sorted(root.glob("*.rcc")):
        for name, content in read_resources(archive.read_bytes()).items():
            file = out / name.split("/activities/")[-1]
            if GCOMPRIS_PICTURES.search(name) and not GCOMPRIS_SCENERY.search(file.name):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    pictures = named([*out.rglob("*.webp"), *out.rglob("*.svg")], out, "image")
    sounds = named(out.rglob("*.ogg"), out, "sound")
    for item in [*pictures, *sounds]:
        item.caption = item.group = re.sub(r"^lr\s*|\b(la|cut)\b|lacut", "", item.caption).strip()
    return [*pictures, *sounds]


def read_resources(content: bytes) -> dict[str, bytes]:
    """The files in an archive of Qt's resource compiler."""
    version, tree, data, names = struct.unpack(">4x4I", content[:20])
    width = 22 if version >= 2 else 14
    files: dict[str, bytes] = {}

    def read(node: int, path: str) -> None:
        name, flags, first, second = struct.unpack_from(">IHII", content, tree + node * width)
        if node:
            (letters,) = struct.unpack_from(">H", content, names + name)
            path += "/" + content[names + name + 6 : names + name + 6 + 2 * letters].decode("utf-16-be")
        if flags & 2:  # a folder: number of children, the first one
            for child in range(second, second + first):
                read(child, path)
        else:
            (size,) = struct.unpack_from(">I", content, data + second)
            body = content[data + second + 4 : data + second + 4 + size]
            files[path] = zlib.decompress(body[4:]) if flags & 1 else body

    read(0, "")
    return files


def wesnoth(work: Path) -> list[Item]:
    """Units (portrait and figure), weapons and things of a game of fantasy with their names, and its sounds."""
    core = unpack("wesnoth-1.16-data", work) / "usr/share/games/wesnoth/1.16/data/core"
    items = []
    for path in sorted(core.glob("units/**/*.cfg")):
        text = path.read_text(encoding="utf-8")
        name = re.search(r'^    name= *_ *"(?:female\^)?([^"]+)"', text, re.M)
        for key in ("profile", "image"):
            value = re.search(rf'^    {key}="([^"~]+\.(?:png|webp))', text, re.M)
            file = core / "images" / value[1] if value else path
            if name and file.suffix != ".cfg" and file.exists():
                items.append(Item(f"{path.stem}/{key}", name[1], name[1], file))
    for folder in ("items", "attacks", "scenery"):
        items += {item.caption: item for item in named(core.glob(f"images/{folder}/*.png"), core, "image")}.values()
    sounds = [file for file in core.glob("sounds/**/*") if file.suffix in (".ogg", ".wav") and "miss" not in file.stem]
    items += named(sounds, core, "sound")
    return list({item.id: item for item in items if "blank" not in item.id}.values())


NAMELESS = re.compile(  # costumes that are named after who is to be seen, and letters
    "Letters|scratchthumbs|People/(?!baby|ballerina|boy|breakdancer|diver|football|girl|prince|referee|ribbon|singer|thai|woman)"
    "|fantasy[0-9]|gobo|wild|xy-grid|Vocals|Music Loops|Electronic"
)


def scratch(work: Path) -> list[Item]:
    """Costumes, backgrounds and sounds of Scratch with their names."""
    root = unpack("scratch", work) / "usr/share/scratch/Media"
    files = [file for file in root.rglob("*.*") if not NAMELESS.search(str(file.relative_to(root)))]
    pictures = named([file for file in files if file.suffix in (".png", ".gif", ".jpg")], root, "image")
    return pictures + named([file for file in files if file.suffix in (".wav", ".mp3")], root, "sound")


def opensfx(work: Path) -> list[Item]:
    """Sounds of traffic, machines and animals; each has its title in the archive."""
    root = unpack("openttd-opensfx", work) / "usr/share/games/openttd/baseset/opensfx"
    content = (root / "opensfx.cat").read_bytes()
    items = []
    for i in range((struct.unpack_from("<I", content)[0] & 0x7FFFFFFF) // 8):
        start, size = struct.unpack_from("<II", content, 8 * i)
        title = start & 0x7FFFFFFF
        body = title + 1 + content[title]  # the length of the title stands before it
        about = re.match(
            r'"(?:Toyland: |Tropical: |Lumber mill: )?([^"(]+)', content[title + 1 : body].decode("latin-1")
        )
        if about and size > 100:
            file = work / f"{i:02d}.wav"
            file.write_bytes(content[body : body + size])
            words = about[1].strip().lower()
            items.append(Item(file.stem, words, words, sound=file))
    return items


VOICES = ("en", "es", "ru", "ca", "ro", "nl")  # French is part of `stamps`
READ = ("es", "ru", "nl")  # those of them that the multilingual encoder knows, besides English


def stamp_voices(work: Path) -> list[Item]:
    """Recorded captions of the stamps in other languages than French, one row per stamp and language."""
    root = unpack("tuxpaint-stamps-default", work) / "usr/share/tuxpaint/stamps"
    data = load_dataset("stamps")
    items = []
    for name, caption, group in zip(data.ids, data.text, data.column("group"), strict=True):
        for language in VOICES:
            file = root / f"{name}_desc{'' if language == 'en' else f'_{language}'}.ogg"
            if file.exists() and caption:
                other = translation(root / f"{name}.txt", language) if language in READ else ""
                items.append(Item(f"{language}/{name}", caption, str(group), other=other, speech=file))
    return items


def ktuberling(work: Path) -> list[Item]:
    """Words spoken in 25 languages, with the English word."""
    root = unpack("ktuberling-data", work) / "usr/share/ktuberling/sounds"
    items = []
    for theme in sorted(root.glob("*.soundtheme")):
        for name, file in re.findall(r'<sound name="(.+?)" +file="(.+?)"', theme.read_text(encoding="utf-8")):
            words = re.sub("^(butterflies|egypt|moon|pizzeria|robot|tv|xmas)_", "", name).replace("_", " ")
            if (root / file).exists():
                items.append(Item(f"{theme.stem}/{name}", words, words, speech=root / file))
    return list({item.id: item for item in items}.values())


FLITE_VOICES = ("awb", "rms", "slt", "kal16")


def spoken(work: Path) -> list[Item]:
    """English names of emoji and of the classes of EfficientNet, spoken by a machine in six voices by turns."""
    root = unpack("flite", work)
    unpack("libflite1", work)
    library = next(root.glob("usr/lib/*/libflite.so.1")).parent
    names = [caption for caption in load_dataset("emoji").text if caption]
    names += [caption.partition(",")[0] for caption in imagenet_names(work).values()]
    items = []
    for i, name in enumerate(dict.fromkeys(names)):
        file = work / f"spoken/{i:04d}.wav"
        voice = (*FLITE_VOICES, "en-us", "en-gb")[i % 6]
        if voice in FLITE_VOICES and not file.exists():
            file.parent.mkdir(exist_ok=True)
            environment = {"LD_LIBRARY_PATH": str(library.resolve())}
            program = (root / "usr/bin/flite").resolve()
            subprocess.run([program, "-voice", voice, "-t", name, "-o", file], check=True, env=environment)
        items.append(Item(f"{voice}/{i:04d}", name, name, speech=speak(name, voice, file)))
    return items


def translation(path: Path, language: str) -> str:
    """The caption of a stamp in this language."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{language}.")), "")


def imagenet_names(work: Path) -> dict[str, str]:
    """The 1,000 classes in the order of the classifiers: synset -> its lemmas."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"timm=={TIMM}"], cwd=work, check=True)
    with zipfile.ZipFile(next(work.glob("timm-*.whl"))) as wheel:
        synsets, lemmas = (
            wheel.read(f"timm/data/_info/imagenet_{name}.txt").decode().splitlines()
            for name in ("synsets", "synset_to_lemma")
        )
    lemma = dict(line.split("\t") for line in lemmas)
    return {synset: lemma[synset] for synset in synsets}

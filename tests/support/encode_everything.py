"""Every encoder that `calmrl ls encoders` offers, on real files, in a process of its own: names and vectors in a file.

python encode_everything.py FOLDER OUT.json: FOLDER holds a.png, a.wav, a.mp4, and the weights of the stand-ins.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from calmrl.encoders import ENCODERS, EncoderSet
from calmrl.errors import MissingExtraError

FILES = {"image": "a.png", "audio": "a.wav", "video": "a.mp4"}
WEIGHTS = {"imagebind": "imagebind.pth", "internvideo": "internvideo.ckpt"}


def encode(folder: Path, name: str) -> str:
    """The bytes of the vector of a file, as hex."""
    spec = ENCODERS[name]
    family, _, side = name.partition("_")
    medium = side if spec.package else spec.kind
    cell = str(folder / FILES[medium]) if medium in FILES else "A red boat on a quiet lake."
    full = f"{name}@{folder / WEIGHTS[family]}" if spec.package and family in WEIGHTS else name
    z, present = EncoderSet({"it": full}, dtype="float32").encode([{"it": cell}])
    assert present.all()
    assert z["it"].shape == (1, spec.width)
    return z["it"].tobytes().hex()


def main(folder: Path, out: Path) -> None:
    vectors, absent = {}, {}
    for name in ENCODERS:
        try:
            vectors[name] = encode(folder, name)
        except MissingExtraError as error:
            absent[name] = str(error)
    out.write_text(json.dumps({"vectors": vectors, "absent": absent}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

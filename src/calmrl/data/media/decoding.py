"""How frames and sound become tensors for the model of the paper: the rules of the public code, each a named choice.

| choice | the public code of VAST, GRAM and PMRL | the other values |
|---|---|---|
| `resize` | by collection: "crop-flip" or "squash" | "crop": central, in training too |
| `interpolation` | "bilinear", without antialiasing | "bicubic", antialiased |
| `rounding` of the crop's corner | "nearest" | "down" |
| `segments` that frames and slices are taken from | "split": the first ones are longer by one | "equal" |
| `channel` of the sound | "left" | "mix" of all, as FFmpeg makes it: (left + right) / sqrt 2 |
| `resampling` to 16 kHz | "sinc" | "ffmpeg" |
| `padding` of a sound that is too short | "zeros" | "repeat" |
"""

from typing import Literal

from calmrl._support.section import Section

Resize = Literal["crop", "crop-flip", "squash"]
Interpolation = Literal["bilinear", "bicubic"]
Rounding = Literal["nearest", "down"]
Segments = Literal["split", "equal"]
Channel = Literal["left", "mix"]
Resampling = Literal["sinc", "ffmpeg"]
Padding = Literal["zeros", "repeat"]


class Decoding(Section):
    """The choices of the table above, as a section of a config and as what the readers take.

    Attributes
    ----------
    resize : {"crop", "crop-flip", "squash"}
        "crop": shorter side to the size, then the central square. "crop-flip": the same at test; in training a random
        square of 80 to 100 % of the area, where the frame has room for it, else the central one, turned left to right
        for every second video. "squash": to a square, whatever the shape.
    interpolation : {"bilinear", "bicubic"}
    rounding : {"nearest", "down"}
        Of the corner of a central crop; halves go to the even number.
    segments : {"split", "equal"}
    channel : {"left", "mix"}
    resampling : {"sinc", "ffmpeg"}
    padding : {"zeros", "repeat"}
        "zeros" also adds a slice of zeros to a sound that fills its slices exactly.
    """

    resize: Resize = "crop"
    interpolation: Interpolation = "bilinear"
    rounding: Rounding = "nearest"
    segments: Segments = "split"
    channel: Channel = "left"
    resampling: Resampling = "sinc"
    padding: Padding = "zeros"

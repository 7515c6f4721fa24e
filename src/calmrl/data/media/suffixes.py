"""Which files are pictures, films, sounds and texts, by the end of their names."""

from pathlib import PurePath

IMAGE = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
AUDIO = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma")
VIDEO = (".mp4", ".avi", ".webm", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv", ".ogv", ".3gp")
TEXT = (".txt",)

MODALITIES = {"text": TEXT, "image": IMAGE, "video": VIDEO, "sound": AUDIO}  # in the order of columns
KINDS = {"text": "text", "image": "image", "video": "image", "sound": "audio"}  # modality -> what its encoder takes


def modality_of(name: str) -> str | None:
    """The modality that a file holds, by its suffix; None for a suffix that says nothing."""
    suffix = PurePath(name).suffix.lower()
    return next((modality for modality, suffixes in MODALITIES.items() if suffix in suffixes), None)

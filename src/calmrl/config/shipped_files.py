"""The configs that come with the package; apart from `loading`, so that they are listed without reading YAML."""

from importlib.resources import files

from calmrl._support.registry import lookup


def shipped() -> dict[str, str]:
    """Name -> what it is for: the first comment line after the launch command of each shipped file.

    Examples
    --------
    >>> "demo" in shipped()
    True
    """
    names = sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))
    texts = {name: _folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8") for name in names}
    comments = {name: [line for line in text.splitlines() if line.startswith("#")] for name, text in texts.items()}
    return {name: lines[1].removeprefix("#").strip() for name, lines in comments.items()}


def shipped_text(name: str) -> str:
    """The text of a shipped config.

    Examples
    --------
    >>> shipped_text("demo").startswith("#")
    True
    """
    lookup(shipped(), name, "config")
    return _folder().joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def _folder():  # type: ignore[no-untyped-def]  # importlib's Traversable moved between Python versions
    return files("calmrl.config") / "shipped"

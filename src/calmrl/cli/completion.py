"""Names that the shell completes; nothing that computes is imported for them."""


def names_of(shelf: str, start: str) -> list[str]:
    """Names of a list of `calmrl ls` that begin so."""
    from calmrl.cli.ls import entries

    return [name for name in entries(shelf) if name.startswith(start)]


def config_names(incomplete: str) -> list[str]:
    """Shipped configs; the shell itself adds files."""
    return names_of("configs", incomplete)


def table_names(incomplete: str) -> list[str]:
    """Tables and figures of the paper."""
    return names_of("tables", incomplete)


def shelf_names(incomplete: str) -> list[str]:
    """What `calmrl ls` lists."""
    from calmrl.cli.ls import SHELVES

    return [name for name in SHELVES if name.startswith(incomplete)]


def encoder_pairs(incomplete: str) -> list[str]:
    """MODALITY=NAME, once the modality is typed."""
    modality, equals, start = incomplete.partition("=")
    return [f"{modality}={name}" for name in names_of("encoders", start)] if equals else []


def collection_names(incomplete: str) -> list[str]:
    """Public collections, and once one is typed, its splits."""
    name, colon, start = incomplete.partition(":")
    if not colon:
        return names_of("collections", name)
    from calmrl.data.media.collections.registry import COLLECTIONS

    splits = COLLECTIONS[name].splits if name in COLLECTIONS else ()
    return [f"{name}:{split}" for split in splits if split.startswith(start)]


def method_list(incomplete: str) -> list[str]:
    """Comma-separated methods: the last one is completed."""
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names_of("methods", start)]

"""Names come from data: characters that would act on whoever shows them become escapes."""

import re

# Control characters but tabs and new lines, and the marks that turn the direction of text around.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The same text with escapes ("\\x1b") in place of characters that act on a terminal, or that no XML may hold."""
    return _HIDDEN.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)

"""A page as one HTML file that needs nothing else: style, script and drawings are inside. `page.html.jinja` is its form."""

import base64
import re
from importlib.resources import files
from itertools import count
from typing import Any

from calmrl._support.visible import visible
from calmrl.report.blocks import Page, PageSection
from calmrl.report.markdown import numeric
from calmrl.report.svg import inline


def as_html(page: Page) -> str:
    """The whole file. The same page gives the same bytes."""
    from jinja2 import Environment
    from markupsafe import Markup, escape

    names = ("page.html.jinja", "page.css", "page.js")
    form, style, script = ((files("calmrl.report") / name).read_text(encoding="utf-8") for name in names)
    environment = Environment(autoescape=True, keep_trailing_newline=True, finalize=_shown)
    environment.globals |= {
        **{"next": next, "tables": count(1), "figures": count(1), "inline": inline, "id": _id, "numeric": numeric},
        "split": lambda text: text.partition(" ± ")[::2],
        "base64": lambda content: base64.b64encode(content).decode(),
        "breakable": lambda text: escape(visible(text)).replace("+", Markup("+<wbr>")),  # where a long name may break
    }
    return environment.from_string(form).render(page=page, style=style, script=script)


def _shown(value: Any) -> Any:
    """What a page shows: plain text without characters that act; markup was made from such text."""
    return visible(value) if type(value) is str else value


def _id(section: PageSection) -> str:
    return "s-" + re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")

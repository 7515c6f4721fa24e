"""An installed Chromium, driven by playwright without downloading anything."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from contextlib import contextmanager

from tests.support.waiting import patience

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
SOCKET = 46  # bytes of the path of Chromium's socket below the temporary folder, of 107 that a system allows
if not CHROMIUM:
    WHY_NOT = "chromium is not installed, so pages are not tried in a browser"
elif len(os.fsencode(tempfile.gettempdir())) + SOCKET > 107:
    WHY_NOT = f"chromium does not start where the path of temporary files has more than {107 - SOCKET} bytes"
else:
    WHY_NOT = ""
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--mute-audio", "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
FILES = """async (list) => {
  const transfer = new DataTransfer();
  for (const [name, type, content] of list) {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    transfer.items.add(new File([bytes], name, {type}));
  }
  return transfer;
}"""


@contextmanager
def chromium():
    """A running browser."""
    from playwright.sync_api import sync_playwright

    environment = {**os.environ, "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1"}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), env=environment)
        yield browser
        browser.close()


@contextmanager
def page_of(browser, address: str, *, complaints: list[str] | None = None, **options):
    """A page in a context of its own that loads nothing but from `address`; what it complains about is collected."""
    context = browser.new_context(base_url=address, viewport=options.pop("viewport", WIDE), **options)
    page = context.new_page()
    page.set_default_timeout(1000 * patience(30))
    if complaints is not None:
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda made: None if made.url.startswith((address, "blob:")) else complaints.append(made.url)
        )
    yield page
    context.close()


def drop(page, *files: tuple[str, str, bytes]) -> None:
    """Drop files (name, media type, content) on the page."""
    listed = [[name, kind, base64.b64encode(content).decode()] for name, kind, content in files]
    transfer = page.evaluate_handle(FILES, listed)
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("body", event, {"dataTransfer": transfer})


def settled(page, text: str) -> None:
    """Wait until the line about the results says `text` and nothing is loading."""
    page.wait_for_function(
        """(text) => document.getElementById("count").textContent.includes(text)
                     && !document.getElementById("grid").hasAttribute("aria-busy")""",
        arg=text,
    )

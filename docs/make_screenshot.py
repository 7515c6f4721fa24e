"""Make docs/assets/serve.webp: the page of `calmrl serve` with the emoji, searched by a word. Needs an installed Chromium.

python docs/make_screenshot.py
"""

from __future__ import annotations

import io
import shutil
import tempfile
import threading
import time
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from calmrl import Aligner
from calmrl.search import Index
from calmrl.server import Limits
from calmrl.server.run import listen, server_config

TARGET = Path(__file__).parent / "assets" / "serve.webp"
WORD = "birthday"
FIXED = Aligner(features="linear", unit_rows=True, whitening=0.5, latent_dim=128, prior=30.0, refine="never")


def picture(address: str) -> bytes:
    """The page after a search, as PNG."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1200, "height": 700}, base_url=address)
        page.set_default_timeout(300_000)
        page.goto(f"/?q={WORD}")
        page.wait_for_selector(".card img")
        page.wait_for_function("() => [...document.images].slice(0, 8).every((image) => image.complete)")
        content = page.screenshot()
        browser.close()
        return content


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, listen("127.0.0.1", 0) as listening:
        index = Index.build("emoji", Path(folder) / "index", model=FIXED)
        server = uvicorn.Server(server_config(index, "127.0.0.1", False, Limits()))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        png = picture(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.should_exit = True
        thread.join()
    Image.open(io.BytesIO(png)).convert("RGB").save(TARGET, "WEBP", quality=82)
    print(f"wrote {TARGET} ({TARGET.stat().st_size // 1024} kB)")


if __name__ == "__main__":
    main()

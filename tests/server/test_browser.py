"""The page in a real browser: searching, dropping, filtering, opening, playing, and axe-core without findings."""

from __future__ import annotations

import pytest

from tests.support import shapes as data
from tests.support.browser import PHONE, WHY_NOT, chromium, drop, page_of, settled
from tests.support.serving import served

pytest.importorskip("playwright", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

PICTURE = ("green-cross.png", "image/png", data.png("green", "cross"))
SOUND = ("tone.wav", "audio/wav", data.tone(data.pitch("blue", "circle")))


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(shapes):
    with served(shapes) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser, address):
    """The start page; a test fails if the browser complained about anything or asked anyone else."""
    complaints: list[str] = []
    with page_of(browser, address, complaints=complaints) as page:
        page.goto("/")
        settled(page, "24 of 48 shown")
        yield page
    assert complaints == []


def titles(page) -> list[str]:
    return page.locator(".card h3").all_inner_texts()


def search(page, words: str) -> None:
    page.fill("#words", words)
    page.press("#words", "Enter")
    settled(page, "nearest first")


def test_words(page):
    search(page, "red circle")
    assert titles(page)[0] == "A red circle on white"
    assert "q=red+circle" in page.url
    assert page.title() == "red circle · calmrl"


def test_a_dropped_picture_and_a_sound_in_one_query(page):
    drop(page, PICTURE)
    settled(page, "nearest first")
    assert titles(page)[0] == "green/cross"  # has no text, so its id is its title
    assert page.locator("#parts li").all_inner_texts() == ["green-cross.png"]
    drop(page, SOUND)
    page.wait_for_function("() => document.querySelectorAll('#parts li').length === 2")
    settled(page, "nearest first")
    page.get_by_role("button", name="Remove green-cross.png").click()
    page.wait_for_function("() => document.querySelector('.card h3').textContent === 'A blue circle on white'")
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('#parts li').length === 2")
    page.reload()
    settled(page, "24 of 48")
    assert "add it again" in page.locator("#problem").inner_text()


def test_a_chosen_file(page):
    page.set_input_files("#file-image", {"name": PICTURE[0], "mimeType": PICTURE[1], "buffer": PICTURE[2]})
    settled(page, "nearest first")
    assert titles(page)[0] == "green/cross"


def test_a_file_that_cannot_be_read_is_explained(browser, address):
    with page_of(browser, address) as page:
        page.goto("/")
        settled(page, "shown")
        drop(page, ("notes.txt", "text/plain", b"hello"))
        assert page.get_by_role("alert").inner_text() == "notes.txt is neither a picture nor a sound."
        drop(page, ("broken.png", "image/png", b"hello"))
        page.wait_for_function("() => document.getElementById('problem').textContent.includes('cannot be read')")


def test_filters_and_the_back_button(page):
    page.get_by_role("checkbox", name="picture").check()
    settled(page, "24 items shown")
    assert page.locator(".shot.none").count() == 0
    page.select_option("#label", "red")
    settled(page, "6 items shown")
    assert "having=image" in page.url
    assert "label=red" in page.url
    page.go_back()
    settled(page, "24 items shown")
    assert page.input_value("#label") == ""
    page.go_back()
    settled(page, "24 of 48 shown")
    assert not page.get_by_role("checkbox", name="picture").is_checked()


def test_an_item_opens_with_all_modalities_and_closes_by_keyboard(page):
    search(page, "red ring")
    page.locator(".card h3 a").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.locator(".modality h3").all_inner_texts() == [
        "picture\nobserved", "text\nnot observed", "sound\nobserved",
    ]  # fmt: skip
    assert "item=red%2Fring" in page.url
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    page.wait_for_function("() => !location.search.includes('item')")
    assert titles(page)[0] == "red/ring"
    page.go_forward()
    dialog.wait_for()
    page.get_by_role("button", name="Close").click()
    dialog.wait_for(state="hidden")


def test_an_address_with_an_item_opens_it(browser, address):
    with page_of(browser, address) as page:
        page.goto("/?q=red&item=red%2Fcircle")
        page.get_by_role("dialog").wait_for()
        assert page.locator("#item-title").inner_text() == "A red circle on white"


def test_more_like_this(page):
    search(page, "violet")
    page.get_by_role("button", name="More like this: A violet square on white").click()
    page.wait_for_function("() => location.search.includes('like=')")
    settled(page, "nearest first")
    assert "A violet square on white" not in titles(page)
    assert "square" in titles(page)[0] or "violet" in titles(page)[0]
    assert "like=violet%2Fsquare" in page.url
    assert page.locator("#parts li").count() == 1


def test_show_more_keeps_what_is_there(page):
    page.get_by_role("button", name="Show more").click()
    settled(page, "48 of 48 shown")
    assert page.locator(".card").count() == 48
    assert page.get_by_role("button", name="Show more").count() == 0


def test_a_sound_plays(page):
    search(page, "red circle")
    played = page.evaluate(
        """async () => {
          const player = document.querySelector(".card audio");
          await player.play();
          await new Promise((done) => player.addEventListener("ended", done, {once: true}));
          return [player.duration, player.currentTime, player.error];
        }"""
    )
    assert played[0] == pytest.approx(1.0, abs=0.05)
    assert played[1] == pytest.approx(1.0, abs=0.05)
    assert played[2] is None


def test_the_keyboard_reaches_everything(page):
    reached = set()
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"words", "choose-image", "choose-sound", "label", "A", "INPUT", "BUTTON"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [None, PHONE], ids=["wide", "phone"])
def test_axe_finds_nothing_and_nothing_is_too_wide(browser, address, scheme, viewport):
    options = {"viewport": viewport} if viewport else {}
    with page_of(browser, address, color_scheme=scheme, reduced_motion="reduce", **options) as page:
        page.goto("/?q=red&having=sound")
        settled(page, "nearest first")
        drop(page, PICTURE)
        page.wait_for_selector("#parts li")
        settled(page, "nearest first")
        page.locator("#quality summary").click()
        _check(page)
        page.locator(".card h3 a").first.click()
        page.get_by_role("dialog").wait_for()
        _check(page)


@pytest.mark.parametrize("viewport", [None, PHONE], ids=["wide", "phone"])
def test_axe_finds_nothing_in_the_form_for_new_items(browser, shapes, viewport):
    options = {"viewport": viewport} if viewport else {}
    with (
        served(shapes, allow_add=True) as port,
        page_of(browser, f"http://127.0.0.1:{port}", reduced_motion="reduce", **options) as page,
    ):
        page.goto("/")
        settled(page, "shown")
        page.locator("#help summary").click()
        page.locator("#adding-open").click()
        page.get_by_role("dialog").wait_for()
        _check(page)


def _check(page) -> None:
    found = axe.Axe().run(page).response
    assert len(found["passes"]) > 15
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_axe_would_find_something(browser, address):
    with page_of(browser, address) as page:
        page.goto("/")
        settled(page, "shown")
        page.evaluate("document.querySelector('label[for=words]').remove()")
        page.evaluate("document.getElementById('words').placeholder = ''")
        assert "label" in [one["id"] for one in axe.Axe().run(page).response["violations"]]

"""The page in a real browser: searching, dropping, filtering, opening, playing, and axe-core without findings."""

from __future__ import annotations

import pytest

from calmrl.search.hits import Contribution
from tests.support import shapes as data
from tests.support.browser import PHONE, WHY_NOT, chromium, drop, page_of, settled
from tests.support.serving import served

pytest.importorskip("playwright", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

LAPTOP = {"width": 1366, "height": 768}
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
    assert titles(page)[0] == "red/circle"
    assert page.locator(".card .said").first.inner_text() == "A red circle on white"
    assert "q=red+circle" in page.url
    assert page.title() == "red circle · calmrl"


def test_a_dropped_picture_and_a_sound_in_one_query(page):
    drop(page, PICTURE)
    settled(page, "nearest first")
    assert titles(page)[0] == "green/cross"
    assert page.locator("#parts li").all_inner_texts() == ["green-cross.png"]
    drop(page, SOUND)
    page.wait_for_function("() => document.querySelectorAll('#parts li').length === 2")
    settled(page, "nearest first")
    page.get_by_role("button", name="Remove green-cross.png").click()
    page.wait_for_function("() => document.querySelector('.card h3').textContent === 'blue/circle'")
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
        page.locator("#parts li svg").first.wait_for()  # in the place of a picture that cannot be shown
        assert page.locator("#parts img").count() == 0


def test_filters_fold_away_and_the_back_button(page):
    assert not page.locator("#filters").is_visible()
    page.get_by_role("button", name="Filters").click()
    page.get_by_label("picture", exact=True).select_option("must have")
    settled(page, "24 items shown")
    page.get_by_label("text", exact=True).select_option("must lack")
    settled(page, "9 items shown")
    assert page.locator(".shot.none").count() == 0
    assert page.locator(".said").count() == 0
    page.select_option("#label", "red")
    settled(page, "1 item shown")
    assert page.url.endswith("?having=image&lacking=text&label=red")
    assert page.locator("#filters-open").inner_text() == "Filters: with picture, without text, red"
    page.get_by_label("sound", exact=True).select_option("must lack")
    settled(page, "No item fits the filters")
    page.go_back()
    page.go_back()
    settled(page, "9 items shown")
    assert page.input_value("#label") == ""
    page.get_by_role("button", name="Remove the filters").click()
    settled(page, "24 of 48 shown")
    assert page.locator("#filters-open").inner_text() == "Filters"


@pytest.mark.parametrize(("viewport", "least"), [(LAPTOP, 12), (PHONE, 3)], ids=["laptop", "phone"])
def test_many_results_are_seen_at_once(browser, address, viewport, least):
    with page_of(browser, address, viewport=viewport) as page:
        page.goto("/?q=red&having=text")
        settled(page, "nearest first")
        drop(page, PICTURE)
        page.wait_for_selector("#parts li")
        settled(page, "nearest first")
        ends = [page.locator(".card").nth(number).bounding_box() for number in range(24)]
        seen = [box for box in ends if box["y"] + box["height"] <= viewport["height"]]
        assert len(seen) >= least
        assert viewport is PHONE or len({box["y"] for box in seen}) >= 2


class Doubting(data.ShapeIndex):
    """Calls weak what is not near."""

    def search(self, **given):
        answer = super().search(**given)
        for hit in answer:
            hit.weak, hit.close = hit.similarity < 0.6, False
            hit.why = (
                Contribution("text", "image", 0.6),
                Contribution("text", "text", 0.2),
                Contribution(None, None, -0.1),
            )
        answer[-1].similarity = -0.12
        return answer


def test_weak_matches_stand_apart_and_reasons_are_given(browser, shapes):
    with (
        served(Doubting(shapes.folder / "items.jsonl")) as port,
        page_of(browser, f"http://127.0.0.1:{port}") as page,
    ):
        page.goto("/?q=red")
        settled(page, "8 items, nearest first, perhaps none that you mean; 16 weak")
        assert page.locator("#grid .card").count() == 8
        assert page.locator("#weak .card").count() == 16
        assert page.locator("#weak .score b").last.inner_text() == "−0.12"
        size = "(nodes) => nodes.map((node) => getComputedStyle(node)).map((style) => [style.fontSize, style.marginBottom])[0]"
        of = [page.locator(f"{part} .score").evaluate_all(size) for part in ("#grid", "#weak")]
        assert of[0] == of[1]  # cards are alike
        assert page.locator(".why").first.inner_text() == "by picture 75 %, text 25 %"
        page.locator(".card h3 a").first.click()
        sums = "0.60 for its picture and the text of the query, 0.20 for its text and the text of the query, −0.10 for"
        page.locator(".reasons", has_text=sums).wait_for()
        page.keyboard.press("Escape")
        page.fill("#words", "xyzzy")
        page.press("#words", "Enter")
        settled(page, "Nothing in this collection is close to that.")
        assert page.locator("#grid .card").count() == 0
        page.locator("#weak .card h3 a").first.click()
        page.get_by_role("dialog").wait_for()
        _check(page)


class Portraits(data.ShapeIndex):
    """Two columns of pictures."""

    asked = None

    def modalities(self):
        known = super().modalities()
        return {"portrait": {**known["image"], "n": 5}, **known}

    def search(self, portrait=None, image=None, **given):
        self.asked = "portrait" if portrait else "image"
        return super().search(image=portrait or image, **given)


def test_a_picture_is_compared_with_the_column_that_one_chooses(browser, shapes):
    index = Portraits(shapes.folder / "items.jsonl")
    with served(index) as port, page_of(browser, f"http://127.0.0.1:{port}") as page:
        page.goto("/")
        settled(page, "shown")
        drop(page, PICTURE)
        settled(page, "nearest first")
        assert index.asked == "image"  # more items have it
        page.get_by_label("Compare it with").select_option("as portrait")
        page.wait_for_function("() => document.querySelector('.parts select').value === 'portrait'")
        settled(page, "nearest first")
        assert index.asked == "portrait"


class Videos(data.ShapeIndex):
    """Pictures, and videos that no item has here."""

    def modalities(self):
        known = super().modalities()
        return {**known, "video": {**known["image"], "n": 1}}


def test_videos_have_an_icon_of_their_own(browser, shapes):
    with (
        served(Videos(shapes.folder / "items.jsonl")) as port,
        page_of(browser, f"http://127.0.0.1:{port}") as page,
    ):
        page.goto("/")
        settled(page, "shown")
        assert page.locator(".seen use[href='#icon-video']").count() == page.locator(".card").count()
        assert page.locator(".seen li > span:not(.unseen)").count() == 0  # no name has to tell it from a picture


def test_an_item_opens_with_all_modalities_and_closes_by_keyboard(page):
    search(page, "red ring")
    page.locator(".card h3 a").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert dialog.locator(".modality h3").all_inner_texts() == ["Why it was found", "picture", "sound"]
    assert dialog.locator(".gap").all_inner_texts() == ["no text"]
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
        assert page.locator("#item-title").inner_text() == "red/circle"
        assert (
            page.get_by_text("A red circle on white").locator("visible=true").count() == 2
        )  # on its card, and once here


def test_more_like_this(page):
    search(page, "violet")
    page.get_by_role("button", name="More like this: violet/square").click()
    page.wait_for_function("() => location.search.includes('like=')")
    settled(page, "nearest first")
    assert "violet/square" not in titles(page)
    assert "square" in titles(page)[0] or "violet" in titles(page)[0]
    assert "like=violet%2Fsquare" in page.url
    assert page.locator("#parts li").count() == 1


def test_show_more_keeps_what_is_there(page):
    page.get_by_role("button", name="Show more").click()
    settled(page, "48 of 48 shown")
    assert page.locator(".card").count() == 48
    assert page.get_by_role("button", name="Show more").count() == 0


def test_a_sound_plays_and_says_how_long_it_is(page):
    search(page, "red circle")
    button = page.get_by_role("button", name="Play sound of red/circle, 0:01")
    button.wait_for()
    assert button.inner_text() == "0:01"
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
    assert {"words", "choose-image", "choose-sound", "filters-open", "A", "BUTTON"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [None, PHONE], ids=["wide", "phone"])
def test_axe_finds_nothing_and_nothing_is_too_wide(browser, address, scheme, viewport):
    options = {"viewport": viewport} if viewport else {}
    with page_of(browser, address, color_scheme=scheme, reduced_motion="reduce", **options) as page:
        page.goto("/?q=red&having=sound")
        settled(page, "nearest first")
        page.locator("#filters-open").click()
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

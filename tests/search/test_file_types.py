"""Every type of file that people have, made for real, indexed and found from the shell; damaged ones are named and left out."""

from __future__ import annotations

import base64
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
pytest.importorskip("pillow_heif", reason="the extra files is not installed")
pytest.importorskip("pypdfium2", reason="the extra files is not installed")
pytest.importorskip("resvg_py", reason="the extra files is not installed")
pytest.importorskip("puremagic", reason="the extra files is not installed")

import pillow_heif as heif
from PIL import Image as image
from PIL import ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from calmrl import Index
from calmrl.data.media import documents
from calmrl.data.media.folder import read_folder
from calmrl.data.media.images import open_image
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.workflows import extract
from tests.support.colour_world import colour, write_item, write_picture

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 10">{}</svg>'


def picture(rgb) -> object:
    return image.new("RGB", (32, 24), tuple(int(value) for value in rgb))


def pdf_of(text: str) -> bytes:
    """A page with a text layer."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 5 0 R /Resources << /Font << /F1 4 0 R >> >> >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out = b"%PDF-1.4\n"
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 6\n0000000000 65535 f \n" + table + end


WRITERS = {  # type -> (file name, what writes a colour, the modality that finds it)
    "heic": ("heic.heic", lambda path, rgb: heif.from_pillow(picture(rgb)).save(path, quality=-1), "image"),
    "avif": ("avif.avif", lambda path, rgb: picture(rgb).save(path, quality=100), "image"),
    "svg": (
        "svg.svg",
        lambda path, rgb: path.write_text(
            SVG.format('<rect width="20" height="10" fill="rgb({},{},{})"/>'.format(*rgb))
        ),
        "image",
    ),
    "pdf of a picture": ("scan.pdf", lambda path, rgb: picture(rgb).save(path, "PDF", quality=95), "image"),
    "pdf of a text": (
        "text.pdf",
        lambda path, rgb: path.write_bytes(pdf_of("the colour {} {} {}".format(*rgb))),
        "text",
    ),
    "markdown": ("md.md", lambda path, rgb: path.write_text("# the\n\n*colour* {} **{}** {}\n".format(*rgb)), "text"),
    "html": (
        "html.html",
        lambda path, rgb: path.write_text(
            "<html><script>var a = 7 < 9;</script><p>the <b>colour</b> {} {}<p>{}</html>".format(*rgb)
        ),
        "text",
    ),
    "no suffix": ("noname", lambda path, rgb: picture(rgb).save(path, "PNG"), "image"),
}


@pytest.fixture
def folder(tmp_path, colours_by_default):
    """Twelve pictures with texts, one file of each type, and one damaged file of each type."""
    home = tmp_path / "home"
    for number in range(12):
        write_item(home, number, {"image", "text"})
    for number, (name, write, _) in enumerate(WRITERS.values(), start=100):
        write(home / name, colour(number))
    for name in ("bad.heic", "bad.avif", "bad.svg", "bad.pdf"):
        good = next(file for file in home.iterdir() if file.suffix == Path(name).suffix)
        (home / name).write_bytes(good.read_bytes()[: 40 if name != "bad.pdf" else 9])
    (home / "bad.md").write_bytes(b"\xff\xfe\xfa")
    (home / "bad.html").write_bytes(b"<script>nothing to read</script>")
    (home / "code.ts").write_text("const a: number = 1;\n")
    (home / "odd.bin").write_bytes(b"\x00\x01nothing known" * 9)
    return home


def test_each_type_is_indexed_and_found_from_the_shell(folder, calmrl, tmp_path):
    for number, (name, _, modality) in enumerate(WRITERS.values(), start=100):
        rgb = colour(number)
        query = ["the colour {} {} {}".format(*rgb)]
        if modality == "image":
            query = ["--image", str(write_picture(tmp_path / "query.png", rgb))]
        code, out, err = calmrl("search", str(folder), *query, "--having", modality, "-k", "1", "--json")
        assert code == 0, err
        hit = json.loads(out)["hits"][0]
        assert (hit["id"], hit["paths"][modality]) == (Path(name).stem, name)
    index = Index.open(next((tmp_path / "cache" / "calmrl" / "indexes").iterdir()))
    problems = " ".join(index.layout["problems"])
    for name in ("bad.heic", "bad.avif", "bad.svg", "bad.pdf", "bad.md", "bad.html", "code.ts", "odd.bin"):
        assert name in problems
    assert not {item.id for item in index.items(limit=100)} & {"bad", "code", "odd"}
    assert index.thumbnail("text") is not None  # of its first page


def test_all_that_is_left_aside_is_listed_on_request(folder, calmrl):
    for number in range(5):
        (folder / f"more{number}.bin").write_bytes(b"\x00\x01nothing known" * 9)
    (folder / "code.py").write_text("import this\n")
    code, _, err = calmrl("check", str(folder))
    assert code == 2
    assert "more4.bin" not in err
    _, _, err = calmrl("check", str(folder), "--all")
    for name, content in {
        "more4.bin": "unknown content",
        "code.py": "Python file",
        "odd.bin": "unknown content",
    }.items():
        assert f"file not understood: {name} ({content})\n" in err


def test_several_files_of_one_kind_are_used_together(tmp_path, colours_by_default, calmrl):
    home = tmp_path / "home"
    for number in range(12):
        write_item(home, number, {"image", "text"})
    one, other = np.array([250, 10, 10]), np.array([10, 10, 250])
    write_picture(home / "two.png", one)
    write_picture(home / "two.bmp", other)
    write_picture(home / "half.png", one)
    (home / "half.gif").write_bytes(b"GIF89a")
    (home / "said.txt").write_text("the colour 200 0 0")
    (home / "said.md").write_text("the colour 0 0 200")
    index = Index.build(home, tmp_path / "ix", {"text": "read", "image": "see"})
    write_picture(tmp_path / "mean.png", (one + other) / 2)
    write_picture(tmp_path / "one.png", one)
    vectors = {name: index.features_of(name)["image"] for name in ("two", "half")}
    encoded = index.encoders().encode([{"image": str(tmp_path / f"{name}.png")} for name in ("mean", "one")])[0][
        "image"
    ]
    assert np.allclose(vectors["two"], encoded[0], atol=1e-2)
    assert np.allclose(vectors["half"], encoded[1], atol=1e-2)  # the damaged one is left out
    assert "half.gif" in " ".join(index.layout["problems"])
    assert index.item("two").paths == {"image": "two.bmp", "image #2": "two.png"}
    assert index.file("two", "image #2") == home / "two.png"
    assert index.item("said").text == "the colour 0 0 200\nthe colour 200 0 0"
    assert not {path for path in index.folder_changes().new if "half.gif" not in path}
    write_picture(home / "two.png", other)
    assert [Path(path).name for path in index.folder_changes().changed] == ["two.png"]
    assert index.add(home).changed == ["two"]
    made = extract(home, {"text": "read", "image": "see"}, tmp_path / "features", allow_missing=True)
    row = list(made.ids).index("two")
    assert np.allclose(np.asarray(made.z["image"][row], np.float32), index.features_of("two")["image"], atol=1e-2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('<image href="{}" width="20" height="10"/>', None),
        ("<image xlink:href='{}' xmlns:xlink='http://www.w3.org/1999/xlink' width='20' height='10'/>", None),
        ("<!DOCTYPE svg [<!ENTITY e '&#60;image href=\"{}\"/>'>]>", "nested entities"),
    ],
)
def test_a_drawing_shows_no_other_file(tmp_path, content, said):
    secret = write_picture(tmp_path / "secret.png", np.array([255, 0, 0]))
    drawing = tmp_path / "drawing.svg"
    drawing.write_text(SVG.format(content.format(secret)))
    if said is not None:
        with pytest.raises(Unreadable, match=said):
            open_image(drawing)
    else:
        assert (np.asarray(open_image(drawing)) == 255).all()
    inside = '<image href="data:image/png;base64,{}" width="20" height="10"/>'
    drawing.write_text(SVG.format(inside.format(base64.b64encode(secret.read_bytes()).decode())))
    assert open_image(drawing).getpixel((256, 256)) == (255, 0, 0)  # what it holds itself is drawn


@pytest.mark.parametrize("unit", ["", "px", "pt", "mm", "in"])
def test_the_size_of_a_drawing_has_any_unit(tmp_path, unit):
    box = '<rect width="100%" height="100%" fill="rgb(0,0,255)"/>'
    (tmp_path / "a.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="20{unit}" height="20{unit}">{box}</svg>'
    )
    drawn = open_image(tmp_path / "a.svg")
    assert drawn.getpixel((drawn.width // 2, drawn.height // 2)) == (0, 0, 255)


def test_a_drawing_of_absurd_size_is_refused(tmp_path):
    """One such kept resvg busy for ever."""
    (tmp_path / "a.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="1{"0" * 30}"/>')
    with pytest.raises(Unreadable, match=r"a\.svg is 20 x 1e\+30; at most 100,000 are drawn"):
        open_image(tmp_path / "a.svg")


def test_a_picture_that_mentions_svg_is_no_drawing(tmp_path):
    info = PngInfo()
    info.add_text("made from", "<svg>")
    picture((9, 8, 7)).save(tmp_path / "a.png", pnginfo=info)
    assert b"<svg>" in (tmp_path / "a.png").read_bytes()[:1024]
    assert open_image(tmp_path / "a.png").getpixel((0, 0)) == (9, 8, 7)


def test_words_in_pictures(tmp_path, colours_by_default, monkeypatch, calmrl):
    """A stand-in reads the colour that a picture has; the packages of the extra are tested where they are installed."""
    seen: list[tuple[int, ...]] = []

    class Reader:
        def __init__(self, params) -> None:
            pass

        def __call__(self, pixels):
            seen.append(tuple(int(value) for value in pixels[0, 0]))
            return types.SimpleNamespace(txts=("written", "zebra") if seen[-1] == (30, 20, 10) else None)

    documents._reader.cache_clear()
    monkeypatch.setitem(sys.modules, "rapidocr", types.SimpleNamespace(RapidOCR=Reader))
    monkeypatch.setitem(sys.modules, "onnxruntime", types.SimpleNamespace())
    home = tmp_path / "home"
    for number in range(12):
        write_item(home, number, {"image", "text"})
    write_picture(home / "sign.png", np.array([10, 20, 30]))
    code, _, err = calmrl("index", str(home), "--out", str(tmp_path / "ix"), "--ocr")
    documents._reader.cache_clear()
    assert code == 0, err
    assert len(seen) == 13
    index = Index.open(tmp_path / "ix")
    assert index.item("sign").text == "written zebra"
    out = calmrl("search", str(tmp_path / "ix"), "zebra", "-k", "1", "--json")[1]
    assert json.loads(out)["hits"][0]["id"] == "sign"
    assert index.add(home).changed == []
    assert len(seen) == 13  # what was read is kept
    documents._reader.cache_clear()


def test_words_in_a_real_picture(tmp_path, monkeypatch):
    pytest.importorskip("rapidocr", reason="the extra ocr is not installed")
    pytest.importorskip("onnxruntime", reason="the extra ocr is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paper = image.new("RGB", (600, 160), "white")
    ImageDraw.Draw(paper).text((20, 40), "Invoice 4711", fill="black", font=ImageFont.load_default(48))
    paper.save(tmp_path / "paper.png")
    assert documents.words_in(tmp_path / "paper.png") == "Invoice 4711"


def test_what_is_said_of_texts_that_cannot_be_read(tmp_path):
    (tmp_path / "a.html").write_bytes('<meta charset="iso-8859-1"><p>caf\xe9</p>'.encode("latin-1"))
    (tmp_path / "b.html").write_bytes(b'<meta charset="klingon"><p>x</p>')
    (tmp_path / "c.md").write_text("---\ntitle: none\n---\nSee [the docs](http://a.b) and ![a cat](cat.png).\n")
    manifest = read_folder(tmp_path, problems := Problems())
    assert {item.id: item.cells.get("text") for item in manifest.items} == {
        "a": ["café"],
        "b": None,
        "c": ["See the docs and a cat."],
    }
    assert [(problem.kind, problem.id) for problem in problems] == [("not a text", "b")]

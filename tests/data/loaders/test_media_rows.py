"""Raw files to batches: the right frames, sounds and tokens, only of what is there, the same again after a stop."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calmrl.data.loaders.batches import Batches
from calmrl.data.loaders.media_rows import MediaRows, beats_fbank, load_tokenizer
from calmrl.data.media.decoding import Decoding
from calmrl.data.media.manifest import Manifest, read_manifest
from calmrl.data.media.problems import Problems
from calmrl.data.media.streams import read_audio, segment_frames
from calmrl.errors import InputError
from tests.support.make_media import SIZE, click, make_video, number_frame, read_number
from tests.support.tiny_encoders import save_tokenizer

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
image_module = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
MEDIA = {"vision": "image", "audio": "audio", "text": "text", "subtitle": "text"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ten items: 0-5 with picture and sound, 6 silent, 7 a picture, 8 sound only, 9 text only."""
    folder = tmp_path_factory.mktemp("media")
    save_tokenizer(folder / "tokenizer")
    rows = []
    for i in range(10):
        row = {"id": f"item{i}", "text": [f"video number {i}", f"another text for {i}"] if i % 2 else f"number {i}"}
        if i < 7:
            sound = click(0.3 + 0.05 * i, 1.5) if i < 6 else None
            path = make_video(folder / f"{i}.mp4", 20 + i, 10, sound=sound)
            row |= {"vision": path.name, "audio": path.name if i < 6 else None}
        if i == 7:
            image_module.fromarray(number_frame(77)).save(folder / "7.png")
            row["vision"] = "7.png"
        if i == 8:
            row["audio"] = "0.mp4"
        if i % 3 == 0:
            row["subtitle"] = "somebody says " * 20
        rows.append({key: row.get(key) for key in ("id", *MEDIA)})
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def opened(files) -> Manifest:
    problems = Problems()
    manifest = read_manifest(files / "items.jsonl", MEDIA, problems)
    assert not problems
    return manifest


def media(files, **options) -> MediaRows:
    settings = {"tokenizer": str(files / "tokenizer"), "frames": 4, "size": SIZE, **options}
    return MediaRows(opened(files), **settings)


def numbers(frames: torch.Tensor) -> list[int]:
    """What the frames show; the mean and deviation of CLIP are undone by looking for the middle."""
    bright = frames.numpy().transpose(0, 2, 3, 1) > 0
    return [read_number(frame * 255.0) for frame in bright]


def test_a_batch_holds_what_is_there_and_nothing_else(files) -> None:
    rows = media(files, training=False)
    has, z = rows.present, rows.fetch(np.arange(10), rows.present, 0)
    assert has[:, 0].tolist() == [True] * 8 + [False] * 2
    assert has[:, 1].tolist() == [True] * 6 + [False, False, True, False]
    assert has[:, 2].all()
    assert has[:, 3].nonzero()[0].tolist() == [0, 3, 6, 9]
    assert z["vision"].shape == (8, 4, 3, SIZE, SIZE)
    assert z["audio"].shape == (7, 1, 1024, 64)
    assert z["text"]["input_ids"].shape == z["text"]["attention_mask"].shape == (10, 40)
    assert z["subtitle"]["input_ids"].shape == (4, 70)
    for i in range(7):
        assert numbers(z["vision"][i]) == segment_frames(20 + i, 4, rule="split")
    assert numbers(z["vision"][7]) == [77] * 4
    sound = beats_fbank(torch.from_numpy(read_audio(files / "2.mp4", channel="left", resampling="sinc")))
    assert torch.equal(z["audio"][2], sound)
    words = rows.tokenizer.batch_decode(z["text"]["input_ids"], skip_special_tokens=True)
    assert words[3].replace(" ", "") == "videonumber3"
    assert z["subtitle"]["attention_mask"].all()  # longer than 70


def test_clip_mean_and_deviation(files) -> None:
    rows = media(files, training=False)
    white = rows.fetch(np.array([7]), rows.present[[7]], 0)["vision"].amax((0, 1, 3, 4))
    torch.testing.assert_close(white, torch.tensor([1.930, 2.0749, 2.146]), atol=2e-3, rtol=0)


def test_training_draws_anew_each_epoch_and_the_same_for_the_same_seed(files) -> None:
    rows = media(files)
    two = np.array([1, 4])

    def drawn(source, epoch):
        got = source.fetch(two, source.present[two], epoch)
        return [numbers(item) for item in got["vision"]], got["text"]["input_ids"].tolist()

    assert drawn(rows, 0) == drawn(media(files), 0)
    assert len({json.dumps(drawn(rows, epoch)[0]) for epoch in range(4)}) > 1
    assert drawn(media(files, seed=1), 0) != drawn(rows, 0)
    texts = {json.dumps(drawn(rows, epoch)[1][0]) for epoch in range(12)}
    assert len(texts) == 2  # both texts of the item come
    for item, total in zip(drawn(rows, 3)[0], (21, 24), strict=True):
        for i, number in enumerate(item):
            assert number in np.array_split(np.arange(total), 4)[i]
    other = rows.fetch(two[::-1].copy(), rows.present[two[::-1]], 0)  # the draw of a row does not depend on the batch
    assert [numbers(item) for item in other["vision"]][::-1] == drawn(rows, 0)[0]


def test_nothing_is_decoded_that_is_not_asked_for(files, monkeypatch) -> None:
    import calmrl.data.media.jobs as jobs

    read: list[str] = []
    frames, audio = jobs.read_frames, jobs.read_audio
    monkeypatch.setattr(jobs, "read_frames", lambda p, *more: read.append(f"see {p[-6:]}") or frames(p, *more))
    monkeypatch.setattr(jobs, "read_audio", lambda p, *more, **how: read.append(f"hear {p[-6:]}") or audio(p, *more))
    hide = np.ones((10, 4), dtype=bool)
    hide[:, 0] = [True, False] * 5
    hide[:, 1] = [False, True] * 5
    rows = media(files, present=hide)
    (batch,) = Batches(rows, 10)
    assert sorted(read) == sorted([f"see /{i}.mp4" for i in (0, 2, 4, 6)] + [f"hear /{i}.mp4" for i in (1, 3, 5)])
    assert batch["z"]["vision"].shape[0] == 4
    assert batch["z"]["audio"].shape[0] == 3
    text_only = rows.fetch(np.arange(3), np.tile([False, False, True, False], (3, 1)), 0)
    assert text_only["vision"].shape == (0, 4, 3, SIZE, SIZE)
    assert text_only["audio"].shape == (0, 1, 1024, 64)
    assert text_only["subtitle"]["input_ids"].shape == (0, 70)
    assert len(read) == 7


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b)


@pytest.mark.parametrize("workers", [1, 3])
def test_it_continues_in_the_middle_of_an_epoch(files, workers: int) -> None:
    plain = Batches(media(files), 3, seed=5)
    every = [batch for _ in range(2) for batch in plain]
    first = Batches(media(files), 3, seed=5)
    taken = []
    for batch in first:
        taken.append(batch)
        if len(taken) == 2:
            break
    later = Batches(media(files, workers=workers), 3, seed=5)
    later.load_state_dict(json.loads(json.dumps(first.state_dict())))
    taken += [*later, *later]
    assert len(taken) == len(every) == 8
    assert all(same(a, b) for a, b in zip(taken, every, strict=True))
    with pytest.raises(InputError, match="another set of training rows"):
        Batches(media(files, frames=2), 3, seed=5).load_state_dict(first.state_dict())
    with pytest.raises(InputError, match="another batch_size"):
        Batches(media(files), 4, seed=5).load_state_dict(first.state_dict())


def test_all_captions(files) -> None:
    rows = media(files)
    parts = list(rows.captions(batch_size=4))
    owner = np.concatenate([at for _, at in parts])
    assert owner.tolist() == [0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9]
    assert sum(len(tokens["input_ids"]) for tokens, _ in parts) == 15


def test_slices_of_a_sound_are_drawn_from_its_segments(files) -> None:
    only = np.array([[False, True, False, False]])
    still = media(files, training=False, slices=2).fetch(np.array([0]), only, 0)["audio"]
    assert still.shape == (1, 2, 1024, 64)
    assert not still[0, 1].any()  # a second of zeros follows a sound of one slice
    repeated = media(files, training=False, slices=2, decoding=Decoding(padding="repeat")).fetch(np.array([0]), only, 0)
    assert torch.equal(repeated["audio"][0, 0], repeated["audio"][0, 1])


def test_sources_are_joined_in_the_order_of_the_batch(files) -> None:
    rows = media(files, training=False)
    present = rows.present[[5, 8, 7, 0]]
    parts = [(np.array([0, 2]), rows.fetch(np.array([5, 7]), rows.present[[5, 7]], 0))]
    parts.append((np.array([1, 3]), rows.fetch(np.array([8, 0]), rows.present[[8, 0]], 0)))
    whole = rows.fetch(np.array([5, 8, 7, 0]), present, 0)
    assert same(rows.join(parts, present), whole)
    assert same(rows.join([(np.arange(4), whole)], present), whole)


def test_a_file_that_cannot_be_read_is_named_and_never_replaced(files, tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be loaded"):
        load_tokenizer(str(files / "nowhere"))
    manifest = opened(files)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes((files / "3.mp4").read_bytes()[:600])
    manifest.items[3].cells["vision"] = str(broken)
    rows = MediaRows(manifest, tokenizer=str(files / "tokenizer"), frames=2, size=SIZE)
    with pytest.raises(InputError, match=r"broken\.mp4.*repair it"):
        list(Batches(rows, 5))
    manifest.items[3].cells["vision"] = str(tmp_path / "gone.mp4")
    with pytest.raises(InputError, match=r"gone\.mp4 \(file not found\)"):
        list(Batches(rows, 5))

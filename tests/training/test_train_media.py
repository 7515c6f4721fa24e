"""From files with the command line: train, resume, evaluate with matching and re-ranking."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

import calmrl
from calmrl.config import load
from calmrl.errors import InputError
from calmrl.workflows.from_config import open_data
from tests.support import warm
from tests.support.make_media import make_films, make_video
from tests.support.publisher_files import write
from tests.support.tiny_encoders import save_tokenizer

pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
ITEMS = 32
SIZES = {"patch_size": 14, "vision_width": 24, "vision_layers": 2, "vision_heads": 4, "vision_mlp": 48}
SIZES |= {"audio_embed": 16, "audio_width": 24, "audio_layers": 2, "audio_heads": 4, "audio_mlp": 48}
SIZES |= {"audio_kernel": 6, "audio_groups": 4, "audio_buckets": 16, "audio_max_distance": 12}
SIZES |= {"vocabulary": 64, "text_width": 24, "text_layers": 2, "text_heads": 4, "text_mlp": 48, "positions": 80}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """32 small videos: some without sound, some without picture; two captions each; a paper-shaped config."""
    folder = tmp_path_factory.mktemp("films")
    save_tokenizer(folder / "tokenizer")
    split = ["train"] * 16 + ["val"] * 8 + ["test"] * 8
    rows = [row | {"split": part} for row, part in zip(make_films(folder, ITEMS, 0.01), split, strict=True)]
    complete = [row for row in rows if row["audio"] and row["vision"]]
    pairs = [row for row in rows if row not in complete]
    for name, part in (("warm", complete), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    config = {
        "kind": "train",
        "method": "calmrl-printed",
        "root": str(folder),
        "sources": {"warm": {"manifest": "warm.jsonl"}, "pairs": {"manifest": "pairs.jsonl"}},
        "modalities": ["vision", "audio", "text"],
        "model": {"kind": "vast", "width": 16, "frames": 2, "image_size": 28, "tokenizer": "tokenizer",
                  "tokens": {"text": 12}, "sizes": SIZES},
        "objective": {"name": "pmrl"},
        "calibration": {"imputer": {"method": "gaussian", "latent_dim": 4}},
        "stages": [
            {"name": "warm-up", "sources": ["warm"], "epochs": 1.0, "hide_one": True},
            {"name": "missing", "epochs": 2.0},
        ],
        "batch_size": 4,
        "optimiser": {"learning_rate": 1e-3, "encoder_learning_rate": 1e-4},
    }  # fmt: skip
    (folder / "paper.yaml").write_text(yaml.safe_dump(config))
    return folder


def calmrl_command(*words):
    run = warm.run(["-m", "calmrl", *words])
    assert run.returncode == 0, run.stderr
    return run


def test_from_files_to_ranked_again(folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    calmrl_command("train", folder / "paper.yaml", "--out", whole)
    steps = max(json.loads(line)["step"] for line in (whole / "metrics.jsonl").read_text().splitlines())
    kill = tmp_path / "kill.py"
    kill.write_text(
        "import os, signal, sys\nfrom calmrl.training import loop\nfrom calmrl.cli import main\n"
        "update = loop.Trainer._update\n"
        "def stop(self, *a):\n"
        f"    if self.position.step == {steps - 2}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return update(self, *a)\n"
        "loop.Trainer._update = stop\nmain(sys.argv[1:])\n"
    )
    assert warm.run([kill, "train", folder / "paper.yaml", "--out", parts]).returncode == -9
    calmrl_command("train", folder / "paper.yaml", "--out", parts, "--resume")
    first, second = (calmrl.load(path) for path in (whole, parts))
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    calmrl_command("evaluate", whole)
    rows = json.loads((whole / "results.json").read_text())["rows"]
    tasks = {row["task"] for row in rows if row["metric"] == "R@1"}
    assert {"text->vision", "text->all", "text->all re-ranked", "all->text", "all->text re-ranked"} <= tasks
    captions = {row["dataset"]: row["n"] for row in rows if row["task"] == "text->all re-ranked"}
    assert sum(captions.values()) == 2 * 8  # every caption of every test item counts


def test_a_trained_model_of_media_embeds_and_imputes(folder, tmp_path):
    out = tmp_path / "run"
    calmrl_command("train", folder / "paper.yaml", "--out", out, "stages=[{name: one, steps: 2}]")
    model = calmrl.load(out)
    rows = open_data(load(folder / "paper.yaml")).train["pairs"]
    present = rows.present[:5]
    inputs = rows.fetch(torch.arange(5).numpy(), present, 0)
    filled = model.transform(inputs, present)
    assert all(torch.isfinite(values).all() for values in filled.values())
    assert model.embed(inputs, present).shape == (5, 16)
    with pytest.raises(InputError, match="needs present"):
        model.embed(inputs)


def test_all_that_is_missing_is_said_at_once(folder):
    config = load(
        folder / "paper.yaml",
        ["sources.warm.manifest=nowhere.jsonl", "model.tokenizer=nothing", "model.weights.vision=eva.pt"],
    )
    with pytest.raises(InputError) as error:
        open_data(config)
    assert all(word in str(error.value) for word in ("nowhere.jsonl", "nothing", "eva.pt"))


def test_paper_vast_takes_a_step_in_every_stage_on_stand_ins(folder, tmp_path):
    """The shipped config with tiny towers, and files laid out as it says."""
    films = [folder / f"{i}.mp4" for i in (0, 3, 4, 7, 8, 11)]
    media = ("vast150k/videos", "vast150k/audio", "msrvtt/videos", "audiocaps/audio")
    for name in media:
        (tmp_path / name).mkdir(parents=True)
        for i, film in enumerate(films):
            (tmp_path / name / f"v{i}{film.suffix}").symlink_to(film)
    ids = range(len(films))
    lists = {
        "vast150k": [{"clip_id": f"v{i}", "vast_cap": f"film {i}", "subtitle": f"words {i}"} for i in ids],
        "msrvtt_train": [{"video_id": f"v{i}", "desc": f"film {i}"} for i in ids],
        "audiocaps_train": [{"video_id": f"v{i}", "caption": [f"sound {i}", f"noise {i}"]} for i in ids],
    }
    lists |= {f"{name}_test": lists[f"{name}_train"] for name in ("msrvtt", "audiocaps")}
    (tmp_path / "annotations").mkdir()
    for name, rows in lists.items():
        (tmp_path / "annotations" / f"{name}.json").write_text(json.dumps(rows))
    tiny = [f"model.sizes={json.dumps(SIZES)}", "model.image_size=28", "model.width=16", "model.frames=2"]
    tiny += [
        "model.weights.checkpoint=null",
        f"model.tokenizer={folder / 'tokenizer'}",
        "batch_size=4",
        "precision=fp32",
    ]
    steps = [f"stages.{i}.{key}" for i in (0, 1) for key in ("epochs=null", "steps=1")]
    out = tmp_path / "out"
    calmrl_command("train", "paper-vast", f"root={tmp_path}", *tiny, *steps, "--out", out)
    assert calmrl.load(out).names == ("vision", "audio", "text", "subtitle")
    calmrl_command("evaluate", out)
    rows = json.loads((out / "results.json").read_text())["rows"]
    captions = {row["dataset"]: row["n"] for row in rows if row["task"] == "text->all re-ranked"}
    assert captions == {"msrvtt-test": 6, "audiocaps-test": 12}


def test_a_collection_that_is_not_complete_trains_and_every_table_says_so(folder, tmp_path):
    """MSR-VTT as published: one test film is absent, one training film is mute, one is no film."""
    train = [f"video{i}" for i in range(8)]
    test = [f"video{i}" for i in range(8, 14)]
    data = {"videos": [], "sentences": [{"video_id": name, "caption": f"film {name[5:]}"} for name in train]}
    write(tmp_path, {"MSRVTT_data.json": data, "MSRVTT_train.9k.csv": "\n".join(["video_id", *train])})
    lines = [f"ret{i},msr{i},{name},a film {i}" for i, name in enumerate(test)]
    write(tmp_path, {"MSRVTT_JSFUSION_test.csv": "\n".join(["key,vid_key,video_id,sentence", *lines])})
    (tmp_path / "all").mkdir()
    for name in [*train, *test[1:]]:
        (tmp_path / "all" / f"{name}.mp4").symlink_to(folder / f"{name[5:]}.mp4")
    (tmp_path / "all/video0.mp4").unlink()
    make_video(tmp_path / "all/video0.mp4", 6)  # mute
    (tmp_path / "all/video1.mp4").unlink()
    (tmp_path / "all/video1.mp4").write_bytes(b"no film")
    source = "sources={msrvtt: {collection: {name: msrvtt, root: '%s'}, allow_missing: %s}}"
    words = ["root=null", f"model.tokenizer={folder / 'tokenizer'}", "stages=[{name: one, steps: 1}]"]
    with pytest.raises(InputError, match=r"msrvtt 1k-a in .* has 2 problems; .*allow_missing: true"):
        open_data(load(folder / "paper.yaml", [source % (tmp_path, "false"), *words]))
    words.append(source % (tmp_path, "true"))
    data = open_data(load(folder / "paper.yaml", words))
    assert data.train["msrvtt"].present.tolist() == [[True, False, True], [False, False, True], *[[True] * 3] * 6]
    assert any("left out: vision of 2, audio of 3 (of 14 listed items)" in note for note in data.notes)
    assert any("train 8 of 9,000 published, test 6 of 1,000 published items" in note for note in data.notes)
    out = tmp_path / "out"
    calmrl_command("train", folder / "paper.yaml", *words, "--out", out)
    told = calmrl_command("evaluate", out).stderr
    said = "Skipped: msrvtt: vision of 1, audio of 1 (of 6 listed items)."
    assert told.count(said) == told.count("──\n") > 1  # below every table
    meta = json.loads((out / "results.json").read_text())["meta"]
    assert meta["datasets"]["msrvtt"]["left_out"] == {"listed": 6, "vision": 1, "audio": 1}

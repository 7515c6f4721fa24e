"""The examples run and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_drop_in_loss() -> None:
    before, after = runpy.run_path(str(EXAMPLES / "drop_in_loss.py"))["main"](steps=60)
    assert before < 0.05
    assert after > 0.3


@pytest.mark.parametrize("script", ["metric_learning", "lightning_module", "hf_trainer"])
def test_losses_in_the_loops_of_other_libraries(script, monkeypatch) -> None:
    needs = {
        "metric_learning": "pytorch_metric_learning",
        "lightning_module": "lightning",
        "hf_trainer": "transformers",
    }
    pytest.importorskip(needs[script])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    result = runpy.run_path(str(EXAMPLES / f"{script}.py"))["main"](epochs=3)
    assert result["loss"][-1] < 0.5 * result["loss"][0]
    before, after = result["R@1"]
    assert before < 2  # percent; by chance 0.3
    assert after > 15


def test_a_checkpoint_of_the_hf_trainer_holds_the_latent_model(tmp_path, monkeypatch) -> None:
    pytest.importorskip("transformers")
    import torch
    from safetensors.torch import load_file

    monkeypatch.syspath_prepend(str(EXAMPLES))
    script = runpy.run_path(str(EXAMPLES / "hf_trainer.py"))
    script["main"](epochs=1, output=str(tmp_path))
    (weights,) = tmp_path.rglob("model.safetensors")
    (z, present), _ = script["incomplete_emoji"]()
    model = script["Heads"]({name: x.shape[1] for name, x in z.items()})
    model.load_state_dict(load_file(weights))
    with torch.no_grad():
        value = model.eval()(present[:64], **{name: x[:64] for name, x in z.items()})["loss"]
    assert torch.isfinite(value)
    assert model.loss.imputer.n_iter_ == 9  # batches of the epoch


def test_make_collection(tmp_path) -> None:
    pytest.importorskip("PIL", reason="Pillow (calmrl[media]) is not installed")
    from calmrl.data.media.folder import read_folder
    from calmrl.data.media.problems import Problems

    main = runpy.run_path(str(EXAMPLES / "make_collection.py"))["main"]
    files = main(tmp_path / "c", items=40)
    problems = Problems()
    manifest = read_folder(tmp_path / "c", problems)
    assert not problems
    assert len(manifest.items) == 40
    assert sum(len(item.cells) for item in manifest.items) == files
    assert set(manifest.kinds) == {"text", "image", "sound"}
    assert (tmp_path / "c/elephant").is_dir()
    texts = {path.read_text().strip() for path in (tmp_path / "c").rglob("*.txt")}
    assert {text for text in texts if text.split()[1][0] in "aeiou"} == {text for text in texts if text[:2] == "an"}
    assert 0.3 * main.__globals__["COMPLETE"] * 551 < 10  # so that fewer than ten test rows are complete

"""VastModel: twins, present rows only, matching, re-ranking, what is saved."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from calmrl.errors import InputError
from calmrl.paper.vast.matching import (
    VastMatching,
    bert_tokens,
    build_bert,
    cat_conditions,
    frame_embedding,
)
from calmrl.paper.vast.model import NAMES, FusedHeads, VastModel, summed
from tests.reference import models as twin
from tests.support.tiny_models import VAST, mixed, scramble, seeded, tiny_inputs, tiny_vast


def ids_of(text: dict, row: int) -> list[int]:
    return text["input_ids"][row][text["attention_mask"][row] > 0].tolist()


def test_vectors_agree_with_the_twins() -> None:
    model, present = tiny_vast().double(), mixed(6)
    inputs = tiny_inputs(present)
    inputs |= {name: inputs[name].double() for name in ("vision", "audio")}
    z = model(inputs, present)
    state = dict(model.state_dict())
    parts = {name: twin.part_of(state, f"{name}.") for name in ("vision", "audio", "bert")}
    for column, name in enumerate(NAMES):
        for number, row in enumerate(present[:, column].nonzero()[:, 0].tolist()):
            if name == "vision":
                frames = [twin.eva(f, parts["vision"], VAST["vision_heads"])[0] for f in inputs[name][number]]
            elif name == "audio":
                sizes = (VAST["audio_heads"], VAST["audio_groups"], VAST["audio_max_distance"])
                frames = [twin.beats(f, parts["audio"], *sizes).mean(0) for f in inputs[name][number]]
            else:
                frames = [twin.bert(ids_of(inputs[name], number), parts["bert"], VAST["text_heads"])[0]]
            vector = state[f"heads.{name}.weight"] @ torch.stack(frames).mean(0)
            slow = vector / vector.norm()
            torch.testing.assert_close(z[name][row].double(), slow, atol=1e-5, rtol=1e-5)
        assert torch.equal(z[name][~present[:, column]], torch.zeros(int((~present[:, column]).sum()), 8))


def test_an_encoder_sees_the_rows_that_are_there_and_no_others() -> None:
    model, present = tiny_vast(), mixed(9, seed=1)
    seen: dict[str, int] = {}

    def count(name):
        return lambda module, args, kwargs: seen.update(
            {name: seen.get(name, 0) + len(args[0] if args else kwargs["input_ids"])}
        )

    for name in ("vision", "audio", "bert"):
        getattr(model, name).register_forward_pre_hook(count(name), with_kwargs=True)
    model(tiny_inputs(present), present)
    v, a, t, s = present.sum(0).tolist()
    assert seen == {"vision": 2 * v, "audio": a, "bert": t + s}
    seen.clear()
    only_text = torch.zeros(5, 4, dtype=torch.bool)
    only_text[:, 2] = True
    z = model(tiny_inputs(only_text), only_text)
    assert seen == {"bert": 5}
    assert z["vision"].shape == z["audio"].shape == (5, 8)
    assert not z["vision"].any()


def test_matching_scores_agree_with_the_twin() -> None:
    model, present = tiny_vast().double(), mixed(5, seed=2)
    inputs = tiny_inputs(present, seed=3)
    inputs |= {name: inputs[name].double() for name in ("vision", "audio")}
    _, tokens = model.encode(inputs, present)
    conditions = model.matching.conditions(tokens, present)
    state = dict(model.state_dict())
    for i in present[:, 2].nonzero()[:, 0].tolist():
        for j in range(5):
            seen = {
                name: tokens[name][int(present[:j, column].sum())]
                for column, name in enumerate(NAMES)
                if name != "text" and present[j, column]
            }
            if seen:
                fast = model.matching.logits(tokens["text"], conditions, torch.tensor([i]), torch.tensor([j]))[0]
                slow = twin.match(ids_of(tokens["text"], i), seen, state, VAST["text_heads"])
                torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


def test_the_matching_loss_is_the_mean_over_drawn_pairs() -> None:
    model, present = tiny_vast(), mixed(7, seed=4)
    present[3] = torch.tensor([True, True, False, False])  # no text: no term, though its others may be drawn
    present[4] = torch.tensor([False, False, True, False])  # nothing but text
    z, tokens = model.encode(tiny_inputs(present), present)
    drawn = []
    plain = model.matching.logits

    def watch(text, conditions, i, j):
        drawn.append((i, j, plain(text, conditions, i, j)))
        return drawn[-1][2]

    model.matching.logits = watch
    value = model.matching(z, present, tokens=tokens, generator=seeded(5))
    ((i, j, logits),) = drawn
    valid = (present[:, 2] & present[:, [0, 1, 3]].any(1)).nonzero()[:, 0]
    n = len(valid)
    assert len(i) == 3 * n
    assert torch.equal(i[:n], valid)
    assert torch.equal(j[:n], valid)
    assert torch.equal(i[n : 2 * n], valid)
    assert torch.equal(j[2 * n :], valid)
    assert (i[n:] != j[n:]).all()
    assert present[i, 2].all()
    assert present[j][:, [0, 1, 3]].any(1).all()
    odds = logits.log_softmax(1)
    assert value.item() == pytest.approx(-(odds[:n, 1].sum() + odds[n:, 0].sum()).item() / (3 * n), rel=1e-5)
    again = model.matching(z, present, tokens=tokens, generator=seeded(5))
    assert again == value


def test_what_is_missing_does_not_reach_the_matching_head() -> None:
    model, present = tiny_vast(), mixed(5, seed=6)
    inputs = tiny_inputs(present)
    _, tokens = model.encode(inputs, present)
    every = torch.arange(5)[present[:, 2] & present[:, [0, 1, 3]].any(1)]
    x, there = model.matching.conditions(tokens, present)
    spoilt = torch.where(there[..., None], x, 1e4)
    torch.testing.assert_close(
        model.matching.logits(tokens["text"], (x, there), every, every),
        model.matching.logits(tokens["text"], (spoilt, there), every, every),
    )


def test_gradients_reach_every_parameter() -> None:
    model, present = tiny_vast(), mixed(6, seed=7)
    present[3:6] = torch.tensor([[True, True, True, False], [True, False, True, True], [True] * 4])  # all fused heads
    inputs = tiny_inputs(present)
    plain = []
    for on in (False, True):
        model.set_checkpointing(on)
        model.zero_grad()
        z, tokens = model.encode(inputs, present)
        loss = sum((value[:, 0] * value[:, 1]).sum() for value in (*z.values(), tokens["fused"]))
        (loss + model.matching(z, present, tokens=tokens, generator=seeded())).backward()
        plain.append({name: p.grad for name, p in model.named_parameters()})
    lacking = [name for name, g in plain[0].items() if g is None or not g.any()]
    assert lacking == []
    for name, gradient in plain[0].items():
        torch.testing.assert_close(gradient, plain[1][name], msg=name)


def test_rows_that_cannot_match_cost_nothing() -> None:
    model = tiny_vast()
    present = torch.tensor([[True, True, False, False], [False, False, True, False]])
    z, tokens = model.encode(tiny_inputs(present), present)
    assert model.matching(z, present, tokens=tokens) == 0


def test_bfloat16_autocast() -> None:
    model, present = tiny_vast(), mixed(4, seed=8)
    inputs = tiny_inputs(present)
    exact = model(inputs, present)
    with torch.autocast("cpu", torch.bfloat16):
        z, tokens = model.encode(inputs, present)
        loss = model.matching(z, present, tokens=tokens, generator=seeded())
    loss.backward()
    assert torch.isfinite(loss)
    for name in NAMES:
        assert z[name].dtype == torch.float32
        there = exact[name].norm(dim=1) > 0
        torch.testing.assert_close(z[name][there].norm(dim=1), torch.ones(int(there.sum())))
        assert ((z[name] * exact[name]).sum(1)[there] > 0.95).all()


@pytest.mark.parametrize("by_items", [False, True])
def test_rerank_sorts_the_best_by_the_matching_head(by_items: bool) -> None:
    model, present = tiny_vast(), torch.ones(6, 4, dtype=torch.bool)
    present[1:4, 1] = False
    _, tokens = model.encode(tiny_inputs(present), present)
    conditions = model.matching.conditions(tokens, present)
    scores = torch.randn(6, 6, generator=seeded(9))
    final = model.matching.rerank(tokens["text"], conditions, scores, top=3, by_items=by_items, batch_size=4)
    rough, final = (scores.T, final.T) if by_items else (scores, final)
    for q in range(6):
        best = rough[q].topk(3).indices
        i, j = (best, torch.full((3,), q)) if by_items else (torch.full((3,), q), best)
        logits = model.matching.logits(tokens["text"], conditions, i, j)
        order = best[(logits[:, 1] - logits[:, 0]).argsort(descending=True)]
        assert torch.equal(final[q].topk(3).indices, order)
        rest = torch.ones(6, dtype=torch.bool).scatter(0, best, False)
        assert torch.equal(final[q][rest], rough[q][rest])
    with pytest.raises(InputError, match=r"pass \(6, 6\)"):
        model.matching.rerank(tokens["text"], conditions, scores[:, :2])


def test_conditions_of_batches_can_be_joined() -> None:
    model, present = tiny_vast(), torch.ones(4, 4, dtype=torch.bool)
    present[2:, 1] = False
    inputs = tiny_inputs(present)
    whole = model.encode(inputs, present)[1]
    parts = []
    for rows in (slice(0, 2), slice(2, 4)):
        part = {"vision": inputs["vision"][rows], "audio": inputs["audio"][rows]}
        part |= {name: {key: v[rows] for key, v in inputs[name].items()} for name in ("text", "subtitle")}
        parts.append(model.matching.conditions(model.encode(part, present[rows])[1], present[rows]))
    assert parts[0][0].shape != parts[1][0].shape
    every = torch.arange(4)
    torch.testing.assert_close(
        model.matching.logits(whole["text"], cat_conditions(parts), every, every),
        model.matching.logits(whole["text"], model.matching.conditions(whole, present), every, every),
    )


def test_bert_sees_both_ways() -> None:
    for cross in (False, True):
        sizes = {"vocabulary": 30, "width": 8, "layers": 2, "heads": 2, "mlp_width": 16, "positions": 12}
        bert = scramble(build_bert(**sizes, cross_attention=cross, dropout=0.0)).eval()
        ids = torch.randint(1, 30, (1, 6), generator=seeded())
        text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        other = text | {"input_ids": ids.clone().index_fill(1, torch.tensor([5]), 2)}
        assert (bert_tokens(bert, text)[:, 0] - bert_tokens(bert, other)[:, 0]).abs().max() > 1e-3
        padded = {key: torch.nn.functional.pad(value, (0, 3)) for key, value in text.items()}
        torch.testing.assert_close(bert_tokens(bert, padded)[:, :6], bert_tokens(bert, text))


def test_what_is_saved_comes_back(tmp_path) -> None:
    model, present = tiny_vast(), mixed(4)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = tiny_vast(seed=1)
    assert not any(name.startswith("matching.bert") for name in other.state_dict())
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    inputs = tiny_inputs(present)
    for name, value in model(inputs, present).items():
        assert torch.equal(other(inputs, present)[name], value)
    again = VastModel.from_sizes(**json.loads(json.dumps(model.arguments)))
    assert again.arguments == model.arguments
    again.load_state_dict(model.state_dict())
    twin_of_it = copy.deepcopy(model)
    assert twin_of_it.matching.bert is twin_of_it.bert


def test_freezing() -> None:
    model = tiny_vast()
    model.freeze()
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.freeze(vision=2, audio=1, text=1)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert {name for name in trained if name.startswith("vision.")} == {"vision.norm.weight", "vision.norm.bias"}
    assert {name.split(".")[3] for name in trained if name.startswith("bert.")} == {"1"}
    assert all(".layers.1." in name for name in trained if name.startswith("audio."))
    for tower in ("vision", "audio", "text"):
        model = tiny_vast()
        model.freeze(**{tower: 1})
        whole = {name for name, one in model.towers().items() if all(p.requires_grad for p in one.parameters())}
        assert whole == {"vision", "audio", "text"} - {tower}
    inner = {id(p) for p in model.encoder_parameters()}  # these may learn at a rate of their own
    outer = {name.split(".")[0] for name, p in model.named_parameters() if id(p) not in inner}
    assert outer == {"heads", "matching", "fused"}


def test_what_is_computed_again() -> None:
    model = tiny_vast()
    assert (model.vision.checkpointing, model.audio.checkpointing) == (False, False)
    for on in (True, False):
        model.set_checkpointing(on)
        assert (model.vision.checkpointing, model.audio.checkpointing) == (on, on)
        assert model.bert.is_gradient_checkpointing is on


def test_some_modalities_only() -> None:
    model = tiny_vast(names=("audio", "text"), matching=False)
    assert model.matching is None
    assert not any("crossattention" in name for name in model.state_dict())
    inputs = tiny_inputs(torch.ones(3, 4, dtype=torch.bool))
    z = model({name: inputs[name] for name in model.names}, torch.ones(3, 2, dtype=torch.bool))
    assert set(z) == {"audio", "text"}
    silent = tiny_vast(names=("vision", "audio"), matching=False)
    assert silent.bert is None
    silent.freeze(vision=1)
    silent.set_checkpointing()
    assert set(silent(inputs, torch.ones(3, 2, dtype=torch.bool))) == {"vision", "audio"}


def test_errors_say_what_to_do() -> None:
    model, present = tiny_vast(), torch.ones(3, 4, dtype=torch.bool)
    inputs = tiny_inputs(present)
    with pytest.raises(InputError, match="one column for each of vision, audio, text, subtitle"):
        model(inputs, present[:, :3])
    with pytest.raises(InputError, match=r"'vision'.* holds 3 rows but present says that 2"):
        model(inputs, present & torch.tensor([[True], [True], [False]]))
    with pytest.raises(InputError, match="with 0 rows if no row has it"):
        model({name: inputs[name] for name in ("vision", "text", "subtitle")}, present)
    with pytest.raises(InputError, match="must have shape \\(rows, frames, 3, H, W\\)"):
        model(inputs | {"vision": inputs["vision"][:, 0]}, present)
    with pytest.raises(InputError, match="must have shape \\(rows, slices, frames, bins\\)"):
        model(inputs | {"audio": inputs["audio"][:, 0]}, present)
    ids = torch.zeros(3, 3)
    for text, said in (
        (inputs["text"]["input_ids"], "must be a dict with input_ids and attention_mask"),
        ({"input_ids": ids}, "must be a dict with input_ids and attention_mask"),
        ({"input_ids": ids, "attention_mask": torch.zeros(3, 4)}, "must both have shape"),
        ({"input_ids": ids[0], "attention_mask": ids[0]}, "must both have shape"),
    ):
        with pytest.raises(InputError, match=said):
            model(inputs | {"text": text}, present)
    for names in (("vision", "smell"), ("vision", "vision"), ()):
        with pytest.raises(InputError, match=f"each once; got {', '.join(names) or 'none'}"):
            VastModel.from_sizes(**{**VAST, "names": names})
    with pytest.raises(InputError, match="matching needs text; pass matching=False"):
        VastModel.from_sizes(**{**VAST, "names": ("vision", "audio")})
    with pytest.raises(InputError, match="text and at least one other"):
        VastModel.from_sizes(**{**VAST, "names": ("text",)})
    with pytest.raises(InputError, match="vision is not among the names: leave its tower out"):
        VastModel(model.bert, model.vision, names=("text",), matching=False)
    with pytest.raises(InputError, match="text or subtitle is among the names: pass its tower"):
        VastModel(vision=model.vision, names=("vision", "text"))


def matching(names: tuple[str, ...] = ("vision", "text")) -> VastMatching:
    bert = SimpleNamespace(config=SimpleNamespace(hidden_size=6))
    widths = {name: 4 for name in names if name != "text"}
    return VastMatching(bert, widths, names, frames=3, slices=2, temperature=0.5)


def test_what_matching_is_made_of() -> None:
    head = matching(("vision", "audio", "text", "subtitle"))
    assert {name: tuple(value.shape) for name, value in head.frame.items()} == {"vision": (1, 3, 6), "audio": (1, 2, 6)}
    assert set(head.kind) == {"vision", "audio", "subtitle"}
    assert float(head.temperature) == 0.5
    assert head.floor == 1e-4
    assert head.head.layernorm.eps == head.project["vision"][1].eps == 1e-12
    assert head.head.linear2.out_features == 2
    wide = torch.cat([value.detach().flatten() for value in [*head.kind.values(), *head.frame.values()]])
    assert float(wide.std()) == pytest.approx(0.02, rel=0.4)
    for names in (("vision", "audio"), ("text",)):
        with pytest.raises(InputError, match="matching needs text and at least one other modality; got"):
            matching(names)


def test_nothing_is_ranked_again_where_there_is_nothing() -> None:
    head, text = matching(), {"input_ids": torch.zeros(2, 1)}
    conditions = (torch.zeros(3, 1, 6), torch.ones(3, 1, dtype=torch.bool))
    scores = torch.rand(2, 3)
    found = head.rerank(text, conditions, scores, top=0)
    assert torch.equal(found, scores)
    assert found is not scores
    with pytest.raises(InputError, match=r"scores has shape \(3, 2\); pass \(2, 3\): one row per text"):
        head.rerank(text, conditions, scores.T)


def test_frames_and_conditions() -> None:
    """Another number of frames uses the nearest embeddings; conditions of unequal length are filled up."""
    model, present = tiny_vast(), torch.ones(2, 4, dtype=torch.bool)
    z, inner = model.encode(tiny_inputs(present, frames=4), present)
    assert torch.isfinite(model.matching(z, present, tokens=inner))
    embedding = torch.arange(4.0).reshape(1, 4, 1)
    assert frame_embedding(embedding, 4) is embedding
    assert frame_embedding(embedding, 2)[0, :, 0].tolist() == [0.0, 2.0]
    short, long = (torch.ones(1, n, 2) for n in (1, 3))
    there = [torch.ones(1, n, dtype=torch.bool) for n in (1, 3)]
    tokens, mask = cat_conditions([(short, there[0]), (long, there[1])])
    assert tokens.sum(2).tolist() == [[2, 0, 0], [2, 2, 2]]
    assert mask.tolist() == [[True, False, False], [True, True, True]]


def test_fused_heads_there_are() -> None:
    assert set(FusedHeads({"vision": 2, "audio": 3}, 4)) == {"va"}
    heads = FusedHeads({"vision": 2, "audio": 3, "subtitle": 5}, 4)
    assert {key: (one.in_features, one.out_features) for key, one in heads.items()} == {
        "va": (5, 4), "vs": (7, 4), "vas": (10, 4),
    }  # fmt: skip
    z = {"text": torch.tensor([[5.0, 5.0]]), "vision": torch.tensor([[3.0, 0.0]]), "audio": torch.tensor([[0.0, 4.0]])}
    torch.testing.assert_close(summed(z), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("missing", NAMES)
def test_a_modality_that_no_row_has(missing: str) -> None:
    model, present = tiny_vast(), torch.ones(3, 4, dtype=torch.bool)
    present[:, NAMES.index(missing)] = False
    z, tokens = model.encode(tiny_inputs(present), present)
    assert (z[missing].shape, float(z[missing].abs().sum())) == ((3, model.width), 0.0)
    if missing != "text":
        assert torch.isfinite(model.matching(z, present, tokens=tokens))


def test_older_models_and_small_ones_have_no_fused_heads() -> None:
    two = {**VAST, "names": ["vision", "text"]}
    assert VastModel.restore(**two).fused is None
    assert VastModel.from_sizes(**{**VAST, "names": ["text"]}, matching=False).fused is None
    assert VastModel.from_sizes(**two, negatives="softmax").matching.floor is None

"""The step of training and what it says of itself; its optimiser: groups, rates, the schedule, the moving average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from calmrl import CalibratedAlignment, GaussianImputer
from calmrl.data import Batches
from calmrl.errors import InputError
from calmrl.losses import ContrastiveLoss, FuseMixLoss, PMRLLoss, StructureLoss
from calmrl.models.heads import Heads
from calmrl.training.plan import TrainerOptions
from calmrl.training.step import MovingAverage, NotFinite, Step, freeze, make_optimiser, must_be_finite, schedule
from tests.support.train_data import source


def batch(rows: int = 12) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = {name: torch.randn(rows, 4, generator=generator) for name in ("image", "text")}
    present = torch.ones(rows, 2, dtype=torch.bool)
    present[::3, 0] = False
    return x, present


class Fused(Heads):
    """Heads that also give vectors of a fused head."""

    def encode(self, inputs, present):
        z = self(inputs, present)
        return z, {"fused": z["image"].roll(1, dims=0)}


def test_the_contrast_is_between_texts_and_the_vectors_of_all_else():
    """Rows with a text and something else; the weight multiplies the term, and `last` says it."""
    widths = {"image": 4, "text": 4, "audio": 4}
    x = {name: torch.randn(9, 4, generator=torch.Generator().manual_seed(j)) for j, name in enumerate(widths)}
    present = torch.ones(9, 3, dtype=torch.bool)
    present[0, 1] = present[1, 0] = False
    present[2, 0] = present[2, 2] = False  # a text alone
    torch.manual_seed(0)
    model = Fused(widths, 3)
    step, plain = Step(model, PMRLLoss(), fused_weight=0.25), Step(model, PMRLLoss())
    assert plain.contrast is None
    assert float(step.contrast.temperature(torch.ones(())).detach()) == pytest.approx(0.07)
    value, without = step(x, present), plain(x, present)
    z, tokens = model.encode(x, present)
    both = torch.stack([present[:, 1], present[:, 0] | present[:, 2]], dim=1)
    assert both.tolist()[:4] == [[False, True], [True, True], [True, False], [True, True]]
    expected = step.contrast({"text": z["text"], "fused": tokens["fused"]}, both)
    assert step.last["fused"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(value.detach()) == pytest.approx(float((without + 0.25 * expected).detach()), rel=1e-5)
    assert "fused" not in plain.last


def test_the_contrast_starts_at_the_temperature_of_the_matching():
    class Warm(torch.nn.Module):
        temperature = 0.3

    step = Step(Heads({"text": 4}, 3), PMRLLoss(), Warm(), fused_weight=1.0)
    assert float(step.contrast.temperature(torch.ones(())).detach()) == pytest.approx(0.3)


def test_matching_is_weighted_and_left_out_at_zero():
    class Match(torch.nn.Module):
        calls = 0

        def forward(self, z, present, generator=None, **more):
            type(self).calls += 1
            assert more == {}
            return z["image"].sum() * 0 + 2.0

    x, present = batch()
    torch.manual_seed(0)
    model = Heads({"image": 4, "text": 4}, 3)
    alone = Step(model, PMRLLoss())
    by_default, none = Step(model, PMRLLoss(), Match()), Step(model, PMRLLoss(), Match(), matching_weight=0.0)
    base = float(alone(x, present).detach())
    assert float(by_default(x, present).detach()) == pytest.approx(base + 0.1 * 2.0)
    assert by_default.last["matching"] == 2.0
    assert float(none(x, present).detach()) == pytest.approx(base)
    assert Match.calls == 1
    assert "matching" not in none.last
    assert "matching" not in alone.last


def test_what_a_step_says_of_a_calibrated_objective():
    x, present = batch()
    step = Step(
        Heads({"image": 4, "text": 4}, 3), CalibratedAlignment(PMRLLoss(), imputer=GaussianImputer(2, random_state=0))
    ).train()
    step(x, present)
    assert step.last["missing"] == pytest.approx(4 / 24)
    assert "align" in step.last
    assert "objective" not in step.last
    assert step.latent_parameters() == []
    assert step.latent_seconds > 0.0 == Step(Heads({"image": 4, "text": 4}, 3), PMRLLoss()).latent_seconds
    held = step.tensors()
    assert all(isinstance(value, torch.Tensor) for value in held.values())
    with torch.no_grad():
        saved = {name: value.clone() for name, value in held.items()}
        step.model.heads["text"].weight.zero_()
    step.load_tensors(saved)
    assert torch.equal(step.model.heads["text"].weight, saved["model.heads.text.weight"])
    with pytest.raises(RuntimeError, match="Missing key"):
        step.load_tensors({})


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, ", ... (9 rows; all of them are in metrics.jsonl)")])
def test_at_most_eight_rows_are_named(count, more):
    batches = Batches(source(20), batch_size=20)
    batch = {"index": np.arange(count)}
    assert must_be_finite(torch.tensor(1.0), "loss", 4, batches, batch) is None
    with pytest.raises(NotFinite) as wrong:
        must_be_finite(torch.tensor(torch.inf), "loss", 4, batches, batch)
    assert wrong.value.rows == batches.describe(np.arange(count))
    named = ", ".join(wrong.value.rows[:8])
    assert str(wrong.value) == (
        f"the loss of step 4 is not finite. The rows of its batch: {named}{more}. "
        "Look at their values, or lower the learning rate; the last checkpoint is whole"
    )


def test_rows_are_mixed_before_the_heads_and_in_training_only():
    x, present = batch()
    torch.manual_seed(0)
    model = Heads({"image": 4, "text": 4}, 3)
    step = Step(model, FuseMixLoss(learn_temperature=False))
    seeded = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2, 1)]
    first, again, other = (step.train()(x, present, generator).detach() for generator in seeded[:3])
    assert first == again
    assert first != other
    mixed = step.objective.mix(x, present, generator=seeded[3])
    assert step.objective(model(mixed, present), present) == first
    plain = ContrastiveLoss(None, label_smoothing=0.0, learn_temperature=False)(model(x, present), present)
    assert step.eval()(x, present, seeded[0]) == plain


def test_neighbourhoods_are_compared_with_those_of_the_inputs():
    x, present = batch()
    torch.manual_seed(0)
    model = Heads({"image": 4, "text": 4}, 3, inner={"image": 2, "text": 4})
    model.standardize(
        {"image": torch.ones(4), "text": torch.zeros(4)}, {"image": torch.randn(4, 2), "text": torch.eye(4) * 2}
    )
    step = Step(model, StructureLoss(warmup=2)).train()
    values = [step(x, present).detach() for _ in range(4)]
    z = model(x, present)
    x = {name: model.standardized(name, rows) for name, rows in x.items()}  # what the heads see
    alone, whole = StructureLoss()(z, present), StructureLoss(warmup=0)(z, present, features=x)
    assert values[0] == alone
    assert values[1] == pytest.approx((float(alone.detach()) + float(whole.detach())) / 2)
    assert values[2] == values[3] == whole
    assert step.last["weight"] == 10.0
    assert step.last["structure"] > 0


def test_an_objective_of_features_needs_a_model_that_has_some():
    with pytest.raises(
        InputError, match="FuseMixLoss uses what goes into the heads, and Linear has no head_inputs; train"
    ):
        Step(torch.nn.Linear(2, 2), FuseMixLoss())


@pytest.mark.parametrize("objective", ["fusemix", "structure"])
def test_an_objective_of_features_is_not_calibrated(objective):
    align = CalibratedAlignment(objective, imputer=GaussianImputer(2))
    with pytest.raises(
        InputError, match="uses what goes into the heads, which imputed rows do not have; train it without"
    ):
        Step(Heads({"image": 4, "text": 4}, 3), align)


# ---- the optimiser


class Towers(nn.Module):
    """A model with two encoders, a head, and the names that rules of decay look at."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.ModuleDict({"LayerNorm": nn.LayerNorm(2), "dense": nn.Linear(2, 2)})
        self.text = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def towers(self) -> dict[str, nn.Module]:
        return {"image": self.image, "text": self.text}

    def encoder_parameters(self) -> list[nn.Parameter]:
        return [*self.image.parameters(), *self.text.parameters()]


def groups_of(**how) -> dict[str, tuple[float, float]]:
    """Parameter -> (rate, decay)."""
    step = Step(Towers(), nn.Identity())
    named = {id(parameter): name.removeprefix("model.") for name, parameter in step.named_parameters()}
    optimiser = make_optimiser(step, TrainerOptions(learning_rate=1.0, **how))
    assert all(group["lr"] == group["base"] for group in optimiser.param_groups)
    return {
        named[id(parameter)]: (group["base"], group["weight_decay"])
        for group in optimiser.param_groups
        for parameter in group["params"]
    }


def test_vectors_are_not_decayed_or_names_decide():
    assert groups_of(weight_decay=0.3) == {
        "scale": (1.0, 0.0),
        "image.LayerNorm.weight": (1.0, 0.0),
        "image.LayerNorm.bias": (1.0, 0.0),
        "image.dense.weight": (1.0, 0.3),
        "image.dense.bias": (1.0, 0.0),
        "text.weight": (1.0, 0.3),
        "text.bias": (1.0, 0.0),
        "head.weight": (1.0, 0.3),
        "head.bias": (1.0, 0.0),
    }
    by_name = groups_of(weight_decay=0.3, decay="names")
    assert by_name["image.LayerNorm.weight"] == by_name["image.LayerNorm.bias"] == by_name["head.bias"] == (1.0, 0.0)
    assert by_name["image.dense.weight"] == by_name["scale"] == (1.0, 0.3)


def test_rates_of_encoders_and_of_single_towers():
    found = groups_of(encoder_learning_rate=0.1, rates={"text": 0.2}, weight_decay=0.0)
    assert {name.split(".")[0]: rate for name, (rate, _) in found.items()} == {
        "image": 0.1,
        "text": 0.2,
        "head": 1.0,
        "scale": 1.0,
    }
    assert {rate for rate, _ in groups_of(rates={"image": 0.4}, weight_decay=0.0).values()} == {0.4, 1.0}
    with pytest.raises(InputError) as wrong:
        groups_of(rates={"sound": 0.4})
    assert str(wrong.value) == 'optimiser.rates names "sound", but the towers of the model are: image, text'
    with pytest.raises(InputError, match="but the towers of the model are: none"):
        make_optimiser(Step(Heads({"a": 2}, 2), nn.Identity()), TrainerOptions(learning_rate=1.0, rates={"a": 0.1}))


def test_what_there_is_to_freeze_is_listed_up_to_six():
    for parts, shown in ((3, "{}"), (4, "{}, ...")):
        model = nn.ModuleList(nn.Linear(1, 1) for _ in range(parts))
        names = ", ".join([name for name, _ in model.named_parameters()][:6])
        with pytest.raises(InputError) as wrong:
            freeze(model, ["nosuch*"])
        assert str(wrong.value) == f'freeze: no parameter is named "nosuch*"; there are {shown.format(names)}'
    freeze(model, ["0.*", "1.bias"])
    kept = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert kept == ["0.weight", "0.bias", "1.bias"]


def test_the_schedule_step_by_step():
    assert [schedule(step, 4, 0.5) for step in range(4)] == [0.5, 1.0, 1.0, 0.5]
    assert [schedule(step, 4, 0.0) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert [schedule(step, 4, 1.0) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert [schedule(step, 10, 0.05) for step in range(2)] == [1.0, pytest.approx(9 / 9.5)]  # less than one step warm
    assert schedule(7, 4, 0.0) == 0.0  # after the end
    assert schedule(0, 1, 0.0) == 1.0


def test_the_average_follows_floats_and_copies_the_rest():
    step = Step(nn.BatchNorm1d(2), nn.Identity())
    average = MovingAverage(step, decay=0.75)
    with torch.no_grad():
        step.model.weight.fill_(5.0)
        step.model.num_batches_tracked.fill_(8)
    average.update()
    assert average.tensors["model.weight"].tolist() == [2.0, 2.0]  # 1 + (5 - 1) / 4
    assert int(average.tensors["model.num_batches_tracked"]) == 8
    with average.applied():
        assert step.model.weight.tolist() == [2.0, 2.0]
    assert step.model.weight.tolist() == [5.0, 5.0]
    average.load({name: torch.zeros_like(tensor) for name, tensor in average.tensors.items()})
    assert average.tensors["model.weight"].tolist() == [0.0, 0.0]

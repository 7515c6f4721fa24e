"""Groups, rates and the schedule of the optimiser; the moving average."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calmrl.errors import InputError
from calmrl.models.heads import Heads
from calmrl.training.plan import TrainerOptions
from calmrl.training.step import MovingAverage, Step, freeze, make_optimiser, schedule


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

"""Fingerprints of groups of parameters, and the groups."""

import torch

from holdfast.trainer.groupprints import REST, GroupPrints, grouped


def test_parameters_are_grouped_as_finely_as_the_number_of_groups_allows() -> None:
    names = ["embed.weight", *(f"blocks.{number}.{part}.weight" for number in range(3) for part in ("up", "down"))]
    assert list(grouped(names, 4)) == ["embed.weight", "blocks.0", "blocks.1", "blocks.2"]
    assert list(grouped(names, 3)) == ["embed", "blocks"]
    assert len(grouped(names, 7)) == 7
    assert grouped([]) == {}


def test_where_even_the_coarsest_groups_are_too_many_the_last_ones_are_one() -> None:
    found = grouped([f"layer{number}.weight" for number in range(9)], 4)
    assert list(found) == ["layer0", "layer1", "layer2", REST]
    assert len(found[REST]) == 6


def test_only_the_group_that_changed_has_another_fingerprint() -> None:
    told: dict[int, dict[str, int]] = {}
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    prints = GroupPrints(
        model, every=2, publish=lambda step, group, value: told.setdefault(step, {}).update({group: value})
    )
    prints.completed(2)
    prints.completed(3)
    with torch.no_grad():
        model[1].bias.add_(1.0)
    prints.completed(4)
    assert list(told) == [2, 4]
    changed = {group for group, value in told[2].items() if told[4][group] != value}
    assert changed == {"1.bias"}


def test_a_model_that_cannot_be_read_is_given_up_and_stops_nothing() -> None:
    told: list[int] = []
    model = torch.nn.Linear(2, 2).to("meta")
    prints = GroupPrints(model, every=1, publish=lambda step, group, value: told.append(step))
    prints.completed(1)
    prints.completed(2)
    assert told == []

"""Later tokens may move nothing before them: what is found, where, and what is let pass."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from probed_models import (
    SAMPLES,
    STEPS,
    WIDTH,
    WORDS,
    Attention,
    Autocast,
    Counting,
    ExpertChoice,
    Model,
    TimeNorm,
    TokenChoice,
    mean_loss,
    one_thread,
    seeded,
    subject,
    tokens,
    trainable,
)
from torch import Tensor, nn
from torch.nn import functional

from holdfast.api.errors import InvalidInput
from holdfast.trainer.probes import Probe, Soundness, Subject, causality
from holdfast.trainer.probes.activations import TimeLayout, recorded
from holdfast.trainer.probes.rounding import distance, moved, tolerance
from holdfast.trainer.probes.subject import without_dropout

__all__ = ["one_thread"]


class Leak(nn.Module):
    """Adds a share of the mean over all positions."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.share * hidden.mean(1, keepdim=True)


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


BROKEN: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "expert choice": (lambda: Model(mixer=ExpertChoice()), "mixer", "let tokens choose experts"),
    "a mask off by one": (lambda: Model(attention=Attention(1)), "attention", "the mask is off by one"),
    "statistics over time": (lambda: Model(norm=TimeNorm()), "norm.norm", "over the features of one position"),
    "dropped tokens": (lambda: Model(mixer=TokenChoice(capacity=8)), "mixer", "top-k over the sequence"),
    "a mean over time": (lambda: Model(mixer=Leak(0.1)), "mixer", "a mean or norm over time"),
}
RIGHT: dict[str, Callable[[], nn.Module]] = {
    "attention": Model,
    "token choice, dropout in its experts": lambda: Model(mixer=TokenChoice(dropout=0.5)),
    "dropout in functions": lambda: Model(attention=Attention(dropout=0.3)),
    "a norm over features": lambda: Model(norm=nn.RMSNorm(WIDTH)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_suspect_and_the_module_is_named(name: str) -> None:
    make, where, change = BROKEN[name]
    found = causality(subject(seeded(make)))
    assert (found.probe, found.verdict, found.where) == (Probe.CAUSALITY, Soundness.SUSPECT, where)
    assert change in found.change
    assert found.figure is not None
    assert found.figure > 1e-3


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_model_is_sound(name: str) -> None:
    found = causality(subject(seeded(RIGHT[name])))
    assert (found.verdict, found.figure) == (Soundness.SOUND, 0.0)


def test_it_says_whether_only_training_leaks_and_how_far() -> None:
    said = causality(subject(seeded(lambda: Model(norm=TimeNorm())))).says
    assert "in training mode alone; first in norm.norm (BatchNorm1d)" in said
    said = causality(subject(seeded(lambda: Model(attention=Attention(1))))).says
    assert "moved the position just before them; first" in said


def test_of_a_leak_in_a_function_inside_a_module_that_module_is_named_and_not_what_comes_after_it() -> None:
    def make() -> nn.Module:
        first, second = Model(), Model(attention=Attention(1))
        return nn.Sequential(first.words, first.attention, second.attention, second.head)

    assert causality(subject(seeded(make))).where == "2"


Pair = namedtuple("Pair", "state logits")
SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda logits: (logits, torch.zeros(3)),
    "mapping": lambda logits: {"loss": logits.mean(), "logits": logits},
    "dataclass": lambda logits: Output(logits, logits.mean()),
    "named tuple": lambda logits: Pair(logits.flip(1), logits),
    "flat": lambda logits: logits.flatten(0, 1),
    "nested": lambda logits: [{"out": (logits,)}],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_may_have_any_shape(shape: str) -> None:
    for diagonal, verdict in ((0, Soundness.SOUND), (1, Soundness.SUSPECT)):
        model = seeded(lambda d=diagonal: Model(attention=Attention(d), shape=SHAPES[shape]))  # type: ignore[misc]
        assert causality(subject(model)).verdict is verdict


@pytest.mark.parametrize("mixer", [None, Leak(0.1)], ids=["right", "broken"])
def test_inputs_may_be_numbers_and_time_may_come_first(mixer: nn.Module | None) -> None:
    verdict = Soundness.SOUND if mixer is None else Soundness.SUSPECT
    numbers = torch.randn(SAMPLES, STEPS, WIDTH, generator=torch.Generator().manual_seed(3))
    model = seeded(lambda: Model(mixer=mixer))
    assert causality(subject(model, inputs=numbers)).verdict is verdict

    def time_first(model: nn.Module, inputs: Tensor) -> Any:
        return model(inputs.transpose(0, 1)).transpose(0, 1)

    turned = subject(model, inputs=numbers.transpose(0, 1), forward=time_first, time_dim=0)
    assert causality(turned).verdict is verdict


def test_the_sequence_is_found_among_the_inputs_or_named() -> None:
    class Masked(Model):
        def forward(self, attention_mask: Tensor, input_ids: Tensor) -> Any:
            return super().forward(input_ids) * attention_mask[..., None]

    mask, batch = torch.ones(SAMPLES, STEPS), tokens()
    model = seeded(Masked)
    assert (
        causality(subject(model, inputs={"attention_mask": mask, "input_ids": batch})).verdict is Soundness.SOUND
    )
    assert causality(subject(model, inputs=(mask, batch), sequence=1)).verdict is Soundness.SOUND
    # The mask itself is no sequence that can be changed for another.
    found = subject(model, inputs=(torch.ones(SAMPLES, STEPS, dtype=torch.long), batch))
    assert causality(found).verdict is Soundness.UNKNOWN


UNKNOWN: dict[str, tuple[Callable[[], Subject], str]] = {
    "one position": (lambda: subject(seeded(Model), inputs=tokens(steps=1)), "1 position"),
    "equal tokens": (
        lambda: subject(seeded(Model), inputs=torch.ones(2, 9, dtype=torch.long)),
        "tokens are equal",
    ),
    "a loss alone": (lambda: subject(seeded(lambda: Model(shape=Tensor.mean))), "the model returns ()"),
    "no numbers": (lambda: subject(seeded(lambda: Model(shape=lambda _: "text"))), "the model returns no tensor"),
    "no finite number": (lambda: subject(seeded(lambda: Model(shape=lambda o: o * torch.nan))), "is finite"),
    "constants": (lambda: subject(seeded(lambda: Model(shape=torch.zeros_like))), "do not depend on the sequence"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_measured_is_unknown_and_says_why(name: str) -> None:
    make, why = UNKNOWN[name]
    found = causality(make())
    assert (found.verdict, found.figure) == (Soundness.UNKNOWN, None)
    assert why in found.says
    assert found.change


def test_in_a_narrow_dtype_a_move_that_may_be_rounding_is_unknown_and_in_float32_it_is_told() -> None:
    model = seeded(lambda: Model(mixer=Leak(0.01)))
    assert causality(subject(model)).verdict is Soundness.SUSPECT
    narrow = causality(subject(model.bfloat16()))
    assert narrow.verdict is Soundness.UNKNOWN
    assert narrow.figure is not None
    assert 0.0 < narrow.figure <= tolerance(torch.bfloat16)
    assert "float32" in narrow.change
    cast = causality(subject(seeded(lambda: Autocast(Model(mixer=Leak(0.01))))))
    assert (cast.verdict, "in bfloat16 may be rounding" in cast.says) == (Soundness.UNKNOWN, True)
    assert causality(subject(seeded(lambda: Autocast(Model())))).verdict is Soundness.SOUND
    broken = causality(subject(seeded(lambda: Autocast(Model(attention=Attention(1))))))
    assert broken.verdict is Soundness.SUSPECT


@pytest.mark.parametrize("leak", [None, Attention(1)], ids=["right", "broken"])
def test_a_model_that_does_not_repeat_itself_is_no_leak_but_unknown(leak: nn.Module | None) -> None:
    found = causality(subject(seeded(lambda: Model(attention=leak, mixer=Counting()))))
    assert (found.verdict, found.figure) == (Soundness.UNKNOWN, None)
    assert "the same tokens moved the outputs by" in found.says
    assert "same_step_twice" in found.change


def transposed(logits: Tensor) -> Tensor:
    return logits.transpose(1, 2)


@pytest.mark.parametrize("diagonal", [0, 1], ids=["right", "broken"])
def test_where_two_dimensions_may_be_time_no_leak_is_claimed(diagonal: int) -> None:
    def asked(shape: Callable[[Tensor], Any], steps: int) -> Any:
        model = seeded(lambda: Model(attention=Attention(diagonal), shape=shape))
        return causality(subject(model, inputs=tokens(steps=steps)))

    known = Soundness.SUSPECT if diagonal else Soundness.SOUND
    assert asked(transposed, STEPS).verdict is known, "16 positions, 32 words"
    found = asked(transposed, WORDS)
    assert found.verdict is Soundness.UNKNOWN
    assert "if the first of two dimensions of one size is time" in found.says
    assert "whose length is no other size" in found.change
    # What does not move up to a position is time: nothing else stands still so.
    plain = asked(lambda logits: logits, WORDS)
    assert plain.verdict is (Soundness.UNKNOWN if diagonal else Soundness.SOUND)
    # One output that is plain says enough.
    assert asked(lambda logits: (logits[..., :5], transposed(logits)), WORDS).verdict is (
        Soundness.SUSPECT if diagonal else Soundness.UNKNOWN
    )


def test_the_model_is_handed_back_as_it_was() -> None:
    model = seeded(lambda: Model(norm=TimeNorm(), attention=Attention(1)))
    mean_loss(model(tokens()), tokens()).backward()
    model.norm.eval()  # type: ignore[union-attr,operator]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    flags = [each.training for each in model.modules()]
    gradients = [each.grad for each in model.parameters()]
    drawn = torch.random.get_rng_state()
    causality(subject(model))
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert [each.training for each in model.modules()] == flags
    assert all(one.grad is other for one, other in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"model": 3}, "model"),
        ({"time_dim": 2}, "time_dim"),
        ({"world_size": 1}, "world_size"),
        ({"reduce_dtype": torch.int8}, "reduce_dtype"),
        ({"inputs": torch.ones(4)}, "inputs"),
        ({"inputs": "text"}, "inputs"),
        ({"inputs": {"x": "text"}}, "inputs"),
        ({"inputs": (tokens(),), "sequence": 4}, "sequence"),
        ({"inputs": ["text"], "sequence": 0}, "inputs"),
    ],
)
def test_a_subject_that_cannot_be_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field}: .* is not accepted; "):
        Subject(**{"model": Model(), "inputs": tokens(), **given})


def test_a_part_of_a_subject_has_its_samples_of_all_that_has_samples() -> None:
    batch = {"input_ids": tokens(4), "places": torch.arange(STEPS), "text": "x"}
    part = Subject(model=Model(), inputs=batch, targets=[torch.arange(4), None]).part(1, 3)
    assert (part.samples, part.steps) == (2, STEPS)
    assert torch.equal(part.tokens, tokens(4)[1:3])
    assert torch.equal(part.inputs["places"], torch.arange(STEPS))
    assert part.targets[0].tolist() == [1, 2]
    turned = Subject(model=Model(), inputs=tokens(4).T, targets=torch.ones(4, 5), time_dim=0).part(0, 1)
    assert (turned.samples, turned.targets.shape) == (1, (1, 5))


@pytest.mark.parametrize(
    "shape",
    [(2, 5, 3), (5, 2, 3), (10, 3), (2, 4, 5, 3), (8, 5, 3)],
    ids=["B T", "T B", "(B T)", "B H T", "(B H) T"],
)
def test_positions_are_found_however_a_tensor_lies(shape: tuple[int, ...]) -> None:
    found = TimeLayout(2, 5, 1).by_time(torch.zeros(shape))
    assert found is not None
    assert found.shape[0] == 5
    assert TimeLayout(2, 5, 1).by_time(torch.zeros(7, 3)) is None


def test_flat_positions_are_told_apart_by_the_order_of_the_inputs() -> None:
    rows = torch.arange(10).reshape(10, 1)
    by_sample, by_time = TimeLayout(2, 5, 1).by_time(rows), TimeLayout(2, 5, 0).by_time(rows)
    assert by_sample is not None
    assert by_time is not None
    assert (by_sample[0].tolist(), by_time[0].tolist()) == ([0, 5], [0, 1])


def test_distances_know_numbers_that_are_none() -> None:
    odd = torch.tensor([1.0, torch.nan, torch.inf, torch.nan])
    other = torch.tensor([1.5, torch.nan, torch.inf, 0.0])
    assert distance(odd, other).tolist() == [0.5, 0.0, 0.0, torch.inf]
    assert moved(torch.zeros(0), torch.zeros(0)) == 0.0
    assert moved(torch.zeros(2), torch.zeros(2)) == 0.0
    assert moved(torch.ones(2), torch.tensor([1.0, 0.5])) == 0.5


def test_a_module_that_an_exception_leaves_disturbs_no_other() -> None:
    class Stops(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            raise RuntimeError

    class Goes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stops = Stops()

        def forward(self, hidden: Tensor) -> Tensor:
            with pytest.raises(RuntimeError):
                self.stops(hidden)
            return hidden + 1

    with recorded(Goes()) as calls:
        pass
    model = Goes()
    with recorded(model) as calls:
        model(torch.zeros(1))
        model(torch.ones(1))
    assert [(each.name, each.number, each.inputs[0].item()) for each in calls] == [("", 0, 0.0), ("", 1, 1.0)]


def test_dropout_is_put_aside_however_it_is_asked_for_and_put_back() -> None:
    hidden, before = torch.ones(1, 2, 4, 8), {name: getattr(functional, name) for name in dir(functional)}
    exact = functional.scaled_dot_product_attention(hidden, hidden, hidden)
    with without_dropout():
        assert nn.Dropout(0.9)(hidden) is hidden
        assert functional.alpha_dropout(hidden, 0.9, training=True) is hidden
        assert functional.dropout(input=hidden, p=0.9) is hidden
        attended = functional.scaled_dot_product_attention
        assert torch.equal(attended(hidden, hidden, hidden, None, 0.9), exact)
        assert torch.equal(attended(hidden, hidden, hidden, dropout_p=0.9), exact)
        assert torch.equal(attended(hidden, hidden, hidden), exact)
    assert {name: getattr(functional, name) for name in dir(functional)} == before


def test_words_of_the_batch_are_changed_for_words_of_the_batch() -> None:
    seen: set[int] = set()
    model = seeded(Model)
    model.words.register_forward_pre_hook(lambda _, given: seen.update(given[0].flatten().tolist()))  # type: ignore[union-attr]
    batch = tokens() // 4 * 4  # of every fourth word alone there is an embedding that may be read
    causality(subject(model, inputs=batch))
    assert seen == set(batch.flatten().tolist()) < set(range(WORDS))


def test_what_a_step_needs_is_refused_where_it_is_no_loss() -> None:
    with pytest.raises(InvalidInput, match=r"^loss: .* return a tensor of one element"):
        trainable(seeded(Model), loss=lambda outputs, _: outputs).step()


class Noisy(nn.Module):
    """Draws of a generator that nobody seeds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.generator = nn.Embedding(32, 8), torch.Generator().manual_seed(1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + torch.rand(8, generator=self.generator)


def test_who_draws_of_a_generator_that_nobody_seeds_is_unknown_and_no_leak() -> None:
    torch.manual_seed(0)
    answer = causality(Subject(model=Noisy(), inputs=torch.arange(32).reshape(2, 16)))
    assert (answer.verdict, answer.where) == (Soundness.UNKNOWN, "")
    assert "the same tokens moved the outputs" in answer.says

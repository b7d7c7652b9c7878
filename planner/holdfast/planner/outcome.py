"""What an option comes to, each figure with its formula: utilization, tokens a second, days, money.

Source: https://arxiv.org/abs/2204.02311 (appendix B: model FLOPs utilization)
"""

from collections.abc import Iterator
from typing import Final

from holdfast.planner.memory import LORA
from holdfast.planner.plan import Option, Plan, Question
from holdfast.planner.quantity import Quantity

MFU: Final = "https://arxiv.org/abs/2204.02311"
SIX_N: Final = "https://arxiv.org/abs/2001.08361"


def outcome_of(question: Question, found: Plan, option: Option) -> Iterator[Quantity]:
    """The figures of the option's row; days and money where they were asked for."""
    cluster, training, model = question.cluster, question.training, question.model
    yield _utilization(question, option)
    says = f"{training.batch} sequences x {training.sequence} tokens over the step time"
    yield Quantity("tokens a second", option.tokens_per_s, "", says)
    if option.days is not None:
        says = f"{training.tokens:.4g} tokens over tokens a second x effective share of time"
        yield Quantity("days", option.days, "", says)
    if option.money is not None:
        stand_by = f"{cluster.gpus} GPUs, and {found.spare_gpus} that stand by"
        yield Quantity("money", option.money, "", f"days x 24 x ({stand_by}) x {cluster.price:g}")
    layers = f"{model.layers} layers of {model.hidden}"
    yield Quantity("parameters", float(model.parameters), "", f"matrices and norms of {layers}, and the embedding")


def _utilization(question: Question, option: Option) -> Quantity:
    cluster, training, model = question.cluster, question.training, question.model
    each = 2 * model.matmul_passes
    used, adapters = float(each * model.matmul_parameters), 6.0 * model.layers * model.adapter_parameters
    attention = model.flops_per_token(training.sequence) - used - adapters
    says = f"6 x {model.layers * model.adapter_parameters:.4g} of them; no others have gradients"
    of = (
        Quantity("of parameters", used, "FLOP", f"{each} x {model.matmul_parameters:.4g} of them", SIX_N),
        *((Quantity("of adapters", adapters, "FLOP", says, LORA),) if adapters else ()),
        Quantity("of attention", attention, "FLOP", f"3 x each layer's scores of {training.sequence} tokens", MFU),
    )
    flops = Quantity("FLOP of a token", used + adapters + attention, "FLOP", "the sum of its parts", of=of)
    says = f"tokens a second x FLOP of a token over {cluster.gpus} x {cluster.gpu.bf16:.4g} FLOP/s"
    return Quantity("MFU", option.mfu, "share", says, MFU, (flops,))

"""`spec.cost` of a TrainingJob: what a GPU costs, where that differs, and what the job may cost."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from holdfast.api.bounds import LINE_LENGTH_MAX
from holdfast.api.policy import Budget, Capacity, Price
from holdfast.api.quantity import Percent, Share
from holdfast.api.section import MISSING, Section, contradiction

PRICE_FIX = "name a GPU product, a capacity, or both; cost.gpuHour is the price of all others"
Text = Annotated[str, StringConstraints(min_length=1, max_length=LINE_LENGTH_MAX)]


class PriceOf(Section):
    """What a GPU costs on some nodes. At least one of `gpu` and `capacity` says on which."""

    gpu: Text | None = None
    """The GPUs' product name, as the node's label nvidia.com/gpu.product has it."""
    capacity: Capacity | None = None
    """How the node is paid for: OnDemand, Spot."""
    gpu_hour: Annotated[float, Field(gt=0, le=1e6)]
    """What one of these GPUs costs for one hour."""

    @model_validator(mode="after")
    def _says_of_which(self) -> Self:
        if self.gpu is None and self.capacity is None:
            raise contradiction("gpu", MISSING, PRICE_FIX)
        return self


class BudgetSpec(Section):
    """What the job may cost. Nothing is stopped: somebody is told."""

    amount: Annotated[float, Field(gt=0, le=1e12)]
    """In the currency, over the whole life of the job."""
    alert_at: Share = Percent(0.8)
    """The share of it from which on somebody is told."""


class Cost(Section):
    """What a GPU costs, for the ledger."""

    gpu_hour: Annotated[float, Field(gt=0, le=1e6)]
    """What one GPU costs for one hour, in the currency."""
    currency: Annotated[
        str, StringConstraints(pattern=r"^[A-Z]{3}$"), Field(json_schema_extra={"maxLength": 3})
    ] = "USD"
    """An ISO 4217 code."""
    prices: Annotated[tuple[PriceOf, ...], Field(max_length=64)] = ()
    """What GPUs of a product, or of a kind of capacity, cost instead. What fits and names most counts."""
    budget: BudgetSpec | None = None
    """What the job may cost."""

    @model_validator(mode="after")
    def _each_price_is_said_once(self) -> Self:
        named = [(each.gpu, each.capacity) for each in self.prices]
        for at, each in enumerate(named):
            if each in named[:at]:
                says = " ".join(part for part in each if part)
                raise contradiction(
                    f"prices[{at}].gpuHour", self.prices[at].gpu_hour, f"say the price of {says} once"
                )
        return self


def prices_of(cost: Cost) -> tuple[Price, ...]:
    """The prices that are not that of any GPU."""
    return tuple([Price(each.gpu_hour, each.gpu or "", each.capacity) for each in cost.prices])


def budget_of(cost: Cost) -> Budget | None:
    """What the job may cost; None where nothing is said."""
    return Budget(cost.budget.amount, cost.budget.alert_at.ratio) if cost.budget else None

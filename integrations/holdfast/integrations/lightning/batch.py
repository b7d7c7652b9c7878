"""A constant global batch under Lightning's Trainer."""

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from holdfast.api.errors import InvalidInput, Problem
from holdfast.integrations.globalbatch import share_of


def accumulation_for(global_batch: int, *, world_size: int, micro_batch: int) -> int:
    """How many batches of `micro_batch` samples each rank of `world_size` adds up for a step of `global_batch`.

    Raises InvalidInput where the world or the batch of the loader does not fit: the Trainer cannot change the
    latter.
    """
    share = share_of(global_batch, world_size=world_size, micro_batch=micro_batch)
    if share.micro_batch != micro_batch:
        each = global_batch // world_size
        fix = (
            f"{each} samples fall to each of {world_size} ranks, which batches of {micro_batch} do not make; "
            f"let the loader have batches of {share.micro_batch}"
        )
        raise InvalidInput(Problem(field="global_batch", value=global_batch, fix=fix))
    return share.accumulation


def adjusted_accumulation(trainer: Trainer, global_batch: int) -> int:
    """`accumulate_grad_batches` for the Trainer's world. Raises InvalidInput where the batch cannot be kept."""
    loader = trainer.train_dataloader
    micro_batch = loader.batch_size if isinstance(loader, DataLoader) else None
    if micro_batch is None or trainer.strategy.handles_gradient_accumulation:
        fix = "leave it out: it needs one DataLoader with a batch_size, and a strategy that adds up nothing itself"
        raise InvalidInput(Problem(field="global_batch", value=global_batch, fix=fix))
    return accumulation_for(global_batch, world_size=trainer.world_size, micro_batch=micro_batch)

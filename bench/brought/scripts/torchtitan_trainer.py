"""torchtitan's trainer with its Llama for debugging, sharded; `--holdfast` sets its checkpoint manager.

    torchtitan_trainer.py FOLDER [--steps N] [--holdfast]

Without that it resumes from what torchtitan finds in its own folder. torchtitan needs an accelerator and a nightly
torch: `titan_on_cpu` stands in for what it asks of them, so that the rest runs on a CPU.
Source: https://github.com/pytorch/torchtitan/blob/main/docs/checkpoint.md
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import titan_on_cpu
import torch
from told import Told
from torch.utils.data import IterableDataset

titan_on_cpu.allow()

from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402

WORDS, LENGTH, SAVE_EVERY = 256, 64, 5


class Words(IterableDataset):
    """Numbered random sentences, without an end."""

    def __init__(self, rank, world):
        self._rank, self._world, self._place = rank, world, 0

    def __iter__(self):
        while True:
            seed = self._place * self._world + self._rank
            words = torch.randint(0, WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(seed))
            self._place += 1
            yield {"input": words[:-1], "positions": torch.arange(LENGTH)}, words[1:]

    def state_dict(self):
        return {"place": self._place}

    def load_state_dict(self, state):
        self._place = state["place"]


class Loader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **more):
        super().__init__(Words(dp_rank, dp_world_size), dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **more):
        super().__init__()

    def encode(self, *words, **named):
        return []

    def decode(self, *words, **named):
        return ""

    def get_vocab_size(self):
        return WORDS


def configured(arguments):
    config = llama3_debugmodel()
    titan_on_cpu.attend_plainly(config)
    config.tokenizer, config.dataloader = NoTokenizer.Config(), Loader.Config()
    config.training.steps, config.training.seq_len, config.training.local_batch_size = arguments.steps, LENGTH, 2
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "full_dtensor"
    config.debug.seed = 0  # else each run begins with another model
    config.lr_scheduler.warmup_steps, config.lr_scheduler.decay_ratio = 0, 0.0  # whatever --steps is
    config.validator.enable = config.compile.enable = False
    config.dump_folder = str(arguments.folder / "out")
    config.checkpoint = CheckpointManager.Config(enable=True, interval=SAVE_EVERY)
    if arguments.holdfast:
        from holdfast.integrations.torchtitan import HoldfastCheckpoints

        config.checkpoint = HoldfastCheckpoints.Config(enable=True, interval=SAVE_EVERY, uri=config.dump_folder)
    return config


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trainer = configured(arguments).build()
    titan_on_cpu.add_up_plainly(trainer)
    told, log = Told(arguments.folder), trainer.metrics_processor.log
    loss_of = trainer.loss_fn

    def spoilt(*words, **named):
        loss, counts = loss_of(*words, **named)
        return told.spoiled(loss), counts

    is_begun = False

    def telling(step, mean, *more, **named):
        nonlocal is_begun
        if not is_begun:
            told.begun(step - 1)
            is_begun = True
        log(step, mean, *more, **named)
        told.stepped(step, mean)

    trainer.loss_fn, trainer.metrics_processor.log = spoilt, telling
    try:
        trainer.train()
    except RuntimeError as error:
        if "Loss is not finite" in str(error):  # torchtitan ends with it, and does not log it
            told.lost(trainer.step, float("nan"))
        raise
    trainer.close()


if __name__ == "__main__":
    main()

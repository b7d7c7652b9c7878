"""A fit of Lightning's Trainer, as its documentation shows; `--holdfast` adds the one line.

    lightning_trainer.py FOLDER [--steps N] [--holdfast]

Without that line it saves with ModelCheckpoint and resumes from the last one.
Source: https://lightning.ai/docs/pytorch/stable/common/checkpointing_intermediate.html
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from told import Told
from torch.utils.data import DataLoader, TensorDataset

WIDTH, SAMPLES, SAVE_EVERY = 64, 256, 5


class Module(lightning.LightningModule):
    def __init__(self, told):
        super().__init__()
        self.told = told
        layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1))
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))

    def training_step(self, batch, place):
        return self.told.spoiled((self.net(batch[0]) - batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Telling(lightning.Callback):
    def __init__(self, told):
        self.told = told

    def on_train_start(self, trainer, module):
        self.told.begun(trainer.global_step)

    def on_train_batch_end(self, trainer, module, outputs, batch, place):
        self.told.stepped(trainer.global_step, trainer.strategy.reduce(outputs["loss"]).item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lightning.seed_everything(1, verbose=False)
    told, resumed = Told(arguments.folder), None
    callbacks = [Telling(told)]
    if arguments.holdfast:
        from holdfast.integrations.lightning import HoldfastCallback

        callbacks.append(HoldfastCallback(every_steps=SAVE_EVERY, uri=str(arguments.folder / "out")))
    else:
        out = arguments.folder / "out"
        callbacks.append(ModelCheckpoint(out, every_n_train_steps=SAVE_EVERY, save_last=True))
        resumed = "last"
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        max_steps=arguments.steps,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=not arguments.holdfast,
    )
    numbers = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(2))
    trainer.fit(Module(told), DataLoader(TensorDataset(numbers), batch_size=4, shuffle=True), ckpt_path=resumed)


if __name__ == "__main__":
    main()

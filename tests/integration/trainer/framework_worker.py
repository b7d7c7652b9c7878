"""A training script for tests: one epoch over 64 numbered samples with the framework it is told, in every round.

It writes what this rank saw of the epoch to `round-N.json` in its working directory, with the environment it found
there, and waits for its round to end. The frameworks are used as their documentation shows, inside the function
given to `Run.enter`.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from holdfast.api.control import round_environment
from holdfast.trainer import Assignment, Run

SAMPLES = 64
BATCH = 4


class Numbers(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"number": torch.tensor([float(place)]), "labels": torch.tensor([0.0])}


class Model(nn.Module):
    """Notes which samples it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[int] = []

    def forward(self, number: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen += [int(each) for each in number.flatten()]
        return {"loss": nn.functional.mse_loss(self.layer(number), labels)}


def with_sampler(part: Assignment) -> list[int]:
    model = Model()
    loader = DataLoader(Numbers(), batch_size=BATCH, sampler=DistributedSampler(Numbers()))
    return trained(model, loader)


def with_stateful_loader(part: Assignment) -> list[int]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    model = Model()
    loader = StatefulDataLoader(Numbers(), batch_size=BATCH, sampler=DistributedSampler(Numbers()), num_workers=1)
    return trained(model, loader)


def trained(model: Model, loader: "DataLoader[dict[str, Tensor]]") -> list[int]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    replicated = nn.parallel.DistributedDataParallel(model)
    for batch in loader:
        replicated(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.seen


def with_accelerate(part: Assignment) -> list[int]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = Model()
    loader = DataLoader(Numbers(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(plain, torch.optim.SGD(plain.parameters(), lr=1e-6), loader)
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    return plain.seen


def with_lightning(part: Assignment) -> list[int]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, Tensor], place: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=part.local_size,
        num_nodes=part.members,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Numbers(), batch_size=BATCH, shuffle=True))
    return module.model.seen


def with_transformers(part: Assignment) -> list[int]:
    from transformers import Trainer, TrainingArguments

    model = Model()
    terms = TrainingArguments(
        output_dir="transformers",
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=terms, train_dataset=Numbers()).train()
    return model.seen


FRAMEWORKS: dict[str, Callable[[Assignment], list[int]]] = {
    "sampler": with_sampler,
    "torchdata": with_stateful_loader,
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "transformers": with_transformers,
}

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=FRAMEWORKS)
framework = FRAMEWORKS[parser.parse_args().framework]
torch.set_num_threads(1)
run = Run(timeout_s=60)


def train(part: Assignment) -> None:
    found = {name: os.environ.get(name) for name in round_environment(part)}
    told = {"seen": framework(part), "environment": found}
    unfinished = Path("unfinished.json")
    unfinished.write_text(json.dumps(told))
    unfinished.rename(f"round-{part.round}.json")
    for step in range(1_000_000):
        run.step(step)
        time.sleep(0.01)


run.enter(train)

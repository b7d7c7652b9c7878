"""A loop over a GPT of Megatron-Core and its distributed checkpoints; `--holdfast` changes its `for` line.

    megatron_loop.py FOLDER [--steps N] [--holdfast]

Megatron-Core needs CUDA: `without_cuda` stands in for what it asks of it, so that the rest runs on a CPU.
Source: https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/index.html
"""

import argparse
import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.transformer_config import TransformerConfig
from told import Told

LENGTH, WORDS, SAVE_EVERY = 16, 64, 5


def without_cuda():
    """A stand-in: memory of the host for that of the device, nothing to wait for, one state of random numbers."""
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *device: None
    CudaRNGStatesTracker.fork = lambda self, *name: contextlib.nullcontext()


def built():
    parallel_state.initialize_model_parallel(1, 1)
    torch.manual_seed(0)
    plain = {"bias_dropout_fusion": False, "masked_softmax_fusion": False, "persist_layer_norm": False}
    plain |= {"bias_activation_fusion": False, "gradient_accumulation_fusion": False}
    shape = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
    config = TransformerConfig(
        **shape, **plain, use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0
    )
    layers = get_gpt_layer_local_spec(normalization="LayerNorm")
    model = GPTModel(config=config, transformer_layer_spec=layers, vocab_size=WORDS, max_sequence_length=LENGTH)
    replicated = torch.nn.parallel.DistributedDataParallel(model)
    return model, replicated, torch.optim.AdamW(replicated.parameters(), lr=1e-3)


def saving_and_loading(model, optimizer):
    """Each takes a folder. The optimizer of torch is the same on all ranks; Megatron's own has shards to add."""

    def save(folder):
        state = {"model": model.sharded_state_dict(), "optimizer": optimizer.state_dict()}
        dist_checkpointing.save(state, str(folder))

    def load(folder):
        wanted = {"model": model.sharded_state_dict()}
        found = dist_checkpointing.load(wanted, str(folder))
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    return save, load


def own_steps(save, load, folder, until):
    """What a script does by itself: the newest folder, whatever is in it."""
    saved = sorted(folder.glob("step-*"), key=lambda each: int(each.name.rpartition("-")[2]))
    first = 1
    if saved:
        load(saved[-1])
        first = int(saved[-1].name.rpartition("-")[2]) + 1
    for step in range(first, until + 1):
        yield step
        if step % SAVE_EVERY == 0:
            new = folder / f"step-{step}"
            new.mkdir(parents=True, exist_ok=True)
            dist.barrier()
            save(new)


def healed_loop(save, load, folder):
    from holdfast.integrations.frameworkloop import FrameworkLoop

    return FrameworkLoop(format="megatron", save=save, load=load, every_steps=SAVE_EVERY, uri=str(folder))


def loss_of(replicated, step, rank):
    words = torch.randint(0, WORDS, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1000 * step + rank))
    places = torch.arange(LENGTH).unsqueeze(0).expand(2, -1)
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    return replicated(words[:, :-1], places, mask, labels=words[:, 1:].contiguous()).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    without_cuda()
    dist.init_process_group("gloo")
    model, replicated, optimizer = built()
    save, load = saving_and_loading(model, optimizer)
    out, rank = arguments.folder / "out", dist.get_rank()
    loop = healed_loop(save, load, out) if arguments.holdfast else None
    told, is_begun = Told(arguments.folder), False
    for step in loop.steps(until=arguments.steps) if loop else own_steps(save, load, out, arguments.steps):
        if not is_begun:
            told.begun(step - 1)
            is_begun = True
        loss = told.spoiled(loss_of(replicated, step, rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loop:
            loop.measured(loss=loss.detach())
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        told.stepped(step, mean.item())


if __name__ == "__main__":
    main()

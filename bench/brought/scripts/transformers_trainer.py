"""A causal language model with Transformers' Trainer, as its documentation shows; `--holdfast` adds the one line.

    transformers_trainer.py FOLDER [--steps N] [--sharded] [--holdfast]

Without that line it resumes as the examples of transformers do: from the newest folder in the output directory.
Source: https://github.com/huggingface/transformers/blob/main/examples/pytorch/language-modeling/run_clm.py
"""

import argparse
import os
from pathlib import Path

import shards_on_cpu
import torch
from told import Told
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

VOCABULARY, LENGTH, SAMPLES = 128, 32, 4096


class Sentences(Dataset):
    """Numbered random sentences."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, place):
        words = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(place))
        return {"input_ids": words, "labels": words}


class Spoilt(Trainer):
    """Whose loss can be made NaN, for the bench."""

    told: Told

    def compute_loss(self, *arguments, **named):
        return self.told.spoiled(super().compute_loss(*arguments, **named))


class Telling(TrainerCallback):
    def __init__(self, told):
        self.told = told

    def on_train_begin(self, args, state, control, **more):
        self.told.begun(state.global_step)

    def on_step_end(self, args, state, control, **more):
        self.told.stepped(state.global_step)

    def on_log(self, args, state, control, logs, **more):
        if "loss" in logs:
            self.told.lost(state.global_step, logs["loss"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, attention_dropout=arguments.dropout, **shape
    )
    if arguments.sharded:
        shards_on_cpu.allow()
    args = TrainingArguments(
        output_dir=str(arguments.folder / "out"),
        use_cpu=True,
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.batch,
        learning_rate=1e-3,
        save_steps=5,
        save_total_limit=3,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        **(
            {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
            if arguments.sharded
            else {}
        ),
    )
    told = Told(arguments.folder)
    trainer = Spoilt(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=Sentences(),
        callbacks=[Telling(told)],
    )
    trainer.told = told
    if arguments.holdfast:
        from holdfast.integrations.transformers import HoldfastCallback

        trainer.add_callback(HoldfastCallback())
        trainer.train()
        return
    last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()

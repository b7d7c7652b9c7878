"""What a script lacks to be healed well, and which change buys what: pure, from what stands in it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.cli.doctor.facts import Finding, Level
from holdfast.cli.doctor.script import Call, Script

# What torchrun and Holdfast say to every worker.
# Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
SAID: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
BUYS: Final = (
    "steps, loss and norm are seen, hangs are found by them, saves are asked for before a node leaves, and it "
    "goes on from the right step"
)
_SPAWNS: Final = (
    "torch.multiprocessing.spawn",
    "torch.multiprocessing.spawn.spawn",
    "torch.multiprocessing.start_processes",
    "accelerate.notebook_launcher",
    "accelerate.debug_launcher",
)
_LAUNCHERS: Final = (
    "torchrun",
    "accelerate launch",
    "torch.distributed.run",
    "torch.distributed.launch",
    "deepspeed ",
)
_SAVES: Final = ("torch.save", "torch.distributed.checkpoint.save", "torch.distributed.checkpoint.async_save")
_CHECKPOINTERS: Final = ("holdfast.checkpoint.Checkpointer", "holdfast.checkpoint.checkpointer.Checkpointer")
_SCALERS: Final = (
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
)
_OTHER_SCALERS: Final = ("apex.amp.initialize", "apex.amp.scale_loss", "apex.fp16_utils.FP16_Optimizer")
_LOADS: Final = ("torch.load", "torch.distributed.checkpoint.load", ".load_checkpoint", ".load_state")


@dataclass(frozen=True, slots=True)
class Framework:
    """How a framework is known, and the one change that integrates it. `resumes` is the call that may go on from a
    checkpoint and the keyword that says so.
    """

    name: str
    package: str
    made_by: tuple[str, ...]
    line: str
    resumes: tuple[str, str] | None = None


_CALLBACK: Final = "callbacks=[HoldfastCallback()]"
_ENGINE: Final = (
    "for step in holdfast.integrations.frameworkloop.FrameworkLoop(format=..., save=..., load=...).steps(...):"
    " in place of the loop over steps"
)
FRAMEWORKS: Final[Sequence[Framework]] = (
    Framework(
        "Transformers Trainer",
        "transformers",
        (
            "transformers.Trainer",
            "transformers.Seq2SeqTrainer",
            "trl.SFTTrainer",
            "trl.DPOTrainer",
            "trl.GRPOTrainer",
        ),
        f"from holdfast.integrations.transformers import HoldfastCallback, and Trainer(..., {_CALLBACK})",
        (".train", "resume_from_checkpoint"),
    ),
    Framework(
        "Lightning Trainer",
        "lightning",
        ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer"),
        f"from holdfast.integrations.lightning import HoldfastCallback, and Trainer(..., {_CALLBACK})",
        (".fit", "ckpt_path"),
    ),
    Framework(
        "Lightning Fabric",
        "lightning",
        ("lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric"),
        "for step, batch in holdfast.integrations.lightning.fabric_steps(fabric, model, optimizer, loader): in "
        "place of the loop over the loader",
    ),
    Framework(
        "Accelerate",
        "accelerate",
        ("accelerate.Accelerator",),
        "for batch in holdfast.integrations.accelerate.Batches(accelerator, loader, folder=..., epochs=...): in "
        "place of the loops over epochs and the loader",
    ),
    Framework(
        "torchtitan",
        "torchtitan",
        (),
        "from holdfast.integrations.torchtitan import HoldfastCheckpoints, and config.checkpoint = "
        "HoldfastCheckpoints.Config(enable=True, interval=...)",
    ),
    Framework("DeepSpeed", "deepspeed", ("deepspeed.initialize",), _ENGINE),
    Framework("Megatron-Core", "megatron", (), _ENGINE),
)
LOOP: Final = Framework(
    "a loop of its own",
    "torch",
    (),
    "the five lines of docs/guide.md: run = Run(), run.enter(train), a Checkpointer and run.step(step, loss=loss)",
)


def examine_script(script: Script) -> tuple[Finding, ...]:
    """Every finding. A file that Python refuses is the first."""
    framework = framework_of(script)
    refused = [Finding(Level.FAIL, "syntax", each, "mend the line") for each in script.refused]
    checks: tuple[Callable[[Script, Framework], Iterator[Finding]], ...] = (
        _integration,
        _launching,
        _processes,
        _world,
        _resuming,
        _saving,
        _scaling,
        _devices,
    )
    return (*refused, *(finding for check in checks for finding in check(script, framework)))


def framework_of(script: Script) -> Framework:
    """The framework whose trainer it makes, else the first that it imports; a loop of its own without any."""
    made = (each for each in FRAMEWORKS if script.called(*each.made_by))
    imported = (each for each in FRAMEWORKS if not each.made_by and script.imports_from(each.package))
    return next(made, next(imported, LOOP))


def _integration(script: Script, framework: Framework) -> Iterator[Finding]:
    made = script.called(*framework.made_by)
    at = f" at {made[0].place}" if made else ""
    yield Finding(Level.OK, "framework", f"{framework.name}{at}")
    if where := script.imports_from("holdfast"):
        yield Finding(Level.OK, "integration", f"it uses Holdfast at {where}")
        return
    says = "none: it is healed by new processes, and its steps are not seen"
    yield Finding(Level.WARN, "integration", says, f"{framework.line}: {BUYS}")


def _launching(script: Script, framework: Framework) -> Iterator[Finding]:
    """What it expects of whoever starts it."""
    for call in script.called("subprocess.run", "subprocess.Popen", "subprocess.check_call", "os.system"):
        words = call.first if isinstance(call.first, str) else " ".join(map(str, _listed(call.first)))
        if found := next((each for each in _LAUNCHERS if each in f"{words} "), None):
            fix = "have the job's entrypoint name the training script: Holdfast starts a process for each rank"
            yield Finding(Level.FAIL, "launcher", f"it starts {found.strip()} itself at {call.place}", fix)
    for call in script.called(".add_argument"):
        if call.first in ("--local_rank", "--local-rank"):
            fix = 'read os.environ["LOCAL_RANK"]: no launcher since torchrun passes the argument'
            level = Level.FAIL if call.words.get("required") is True else Level.WARN
            yield Finding(level, "launcher", f"it expects {call.first} as an argument at {call.place}", fix)


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _processes(script: Script, framework: Framework) -> Iterator[Finding]:
    fix = (
        "call the function once, with the RANK and the LOCAL_RANK of the environment: every rank is a process "
        "that Holdfast starts, sees and heals"
    )
    spawns = [*script.called(*_SPAWNS)]
    spawns += [
        call for call in script.called(*framework.made_by) if "spawn" in str(call.words.get("strategy", ""))
    ]
    for call in spawns:
        yield Finding(Level.FAIL, "processes", f"it starts its training processes itself at {call.place}", fix)
    for call in script.called("multiprocessing.Process", "torch.multiprocessing.Process"):
        says = f"it starts processes of its own at {call.place}: they end with their worker, and are not healed"
        yield Finding(Level.WARN, "processes", says, f"if they train: {fix}")


def _world(script: Script, framework: Framework) -> Iterator[Finding]:
    """Sizes, ranks and addresses that are written in the script: they hold for one world, and worlds change."""
    fix = "leave it out: the environment says it, of each round anew"
    for call in script.called("torch.distributed.init_process_group"):
        written = [f"{word}={call.words[word]}" for word in ("world_size", "rank") if _is_number(call, word)]
        method = call.words.get("init_method")
        if isinstance(method, str) and not method.startswith("env://"):
            written.append(f"init_method={method}")
        if written:
            yield Finding(Level.FAIL, "world", f"{', '.join(written)} is written at {call.place}", fix)
    for name in SAID:
        if name in script.sets:
            says = f"it sets {name} at {script.sets[name]}: ranks would meet elsewhere, or not at all"
            yield Finding(Level.FAIL, "world", says, f"set it only where it is not there: {fix}")
    for call in script.called(*framework.made_by):
        if _is_number(call, "num_nodes") and call.words["num_nodes"] != 1:
            says = f"num_nodes={call.words['num_nodes']} is written at {call.place}: it cannot shrink or grow"
            change = 'num_nodes=int(os.environ["GROUP_WORLD_SIZE"]) follows every round'
            yield Finding(Level.WARN, "world", says, change)


def _is_number(call: Call, word: str) -> bool:
    value = call.words.get(word)
    return isinstance(value, int) and not isinstance(value, bool)


def _resuming(script: Script, framework: Framework) -> Iterator[Finding]:
    if script.imports_from("holdfast.checkpoint") or script.imports_from("holdfast.integrations"):
        yield Finding(Level.OK, "resume", "it goes on from where Holdfast says")
        return
    if framework.resumes is not None:
        method, word = framework.resumes
        makers = {call.to for call in script.called(*framework.made_by) if call.to}
        every = script.called(method)
        calls = [call for call in every if call.of in makers] or every
        if calls and not any(word in call.words for call in calls):
            says = f"{method[1:]}() at {calls[0].place} begins at step 0 after every fault"
            fix = f"the line above, or {method[1:]}(..., {word}=...) with the newest checkpoint where there is one"
            yield Finding(Level.WARN, "resume", says, fix)
            return
    elif not (loads := script.called(*_LOADS)):
        says = "it loads no checkpoint: it begins at step 0 after every fault"
        yield Finding(Level.WARN, "resume", says, "the line above restores what it saved, at the step it saved it")
        return
    elif all(call.unless for call in loads):
        says = f"it loads nothing as long as {loads[0].unless}: it begins at step 0 after every fault"
        fix = "the line above, or choose that setting by whether a checkpoint is there"
        yield Finding(Level.WARN, "resume", says, fix)
        return
    yield Finding(Level.OK, "resume", "it loads what it saved")


def _saving(script: Script, framework: Framework) -> Iterator[Finding]:
    if script.imports_from("holdfast"):
        return
    for call in script.called(*_SAVES):
        if call.name == "torch.save" and not script.called("os.replace", "os.rename", "shutil.move", ".rename"):
            says = f"torch.save at {call.place} writes in place: killed meanwhile, it leaves half a file"
            fix = "write beside it and os.replace() it, or use a Checkpointer: whole or not at all, and verified"
            yield Finding(Level.WARN, "checkpoints", says, fix)
            return
    if framework.resumes is None and not script.called(*_SAVES, ".save_checkpoint", ".save_state"):
        says = "it saves none: a fault costs everything since the start"
        own = "Checkpointer(run, model=..., optimizer=..., every_steps=...)"
        fix = own if framework is LOOP else "the line above saves as well, as often as it is told"
        yield Finding(Level.WARN, "checkpoints", says, fix)


def _scaling(script: Script, framework: Framework) -> Iterator[Finding]:
    """A gradient scaler whose state is not saved, or whose steps left out nobody knows of."""
    if framework is not LOOP or not script.imports_from("holdfast"):
        return
    made = script.called(*_SCALERS)
    if made and not any("scaler" in call.words for call in script.called(*_CHECKPOINTERS)):
        says = f"{made[0].name}() at {made[0].place} is not given to the Checkpointer: it finds its scale anew"
        yield Finding(Level.WARN, "scaler", says, "Checkpointer(..., scaler=scaler)")
    told = any("skipped" in call.words for call in script.called(".step"))
    for call in script.called(*_OTHER_SCALERS):
        if not told:
            says = f"{call.name}() at {call.place} leaves steps out unseen: their infinite norms count as faults"
            yield Finding(
                Level.WARN, "scaler", says, "run.step(..., skipped=True) for each step that it leaves out"
            )
            return


def _devices(script: Script, framework: Framework) -> Iterator[Finding]:
    """Devices that are touched by importing a file: a data loader's worker may import it again."""
    for call in script.calls:
        where = (call.words.get("device"), call.first if call.name.endswith(".to") else None)
        onto = any(isinstance(each, str) and each.startswith("cuda") for each in where)
        asks = call.name in ("torch.cuda.is_available", "torch.cuda.device_count")
        touches = onto or call.name == ".cuda" or (call.name.startswith("torch.cuda.") and not asks)
        if call.at_import and touches:
            says = f"{call.name.lstrip('.')}() at {call.place} runs when the file is imported"
            fix = 'move it below if __name__ == "__main__": data loaders that are spawned import the file too'
            yield Finding(Level.WARN, "devices", says, fix)
            return

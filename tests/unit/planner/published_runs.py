"""Runs that others have published with their layout: what they reached, where it stands, and what was fitted.

Runs of one software on one kind of GPU share one fitted number, the rate that its matmuls reach; it was fitted on
the run that says so, and the others are predicted with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.planner.cluster import Cluster
from holdfast.planner.gpu import GPUS, Gpu
from holdfast.planner.layout import Layout, Order, Recompute, Schedule, Sharding, Training
from holdfast.planner.memory import memory_of
from holdfast.planner.model import Experts, Latent, Model
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.step import hardware_flops_utilization, model_flops_utilization, step_time

A100, A100_40, H100, H800 = (GPUS[name] for name in ("A100-80GB", "A100-40GB", "H100-80GB", "H800-80GB"))
MEGATRON = "https://arxiv.org/abs/2104.04473 (table 1)"
MT_NLG = "https://arxiv.org/abs/2201.11990 (section 2.4)"
MEGASCALE = "https://arxiv.org/abs/2402.15627 (section 6.1)"
LLAMA3 = "https://arxiv.org/abs/2407.21783 (table 4)"
BLOOM = "https://arxiv.org/abs/2211.05100 (section 3.4)"
NEOX = "https://arxiv.org/abs/2204.06745 (section 4)"
DEEPSEEK = "https://arxiv.org/abs/2412.19437 (sections 3 and 4)"
OLMO = "https://github.com/allenai/OLMo-core/blob/v1.5.0/README.md (throughput of OLMo-7B.py and OLMo-13B.py)"
MPT = "https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md"
DEFAULTS = Efficiency()
LLAMA_405B = Model("Llama 3 405B", layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256)


@dataclass(frozen=True)
class Published:
    """`figure` is the published one, in `unit`; `within` the tolerance. `fitted`: on this run, else on which."""

    name: str
    run: Run
    figure: float
    unit: str
    source: str
    matmul: float
    fitted_on: str
    within: float

    @property
    def ours(self) -> float:
        """The figure as it is planned."""
        run = self.run
        step_s = step_time(run, replace_matmul(self.matmul)).value
        peak = run.cluster.gpu.bf16 / 1e12
        return {
            "s a step": lambda: step_s,
            "MFU": lambda: model_flops_utilization(run, step_s),
            "causal MFU": lambda: (
                run.training.batch
                * run.training.sequence
                * run.model.flops_per_token(run.training.sequence, causal=True)
                / (step_s * run.layout.gpus * run.cluster.gpu.bf16)
            ),
            "TFLOP/s a GPU with recomputing": lambda: hardware_flops_utilization(run, step_s) * peak,
            "tokens/s a GPU": lambda: run.training.batch * run.training.sequence / step_s / run.layout.gpus,
        }[self.unit]()


def replace_matmul(matmul: float) -> Efficiency:
    """The defaults with another rate of matmuls."""
    return Efficiency(matmul=matmul, flash=DEFAULTS.flash, memory=DEFAULTS.memory, links=DEFAULTS.links)


def gpt(name: str, layers: int, hidden: int, heads: int, *, vocab: int = 51200, positions: int = 2048) -> Model:
    """A GPT of Megatron's kind."""
    return Model(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocab=vocab,
        gated=False,
        tied=True,
        positions=positions,
    )


def megatron() -> Iterator[Published]:
    """GPT of 1.7 billion to a trillion parameters on Selene. The micro-batches are not published: ours fit."""
    rows = (
        (1.7, 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        (3.6, 30, 3072, 32, 2, 1, 64, 512, 16, 1, 138),
        (7.5, 36, 4096, 32, 4, 1, 128, 512, 16, 1, 142),
        (18.4, 40, 6144, 48, 8, 1, 256, 1024, 8, 1, 135),
        (39.1, 48, 8192, 64, 8, 2, 512, 1536, 4, 4, 138),
        (76.1, 60, 10240, 80, 8, 4, 1024, 1792, 2, 3, 140),
        (145.6, 80, 12288, 96, 8, 8, 1536, 2304, 2, 2, 148),
        (310.1, 96, 16384, 128, 8, 16, 1920, 2160, 1, 3, 155),
        (529.6, 105, 20480, 128, 8, 35, 2520, 2520, 1, 3, 163),
        (1008.0, 128, 25600, 160, 8, 64, 3072, 3072, 1, 2, 163),
    )
    for billions, layers, hidden, heads, tensor, pipeline, gpus, batch, micro, chunks, figure in rows:
        layout = Layout(
            tensor=tensor,
            pipeline=pipeline,
            data=gpus // tensor // pipeline,
            micro_batch=micro,
            chunks=chunks,
            schedule=Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B,
            recompute=Recompute.FULL,
            sequence_parallel=False,
            sharding=Sharding.NONE,
            overlap=False,
        )
        yield Published(
            f"Megatron {billions}B",
            Run(
                gpt(f"{billions}B", layers, hidden, heads),
                layout,
                Cluster(A100, gpus, network=25e9),
                Training(sequence=2048, batch=batch, flash=False),
            ),
            figure,
            "TFLOP/s a GPU with recomputing",
            MEGATRON,
            0.65,
            "Megatron 39.1B",
            0.06,
        )


def mt_nlg() -> Iterator[Published]:
    """530 billion parameters on 280, 350 and 420 nodes."""
    for data, figure in ((8, 60.1), (10, 50.2), (12, 44.4)):
        layout = Layout(
            tensor=8,
            pipeline=35,
            data=data,
            recompute=Recompute.FULL,
            sequence_parallel=False,
            sharding=Sharding.NONE,
            overlap=False,
        )
        yield Published(
            f"MT-NLG on {280 * data} GPUs",
            Run(
                gpt("MT-NLG", 105, 20480, 128),
                layout,
                Cluster(A100, 280 * data, network=25e9),
                Training(sequence=2048, batch=1920, flash=False),
            ),
            figure,
            "s a step",
            MT_NLG,
            0.547,
            "MT-NLG on 2240 GPUs",
            0.05,
        )


def llama3() -> Iterator[Published]:
    """405 billion parameters; of 131,072 tokens a sequence too. Attention is counted as causal.

    How many chunks the schedule has is not published: ours have one layer each. Nor is what is kept of norms and
    activation functions: with all of it, and as many micro-batches in flight as interleaving has, 82 GB of 80 are
    taken; its schedule may have fewer (section 3.3.2).
    """
    for gpus, context, data, sequence, batch, figure in (
        (8192, 1, 64, 8192, 32, 0.43),
        (16384, 1, 128, 8192, 16, 0.41),
        (16384, 16, 8, 131072, 16, 0.38),
    ):
        layout = Layout(
            tensor=8,
            pipeline=16,
            context=context,
            data=data,
            chunks=8,
            schedule=Schedule.INTERLEAVED,
            order=Order.PIPELINE_INSIDE,
            sharding=Sharding.GRADIENTS,
            recompute=Recompute.SELECTIVE,
            overlap_tensor=True,
        )
        cluster = Cluster(H100, gpus, pod=3072, oversubscription=7.0)  # section 3.3.1
        yield Published(
            f"Llama 3 405B on {gpus} GPUs, {sequence} tokens",
            Run(LLAMA_405B, layout, cluster, Training(sequence=sequence, batch=batch * data)),
            figure,
            "causal MFU",
            LLAMA3,
            0.491,
            "Llama 3 405B on 8192 GPUs, 8192 tokens",
            0.03,
        )


def alone() -> Iterator[Published]:
    """Runs whose software or machine no other run here shares."""
    bloom = Layout(
        tensor=4,
        pipeline=12,
        data=8,
        micro_batch=2,
        recompute=Recompute.FULL,
        sequence_parallel=False,
        overlap=False,
    )
    yield Published(
        "BLOOM 176B",
        Run(
            gpt("BLOOM", 70, 14336, 112, vocab=250880, positions=0),
            bloom,
            Cluster(A100, 384, nvlink_domain=4, network=6.25e9),
            Training(sequence=2048, batch=2048, flash=False),
        ),
        150,
        "TFLOP/s a GPU with recomputing",
        BLOOM,
        0.65,
        "Megatron 39.1B",
        0.08,
    )
    neox = replace_layout(bloom, tensor=2, pipeline=4, data=12, micro_batch=4, order=Order.PIPELINE_INSIDE)
    yield Published(
        "GPT-NeoX 20B",
        Run(
            Model("NeoX", layers=44, hidden=6144, heads=64, ffn=24576, vocab=50432, gated=False),
            neox,
            Cluster(A100_40, 96, network=12.5e9),
            Training(sequence=2048, batch=1536, flash=False),
        ),
        117,
        "TFLOP/s a GPU with recomputing",
        NEOX,
        0.54,
        "GPT-NeoX 20B",
        0.05,
    )
    deepseek = Model(
        "DeepSeek-V3",
        layers=61,
        hidden=7168,
        heads=128,
        ffn=18432,
        vocab=129280,
        experts=Experts(256, 8, 2048, shared=1, dense_layers=3, domains=4),
        latent=Latent(1536, 512, 64, 128, 128),
    )
    yield Published(
        "DeepSeek-V3",
        Run(
            deepseek,
            Layout(
                pipeline=16,
                expert=64,
                data=128,
                schedule=Schedule.ZERO_BUBBLE,
                recompute=Recompute.SELECTIVE,
                overlap_experts=True,
            ),
            Cluster(H800, 2048),
            Training(sequence=4096, batch=15360, fp8=True),
        ),
        1e12 / (180e3 * 3600),  # 180,000 GPU-hours for 10^12 tokens
        "tokens/s a GPU",
        DEEPSEEK,
        0.343,
        "DeepSeek-V3",
        0.05,
    )


def replace_layout(layout: Layout, **changed: int | Order | Schedule) -> Layout:
    """The layout with other degrees."""
    fields = {name: getattr(layout, name) for name in layout.__struct_fields__}
    return Layout(**{**fields, **changed})


def mpt() -> Iterator[Published]:
    """MosaicML's models under FSDP on H100, 2,048 tokens a sequence, everything computed again."""
    sizes = {"70B": (80, 8192, 64), "30B": (48, 7168, 64)}
    for size, gpus, micro, count, figure in (
        ("70B", 64, 8, 4, 0.4257),
        ("30B", 32, 14, 3, 0.4392),
        ("30B", 16, 10, 3, 0.4307),
        ("30B", 8, 3, 21, 0.3811),
    ):
        layout = Layout(data=gpus, micro_batch=micro, sharding=Sharding.PARAMETERS, recompute=Recompute.FULL)
        yield Published(
            f"MPT {size} on {gpus} GPUs",
            Run(
                gpt(size, *sizes[size], vocab=50368),
                layout,
                Cluster(H100, gpus),
                Training(sequence=2048, batch=gpus * micro * count),
            ),
            figure,
            "MFU",
            MPT,
            0.6,
            "MPT 30B on 32 GPUs",
            0.16,
        )


def olmo() -> Iterator[Published]:
    """OLMo under FSDP on H100, 4,096 tokens a sequence, nothing computed again. How many GPUs is not published:
    ours are 64, and 256 come to the same.
    """
    for size, layers, hidden, heads, ffn, micro, batch, figure in (
        ("7B", 32, 4096, 32, 11008, 2, 1024, 10_000),
        ("13B", 40, 5120, 40, 13824, 1, 2048, 4_600),
    ):
        layout = Layout(data=64, micro_batch=micro, sharding=Sharding.PARAMETERS, recompute=Recompute.NONE)
        model = Model(size, layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=100352)
        yield Published(
            f"OLMo {size}",
            Run(model, layout, Cluster(H100, 64), Training(sequence=4096, batch=batch)),
            figure,
            "tokens/s a GPU",
            OLMO,
            0.487,
            "OLMo 7B",
            0.17,
        )


@dataclass(frozen=True)
class Held:
    """A run whose greatest memory of a GPU is published, in GiB; `within` is the tolerance."""

    name: str
    run: Run
    gib: float
    within: float

    @property
    def ours(self) -> float:
        """As it is planned."""
        return memory_of(self.run.model, self.run.layout, self.run.training).value / 2**30


TITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"
PULLS = "https://github.com/pytorch/torchtitan/pull/112 (reserved beside active memory)"
H100_96 = Gpu("H100-96GB", bf16=989e12, fp8=1979e12, memory=96e9, memory_rate=2400e9, nvlink=450e9, source=TITAN)


def held() -> Iterator[Held]:
    """torchtitan's Llama 3.1 with everything computed again, its loss in eager PyTorch (tables 2, 4, 5 and 6): 14
    bytes a logit, 16 where it is parallel.

    Nothing is fitted. Published is what the allocator has reserved, of which not all is in use: with tensor
    parallelism up to a third more (PULLS). The two runs of table 5 and the first of table 6 hold the same, and
    differ by 13%.
    """
    full = Layout(recompute=Recompute.FULL)
    small = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    large = Model("70B", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
    for context, gib in ((1, 83.9), (2, 84.2), (4, 84.0), (8, 84.5)):
        layout = replace_layout(full, data=8 // context, context=context, sharding=Sharding.PARAMETERS)
        training = Training(32768 * context, 8 // context, fp8=True, logit_bytes=14.0)
        yield Held(f"Llama 3.1 8B, CP {context}", Run(small, layout, Cluster(H100_96, 8), training), gib, 0.04)
    layout = replace_layout(full, data=32, tensor=8, micro_batch=16, sharding=Sharding.PARAMETERS)
    training = Training(8192, 512, fp8=True, logit_bytes=16.0)
    for name, gib in (("TP 8", 71.9), ("TP 8 and AsyncTP", 67.6)):
        yield Held(f"Llama 3.1 70B, {name}", Run(large, layout, Cluster(H100_96, 256), training), gib, 0.2)
    layout = replace_layout(full, data=8, tensor=8, pipeline=8, micro_batch=4)
    training = Training(8192, 256, fp8=True, logit_bytes=16.0)
    run = Run(LLAMA_405B, layout, Cluster(H100_96, 512), training)
    yield Held("Llama 3.1 405B, PP 8, 8,192 tokens", run, 82.5, 0.21)
    split = replace_layout(layout, schedule=Schedule.INTERLEAVED, chunks=2)
    yield Held("Llama 3.1 405B, PP 8 interleaved", run._replace(layout=split), 72.7, 0.21)
    for context, gib, within in ((1, 75.3, 0.21), (2, 75.9, 0.21), (4, 77.1, 0.21), (8, 84.9, 0.23)):
        layout = replace_layout(full, data=8 // context, context=context, tensor=8, pipeline=8)
        training = Training(32768 * context, 64 // context, fp8=True, logit_bytes=16.0)
        run = Run(LLAMA_405B, layout, Cluster(H100_96, 512), training)
        yield Held(f"Llama 3.1 405B, PP 8, CP {context}", run, gib, within)


HELD = tuple(held())


def megascale() -> Iterator[Published]:
    """175 and 530 billion parameters on Ampere GPUs, with fused attention and overlapping tensor parallelism; what
    matmuls reach is Megatron's (tables 1 and 2, figure 9).

    Windows of attention and parallel blocks, which these runs had, the planner does not know of.
    """
    few = ((256, 0.653), (512, 0.635), (768, 0.613), (1024, 0.59))
    many = ((3072, 0.591), (6144, 0.573), (8192, 0.549), (12288, 0.552))
    larger = ((2240, 0.543), (4480, 0.541), (11200, 0.543))
    for name, layers, hidden, heads, pipeline, chunks, rows in (
        ("175B", 96, 12288, 128, 8, 6, [(gpus, 768, figure) for gpus, figure in few]),
        ("175B", 96, 12288, 128, 8, 6, [(gpus, 6144, figure) for gpus, figure in many]),
        ("530B", 105, 20480, 160, 35, 3, [(gpus, gpus, figure) for gpus, figure in larger]),
    ):
        for gpus, batch, figure in rows:
            layout = Layout(
                tensor=8,
                pipeline=pipeline,
                data=gpus // 8 // pipeline,
                chunks=chunks,
                schedule=Schedule.INTERLEAVED,
                recompute=Recompute.NONE,
                overlap_tensor=True,
            )
            yield Published(
                f"MegaScale {name} on {gpus} GPUs",
                Run(
                    gpt(name, layers, hidden, heads, vocab=64000),
                    layout,
                    Cluster(A100, gpus, network=25e9),
                    Training(sequence=2048, batch=batch),
                ),
                figure,
                "causal MFU",
                MEGASCALE,
                0.65,
                "Megatron 39.1B",
                0.1,
            )


PUBLISHED = (*megatron(), *mt_nlg(), *megascale(), *llama3(), *alone(), *mpt(), *olmo())

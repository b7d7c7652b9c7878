"""NVIDIA's own figures of its software, and all runs that others have published.

Two fitted numbers besides NeMo's on H100: of NeMo 25.02 on B200, and of Megatron Bridge 25.11 on B200 and GB200.
What these tables have in MXFP8, of experts narrower than 1,536, of other attention or with FSDP is not among
them, nor Llama 3 405B on GB200, which does not fit without recomputing that is not told (docs/planner.md).
"""

from collections.abc import Iterator

from published_runs import H100, LLAMA_405B, PUBLISHED, Published, gpt

from holdfast.planner.cluster import Cluster
from holdfast.planner.gpu import GPUS, Gpu
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.model import Experts, Model
from holdfast.planner.run import Run

NEMO = "https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/performance/performance_summary.html"
NEMO_B200 = "https://docs.nvidia.com/nemo-framework/user-guide/latest/performance/performance_summary.html"
BRIDGE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/performance-summary.md"
B200, GB200 = GPUS["B200-180GB"], GPUS["GB200-186GB"]
MODELS = {
    "Llama 2 7B": Model("", layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000),
    "Llama 2 13B": Model("", layers=40, hidden=5120, heads=40, ffn=13824, vocab=32000),
    "Llama 2 70B": Model("", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000),
    "Llama 3 8B": Model("", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256),
    "Llama 3 70B": Model("", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256),
    "Llama 3 405B": LLAMA_405B,
    "GPT-3 175B": gpt("", 96, 12288, 96),
    "Nemotron 15B": Model("", layers=32, hidden=6144, heads=48, kv_heads=8, ffn=24576, vocab=256000, gated=False),
    "Nemotron 340B": Model(
        "", layers=96, hidden=18432, heads=96, kv_heads=8, ffn=73728, vocab=256000, gated=False
    ),
    "Mixtral 8x7B": Model(
        "", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, experts=Experts(8, 2, 14336)
    ),
    "Qwen3 235B": Model(
        "",
        layers=94,
        hidden=4096,
        heads=64,
        kv_heads=4,
        head=128,
        ffn=12288,
        vocab=151936,
        experts=Experts(128, 8, 1536),
    ),
    "DeepSeek-V3": next(each.run.model for each in PUBLISHED if each.name == "DeepSeek-V3"),
}
Row = tuple[str, int, int, int, int, int, int, int, int, int, bool, float]
"""Of a table: model, GPUs, batch, micro-batch, tokens of a sequence, TP, PP, CP, VP, EP, whether in FP8, tokens a
second and GPU.
"""
H100_2412: tuple[Row, ...] = (
    ("Llama 2 7B", 8, 128, 1, 4096, 1, 1, 1, 1, 1, True, 16934),
    ("Llama 2 13B", 16, 128, 1, 4096, 1, 4, 1, 10, 1, True, 8715),
    ("Llama 2 70B", 64, 128, 1, 4096, 4, 4, 1, 20, 1, True, 1728),
    ("Llama 3 8B", 8, 128, 1, 8192, 1, 1, 2, 1, 1, True, 12273),
    ("Llama 3 70B", 64, 128, 1, 8192, 4, 4, 2, 5, 1, True, 1524),
    ("GPT-3 175B", 128, 256, 1, 2048, 4, 8, 1, 6, 1, True, 716),
    ("GPT-3 175B", 512, 2048, 2, 2048, 4, 8, 1, 6, 1, True, 825),
)
H100_2511: tuple[Row, ...] = (
    ("Llama 3 70B", 64, 128, 1, 8192, 4, 8, 1, 5, 1, True, 1602),
    ("Llama 3 405B", 1024, 512, 1, 8192, 8, 8, 2, 8, 1, True, 292),
)
B200_2502: tuple[Row, ...] = (
    ("GPT-3 175B", 512, 2048, 2, 2048, 4, 4, 1, 6, 1, True, 1600),
    ("Llama 3 8B", 8, 128, 2, 8192, 1, 1, 1, 1, 1, True, 26006),
    ("Llama 3 70B", 64, 128, 1, 8192, 2, 4, 2, 5, 1, True, 3062),
    ("Llama 3 405B", 128, 64, 1, 8192, 4, 8, 2, 8, 1, True, 625),
    ("Nemotron 15B", 64, 256, 2, 4096, 1, 1, 1, 1, 1, True, 14760),
    ("Nemotron 340B", 128, 32, 1, 4096, 8, 4, 1, 12, 1, True, 602),
    ("Mixtral 8x7B", 64, 256, 2, 4096, 1, 1, 1, 1, 8, True, 15457),
)
B200_2511: tuple[Row, ...] = (
    ("Llama 3 8B", 8, 128, 2, 8192, 1, 1, 1, 1, 1, True, 30624),
    ("Llama 3 405B", 128, 64, 1, 8192, 4, 8, 2, 8, 1, True, 661),
)
GB200_2511: tuple[Row, ...] = (
    ("Llama 3 8B", 8, 128, 2, 8192, 1, 1, 1, 1, 1, True, 31508),
    ("DeepSeek-V3", 256, 4096, 1, 4096, 1, 4, 1, 4, 64, False, 3139),
    ("Qwen3 235B", 256, 8192, 1, 4096, 1, 8, 1, 3, 32, False, 4916),
)


def layout_of(row: Row) -> Layout:
    """As the table has it; what else is set is not published: ours is the least that fits."""
    name, gpus, _, micro, _, tensor, pipeline, context, chunks, expert, _, _ = row
    return Layout(
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        data=gpus // (tensor * pipeline * context),
        micro_batch=micro,
        chunks=chunks,
        schedule=Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B,
        recompute=Recompute.SELECTIVE if name == "DeepSeek-V3" else Recompute.NONE,
        sharding=Sharding.OPTIMIZER,
        overlap_tensor=True,
    )


def nvidia() -> Iterator[Published]:
    """Those of each machine and version."""
    nemo, bridge = "Llama 3 405B on 128 B200, NeMo 25.02", "Llama 3 405B on 128 B200, 25.11"
    tables: tuple[tuple[tuple[Row, ...], Gpu, str, str, float, str, float], ...] = (
        (H100_2412, H100, "GPUs, FP8", NEMO, 0.458, "Llama 3 70B on 64 GPUs, FP8", 0.14),
        (H100_2511, H100, "GPUs, FP8, 25.11", BRIDGE, 0.458, "Llama 3 70B on 64 GPUs, FP8", 0.14),
        (B200_2502, B200, "B200, NeMo 25.02", NEMO_B200, 0.425, nemo, 0.17),
        (B200_2511, B200, "B200, 25.11", BRIDGE, 0.455, bridge, 0.14),
        (GB200_2511, GB200, "GB200, 25.11", BRIDGE, 0.455, bridge, 0.14),
    )
    for rows, gpu, machine, source, matmul, fitted_on, within in tables:
        for row in rows:
            cluster = Cluster(gpu, row[1], per_node=4 if gpu is GB200 else 8)
            training = Training(sequence=row[4], batch=row[2], fp8=row[10])
            run = Run(MODELS[row[0]], layout_of(row), cluster, training)
            name = f"{row[0]} on {row[1]} {machine}"
            yield Published(name, run, row[-1], "tokens/s a GPU", source, matmul, fitted_on, within)


RUNS = (*PUBLISHED, *nvidia())

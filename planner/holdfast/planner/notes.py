"""The arithmetic of pretraining notes for one option of a plan: what its own figures do not say."""

from collections.abc import Iterator

import msgspec

from holdfast.planner import batch, bubble, checkpoint, loader, spot, tokens
from holdfast.planner.cluster import reach_of
from holdfast.planner.layout import Recompute, Schedule
from holdfast.planner.memory import SOURCE as ACTIVATIONS
from holdfast.planner.memory import activation_bytes_per_layer, in_flight, memory_of, room_of
from holdfast.planner.plan import Option, Question, stand_by_gpus
from holdfast.planner.quantity import Quantity, shown
from holdfast.planner.ranks import shard_ranks
from holdfast.planner.run import with_links
from holdfast.planner.stage import layer_on_gpu, stages_of

replace = msgspec.structs.replace
SAMPLED_BATCH = 64


def notes_of(question: Question, option: Option) -> tuple[Quantity, ...]:
    """Each with its formula and source, those first that a layout is chosen by."""
    parts = (_balance, _hides, _batches, _bubbles, _recomputing, _groups, _checkpoint, _loading, _asked, _spot)
    return tuple(quantity for part in parts for quantity in part(question, option))


def _balance(question: Question, option: Option) -> Iterator[Quantity]:
    gpu = question.cluster.gpu
    memory = shown(gpu.memory_rate, "bytes/s")
    says = f"{gpu.bf16:.4g} FLOP/s in BF16 over {memory}: below it a matmul waits for its bytes"
    yield Quantity("machine balance", gpu.balance, "FLOP/byte", says, gpu.source)
    if gpu.fp8:
        says = f"{gpu.fp8:.4g} FLOP/s in FP8 over {memory}: of numbers half as wide as many FLOP for each"
        yield Quantity("machine balance in FP8", gpu.fp8 / gpu.memory_rate, "FLOP/byte", says, gpu.source)


def _hides(question: Question, option: Option) -> Iterator[Quantity]:
    model, cluster, training, layout = question.model, question.cluster, question.training, option.layout
    ranks = layout.shared_by
    if ranks > 1:
        reach = reach_of(with_links(cluster, question.reached), *shard_ranks(layout))
        fp8 = training.fp8 and cluster.gpu.fp8
        flops = (cluster.gpu.fp8 if fp8 else cluster.gpu.bf16) * question.reached.matmul
        least = batch.fsdp_tokens(flops, reach.rate, ranks, layout.recompute, model.matmul_passes)
        says = f"FLOP/s reached over {reach.rate:.3g} bytes/s of a ring of {ranks}; "
        if model.experts is not None:
            moved = layer_on_gpu(model, layout) * layout.tensor / model.layer_parameters(active=True)
            least *= moved
            says += f"x {moved:.3g} parameters moved for each that a token uses; "
        says += "the layout has "
        says += f"{layout.micro_batch * training.sequence // layout.context} in a micro-batch"
        yield Quantity("tokens of a GPU from which on FSDP hides", least, "tokens", says, batch.HIDES)


def _batches(question: Question, option: Option) -> Iterator[Quantity]:
    training = question.training
    mine, critical, known_by = training.batch * training.sequence, 0.0, "where that is the critical one"
    if training.tokens and not question.model.adapter_rank:
        critical = batch.best_tokens(question.model, training.sequence, training.tokens)
        says = f"0.292 C^0.3271, C the FLOP of {training.tokens:.4g} tokens; the question has {mine:.4g}"
        yield Quantity("batch that trains best", critical, "tokens", says, batch.DEEPSEEK)
    if training.loss:
        critical, known_by = batch.critical_tokens(training.loss), f"at a loss of {training.loss:g}"
        says = f"2 x 10^8 L^(-1/0.21) {known_by}; the question has {mine:.4g}"
        yield Quantity("critical batch", critical, "tokens", says, batch.KAPLAN)
    if critical:
        for what, value, formula in (
            ("tokens", batch.samples_needed(mine, critical), "1 + B / B_crit"),
            ("steps", batch.steps_needed(mine, critical), "1 + B_crit / B"),
        ):
            says = f"{formula}, B {mine:.4g}, B_crit {critical:.4g} {known_by}"
            yield Quantity(f"{what} needed, in multiples of the fewest", value, "", says, batch.NOISE)


def _bubbles(question: Question, option: Option) -> Iterator[Quantity]:
    layout, count = option.layout, option.layout.micro_batches(question.training)
    if layout.pipeline == 1 or question.model.adapter_rank:
        return
    plain = replace(layout, schedule=Schedule.ONE_F_ONE_B, chunks=1)
    without = replace(plain, schedule=Schedule.ZERO_BUBBLE)
    for name, each, says, source in (
        ("bubble of one forward one backward", plain, "(P-1) / (P-1 + M)", bubble.INTERLEAVED),
        ("what zero bubble leaves of it", without, "(P-1) (F + B - W), of equal thirds", bubble.ZERO),
    ):
        value = bubble.bubble_share(bubble.bubble_passes(each), count)
        yield Quantity(name, value, "share", f"{says}: of {count} micro-batches", source)


def _recomputing(question: Question, option: Option) -> Iterator[Quantity]:
    model, training = question.model, question.training
    for each in Recompute:
        layout = replace(option.layout, recompute=each)
        held, layers = in_flight(layout, training), stages_of(model, layout)[0].layers
        value = activation_bytes_per_layer(model, layout, training) * layers * held
        says = f"{layers} layers of the first stage x {held:.3g} micro-batches in flight"
        yield Quantity(f"activations with recompute {each.value}", value, "bytes", says, ACTIVATIONS)


def _groups(question: Question, option: Option) -> Iterator[Quantity]:
    """In replica groups each has all of the state, and shares it among its own ranks only."""
    layout, groups = option.layout, question.reliability.groups
    if not 0 < groups <= question.cluster.nodes or layout.data * layout.context % groups:
        return
    shards = min(layout.shared_by, layout.data * layout.context // groups)
    held = memory_of(question.model, replace(layout, shards=shards), question.training).value
    room = room_of(question.cluster.gpu)
    says = f"as above, shared by the {shards} ranks of a group and no others; {shown(room, 'bytes')} can be filled"
    yield Quantity(f"memory per GPU in {groups} replica groups", held, "bytes", says, ACTIVATIONS)


def _checkpoint(question: Question, option: Option) -> Iterator[Quantity]:
    cluster, size = question.cluster, checkpoint.checkpoint_bytes(question.model, question.training)
    says = f"{question.model.trained_parameters:.4g} parameters x (2 + {question.training.optimizer_bytes} bytes)"
    yield Quantity("checkpoint", size, "bytes", says, checkpoint.SOURCE)
    stall = checkpoint.copied_s(size, cluster.gpus, cluster.host)
    says = f"a share for each of {cluster.gpus} GPUs at {shown(cluster.host, 'bytes/s')} to host memory; the plan"
    says += f" counts on {question.reliability.save_s:g} s"
    yield Quantity("stall of a checkpoint that is written beside training", stall, "s", says)
    if cluster.storage is not None:
        written = checkpoint.written_s(size, cluster.storage)
        says = f"at {shown(cluster.storage, 'bytes/s')}; training that waits for it stands still so long"
        yield Quantity("time until a checkpoint is written", written, "s", says, checkpoint.SOURCE)


def _loading(question: Question, option: Option) -> Iterator[Quantity]:
    bytes_ = loader.step_bytes(question.model, question.training)
    value = loader.loader_rate(bytes_, option.step.value)
    says = f"{bytes_:.3g} bytes of a step over its time, of all nodes"
    yield Quantity("loader", value, "bytes/s", says, loader.SOURCE)


def _asked(question: Question, option: Option) -> Iterator[Quantity]:
    """The model as a teacher."""
    model, cluster, sequence = question.model, question.cluster, question.training.sequence
    flops = tokens.forward_flops(model, sequence)
    says = f"2 FLOP x {model.matmul_parameters:.4g} parameters, and attention among {sequence} tokens"
    yield Quantity("FLOP of a token that the model scores", flops, "FLOP", says, tokens.SOURCE)
    if cluster.price is None:
        return
    scored = tokens.scored_per_s(model, sequence, cluster.gpu.bf16 * question.reached.matmul)
    sampled = tokens.sampled_per_s(
        model, sequence, SAMPLED_BATCH, cluster.gpu.memory_rate * question.reached.memory
    )
    price = tokens.price_of_a_million(scored, cluster.price)
    says = f"{scored:.4g} a second and GPU, at the GPU's price"
    yield Quantity("price of a million tokens that the model scores", price, "", says, tokens.SOURCE)
    price = tokens.price_of_a_million(min(sampled, scored), cluster.price)
    says = f"{sampled:.4g} a second and GPU, {SAMPLED_BATCH} sequences at a time, each as long as in training"
    yield Quantity("price of a million tokens that the model samples", price, "", says, tokens.SOURCE)


def _spot(question: Question, option: Option) -> Iterator[Quantity]:
    given, cluster, reliability = question.spot, question.cluster, question.reliability
    if given is None:
        return
    price, nodes, written_s = cluster.price, cluster.nodes, 0.0
    if cluster.storage is not None:
        size = checkpoint.checkpoint_bytes(question.model, question.training)
        written_s = checkpoint.written_s(size, cluster.storage)
    share = spot.spot_share(nodes, reliability, given, written_s)
    says = f"{given.interruptions:g} interruptions for 1,000 node-days beside failures: a restart for each"
    if not spot.is_saved(reliability, given, written_s):
        says += f", and half an interval: no checkpoint fits the notice of {given.notice_s:g} s"
    yield Quantity("effective share of time on spot", share, "share", says)
    if question.training.tokens and share:
        hours = question.training.tokens / option.tokens_per_s / share / 3600.0
        says = f"tokens over tokens a second x {share:.2%}, {cluster.gpus} GPUs at {given.price:g}, no spares"
        money = hours * cluster.gpus * given.price
        yield Quantity("money on spot", money, "", says)
    if price is None:
        return
    paid = price * (1.0 + stand_by_gpus(question) / cluster.gpus)
    on_demand = spot.on_demand_share(nodes, reliability, written_s)
    says = f"{paid:.4g}, on demand with its spares, x {share:.2%} of time that trains on spot over {on_demand:.2%}"
    even = spot.breakeven_price(nodes, reliability, given, paid, written_s)
    yield Quantity("breakeven price of a spot GPU and hour", even, "", f"{says}; it is {given.price:g}")
    says = f"at which a token costs as much at {given.price:g} as at {paid:.4g}; there are {given.interruptions:g}"
    often = spot.breakeven_interruptions(nodes, reliability, given, paid, written_s)
    yield Quantity("breakeven interruptions for 1,000 node-days", often, "", says)

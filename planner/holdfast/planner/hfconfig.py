"""A model from the `config.json` of Hugging Face, whose keys differ by family.

Source: https://huggingface.co/docs/transformers/main_classes/configuration (and each family's own page)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem
from holdfast.planner.model import Experts, Latent, Model

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num"),
    "head": ("head_dim",),
    "ffn": ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "count": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "active": ("num_experts_per_tok", "experts_per_token", "moe_k"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared": ("n_shared_experts", "moe_num_shared_experts"),
    "shared_ffn": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "dense_first": ("first_k_dense_replace", "moe_layer_start_index"),
    "sparse_step": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "moe_layer_interval"),
}
# Families whose feed-forward part has two matrices.
_PLAIN: Final = frozenset(
    {
        "gpt2",
        "bloom",
        "gpt_neox",
        "mpt",
        "opt",
        "falcon",
        "gptj",
        "gpt_neo",
        "phi",
        "gpt_bigcode",
        "starcoder2",
        "nemotron",
        "codegen",
        "persimmon",
        "apertus",
        "arcee",
        "biogpt",
        "nanochat",
    }
)
_LEARNED_POSITIONS: Final = frozenset({"gpt2", "opt", "gpt_neo", "gpt_bigcode"})
# Families that share the embedding with the head when their file does not say.
_TIED: Final = frozenset(
    {
        "gpt2",
        "bloom",
        "mpt",
        "opt",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "falcon",
        "gpt_neo",
        "gpt_bigcode",
        "starcoder2",
        "cohere",
        "cohere2",
    }
)
_ENCODERS: Final = frozenset(
    {"bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta-v2", "modernbert"}
)
# Keys of layers that have something else in place of attention, more beside it, or each a shape of its own.
_OTHER_LAYERS: Final = frozenset(
    {
        "mamba_d_state",
        "ssm_state_size",
        "mamba_num_heads",
        "attn_layer_period",
        "attn_type_list",
        "linear_num_value_heads",
        "linear_attn_config",
        "lru_width",
        "block_configs",
        "moe_layers_enum",
        "parallel_attn_mlp_res",
    }
)
_ATTENTION: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def read_config(path: Path) -> Model:
    """The model in a `config.json`. Raises InvalidInput, which names the key that is missing or wrong."""
    try:
        given = decode_json(path.read_bytes(), dict[str, object])
    except OSError as error:
        raise InvalidInput(
            Problem("--model", str(path), f"give a file that can be read: {error.strerror}")
        ) from None
    except Malformed as error:
        raise InvalidInput(Problem("--model", str(path), f"give a config.json: {error}")) from None
    return model_of(given, path.parent.name or path.stem)


def model_of(config: Mapping[str, object], name: str) -> Model:
    """The model that a decoded `config.json` describes. Raises InvalidInput."""
    family = str(config.get("model_type", ""))
    _check(config, family)
    layers, hidden, heads, vocab = (_needed(config, each) for each in ("layers", "hidden", "heads", "vocab"))
    # GPT-like families leave it out where it is four times as wide.
    ffn = _number(config, "ffn") or (4 * hidden if family in _PLAIN else _needed(config, "ffn"))
    if family == "qwen":  # the first of that name counts both matrices that a token's units go through
        ffn //= 2
    positions = 0
    if family in _LEARNED_POSITIONS:
        positions = _int_of(config, ("n_positions", "max_position_embeddings")) or 0
    return Model(
        name=str(config.get("_name_or_path") or name),
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        kv_heads=_kv_heads(config, family),
        head=0 if "kv_lora_rank" in config else _number(config, "head") or 0,
        gated=family not in _PLAIN,
        tied=bool(config.get("tie_word_embeddings", family in _TIED)),
        positions=positions,
        experts=_experts(config, ffn, layers),
        latent=_latent(config),
    )


def _check(config: Mapping[str, object], family: str) -> None:
    """That it is a decoder whose layers all have attention: else every figure would be another model's."""
    if "peft_type" in config:
        fix = "give the config.json of the model that it adapts, and its rank as model.adapter_rank of FILE"
        raise InvalidInput(Problem("--model: peft_type", config["peft_type"], fix))
    if towers := sorted({"vision_config", "audio_config"} & config.keys()):
        fix = "give its `text_config`, or the keys of its language model, as a file: nothing else is planned"
        raise InvalidInput(Problem(f"--model: {towers[0]}", family, fix))
    other = sorted(_OTHER_LAYERS & config.keys())
    if isinstance(kinds := config.get("layer_types"), list):
        other += sorted({f"layers of {each}" for each in kinds if str(each) not in _ATTENTION})
    if family in _ENCODERS or config.get("is_encoder_decoder") is True or other:
        has = f"this one has {', '.join(other)}" if other else "this one is an encoder, or has one"
        raise InvalidInput(
            Problem("--model: model_type", family, f"give a decoder all of whose layers have attention: {has}")
        )


def _kv_heads(config: Mapping[str, object], family: str) -> int:
    """0: as many as heads. Two families say so by flags of their own."""
    if family == "falcon" and config.get("new_decoder_architecture") is True:
        return _int_of(config, ("num_kv_heads",)) or 0
    if family in ("falcon", "gpt_bigcode"):
        return 1 if config.get("multi_query", True) else 0
    return _number(config, "kv_heads") or 0


def _experts(config: Mapping[str, object], ffn: int, layers: int) -> Experts | None:
    if (count := _number(config, "count")) is None:
        unread = [key for key, value in config.items() if "expert" in key and isinstance(value, int) and value > 1]
        if unread:
            fix = f"give one of {', '.join(_NAMES['count'])}: else it would be planned as a model without experts"
            raise InvalidInput(Problem(f"--model: {unread[0]}", config[unread[0]], fix))
    if count is None or count <= 1:
        return None
    shared = _number(config, "shared") or 0
    if (
        "intermediate_size_mlp" in config
    ):  # of dense layers; each expert, and one that all tokens share, is narrower
        width, shared = _int_of(config, ("intermediate_size",)) or ffn, 1
    else:
        width = _number(config, "expert_ffn") or ffn
    if width and (beside := _number(config, "shared_ffn")):
        shared += beside // width
        if beside % width:
            fix = f"give a multiple of an expert's width ({width})"
            raise InvalidInput(Problem(f"--model: {_NAMES['shared_ffn'][0]}", beside, fix))
    return Experts(
        count=count,
        active=_needed(config, "active"),
        ffn=width,
        shared=shared,
        dense_layers=_dense_layers(config, layers),
    )


def _dense_layers(config: Mapping[str, object], layers: int) -> int:
    """The first ones; of the others those that are no multiple of a step; and those that are listed."""
    first, step = _number(config, "dense_first") or 0, _number(config, "sparse_step") or 1
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(isinstance(each, int) for each in listed):
        raise InvalidInput(Problem("--model: mlp_only_layers", listed, "give a list of layers"))
    named: set[int] = set(listed)
    sparse = max(0, layers // step - first // step)
    return layers - sparse + sum(first <= each < layers and not (each + 1) % step for each in named)


def _latent(config: Mapping[str, object]) -> Latent | None:
    if "kv_lora_rank" not in config:
        return None
    ranks = [
        _int_of(config, (key,)) or 0
        for key in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    ]
    return Latent(*ranks)


def _needed(config: Mapping[str, object], what: str) -> int:
    found = _number(config, what)
    if found is None:
        fix = f"give one of {', '.join(_NAMES[what])} in config.json"
        if "text_config" in config:
            fix += "; of a model for images too, give what its `text_config` has as a file of its own"
        raise InvalidInput(Problem(f"--model: {what}", None, fix))
    return found


def _number(config: Mapping[str, object], what: str) -> int | None:
    return _int_of(config, _NAMES[what])


def _int_of(config: Mapping[str, object], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidInput(Problem(f"--model: {key}", value, "give a whole number"))
        return value
    return None

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
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "count": ("n_routed_experts", "num_local_experts", "num_experts"),
    "active": ("num_experts_per_tok", "experts_per_token"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
}
# Families whose feed-forward part has two matrices.
_PLAIN: Final = frozenset({"gpt2", "bloom", "gpt_neox", "mpt", "opt", "falcon", "gptj", "gpt_neo", "phi"})
_LEARNED_POSITIONS: Final = frozenset({"gpt2", "opt", "gpt_neo"})
# Families that share the embedding with the head when their file does not say.
_TIED: Final = frozenset({"gpt2", "bloom", "mpt", "opt", "gemma", "gemma2", "gemma3", "falcon", "gpt_neo"})


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
    layers, hidden, heads, vocab = (_needed(config, each) for each in ("layers", "hidden", "heads", "vocab"))
    # GPT-like families leave it out where it is four times as wide.
    ffn = _number(config, "ffn") or (4 * hidden if family in _PLAIN else _needed(config, "ffn"))
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
        kv_heads=_number(config, "kv_heads") or 0,
        head=0 if "kv_lora_rank" in config else _number(config, "head") or 0,
        gated=family not in _PLAIN,
        tied=bool(config.get("tie_word_embeddings", family in _TIED)),
        positions=positions,
        experts=_experts(config, ffn),
        latent=_latent(config),
    )


def _experts(config: Mapping[str, object], ffn: int) -> Experts | None:
    if (count := _number(config, "count") or 0) <= 1:
        return None
    return Experts(
        count=count,
        active=_needed(config, "active"),
        ffn=_number(config, "expert_ffn") or ffn,
        shared=_number(config, "shared") or 0,
        dense_layers=_number(config, "dense_layers") or 0,
    )


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
        raise InvalidInput(
            Problem(f"--model: {what}", None, f"give one of {', '.join(_NAMES[what])} in config.json")
        )
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

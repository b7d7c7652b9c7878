import json
from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.planner.hfconfig import model_of, read_config
from holdfast.planner.model import Model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
BLOOM = {
    "model_type": "bloom",
    "hidden_size": 14336,
    "n_head": 112,
    "n_layer": 70,
    "vocab_size": 250880,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        pytest.param(LLAMA, 8.030, 8.030, id="Llama 3 8B"),
        pytest.param(MIXTRAL, 46.70, 12.88, id="Mixtral 8x7B"),
        pytest.param(DEEPSEEK, 671.0, 37.55, id="DeepSeek-V3"),
        pytest.param(GPT2, 0.1244, 0.1244, id="GPT-2"),
        pytest.param(BLOOM, 176.2, 176.2, id="BLOOM"),
    ],
)
def test_the_parameters_of_a_config_are_those_that_its_makers_count(
    config: dict[str, object], billions: float, active: float
) -> None:
    model = model_of(config, "it")
    assert model.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=2e-3)


def test_a_token_takes_six_flop_a_parameter_and_attention_on_top() -> None:
    model = Model("it", layers=2, hidden=64, heads=4, ffn=256, vocab=1000)
    # Source of the second term: https://arxiv.org/abs/2204.02311 (appendix B): 12 L H Q T
    assert model.flops_per_token(128) == 6 * model.matmul_parameters + 12 * 2 * 4 * 16 * 128
    assert model.flops_per_token(128, causal=True) == 6 * model.matmul_parameters + 6 * 2 * 4 * 16 * 128


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"hidden_size": None}, "hidden"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "model.layers"),
        ({"num_attention_heads": 31}, "model.heads"),
        ({"num_key_value_heads": 5}, "model.kv_heads"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_a_config_that_is_wrong_is_refused_by_its_key(changed: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        model_of({**LLAMA, **changed}, "it")


def test_a_config_is_read_from_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert read_config(folder / "config.json").name == "llama"
    (folder / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"give a config\.json"):
        read_config(folder / "config.json")
    with pytest.raises(InvalidInput, match="give a file that can be read"):
        read_config(folder / "other.json")

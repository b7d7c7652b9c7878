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
FALCON = {"model_type": "falcon", "multi_query": True, "vocab_size": 65024}
FALCON_7B = {**FALCON, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": 71}
FALCON_40B = {
    **FALCON,
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
    "tie_word_embeddings": False,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_layer": 40,
    "n_inner": 24576,
    "n_positions": 8192,
    "vocab_size": 49152,
}
STARCODER2 = {
    **LLAMA,
    "model_type": "starcoder2",
    "hidden_size": 6144,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "intermediate_size": 24576,
    "vocab_size": 49152,
}
NEMOTRON = {
    **LLAMA,
    "model_type": "nemotron",
    "hidden_size": 6144,
    "num_attention_heads": 48,
    "intermediate_size": 24576,
    "vocab_size": 256000,
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 2048,
    "num_heads": 16,
    "num_layers": 24,
    "intermediate_size": None,
    "max_position_embeddings": 2048,
    "vocab_size": 50257,
}
QWEN_MOE = {
    **LLAMA,
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 24,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
}
DEEPSEEK_V2_LITE = {
    **DEEPSEEK,
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 27,
    "vocab_size": 102400,
    "q_lora_rank": None,
}
GLM_4 = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "num_attention_heads": 32,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_layers": 40,
    "padded_vocab_size": 151552,
}
QWEN = {
    "model_type": "qwen",
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 151936,
}
MAVERICK = {
    **LLAMA,
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_attention_heads": 40,
    "head_dim": 128,
    "num_hidden_layers": 48,
    "num_local_experts": 128,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "vocab_size": 202048,
}
COMMAND_R = {
    **LLAMA,
    "model_type": "cohere",
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_hidden_layers": 40,
    "vocab_size": 256000,
}
del COMMAND_R["tie_word_embeddings"]
# Source: https://huggingface.co/arcee-ai/AFM-4.5B
ARCEE = {
    **LLAMA,
    "model_type": "arcee",
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "num_attention_heads": 20,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "vocab_size": 128000,
}
# Source: https://huggingface.co/swiss-ai/Apertus-8B-2509
APERTUS = {**LLAMA, "model_type": "apertus", "intermediate_size": 21504, "vocab_size": 131072}
# Source: https://huggingface.co/docs/transformers/model_doc/ernie4_5_moe (21B parameters, 3B active)
ERNIE = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_interval": 1,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "vocab_size": 103424,
    "tie_word_embeddings": True,
}
# Source: https://openai.com/index/introducing-gpt-oss/ (117B parameters, 5.1B active without the embedding)
GPT_OSS = {
    **LLAMA,
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        pytest.param(LLAMA, 8.030, 8.030, id="Llama 3 8B"),
        pytest.param(MIXTRAL, 46.70, 12.88, id="Mixtral 8x7B"),
        pytest.param(DEEPSEEK, 671.0, 37.55, id="DeepSeek-V3"),
        pytest.param(GPT2, 0.1244, 0.1244, id="GPT-2"),
        pytest.param(BLOOM, 176.2, 176.2, id="BLOOM"),
        pytest.param(FALCON_7B, 6.92, 6.92, id="Falcon 7B: one head of keys"),
        pytest.param(FALCON_40B, 41.84, 41.84, id="Falcon 40B: eight"),
        pytest.param(STARCODER, 15.52, 15.52, id="StarCoder: two matrices, one head of keys"),
        pytest.param(STARCODER2, 15.96, 15.96, id="StarCoder2 15B: two matrices"),
        pytest.param(NEMOTRON, 15.63, 15.63, id="Nemotron-4 15B: two matrices"),
        pytest.param(GPT_NEO, 1.315, 1.315, id="GPT-Neo 1.3B: heads by a name of its own"),
        pytest.param(QWEN_MOE, 14.32, 2.69, id="Qwen1.5-MoE: a shared expert as wide as four"),
        pytest.param(DEEPSEEK_V2_LITE, 15.71, 2.66, id="DeepSeek-V2-Lite: queries not compressed"),
        pytest.param(GLM_4, 9.40, 9.40, id="GLM-4 9B: groups and vocabulary by names of their own"),
        pytest.param(QWEN, 7.72, 7.72, id="Qwen 7B: its width is that of two matrices"),
        pytest.param(MAVERICK, 400.7, 17.18, id="Llama 4 Maverick: every other layer dense"),
        pytest.param(COMMAND_R, 34.98, 34.98, id="Command R: tied where it does not say"),
        pytest.param(ARCEE, 4.619, 4.619, id="AFM 4.5B: two matrices"),
        pytest.param(APERTUS, 8.05, 8.05, id="Apertus 8B: two matrices"),
        pytest.param(ERNIE, 21.83, 3.352, id="ERNIE 4.5 21B: experts by names of their own"),
        pytest.param(GPT_OSS, 116.8, 5.13 + 0.579, id="gpt-oss 120B"),
    ],
)
def test_the_parameters_of_a_config_are_those_that_its_makers_count(
    config: dict[str, object], billions: float, active: float
) -> None:
    model = model_of(
        {key: value for key, value in config.items() if value is not None or key == "q_lora_rank"}, "it"
    )
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


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**LLAMA, "model_type": "jamba", "mamba_d_state": 16}, "mamba_d_state"),
        ({**LLAMA, "model_type": "bert"}, "encoder"),
        ({**LLAMA, "layer_types": ["full_attention", "conv"]}, "layers of conv"),
        ({**LLAMA, "layer_types": [{}]}, "layers of {}"),
        ({**LLAMA, "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "gemma3", "text_config": LLAMA}, "text_config"),
        ({**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}, "vision_config.*as a file"),
        ({"peft_type": "LORA", "r": 16}, "peft_type.*the model that it adapts"),
        ({**LLAMA, "expert_total": 64}, "expert_total.*without experts"),
        ({**ERNIE, "moe_layers_enum": "3,4,5"}, "moe_layers_enum"),
        ({**MIXTRAL, "model_type": "arctic", "parallel_attn_mlp_res": True}, "parallel_attn_mlp_res"),
        ({**QWEN_MOE, "shared_expert_intermediate_size": 1000}, "multiple of an expert's width"),
        ({**QWEN_MOE, "intermediate_size": 0, "moe_intermediate_size": 0}, "ffn"),
        ({**QWEN_MOE, "mlp_only_layers": "all"}, "mlp_only_layers"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "experts.active"),
    ],
)
def test_a_model_that_would_be_planned_as_another_is_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        model_of(config, "it")


def test_layers_without_experts_are_counted() -> None:
    def dense(**changed: object) -> int:
        experts = model_of({**QWEN_MOE, **changed}, "it").experts
        assert experts is not None
        return experts.dense_layers

    assert dense() == 0
    assert dense(mlp_only_layers=[0, 5, 5]) == 2
    assert dense(decoder_sparse_step=2) == 12
    assert dense(decoder_sparse_step=2, mlp_only_layers=[0, 1]) == 13
    assert dense(first_k_dense_replace=3, num_hidden_layers=10**29) == 3


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

"""Models: published parameter counts, layer tables, and what is wrong with a file."""

import numpy as np
import pytest

from emulator.jobs.workload import models
from emulator.jobs.workload.models import LayerTable, Transformer
from switchml.errors import ConfigError

# Parameters as their authors count them: papers' tables, or the sum over published weights.
PUBLISHED = {
    "gpt2-124m": 124_439_808, "gpt2-1.5b": 1_557_611_200, "bert-base": 109e6, "bert-large": 335e6, "gpt3-175b": 174.6e9,
    "megatron-530b": 529.6e9, "megatron-1t": 1008e9, "llama2-7b": 6_738_415_616, "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704, "resnet50": 25_557_032, "vgg16": 138_357_544, "vgg19": 143_667_240,
    "inception-v3": 27_161_264,
}  # fmt: skip
# In billions: all, without embedding and output layer, activated by one token; None: not published. Qwen3: model cards
# on Hugging Face. DeepSeek-V3: README_WEIGHTS.md of deepseek-ai/DeepSeek-V3, without its module for a further token.
# Llama 4: MODEL_CARD.md of meta-llama/llama-models, without the vision encoder: 0.87, by the shapes in transformers.
VISION = 0.87
IN_BILLIONS = {
    "qwen3-0.6b": (0.6, 0.44, None), "qwen3-8b": (8.2, 6.95, None), "qwen3-14b": (14.8, 13.2, None),
    "qwen3-32b": (32.8, 31.2, None), "qwen3-30b-a3b": (30.5, 29.9, 3.3), "qwen3-235b-a22b": (235, 234, 22),
    "deepseek-v3": (671, None, 36.7), "llama4-scout": (109 - VISION, None, 17),
    "llama4-maverick": (400 - VISION, None, 17),
}  # fmt: skip
# Multiply-adds of forward, in units of 1e9, from the same sources (torchvision's model pages).
MULTIPLY_ADDS = {"resnet50": 4.09, "vgg16": 15.47, "vgg19": 19.63, "inception-v3": 5.71}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name):
    assert models.load(name).parameters == pytest.approx(PUBLISHED[name], rel=0.005)


@pytest.mark.parametrize("name", IN_BILLIONS)
def test_parameters_of_mixtures_as_published(name):
    model = models.load(name)
    ends = model.embedding_parameters * (1 if model.tied_embedding else 2)
    idle = model.routed_parameters * (model.layers - model.dense_layers) * (1 - model.experts_per_token / model.experts)
    found = (model.parameters, model.parameters - ends, model.parameters - idle)
    for computed, published, rel in zip(found, IN_BILLIONS[name], (0.01, 0.01, 0.025), strict=True):
        assert published is None or computed / 1e9 == pytest.approx(published, rel=rel)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_flops_as_published(name):
    assert models.load(name).flops_of.sum() / 2e9 == pytest.approx(MULTIPLY_ADDS[name], rel=0.01)


@pytest.mark.parametrize("name", models.models())
def test_built_in_models(name):
    found = models.load(name)
    assert found.title and found.source and found.flops_per_sample(getattr(found, "sequence", 1)) > 0
    if isinstance(found, LayerTable):
        assert np.all((found.sparse_of > 0) & (found.sparse_of <= 1))


def test_gpt_flops_are_narayanans_formula():
    """Equation 3 without recomputation: 72 B s L h² (1 + s/6h + V/12Lh) for one sequence."""
    gpt, s = models.load("gpt3-175b"), 2048
    layers, h, v = gpt.layers, gpt.hidden, gpt.vocabulary
    assert gpt.flops_per_sample(s) == pytest.approx(72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h)))


def test_dnn_benchmark_files(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text("layer_index, numel, forward_pass_ns, backward_pass_ns\n0,524288,5000,6000\n1,1024,10000,20000\n")
    net = models.load(str(path))
    assert net.parameters == 525312
    assert net.forward_s.tolist() == pytest.approx([5e-6, 1e-5])
    assert net.backward_s.tolist() == pytest.approx([6e-6, 2e-5])


PIPELINE = "layer_index,numel,forward_pass_ns,backward_pass_ns,stage,output_elements\n"


def test_measured_stages(tmp_path):
    path = tmp_path / "net.csv"
    path.write_text(PIPELINE + "0,10,1,2,0,5\n1,20,3,4,0,6\n2,30,5,6,1,7\n")
    net = models.load(str(path))
    first, last = net.part(0), net.part(1)
    assert net.stages == 2 and (first.parameters, last.parameters) == (30, 30)
    assert first.forward_s.tolist() == pytest.approx([1e-9, 3e-9]) and first.elements_of.tolist() == [5, 6]
    assert last.layer == ("layer 2",)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("net.csv", PIPELINE + "0,1,1,1,0,1\n1,1,1,1,2,1\n", "stages are .0.0, 2.0.; expected 0 for the first layer"),
    ("net.csv", "layer_index,numel\n0,1\n", "missing: .'forward_pass_ns', 'backward_pass_ns'"),
    ("net.csv", "layer_index,numel,forward_pass_ns,backward_pass_ns\n0,many,1,1\n", "line 2: expected a number"),
    ("net.toml", 'title = "x"', "lacks source"),
])  # fmt: skip
def test_mistakes_in_files_are_named(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        models.load(str(path))


def test_impossible_sizes_are_refused():
    sizes = dict(name="x", title="x", source="x", layers=2, hidden=100, heads=3, vocabulary=10, sequence=10)
    with pytest.raises(ConfigError, match=r"hidden \(100\) must be a multiple of heads \(3\)"):
        Transformer(**sizes)
    with pytest.raises(ConfigError, match="did you mean gpt3-175b"):
        models.load("gpt3-175")

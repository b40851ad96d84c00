"""Models as data: a transformer is described by its sizes, any other network by a table of layers. Built-in models are
files in `data/models`; a user's file has the same form.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator import datafile
from emulator.jobs.workload.implementations import attended, attention_names, cross_entropies, implementations
from emulator.ranges import Range, Ranged, number
from switchml.errors import ConfigError
from switchml.files import read_text

AMOUNT = Range(0, 1e24)
"""Range of a layer's FLOPs, parameters, elements and nanoseconds."""
WIDTH, WIDTH_OR_0 = Range(1, 10_000_000), Range(0, 10_000_000)
FOLDER = Path(__file__).parent / "data" / "models"


LAYERS = Range(1, 1000)
"""Depth limit: the deepest published transformer (DeepNet, Wang et al. 2022). Unspecified job options are chosen among
hundreds of candidates, each costed layer by layer."""


@dataclass(frozen=True)
class Transformer(Ranged):
    """A stack of equal layers between an embedding and a vocabulary projection."""

    name: str
    title: str
    source: str
    layers: int = number(LAYERS)
    hidden: int = number(WIDTH)
    heads: int = number(WIDTH)
    vocabulary: int = number(Range(1, 1_000_000_000))
    sequence: int = number(Range(1, 100_000_000))
    kv_heads: int = number(WIDTH_OR_0, 0)
    """Number of key and value heads (grouped-query attention); 0: same as `heads`."""
    ffn: int = number(WIDTH_OR_0, 0)
    """Inner width of the MLP; 0: four times `hidden`."""
    gated: bool = False
    """Whether the MLP has three matrices instead of two (SwiGLU)."""
    experts: int = number(Range(1, 10_000), 1)
    experts_per_token: int = number(Range(1, 10_000), 1)
    expert_nodes: int = number(Range(0, 10_000), 0)
    """Maximum number of nodes with a token's experts (DeepSeek-V3, 2024, section 2.1.2, "node-limited routing"); 0:
    unlimited."""
    shared_experts: int = number(Range(0, 10_000), 0)
    """Experts that process every token, in addition to the routed ones."""
    dense_layers: int = number(Range(0, LAYERS.most), 0)
    """Number of layers without experts, with an MLP of `dense_ffn`. Their activations count as much memory as those of
    the others: in the models that have any, a token passes equally many weights in both."""
    dense_ffn: int = number(WIDTH_OR_0, 0)
    expert_every: int = number(Range(0, LAYERS.most), 0)
    """With `dense_layers`, every n-th layer has experts (`interleave_moe_layer_step` in Llama 4's config.json); 0: all
    but the first `dense_layers` (`first_k_dense_replace` in DeepSeek's)."""
    causal: bool = True
    """Whether a query attends to the tokens before it only; false for encoders, such as BERT and ViT."""
    window: int = number(Range(0, 100_000_000), 0)
    """Number of tokens, including itself, that a query attends to in sliding-window layers (`sliding_window` in the
    config.json of Hugging Face's models); 0: all."""
    full_every: int = number(Range(0, LAYERS.most), 0)
    """With a window, every n-th layer attends to all tokens (`sliding_window_pattern`; 2 where `layer_types`
    alternate); 0: none does. Sinks, a learned logit per head, cost nothing: kernels initialize the softmax sum with
    them."""
    head_size: int = number(WIDTH_OR_0, 0)
    """Head size of queries, keys and values; 0: `hidden` / `heads`."""
    head_norms: bool = False
    """Whether queries and keys are normalized, with weights of the head size."""
    query_rank: int = number(WIDTH_OR_0, 0)
    kv_rank: int = number(WIDTH_OR_0, 0)
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): widths of the latent vectors from which queries,
    and keys with values, are computed; 0: they are computed from the layer's input."""
    rotary_size: int = number(WIDTH_OR_0, 0)
    """Latent attention: size of the separate rotary part, which adds to the length of queries and keys."""
    scaled_rotary: bool = False
    """Whether sines and cosines are scaled (YaRN's attention factor: Peng et al., 2023, section 3.4)."""
    clamped: bool = False
    """Whether the input of the gated activation is clamped (gpt-oss model card, 2025, section 2.2)."""
    tied_embedding: bool = True
    """Whether the vocabulary projection shares the embedding's weights."""
    learned_positions: bool = True
    biases: bool = True
    attention: str = ""
    """"unfused": scores are written to memory, as Megatron-LM did until 2022; "flash": they are not; or a kernel of
    `data/attention.toml`; empty: the implementation's."""
    implementation: str = ""
    """Implementation, from `data/implementations.toml`; empty: Megatron-LM, or torch where the job is sharded by FSDP.
    """
    cross_entropy: str = ""
    """Cross entropy, from `data/cross_entropy.toml`; empty: the implementation's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (not self.head_size and self.hidden % self.heads) or self.heads % self.key_heads:
            raise ConfigError(
                f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}), "
                f"and that of kv_heads ({self.key_heads})"
            )
        if self.dense_layers > self.layers or bool(self.dense_layers) != bool(self.dense_ffn):
            raise ConfigError(f"dense_layers ({self.dense_layers}) and dense_ffn ({self.dense_ffn}) go together")
        if self.dense_layers and self.experts == 1:
            raise ConfigError(f"dense_layers ({self.dense_layers}) need experts, and this model has none")
        if self.expert_every and self.dense_layers != self.layers - self.layers // self.expert_every:
            raise ConfigError(
                f"with expert_every {self.expert_every}, {self.layers} layers have "
                f"{self.layers - self.layers // self.expert_every} dense ones, but dense_layers is {self.dense_layers}"
            )
        if self.full_every and not self.window:
            raise ConfigError(
                f"full_every ({self.full_every}) says which layers have no sliding window; expected a window"
            )
        if self.clamped and not self.gated:
            raise ConfigError("clamped requires a gated activation")
        if bool(self.query_rank) != bool(self.kv_rank):
            raise ConfigError("latent attention has both a query_rank and a kv_rank")
        if self.experts_per_token > self.experts:
            raise ConfigError(f"experts_per_token is {self.experts_per_token}, but there are {self.experts} experts")
        datafile.check_name("attention", self.attention, ("", *attention_names()))
        datafile.check_name("implementation", self.implementation, ("", *implementations()))
        datafile.check_name("cross-entropy", self.cross_entropy, ("", *cross_entropies()))

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Inner width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.head_size or self.hidden // self.heads

    def is_windowed(self, layer: int) -> bool:
        """Return whether `layer`, from 0, uses sliding-window attention."""
        return self.window > 0 and not (self.full_every and (layer + 1) % self.full_every == 0)

    def is_dense(self, layer: int) -> bool:
        """Return whether `layer`, from 0, of a model with experts has none."""
        return (layer + 1) % self.expert_every > 0 if self.expert_every else layer < self.dense_layers

    @property
    def dense(self) -> Transformer:
        """The model if all layers were dense, as `dense_layers` are."""
        return replace(
            self,
            ffn=self.dense_ffn,
            experts=1,
            experts_per_token=1,
            expert_nodes=0,
            shared_experts=0,
            dense_layers=0,
            dense_ffn=0,
            expert_every=0,
        )

    @property
    def query_width(self) -> int:
        """Width of all queries without the rotary part, and of the attention output."""
        return self.head * self.heads

    @property
    def key_width(self) -> int:
        """Width of keys, and of values."""
        return self.head * self.key_heads

    @property
    def projections(self) -> int:
        """Weights of a layer's attention that a token is multiplied with."""
        h, q, k = self.hidden, self.query_width, self.key_width
        if not self.kv_rank:
            return 2 * h * q + 2 * h * k
        queries = self.query_rank * (h + q + self.heads * self.rotary_size)
        return queries + h * (self.kv_rank + self.rotary_size) + self.kv_rank * 2 * k + q * h

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of a layer, including its two norms."""
        biases = self.hidden + self.query_width + 2 * self.key_width if self.biases else 0
        norms = (4 if self.biases else 2) * self.hidden + self.query_rank + self.kv_rank
        return self.projections + biases + norms + (2 * self.head if self.head_norms else 0)

    def _mlp(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width + (width + self.hidden if self.biases else 0)

    @property
    def routed_parameters(self) -> int:
        """Routed expert parameters of a layer that is not dense, including the router."""
        return self._mlp(self.width) * self.experts + (self.hidden * self.experts if self.experts > 1 else 0)

    @property
    def mlp_parameters(self) -> int:
        """MLP parameters of a layer that is not dense: all experts and their router."""
        return self.routed_parameters + self.shared_experts * self._mlp(self.width)

    @property
    def dense_parameters(self) -> int:
        """MLP parameters of a dense layer."""
        return self._mlp(self.dense_ffn)

    @property
    def embedding_parameters(self) -> int:
        """Embedding parameters, including positions."""
        return self.hidden * (self.vocabulary + (self.sequence if self.learned_positions else 0))

    @property
    def head_parameters(self) -> int:
        """Additional parameters of the vocabulary projection."""
        return 0 if self.tied_embedding else self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        layers = self.layers * (self.attention_parameters + self.mlp_parameters)
        layers += self.dense_layers * (self.dense_parameters - self.mlp_parameters)
        whole = layers + self.embedding_parameters + self.head_parameters + (2 if self.biases else 1) * self.hidden
        return round(whole)

    def flops_per_sample(self, sequence: int, skips_future: bool = False) -> float:
        """Return the model FLOPs of forward and backward for one sequence, without recomputation; 2 per multiply-add.
        Attention counts in full (Narayanan et al., SC 2021, appendix) or, with a kernel that `skips_future` tokens, as
        computed: half if causal, or the pairs within windows."""
        h, f = self.hidden, self.width
        mlp = (3 if self.gated else 2) * h * f * (self.experts_per_token + self.shared_experts)
        scores = 2 * self.query_width + self.heads * self.rotary_size
        windowed = sum(map(self.is_windowed, range(self.layers)))
        full, within = (attended(sequence, window, self.causal) for window in (0, self.window))
        seen = (self.layers - windowed) * full + windowed * within
        pairs = seen if skips_future else self.layers * sequence**2
        layers = self.layers * 2.0 * sequence * (self.projections + mlp) + 2.0 * pairs * scores
        return 3.0 * (layers + 2.0 * sequence * h * self.vocabulary)


@dataclass(frozen=True)
class LayerTable:
    """A network as a list of layers in forward order. Arrays (layers,) float64."""

    name: str
    title: str
    source: str
    layer: tuple[str, ...]
    parameters_of: np.ndarray
    flops_of: np.ndarray
    """Forward FLOPs per sample."""
    elements_of: np.ndarray
    """Activation elements written in forward, per sample."""
    kernels_of: np.ndarray
    """Kernels launched in forward."""
    sparse_of: np.ndarray
    """Share of nonzero 256-element blocks of the gradient; 1: dense."""
    unit: str = "samples"
    forward_s: np.ndarray | None = None
    """Measured time per batch; None: computed from FLOPs and elements."""
    backward_s: np.ndarray | None = None
    saved_of: np.ndarray | None = None
    """Elements saved for backward, per sample, each counted once; None: all that are written."""
    tensors_of: np.ndarray | None = None
    """Number of saved tensors; None: one per layer."""
    stage_of: np.ndarray | None = None
    """Pipeline stage of each layer, from 0, not decreasing; None: a single stage."""

    @property
    def stages(self) -> int:
        return 1 if self.stage_of is None else int(self.stage_of[-1]) + 1

    def part(self, stage: int) -> LayerTable:
        """Return the layers of one stage."""
        if self.stage_of is None:
            return self
        mine = np.flatnonzero(self.stage_of == stage)
        arrays: dict[str, Any] = {
            name: value[mine] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, layer=tuple(self.layer[i] for i in mine), **arrays)

    @property
    def parameters(self) -> int:
        return int(self.parameters_of.sum())

    def flops_per_sample(self, sequence: int = 0, skips_future: bool = False) -> float:
        """Return the model FLOPs of forward, and twice as many for backward."""
        return 3.0 * float(self.flops_of.sum())


Model = Transformer | LayerTable


@dataclass(frozen=True)
class _TableFile:
    title: str
    source: str
    layers_file: str
    unit: str = "samples"


@datafile.Cached
def load(name: str) -> Model:
    """Load a built-in model by name, or a user's: a .toml file like those in `data/models`, or a .csv file of layers in
    the format of SwitchML's dnn_benchmark."""
    if name.endswith(".csv"):
        return read_dnn_benchmark(Path(name))
    path = datafile.find("model", name, FOLDER)
    table = datafile.load(path)
    if "layers_file" in table:
        about = datafile.build(_TableFile, table, path.name)
        return _read_layers(path.parent / about.layers_file, path.stem, about)
    return datafile.build(Transformer, {"name": path.stem, **table}, path.name)


def models() -> list[str]:
    """Return the names of the built-in models."""
    return datafile.names(FOLDER)


COLUMNS = ("layer", "parameters", "forward_flops", "activation_elements", "kernels", "nonzero_blocks")


def _read_layers(path: Path, name: str, about: _TableFile) -> LayerTable:
    layers, numbers = _columns(path, COLUMNS[0], COLUMNS[1:])
    parameters, flops, elements, kernels, blocks = numbers
    return LayerTable(
        name, about.title, about.source, tuple(layers), parameters, flops, elements, kernels, blocks, about.unit
    )


DNN_COLUMNS = ("layer_index", "numel", "forward_pass_ns", "backward_pass_ns")
PIPELINE_COLUMNS = ("stage", "output_elements")


def read_dnn_benchmark(path: Path) -> LayerTable:
    """Read the CSV format of SwitchML's dnn_benchmark (dev_root/benchmarks/dnn_benchmark in p4lang/p4app-switchML): one
    layer per line, with its elements and the duration of its passes for one batch. Two additional columns make it a
    pipeline: `stage`, from 0, and `output_elements`, sent to the next layer per batch, which is then a micro-batch."""
    layers, (_, numel, forward, backward, *pipeline) = _columns(path, DNN_COLUMNS[0], DNN_COLUMNS, PIPELINE_COLUMNS)
    nothing, one = np.zeros(len(layers)), np.ones(len(layers))
    stage, elements = pipeline or (None, nothing)
    if stage is not None and not (stage[0] == 0 and np.isin(np.diff(stage), (0, 1)).all()):
        raise ConfigError(
            f"{path}: stages are {stage.tolist()}; expected 0 for the first layer, then no step but by one"
        )
    return LayerTable(
        path.stem,
        f"{path.name}, {len(layers)} layers",
        str(path),
        tuple(f"layer {index}" for index in layers),
        numel,
        nothing,
        elements,
        one,
        one,
        unit="batches",
        forward_s=forward * 1e-9,
        backward_s=backward * 1e-9,
        stage_of=stage,
    )


def _columns(
    path: Path, label: str, columns: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[list[str], np.ndarray]:
    """Return the column `label` of a CSV file, and the other columns as float64 (columns, rows). `optional`: columns
    read only if the file has all of them. Raises ConfigError."""
    reader = csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ConfigError(f"{path} is not a CSV file: {error}") from None
    needed = dict.fromkeys((label, *columns))
    if set(optional) <= set(reader.fieldnames or ()):
        columns += optional
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing or not rows:
        expected = f"expected the columns {', '.join(needed)} and at least one layer"
        raise ConfigError(f"{path}: {expected}; missing: {missing}")
    numbers = [[_number(row[key], path, line) for key in columns] for line, row in rows]
    return [row[label] for _, row in rows], np.array(numbers, np.float64).T


def _number(text: str | None, path: Path, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = -1.0
    if value not in AMOUNT:
        raise ConfigError(f"{path}, line {line}: expected a number, {AMOUNT}, not {text!r}")
    return value

"""Models as data: a transformer is its sizes, any other network a table of layers. Built-in ones are files in
`data/models`; a user's file has the same form.
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
"""Of a layer: FLOPs, parameters, elements, nanoseconds."""
WIDTH, WIDTH_OR_0 = Range(1, 10_000_000), Range(0, 10_000_000)
FOLDER = Path(__file__).parent / "data" / "models"


LAYERS = Range(1, 1000)
"""As many as the deepest published transformer has (DeepNet, Wang et al. 2022). What a job leaves open is chosen among
hundreds of candidates, each costed layer by layer."""


@dataclass(frozen=True)
class Transformer(Ranged):
    """A stack of equal layers between an embedding and a projection onto the vocabulary."""

    name: str
    title: str
    source: str
    layers: int = number(LAYERS)
    hidden: int = number(WIDTH)
    heads: int = number(WIDTH)
    vocabulary: int = number(Range(1, 1_000_000_000))
    sequence: int = number(Range(1, 100_000_000))
    kv_heads: int = number(WIDTH_OR_0, 0)
    """Heads of keys and values (grouped-query attention); 0: as many as `heads`."""
    ffn: int = number(WIDTH_OR_0, 0)
    """Width inside the MLP; 0: four times `hidden`."""
    gated: bool = False
    """Three matrices in the MLP in place of two (SwiGLU)."""
    experts: int = number(Range(1, 10_000), 1)
    experts_per_token: int = number(Range(1, 10_000), 1)
    expert_nodes: int = number(Range(0, 10_000), 0)
    """The most nodes that a token's experts are on (DeepSeek-V3, 2024, section 2.1.2, "node-limited routing"); 0:
    any."""
    shared_experts: int = number(Range(0, 10_000), 0)
    """Experts that every token goes to, besides the chosen ones."""
    dense_layers: int = number(Range(0, LAYERS.most), 0)
    """Layers without experts, with an MLP of `dense_ffn`. They are costed as the others are: in the models that have
    any, a token goes through as many weights in both."""
    dense_ffn: int = number(WIDTH_OR_0, 0)
    window: int = number(Range(0, 100_000_000), 0)
    """Tokens that a query attends to in layers with a sliding window, its own among them (`sliding_window` in the
    config.json of Hugging Face's models); 0: all before it."""
    full_every: int = number(Range(0, LAYERS.most), 0)
    """Every so many-th layer attends to all tokens all the same (`sliding_window_pattern`; 2 where `layer_types`
    alternate); 0: none does. Sinks, a learned logit a head, cost nothing: kernels start the sum of a softmax with
    them."""
    head_size: int = number(WIDTH_OR_0, 0)
    """Of a head's queries, keys and values; 0: `hidden` / `heads`."""
    head_norms: bool = False
    """Queries and keys are normalized, with weights of a head's size."""
    query_rank: int = number(WIDTH_OR_0, 0)
    kv_rank: int = number(WIDTH_OR_0, 0)
    """Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): queries, and keys with values, are made of latent
    vectors so wide; 0: of the layer's input."""
    rotary_size: int = number(WIDTH_OR_0, 0)
    """Of latent attention: what positions turn is apart, and so much longer are queries and keys."""
    scaled_rotary: bool = False
    """Sines and cosines of positions are multiplied by a factor (YaRN's attention factor: Peng et al., 2023, section
    3.4)."""
    clamped: bool = False
    """What goes into the gated activation is clamped first (gpt-oss model card, 2025, section 2.2)."""
    tied_embedding: bool = True
    """The projection onto the vocabulary is the embedding again."""
    learned_positions: bool = True
    biases: bool = True
    attention: str = "unfused"
    """"unfused": scores are written to memory, as Megatron-LM did until 2022; "flash": they are not; or a kernel of
    `data/attention.toml`."""
    implementation: str = ""
    """What runs it, of `data/implementations.toml`; empty: Megatron-LM, or torch where the job is sharded by FSDP."""
    cross_entropy: str = ""
    """Of `data/cross_entropy.toml`; empty: the implementation's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (not self.head_size and self.hidden % self.heads) or self.heads % self.key_heads:
            raise ConfigError(
                f"hidden ({self.hidden}) must be a multiple of heads ({self.heads}), "
                f"and that of kv_heads ({self.key_heads})"
            )
        if self.dense_layers > self.layers or bool(self.dense_layers) != bool(self.dense_ffn):
            raise ConfigError(f"dense_layers ({self.dense_layers}) and dense_ffn ({self.dense_ffn}) go together")
        if self.full_every and not self.window:
            raise ConfigError(
                f"full_every ({self.full_every}) says which layers have no sliding window; expected a window"
            )
        if self.clamped and not self.gated:
            raise ConfigError("clamped is of a gated activation; expected gated")
        if bool(self.query_rank) != bool(self.kv_rank):
            raise ConfigError("latent attention has both a query_rank and a kv_rank")
        if self.experts_per_token > self.experts:
            raise ConfigError(f"experts_per_token is {self.experts_per_token}, but there are {self.experts} experts")
        datafile.check_name("attention", self.attention, attention_names())
        datafile.check_name("implementation", self.implementation, ("", *implementations()))
        datafile.check_name("cross-entropy", self.cross_entropy, ("", *cross_entropies()))

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Inside the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.head_size or self.hidden // self.heads

    def is_windowed(self, layer: int) -> bool:
        """Whether `layer`, from 0, attends in a sliding window."""
        return self.window > 0 and not (self.full_every and (layer + 1) % self.full_every == 0)

    @property
    def query_width(self) -> int:
        """Of queries without what positions turn, and of the context."""
        return self.head * self.heads

    @property
    def key_width(self) -> int:
        """Of keys, and of values."""
        return self.head * self.key_heads

    @property
    def projections(self) -> int:
        """Weights of one layer's attention that a token is multiplied with."""
        h, q, k = self.hidden, self.query_width, self.key_width
        if not self.kv_rank:
            return 2 * h * q + 2 * h * k
        queries = self.query_rank * (h + q + self.heads * self.rotary_size)
        return queries + h * (self.kv_rank + self.rotary_size) + self.kv_rank * 2 * k + q * h

    @property
    def attention_parameters(self) -> int:
        """Of one layer, its two norms included."""
        biases = self.hidden + self.query_width + 2 * self.key_width if self.biases else 0
        norms = (4 if self.biases else 2) * self.hidden + self.query_rank + self.kv_rank
        return self.projections + biases + norms + (2 * self.head if self.head_norms else 0)

    def _mlp(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width + (width + self.hidden if self.biases else 0)

    @property
    def routed_parameters(self) -> float:
        """Of a mean layer, the experts that tokens choose from, and their router."""
        routed = self._mlp(self.width) * self.experts + (self.hidden * self.experts if self.experts > 1 else 0)
        return routed * (self.layers - self.dense_layers) / self.layers

    @property
    def mlp_parameters(self) -> float:
        """Of a mean layer: all experts and their router, or the MLP of a layer without."""
        shared = self.shared_experts * self._mlp(self.width) * (self.layers - self.dense_layers)
        return self.routed_parameters + (shared + self.dense_layers * self._mlp(self.dense_ffn)) / self.layers

    @property
    def embedding_parameters(self) -> int:
        """The embedding alone, positions included."""
        return self.hidden * (self.vocabulary + (self.sequence if self.learned_positions else 0))

    @property
    def head_parameters(self) -> int:
        """What the projection onto the vocabulary adds."""
        return 0 if self.tied_embedding else self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        layers = self.layers * (self.attention_parameters + self.mlp_parameters)
        whole = layers + self.embedding_parameters + self.head_parameters + (2 if self.biases else 1) * self.hidden
        return round(whole)

    def flops_per_sample(self, sequence: int, skips_future: bool = False) -> float:
        """Model FLOPs of forward and backward for one sequence, nothing recomputed; 2 a multiply-add. Causal attention
        counts in full (Narayanan et al., SC 2021, appendix), or, with a kernel that `skips_future` tokens, what it
        computes: half, or what is in the layers' windows."""
        h, f = self.hidden, self.width
        mlp = (3 if self.gated else 2) * h * f * (self.experts_per_token + self.shared_experts)
        scores = 2 * self.query_width + self.heads * self.rotary_size
        windowed = sum(map(self.is_windowed, range(self.layers)))
        seen = (self.layers - windowed) * attended(sequence) + windowed * attended(sequence, self.window)
        pairs = seen if skips_future else self.layers * sequence**2
        layers = self.layers * 2.0 * sequence * (self.projections + mlp) + 2.0 * pairs * scores
        return 3.0 * (layers + 2.0 * sequence * h * self.vocabulary)


@dataclass(frozen=True)
class LayerTable:
    """A network as a list of layers, in the order of forward. Arrays (layers,) float64."""

    name: str
    title: str
    source: str
    layer: tuple[str, ...]
    parameters_of: np.ndarray
    flops_of: np.ndarray
    """Forward, for one sample."""
    elements_of: np.ndarray
    """Activations written in forward, for one sample."""
    kernels_of: np.ndarray
    """Launched in forward."""
    sparse_of: np.ndarray
    """Of the gradient, the share of its 256-element blocks that are not zero; 1: dense."""
    unit: str = "samples"
    forward_s: np.ndarray | None = None
    """Measured, for one batch; None: to be computed."""
    backward_s: np.ndarray | None = None
    saved_of: np.ndarray | None = None
    """Elements that backward needs of a layer, for one sample, each counted once; None: as many as are written."""
    tensors_of: np.ndarray | None = None
    """Tensors that those are in; None: one for each layer."""
    stage_of: np.ndarray | None = None
    """The pipeline stage that a layer is on, from 0, not decreasing; None: all are on one."""

    @property
    def stages(self) -> int:
        return 1 if self.stage_of is None else int(self.stage_of[-1]) + 1

    def part(self, stage: int) -> LayerTable:
        """The layers of one stage."""
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
        """Forward, and twice as much backward."""
        return 3.0 * float(self.flops_of.sum())


Model = Transformer | LayerTable


@dataclass(frozen=True)
class _TableFile:
    title: str
    source: str
    layers_file: str
    unit: str = "samples"


@datafile.Remembered
def load(name: str) -> Model:
    """A built-in model by name, or a user's: a .toml file as those in `data/models`, or a .csv file of layers in the
    format of SwitchML's dnn_benchmark."""
    if name.endswith(".csv"):
        return read_dnn_benchmark(Path(name))
    path = datafile.find("model", name, FOLDER)
    table = datafile.load(path)
    if "layers_file" in table:
        about = datafile.build(_TableFile, table, path.name)
        return _read_layers(path.parent / about.layers_file, path.stem, about)
    return datafile.build(Transformer, {"name": path.stem, **table}, path.name)


def models() -> list[str]:
    """Names of the built-in models."""
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
    """The CSV that SwitchML's dnn_benchmark reads (dev_root/benchmarks/dnn_benchmark in p4lang/p4app-switchML): a
    layer a line, its elements and what its passes take on one batch. Two more columns make it a pipeline:
    `stage`, which a layer is on, from 0, and `output_elements`, which it hands to the next one for a batch, here a
    micro-batch."""
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
    """The column `label` of a CSV file, and float64 (columns, rows) of the others. `optional`: read as well where the
    file has all of them. Raises ConfigError."""
    reader = csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ConfigError(f"{path} is no CSV file: {error}") from None
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

"""The recipe as a tree of frozen settings. Every key that a recipe may hold is a field here or in a block's `Config`; nothing else is accepted."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from hymo.block import BlockConfig
from hymo.registry import BlockField
from hymo.settings import Settings


def block(type: str, **settings: Any) -> Any:
    """A block's settings as a recipe would write them, for use as a default: BlockField makes them a config."""
    return {"type": type, **settings}


Mixer = Annotated[BlockConfig, BlockField("mixer")]
Ffn = Annotated[BlockConfig, BlockField("ffn", default="none")]
Position = Annotated[BlockConfig, BlockField("position", default="rope")]
Head = Annotated[BlockConfig, BlockField("head", default="mtp")]


UNITS = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
MAX_DIM = 2**24         # no width, vocabulary or context is larger; a larger number is a slip of the hand
MAX_TOKENS = 10**16
DEVICE = "auto|cpu|cuda(:[0-9]{1,3})?"
NAME = "[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}"       # of a recipe or a scale: it names folders, and must not lead out of one


def count(raw: object) -> object:
    """30B, 2.5M or 16k as a whole number (k M B T are powers of 1000; Ki Mi Gi are powers of 1024); everything else is left as it is."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(k|M|B|T|Ki|Mi|Gi)", raw) if isinstance(raw, str) else None
    if match is None:
        return raw
    value = Decimal(match[1]) * UNITS[match[2]]
    if value != int(value):
        raise ValueError(f"a count must be a whole number, but got {raw}")
    return int(value)


_COUNT_SCHEMA = {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(k|M|B|T|Ki|Mi|Gi)$"}]}
Count = Annotated[int, BeforeValidator(count), WithJsonSchema(_COUNT_SCHEMA)]


def pairs(raw: object) -> object:
    """[0, 1] is short for [[0, 1]]."""
    return [raw] if isinstance(raw, list) and len(raw) == 2 and all(isinstance(item, int) for item in raw) else raw


class LayerConfig(Settings):
    """One kind of layer: what mixes over time, and what acts on each token after it."""

    mixer: Mixer = Field(description="block that mixes over time")
    ffn: Ffn = Field(default=block("none"), description="block that acts on each token; `none` leaves the sub-layer out")


class ModelConfig(Settings):
    """The stack and everything its blocks share."""

    vocab_size: int = Field(gt=0, le=MAX_DIM, description="rows of the embedding; at least the tokenizer's size")
    d_model: int = Field(gt=0, le=MAX_DIM, description="width of the residual stream")
    pattern: str = Field(description='layer symbols, e.g. "MGGG*8": `*N` repeats the run or (group) before it; runs are separated by spaces')
    layers: dict[str, LayerConfig] = Field(description="what each symbol of the pattern stands for")
    overrides: dict[str, dict[str, Any] | str] = Field(
        default={}, description="changes to layers by position: 5, '3,7', '3:28:4', 'before:M', 'after:M', 'M[0]', 'all'"
    )
    swap: Annotated[list[tuple[int, int]], BeforeValidator(pairs)] = Field(
        default=[], description="pairs of positions that change places after the pattern is read, e.g. [0, 1] or [[0, 1], [4, 5]]"
    )
    max_seq_len: Count = Field(default=4096, gt=0, le=MAX_DIM, description="longest context trained on, tokens")
    rope: Position = Field(default=block("rope"), description="position encoding of every mixer that does not name its own")
    mtp: Head = Field(default=block("mtp", depth=0, weights=[]), description="extra prediction heads")
    tie_embeddings: bool = Field(default=True, description="the output head is the embedding matrix")
    softcap: float = Field(default=15.0, ge=0, description="logits are softcap*tanh(x/softcap); 0 turns it off")
    norm_eps: float = Field(default=1e-6, gt=0, description="epsilon of every RMSNorm")


class NormuonConfig(Settings):
    """NorMuon / Muon on the 2-D hidden matrices of the mixers."""

    lr: float = Field(gt=0, description="peak learning rate")
    scaling: Literal["rms_norm", "spectral"] = Field(
        description="shape scaling, 0.2*sqrt(max(out,in)) or sqrt(out/in). Required: the same lr differs 6.4-fold between them on a 1024x1024 matrix"
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="momentum decay")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="decay of the row-wise second moment")
    nesterov: bool = Field(default=False, description="Nesterov momentum")
    ns_steps: int = Field(default=5, gt=0, description="Newton-Schulz iterations")
    eps: float = Field(default=1e-8, gt=0, description="added to the row-wise root mean square")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled, times the learning rate")


class AdamwConfig(Settings):
    """AdamW on everything else."""

    lr: float = Field(gt=0, description="peak learning rate")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="decay of the first and second moment")
    eps: float = Field(default=1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled, times the learning rate; none on A_log, D, norms, scales, biases")


class OptimizerConfig(Settings):
    """Which rule moves which weight."""

    hidden: Literal["normuon", "muon", "adamw"] = Field(default="normuon", description="rule for the 2-D hidden matrices of the mixers")
    experts: Literal["adamw", "normuon"] = Field(default="adamw", description="rule for the routed experts' matrices; `normuon` follows `hidden`")
    normuon: NormuonConfig = Field(description="settings of normuon and muon")
    adamw: AdamwConfig = Field(description="settings of AdamW")
    grad_clip: float = Field(default=1.0, ge=0, description="global gradient norm limit; 0 turns clipping off")


class ScheduleConfig(Settings):
    """Warmup, stable, decay (WSD); the three fractions sum to 1."""

    warmup_frac: float = Field(default=0.01, ge=0, le=1, description="share of the steps that warm up linearly")
    stable_frac: float = Field(default=0.79, ge=0, le=1, description="share of the steps at the peak")
    decay_frac: float = Field(default=0.20, ge=0, le=1, description="share of the steps that decay")
    decay: Literal["1-sqrt", "linear"] = Field(default="1-sqrt", description="shape of the decay")
    final: float = Field(default=0.0, ge=0, le=1, description="multiplier that the decay ends at")


class DataConfig(Settings):
    """Where tokens come from. `data=builtin` on the command line is short for `data.source=builtin`."""

    source: str = Field(
        default="builtin",
        description="builtin · file, folder or glob of .txt/.jsonl/.parquet · a folder of token shards · hf:<dataset>[:<config>] · synthetic:<task>",
    )
    validation: str | None = Field(default=None, description="source of the held-out text; by default a fixed share of the documents of `source`")
    validation_frac: float = Field(default=0.05, gt=0, lt=1, description="share of documents (files) held out; the tail of a single one")
    field: str = Field(default="text", description="field that holds the text in JSONL, Parquet and datasets")
    tokenizer: str = Field(
        default="bytes", description="bytes · a tokenizer.json · auto:N trains a byte-level BPE of N entries on the training text and caches it"
    )
    options: dict[str, Any] = Field(default={}, description="settings of a synthetic task")
    shuffle: bool = Field(default=True, description="documents in an order drawn from the seed; false keeps the source's order")
    shuffle_buffer: int = Field(default=4096, gt=0, description="documents of a stream that are read and shuffled together")
    max_epochs: float = Field(default=4.0, gt=0, description="refuse a budget that reads the data more often than this")


class TrainConfig(Settings):
    """How long and how the model is trained. Exactly one of tokens and steps is set."""

    tokens: Count | None = Field(default=None, gt=0, le=MAX_TOKENS, description="training budget in tokens: a number, or 2M, 30B")
    steps: int | None = Field(default=None, gt=0, le=MAX_TOKENS, description="training budget in optimizer steps")
    seq_len: Count = Field(default=4096, gt=0, le=MAX_DIM, description="tokens in a row, T")
    tokens_per_step: Count = Field(default=524288, gt=0, le=MAX_TOKENS, description="tokens an optimizer step sees over all devices")
    micro_batch: int | Literal["auto"] = Field(default="auto", description="rows a device takes at once; auto: the largest that fits")
    dtype: Literal["auto", "bf16", "fp32"] = Field(
        default="auto", description="compute type; masters are fp32. auto: bf16 on a GPU that has it, else fp32"
    )
    device: str = Field(default="auto", description="auto · cpu · cuda · cuda:N")
    threads: int | None = Field(default=None, gt=0, le=1024, description="CPU threads; by default torch's own choice")
    compile: bool | Literal["auto"] = Field(default="auto", description="torch.compile each layer; auto: on a GPU")
    checkpoint_activations: bool = Field(default=False, description="recompute each layer in the backward pass instead of keeping its activations")
    on_bad_loss: Literal["stop", "skip", "rollback"] = Field(
        default="stop", description="what a loss or gradient that is not finite does, and a loss that is a spike"
    )
    spike_sigma: float | None = Field(
        default=None, gt=0, description="a loss this many standard deviations above the last good ones is a spike (6 is usual); null: none is"
    )
    spike_window: int = Field(default=128, ge=4, le=MAX_DIM, description="good losses that a spike is measured against; half of them must be known")


class EvalConfig(Settings):
    """Validation during training."""

    every: int | None = Field(default=None, gt=0, description="steps between validations; by default ten in a run")
    tokens: Count = Field(default=1_048_576, gt=0, le=MAX_TOKENS, description="held-out tokens a validation reads, always the same ones")
    probes: list[str] = Field(default=[], description="probes to run on the trained model")


class RunConfig(Settings):
    """Bookkeeping. Nothing here changes the result, the seed apart."""

    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the initial weights and the data order")
    output: str = Field(default="runs", description="folder for run folders")
    experiment: str = Field(default="hymo", description="MLflow experiment")
    tracking: str = Field(default="auto", description="MLflow tracking address; auto: sqlite:///mlflow.db in the working folder; none: no tracking")
    log_every: int = Field(default=1, gt=0, description="steps between logged metrics")
    checkpoint_every: int | None = Field(default=None, gt=0, description="steps between checkpoints; by default ten in a run")
    keep_last: int = Field(default=2, gt=0, description="newest checkpoints kept")
    keep_every: int | None = Field(default=None, gt=0, description="also keep every checkpoint whose step is a multiple of this")


class Recipe(Settings):
    """A recipe with its scale applied and its overrides merged."""

    name: str = Field(pattern=f"^{NAME}$", description="the run's name: letters, digits and _ . + -, for it names folders")
    model: ModelConfig = Field(description="the stack and its blocks")
    optimizer: OptimizerConfig = Field(description="which rule moves which weight, and how fast")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="learning rate over the run")
    data: DataConfig = Field(default_factory=DataConfig, description="where tokens come from")
    train: TrainConfig = Field(description="how long and how")
    eval: EvalConfig = Field(default_factory=EvalConfig, description="validation")
    run: RunConfig = Field(default_factory=RunConfig, description="bookkeeping")
    blocks: list[str] = Field(
        default=[],
        description="Python files with further blocks, relative to the recipe; they are code, run with --allow-code or from the working folder",
    )

"""THE CONTRACT: what a block is, and what it is told.

Shape legend, used as suffixes everywhere (`x_BTD`, `q_BTHK`):

    B batch (rows)            T time (tokens in a row)     D d_model
    H heads                   K key width of a head        V value width of a head
    G key/value groups        S state width of a head      E experts
    R low rank                N rows x tokens, flattened   F hidden width of an FFN
    C chunk of time           P rotary part of a head      W vocabulary
    L tokens so far, the keys of a decode step

A block is one registered class in one file, its `Config` nested in it. Four kinds exist:

    mixer     forward(x_BTD, ctx) -> y_BTD     mixes over time, causal; may decode with step()
    ffn       forward(x_BTD, ctx) -> y_BTD     acts on each token alone
    position  forward(x_BTHK, ctx) -> x_BTHK   writes positions into the heads of a mixer
    head      forward(hidden_BTD, tokens_BT, embed, ctx) -> [h1, h2, …]   extra prediction heads (multi-token prediction)

No block owns a norm or a residual around itself: the stack does (hymo/model.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from hymo.errors import NotOffered
from hymo.settings import Settings

if TYPE_CHECKING:
    from hymo.recipe.tree import ModelConfig

Kind = Literal["mixer", "ffn", "position", "head"]
NOTHING = -2        # the document of a place that no token has taken yet; -1 is padding
KINDS: tuple[Kind, ...] = ("mixer", "ffn", "position", "head")
Shared = TypeVar("Shared")


class BlockConfig(Settings):
    """The configuration of one block: frozen, unknown keys refused, every field described (the description becomes the JSON schema's).

    Each subclass declares `type: Literal["name"] = "name"`, the name it registers under.
    """

    type: str

    def check(self, layer: LayerInfo, model: ModelConfig) -> None:
        """Cross-field rules, run when the recipe is loaded, never at build. Raise RecipeError saying what must hold."""


@dataclass(frozen=True)
class LayerInfo:
    """Where a block stands. Everything a block may know of the model around it at build time."""

    index: int                      # 0-based position in the stack
    symbol: str                     # the pattern letter
    ordinal: int                    # 0-based among the layers of the same symbol in the pattern; kept when layers swap
    model: ModelConfig              # the model's own settings: d_model, vocab_size, max_seq_len, rope, …

    @property
    def name(self) -> str:
        """Logical name of the layer: symbol + ordinal ("M0"), so that swapping two layers moves their weights with them."""
        return f"{self.symbol}{self.ordinal}"

    @property
    def d_model(self) -> int:
        return self.model.d_model


@dataclass
class Context:
    """What every block of one forward pass shares. New cross-cutting facts become fields here, never `**kwargs`.

    positions_BT   int64, the position of each token inside its own document
    documents_BT   int or None; equal numbers in a row are one document (contiguous). Nothing flows between documents. None: one document a row
    past           decoding only: the context of every token that was read before this pass (`whole` of the pass before); None at the start
    slot           decoding in reserved room only (Block.reserve): place of this pass's one token among the keys, (1) int64; see `at_slot`
    losses         auxiliary losses by name, already weighted: the stack adds them to the training loss, each under its layer's name
    metrics        detached scalars by name, for the log (`moe/drop_frac`, …), likewise
    measures       what an evaluation asks blocks for: by name, a vector summed over tokens, and their number; None: nobody asks. See `measure`
    cache          scratch shared by the layers of this pass (rotation tables, attention masks); see `once`
    recomputing    True while activation checkpointing runs a layer again in the backward pass: statistics must not count twice

    Whether capacity, balancing and the like apply is `self.training` of the block, as everywhere in torch.
    """

    positions_BT: Tensor
    documents_BT: Tensor | None = None
    past: Context | None = None
    slot: Tensor | None = None
    losses: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    measures: dict[str, tuple[Tensor, Tensor]] | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    recomputing: bool = False

    @staticmethod
    def for_tokens(
        shape: tuple[int, int],
        device: torch.device | str,
        documents_BT: Tensor | None = None,
        start_pos: int = 0,
        past: Context | None = None,
    ) -> Context:
        """Context of a (B, T) pass: positions count from `start_pos` and restart at each document of a row.

        With `past` they go on from the last token read, as long as its document does. Raises ValueError when only one of the two passes
        names documents.
        """
        b, t = shape
        index = torch.arange(t, device=device).expand(b, t)
        if past is not None and (past.documents_BT is None) != (documents_BT is None):
            raise ValueError(f"all passes of a decode, or none, must name documents, but got {documents_BT=} after {past.documents_BT=}")
        onset = past.positions_BT[:, -1:] + 1 if past is not None else torch.full((b, 1), start_pos, device=device)
        if documents_BT is None:
            return Context(index + onset, past=past)
        context = Context(index, documents_BT, past)
        starts = context.starts_BT
        assert starts is not None
        begin = torch.where(starts, index, 0).cummax(dim=1).values
        opened = starts.cumsum(dim=1) > 0           # a document began since the pass did: the past no longer counts
        context.positions_BT = index - begin + torch.where(opened, start_pos, onset)
        return context

    def with_room(self, tokens: int) -> Context:
        """This context of everything read so far, with room for `tokens` more: positions go on, and nothing sees a place that is not taken yet."""
        batch = self.positions_BT.shape[0]
        ahead = self.positions_BT[:, -1:] + torch.arange(1, tokens + 1, device=self.positions_BT.device)
        documents_BL = torch.zeros_like(self.positions_BT) if self.documents_BT is None else self.documents_BT
        nothing = torch.full((batch, tokens), NOTHING, dtype=documents_BL.dtype, device=documents_BL.device)
        return Context(torch.cat([self.positions_BT, ahead], dim=1), torch.cat([documents_BL, nothing], dim=1))

    @staticmethod
    def at_slot(past: Context, slot: Tensor) -> Context:
        """Context of one more token a row, of the document before it, at place `slot` of `past`, a context with room. No shape depends on how many
        places are taken, and the host waits for nothing: a pass can be recorded once and replayed."""
        assert past.documents_BT is not None
        past.documents_BT.index_copy_(1, slot, past.documents_BT.index_select(1, slot - 1))
        context = Context(past.positions_BT.index_select(1, slot), past.documents_BT.index_select(1, slot), past, slot)
        context.cache |= {"whole": Context(past.positions_BT, past.documents_BT), "starts": None}      # no document begins here
        return context

    @property
    def starts_BT(self) -> Tensor | None:
        """True at the first token of each document that begins after another one (at t = 0 only when `past` ended in another document);
        None when rows hold one document."""
        if self.documents_BT is None:
            return None
        documents = self.documents_BT

        def starts() -> Tensor:
            before = documents[:, :1] if self.past is None or self.past.documents_BT is None else self.past.documents_BT[:, -1:]
            return documents != torch.cat([before, documents[:, :-1]], dim=1)

        return self.once("starts", starts)

    @property
    def whole(self) -> Context:
        """Context of every token so far, this pass's included: what a key cache spans, and the `past` of the next pass."""
        past = self.past
        if past is None:
            return self

        def join() -> Context:
            documents = None
            if self.documents_BT is not None and past.documents_BT is not None:
                documents = torch.cat([past.documents_BT, self.documents_BT], dim=1)
            return Context(torch.cat([past.positions_BT, self.positions_BT], dim=1), documents)

        return self.once("whole", join)

    def no_heads(self, width: int) -> Tensor:
        """Empty heads of this width, (B, T, 0, width)."""
        return torch.empty(*self.positions_BT.shape, 0, width, device=self.positions_BT.device)

    def measure(self, name: str, make: Callable[[], Tensor]) -> None:
        """Report a vector of each token (B, T, X), of which the mean is wanted (`moe/load`, `decay_rate`). Padding does not count."""
        if self.measures is None:
            return
        value_BTX, real_BT = make().detach(), torch.ones_like(self.positions_BT, dtype=torch.bool)
        if self.documents_BT is not None:
            real_BT = self.documents_BT >= 0
        self.measures[name] = ((value_BTX * real_BT[..., None]).double().sum(dim=(0, 1)), real_BT.sum())

    def once(self, key: Any, make: Callable[[], Shared]) -> Shared:
        """The value of `key` for this pass: `make()` the first time, shared by every later layer that asks."""
        if key not in self.cache:
            self.cache[key] = make()
        value: Shared = self.cache[key]
        return value


class Block(nn.Module):
    """Base class of every registered block.

    A subclass nests `Config`, takes `(config, layer)` and implements `forward`. Accounting has no default on purpose: a silent zero would
    corrupt every equal-FLOPs comparison.
    """

    Config: ClassVar[type[BlockConfig]]
    kind: ClassVar[Kind]            # set by @register
    name: ClassVar[str]             # set by @register

    def __init__(self, config: BlockConfig, layer: LayerInfo) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.key = repr(config)         # blocks alike in a pass's scratch: a string, because torch.compile cannot hash a config

    # -- accounting ---------------------------------------------------------------------------------------------------------------
    def mixing_flops(self, context: int) -> float:
        """Forward FLOPs per token spent outside `nn.Linear`-shaped products, averaged over a sequence of `context` tokens (causal work
        counted as done: half of a square). Linear products are counted from the parameters; see hymo/cost.py. Norms, activations and
        rotations count nowhere."""
        raise NotOffered(f"a block must state its mixing_flops, but {type(self).__name__} does not; hymo/block.py says what counts")

    def state_elems(self, context: int) -> int:
        """Numbers kept per sequence while decoding at `context` tokens (a KV cache grows with it, a recurrent state does not)."""
        raise NotOffered(f"a block must state its state_elems, but {type(self).__name__} does not; 0 if it keeps nothing while decoding")

    def active_fraction(self, parameter: str) -> float:
        """Share of the parameter of this name that one token uses; 1 unless experts are routed (2 of 16 selected: 0.125)."""
        return 1.0

    def component(self, parameter: str) -> str | None:
        """Row of the parameter table that the parameter of this name belongs to; None: the row of its layer's mixer."""
        return self.name

    def kernels(self, device: torch.device | str) -> dict[str, str]:
        """Implementation that each op of this block resolves to on `device`: what is logged and stored with a run. Raises KernelUnavailable, with
        the reason, when one was asked for by name and cannot run there."""
        return {}

    # -- a pass -------------------------------------------------------------------------------------------------------------------
    def prepare(self, ctx: Context) -> None:
        """Make what the layers of a pass share (`ctx.once`) before the first of them runs: none then makes it for the others, and to the compiler
        all layers of a kind are one. Optional. A position encoding is prepared by its mixer, which gives it no heads (`ctx.no_heads`)."""

    # -- initialisation -----------------------------------------------------------------------------------------------------------
    def init_parameter(self, name: str, weight: Tensor, generator: torch.Generator) -> bool:
        """Fill own parameter `name` (path inside the block) in place from `generator`; return False to take PyTorch's default.

        Runs on CPU under no_grad. Each parameter has a generator of its own, seeded by (run seed, logical name)."""
        return False

    def init_buffers(self) -> None:
        """Fill every buffer, after the module left the meta device."""

    # -- training hooks -----------------------------------------------------------------------------------------------------------
    def after_optimizer_step(self, reduce_sum: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Called once per optimizer step (not per micro-batch). `reduce_sum` sums a tensor over all ranks. Returns metrics."""
        return {}

    # -- decoding (mixers) --------------------------------------------------------------------------------------------------------
    def initial_state(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> Any:
        """State before the first token, for step(): tensors, or a tuple, list or dict of them, `state_elems(0)` numbers a sequence in all."""
        raise NotOffered(f"a mixer must have initial_state and step to decode, but {type(self).__name__} has not")

    def step(self, x_BTD: Tensor, state: Any, ctx: Context) -> tuple[Tensor, Any]:
        """Advance by T >= 1 tokens (1 while sampling, more while reading a prompt): equals `forward` on the whole, cut anywhere."""
        raise NotOffered(f"a mixer must have initial_state and step to decode, but {type(self).__name__} has not")

    def reserve(self, state: Any, tokens: int) -> Any | None:
        """The state with room for `tokens` more. From then on step() takes one token at a time, puts what it keeps of it at `ctx.slot` of the state
        that it was given, and no shape changes any more. None: this mixer cannot. A state that does not grow is as it is."""
        return state if self.state_elems(1) == self.state_elems(0) else None

    # -- position encodings -------------------------------------------------------------------------------------------------------
    def rotation(self, width: int, ctx: Context) -> Tensor | None:
        """Cosines and sines (2, B, T, 1, width/2) of an encoding that turns the pairs (2k, 2k+1) of a head, and at most scales them besides: with
        them a mixer may turn once what several heads share. None: it does something else, and can only be called."""
        return None

    # -- loss (heads) -------------------------------------------------------------------------------------------------------------
    @property
    def loss_weights(self) -> tuple[float, ...]:
        """Weight of each prediction head in the training loss, the nearest first."""
        raise NotOffered(f"a head must state its loss_weights, but {type(self).__name__} does not")

    # -- residual -----------------------------------------------------------------------------------------------------------------
    @property
    def owns_residual(self) -> bool:
        """True when the block's output already replaces the identity path; the stack then leaves `x +` out."""
        return False

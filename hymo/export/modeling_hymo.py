"""A HyMo model as transformers knows models: configuration, forward pass with loss, and a decoding state for `generate`.

In an exported folder this is the file that `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads.
"""

# mypy: disallow-subclassing-any=false, disallow-untyped-calls=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

from hymo.block import Block, Context
from hymo.export.registered import __name__ as _  # noqa: F401
from hymo.init import fill, generator_for
from hymo.model import DecodeState, HyMo
from hymo.recipe.tree import ModelConfig


class HymoConfig(PretrainedConfig):
    """`hymo` holds the model section of the recipe, every setting written out; the rest are the names by which others look for the same facts."""

    model_type = "hymo"

    def __init__(self, hymo: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.hymo = hymo or {}
        super().__init__(**kwargs)


@dataclass
class HymoOutput(ModelOutput):
    """`state` is what decoding goes on from: recurrent states, and the caches of attention layers."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    state: DecodeState | None = None


class HymoForCausalLM(PreTrainedModel, GenerationMixin):
    """The model of a recipe. Padding, on either side, is told by `attention_mask`."""

    config_class = HymoConfig
    model: HyMo
    base_model_prefix = "model"
    _no_split_modules = ["Layer"]  # noqa: RUF012
    _is_stateful = True         # a recurrent state cannot be rolled back: no assisted decoding

    def __init__(self, config: HymoConfig) -> None:
        super().__init__(config)
        self.model = HyMo(ModelConfig.model_validate(config.hymo))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: DecodeState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> HymoOutput | tuple[Any, ...]:
        """Logits of every token, or of the last `logits_to_keep`. `labels` are shifted here; −100 counts nowhere.

        With `state`, `input_ids` are the tokens after those it has read, and `attention_mask` may span all of them.
        """
        documents = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :].long() - 1      # 1 a token, 0 padding
        if documents is not None and state is None and not documents.any():
            documents = None
        if state is not None or use_cache:
            before = self.model.initial_state(len(input_ids)) if state is None else state
            if before.past is not None and before.past.documents_BT is None:
                documents = None
            logits, state = self.model.step(input_ids, before, documents, last_only=logits_to_keep == 1)
        else:
            logits = self.model(input_ids, documents)
        logits = logits[:, -logits_to_keep:] if logits_to_keep else logits
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.model.config.vocab_size)
        output = HymoOutput(loss=loss, logits=logits, state=state)
        return output if return_dict is not False else output.to_tuple()

    # -- generate -----------------------------------------------------------------------------------------------------------------
    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, state: DecodeState | None = None, attention_mask: Tensor | None = None, use_cache: bool = True, **unused: Any
    ) -> dict[str, Any]:
        """What the next call of `forward` reads: everything, or what the state has not read yet."""
        read = 0 if state is None or state.past is None else state.past.positions_BT.shape[1]
        return {"input_ids": input_ids[:, read:], "attention_mask": attention_mask, "state": state, "use_cache": use_cache, "logits_to_keep": 1}

    def _update_model_kwargs_for_generation(self, outputs: ModelOutput, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        state = outputs.get("state")
        return updated if state is None else {**updated, "state": state}

    def _reorder_cache(self, state: DecodeState, beam_idx: Tensor) -> DecodeState:
        """The state of the rows that a beam search goes on with."""

        def rows(value: Any) -> Any:
            return value.index_select(0, beam_idx) if isinstance(value, Tensor) else value

        past = state.past
        if past is not None:
            past = Context(rows(past.positions_BT), rows(past.documents_BT))
        return DecodeState(tree_map(rows, state.layers), past)

    # -- parts --------------------------------------------------------------------------------------------------------------------
    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        assert isinstance(value, torch.nn.Embedding)
        self.model.embedding = value

    @torch.no_grad()
    def _init_weights(self, module: torch.nn.Module) -> None:
        """Fill what no file holds: with from_config everything, with from_pretrained the counters that are never saved."""
        path = next((path for path, known in self.model.named_modules() if known is module), None)
        if path is None:
            return
        for name, weight in module.named_parameters(prefix=path, recurse=False):
            if not _loaded(weight):
                value = torch.empty(weight.shape)
                fill(self.model, name, value, generator_for(0, self.model.logical_names[name]), self.model._init_embedding)
                weight.copy_(value)
        if isinstance(module, Block):
            kept = [(buffer, buffer.clone()) for buffer in module.buffers(recurse=False) if _loaded(buffer)]
            module.init_buffers()
            for buffer, value in kept:
                buffer.copy_(value)


def _loaded(tensor: Tensor) -> bool:
    """Whether transformers has read this tensor from a file."""
    return bool(getattr(tensor, "_is_hf_initialized", False))

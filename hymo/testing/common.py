"""What holds for a block of any kind: its config, its initialisation, its accounting."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from hymo.block import Block, BlockConfig, Context, Kind, LayerInfo
from hymo.init import initialise
from hymo.recipe.tree import ModelConfig
from hymo.registry import get


def make_layer(kind: Kind, config: BlockConfig, settings: dict[str, Any]) -> LayerInfo:
    """A place for `config` in a one-layer model of the given settings."""
    layers = {"X": {"mixer": config}} if kind == "mixer" else {}
    return LayerInfo(0, "X", 0, ModelConfig.model_validate({"pattern": "X", "layers": layers, **settings}))


class BlockContract:
    """Base of the suites. A subclass of one of them sets `configs`, and `model` where the tiny default will not do.

    configs      by test id: what a recipe would hold, `type` included
    model        settings of the model around the block, merged onto d_model 32, vocabulary 64, max_seq_len 128
    atol         fp32 tolerance of the equalities (packed and separate, step and forward), for values of order one
    idle         parameters whose gradient may be zero on a short input (experts that no token reached)
    """

    kind: ClassVar[Kind]
    configs: ClassVar[dict[str, dict[str, Any]]]
    model: ClassVar[dict[str, Any]] = {}
    atol: ClassVar[float] = 2e-5
    idle: ClassVar[tuple[str, ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "config" in metafunc.fixturenames:
            metafunc.parametrize("config", [pytest.param(raw, id=name) for name, raw in self.configs.items()])

    # -- what a subclass may have to say about its block ---------------------------------------------------------------------------
    def linear_flops(self, block: Block) -> float:
        """Forward FLOPs per token of the weights that tokens are multiplied by: 2 x every nn.Linear x its active fraction."""
        linears = {f"{path}.weight".lstrip("."): module for path, module in block.named_modules() if isinstance(module, nn.Linear)}
        return sum(2.0 * module.weight.numel() * block.active_fraction(name) for name, module in linears.items())

    def elementwise_flops(self, block: Block, context: int) -> float:
        """The part of `mixing_flops` that is not a matrix product, which torch's counter therefore cannot see."""
        return 0.0

    # -- making blocks -------------------------------------------------------------------------------------------------------------
    def settings(self) -> dict[str, Any]:
        return {"vocab_size": 64, "d_model": 32, "max_seq_len": 128, **self.model}

    def parsed(self, config: dict[str, Any]) -> BlockConfig:
        return get(self.kind, config["type"]).Config.model_validate(config)

    def on_meta(self, config: dict[str, Any]) -> Block:
        parsed = self.parsed(config)
        with torch.device("meta"):
            return get(self.kind, parsed.type)(parsed, make_layer(self.kind, parsed, self.settings()))

    def build(self, config: dict[str, Any], seed: int = 0) -> Block:
        """The block in evaluation mode, every weight moved off its initial value: a scale of one or a bias of zero would hide faults."""
        block = self.on_meta(config).to_empty(device="cpu")
        initialise(block, seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        return block.eval()

    # -- the contract --------------------------------------------------------------------------------------------------------------
    def test_config_round_trip(self, config: dict[str, Any]) -> None:
        parsed = self.parsed(config)
        assert type(parsed).model_validate(parsed.model_dump()) == parsed
        assert type(parsed).model_validate_json(parsed.model_dump_json()) == parsed

    def test_config_is_strict_and_described(self, config: dict[str, Any]) -> None:
        parsed = self.parsed(config)
        with pytest.raises(ValueError, match="no_such_field"):
            type(parsed).model_validate({**config, "no_such_field": 1})
        with pytest.raises(ValueError, match="frozen"):
            parsed.type = "other"
        bare = [name for name, field in type(parsed).model_fields.items() if name != "type" and not field.description]
        assert not bare, f"every config field needs a description, but {bare} have none"

    def test_check_accepts(self, config: dict[str, Any]) -> None:
        parsed = self.parsed(config)
        layer = make_layer(self.kind, parsed, self.settings())
        parsed.check(layer, layer.model)

    def test_meta_build(self, config: dict[str, Any]) -> None:
        block = self.on_meta(config)
        held = {name: t.device.type for name, t in [*block.named_parameters(), *block.named_buffers()]}
        assert set(held.values()) <= {"meta"}, f"building on the meta device must allocate nothing, but got {held}"

    def test_init_covers_everything(self, config: dict[str, Any]) -> None:
        block = self.on_meta(config).to_empty(device="cpu")
        with torch.no_grad():
            for tensor in [*block.parameters(), *block.buffers()]:
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
        initialise(block, 0)
        left = [name for name, tensor in [*block.named_parameters(), *block.named_buffers()] if not torch.isfinite(tensor).all()]
        assert not left, f"init_parameter or init_buffers must fill {left}"

    def test_same_seed_same_weights(self, config: dict[str, Any]) -> None:
        first, again = self.build(config, seed=3).state_dict(), self.build(config, seed=3).state_dict()
        assert all(torch.equal(first[name], again[name]) for name in first)

    def test_accounting_is_stated(self, config: dict[str, Any]) -> None:
        block = self.on_meta(config)
        for context in (1, 64, 4096):
            assert block.mixing_flops(context) >= 0
            assert block.state_elems(context) >= 0
        fractions = {name: block.active_fraction(name) for name, _ in block.named_parameters()}
        assert all(0 < fraction <= 1 for fraction in fractions.values()), fractions

    # -- helpers of the suites -----------------------------------------------------------------------------------------------------
    def check_gradients(self, block: Block, output: Tensor, strict: bool = True) -> None:
        """Every parameter gets a finite gradient; when `strict`, one that is not all zero, unless it is `idle`."""
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(11))
        torch.autograd.backward((output * weight).sum())
        for name, parameter in block.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                assert name in self.idle or not strict, f"{name} must take part in forward, but got no gradient"
                continue
            assert torch.isfinite(parameter.grad).all(), f"the gradient of {name} must be finite"
            assert name in self.idle or not strict or parameter.grad.any(), f"the gradient of {name} must not be all zero"


class _CausalAttention(TorchFunctionMode):
    """Stands in for scaled_dot_product_attention and counts the half of its square that causal work is."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args
        self.flops += q[..., 0].numel() * k.shape[-2] * (k.shape[-1] + v.shape[-1])
        return v.new_zeros(*q.shape[:-1], v.shape[-1])


def _grouped_mm_flops(rows: tuple[int, int], weights: tuple[int, int, int], *_: Any, **__: Any) -> int:
    return 2 * rows[0] * weights[1] * weights[2]


def counted_flops(block: Block, x: Tensor, ctx: Context) -> float:
    """FLOPs per token of forward as torch's own counter sees them, with grouped_mm (which it counts as 0) and causal attention put right."""
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: _grouped_mm_flops})
    with torch.no_grad(), counter, _CausalAttention() as attention:
        block(x, ctx)
    return float(counter.get_total_flops() + attention.flops) / (x.shape[0] * x.shape[1])

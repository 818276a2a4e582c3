import copy
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from hymo import Context
from hymo.cost import linear_flops
from hymo.errors import RecipeError
from hymo.init import initialise
from hymo.testing import FfnContract, make_layer

SMALL = {"type": "moe", "n_routed": 4, "inter_dim": 16}


def loop(block, x_BTD, documents_BT=None):
    """The block's function, one token and one expert at a time, in the weights' dtype. Returns (y, dropped assignments, assignments)."""
    config = block.config
    factor = config.capacity_factor if block.training else config.eval_capacity
    y, dropped, assigned = torch.zeros_like(x_BTD), 0, 0
    for b, row in enumerate(x_BTD):
        room = dict.fromkeys(range(config.n_routed), len(row) if factor is None else max(1, int(factor * len(row) * config.top_k / config.n_routed)))
        for t, x in enumerate(row):
            scores = block.gate.weight @ x
            biased = scores + block.gate.bias
            chosen = sorted(range(config.n_routed), key=lambda e: -biased[e].item())[: config.top_k]
            probs = torch.softmax(biased if config.bias_in_weights else scores, dim=0)
            scale = sum(probs[e] for e in chosen) if config.renormalize else 1.0
            padding = documents_BT is not None and documents_BT[b, t] < 0
            for e in chosen:
                assigned += not padding
                if room[e] <= 0:
                    dropped += not padding
                    continue
                room[e] -= not padding
                gate, up = (block.w_gate_up.weight[e] @ x).chunk(2)
                y[b, t] = y[b, t] + probs[e] / scale * (block.w_down.weight[e] @ (F.silu(gate) * up))
            for shared in block.shared:
                gate, up = (shared.w_gate_up.weight @ x).chunk(2)
                y[b, t] = y[b, t] + shared.w_down.weight @ (F.silu(gate) * up)
    return y, dropped, assigned


def skewed(block):
    """Router weights large enough that experts differ and some overflow."""
    with torch.no_grad():
        block.gate.weight.mul_(100)
        block.gate.bias.copy_(torch.linspace(0, 0.7, len(block.gate.bias)))
    return block


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class TestMoe(FfnContract):
    configs: ClassVar = {
        "default": SMALL,
        "capacity": {**SMALL, "capacity_factor": 1.0, "eval_capacity": None},
        "dropless": {**SMALL, "capacity_factor": None},
        "sign_bias": {**SMALL, "balance": "sign_bias", "bias_in_weights": False},
        "aux_loss": {**SMALL, "balance": "aux_loss", "renormalize": False},
        "none": {**SMALL, "balance": "none", "top_k": 3, "n_shared": 0},
        "one expert": {**SMALL, "n_routed": 1, "top_k": 1, "n_shared": 2},
    }
    # With one expert, or with weights that always sum to 1 over one choice, the router decides nothing.
    idle: ClassVar = ("gate.weight", "gate.bias")

    def linear_flops(self, block):
        return linear_flops(block)

    def fresh(self, config):
        """The block at its initial values, which the suite's `build` moves away from."""
        block = self.on_meta(config).to_empty(device="cpu")
        initialise(block, 0)
        return block.eval()

    # -- against the loop -------------------------------------------------------------------------------------------------------
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("padded", [True, False])
    def test_equals_a_loop_over_experts(self, config, training, padded):
        block = skewed(self.build({**config, "capacity_factor": config.get("capacity_factor", 0.8)})).train(training)
        x = noise(3, 13, 32).requires_grad_()
        documents = None
        if padded:
            documents = torch.zeros(3, 13, dtype=torch.int32)
            documents[1, 5:] = 1
            documents[1, 9:] = documents[2, :3] = -1
        ctx = Context.for_tokens((3, 13), "cpu", documents)
        exact, x64 = copy.deepcopy(block).double(), x.detach().double().requires_grad_()
        y, (expected, dropped, assigned) = block(x, ctx), loop(exact, x64, documents)
        real = torch.ones(3, 13, dtype=torch.bool) if documents is None else documents >= 0
        torch.testing.assert_close(y[real].double(), expected[real], atol=2e-5, rtol=0)
        assert ctx.metrics["moe/drop_frac"].item() == pytest.approx(dropped / assigned)
        weight = noise(3, 13, 32, seed=1) * real[..., None]
        got, want = (
            torch.autograd.grad((out * weight).sum(), [start, *(p for p in module.parameters() if p.requires_grad)], allow_unused=True)
            for module, start, out in ((block, x, y), (exact, x64, expected))
        )
        for a, b in zip(got, want, strict=True):
            if a is None or b is None:
                assert all(gradient is None or not gradient.any() for gradient in (a, b))
            else:
                torch.testing.assert_close(a.double(), b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=0)

    def test_drops_happen_in_training_alone(self):
        block = skewed(self.build({**SMALL, "capacity_factor": 0.5}))
        fractions = {}
        for training in (True, False):
            ctx = Context.for_tokens((2, 16), "cpu")
            block.train(training)(noise(2, 16, 32), ctx)
            fractions[training] = ctx.metrics["moe/drop_frac"].item()
        # Room for int(0.5*16*2/4) = 4 tokens an expert, 16 places a row for 32 assignments: at least half are dropped.
        assert fractions[True] >= 0.5
        assert fractions[False] == 0

    def test_capacity_is_the_same_in_any_micro_batch(self):
        block = skewed(self.build({**SMALL, "capacity_factor": 0.7})).train()
        x = noise(4, 20, 32)
        whole = block(x, Context.for_tokens((4, 20), "cpu"))
        apart = torch.cat([block(row[None], Context.for_tokens((1, 20), "cpu")) for row in x])
        torch.testing.assert_close(whole, apart, atol=1e-6, rtol=1e-5)

    def test_later_tokens_never_displace_earlier_ones(self):
        block = skewed(self.build({**SMALL, "capacity_factor": 0.4})).train()
        x, other = noise(1, 20, 32), noise(1, 20, 32)
        other[:, 11:] = noise(1, 9, 32, seed=5)
        a, b = (block(z, Context.for_tokens((1, 20), "cpu")) for z in (x, other))
        torch.testing.assert_close(a[:, :11], b[:, :11], atol=1e-6, rtol=1e-5)

    def test_capacity_of_v1_0(self):
        # int(1.5 * 4096 * 2 / 16) = 768 places; every token chooses experts 0 and 1, so 4096 - 768 of 4096 are dropped
        block = self.build({"type": "moe", "n_routed": 16, "inter_dim": 8, "n_shared": 0}).train()
        with torch.no_grad():
            block.gate.bias[:2] = 10.0
        ctx = Context.for_tokens((1, 4096), "cpu")
        block(noise(1, 4096, 32), ctx)
        assert ctx.metrics["moe/drop_frac"].item() == pytest.approx((4096 - 768) / 4096)
        assert ctx.metrics["moe/max_vio"].item() == pytest.approx(7.0)       # loads 4096, 4096, 0 … : mean 512

    # -- balance ------------------------------------------------------------------------------------------------------------------
    def step(self, block, counts):
        block.assigned_E.copy_(torch.tensor(counts))
        return block.after_optimizer_step(lambda x: x)

    def test_ema_bias_follows_the_band(self):
        block = self.fresh({**SMALL, "ema_alpha": 0.5, "bias_step": 0.25})
        self.step(block, [50, 30, 10, 10])
        torch.testing.assert_close(block.load_ema_E, torch.tensor([0.375, 0.275, 0.175, 0.175]))
        torch.testing.assert_close(block.gate.bias.detach(), torch.tensor([-0.25, -0.25, 0.25, 0.25]))
        self.step(block, [10, 24, 32, 34])      # loads .2375 .2575 .2475 .2575: 0.95 … 1.03 of the mean, of which only the first is at the edge
        torch.testing.assert_close(block.load_ema_E, torch.tensor([0.2375, 0.2575, 0.2475, 0.2575]))
        torch.testing.assert_close(block.gate.bias.detach()[1:], torch.tensor([-0.25, 0.25, 0.25]))

    def test_ema_starts_uniform_and_an_even_load_moves_nothing(self):
        block = self.fresh({**SMALL, "balance": "ema_bias"})
        assert block.load_ema_E.tolist() == [0.25] * 4
        self.step(block, [7, 7, 7, 7])
        assert block.gate.bias.tolist() == [0.0] * 4

    def test_sign_bias(self):
        block = self.fresh({**SMALL, "balance": "sign_bias", "bias_step": 0.5})
        self.step(block, [9, 1, 5, 5])
        assert block.gate.bias.tolist() == [-0.5, 0.5, 0.0, 0.0]

    def test_counts_are_summed_over_ranks_and_reset(self):
        block = skewed(self.fresh({**SMALL, "capacity_factor": 0.5, "balance": "sign_bias"})).train()
        for seed in (0, 1):                     # two micro-batches
            block(noise(2, 16, 32, seed=seed), Context.for_tokens((2, 16), "cpu"))
        assert block.assigned_E.sum() == 2 * 2 * 16 * 2
        dropped = block.dropped.item()
        seen = []
        metrics = block.after_optimizer_step(lambda x: (seen.append(x.clone()), 3 * x)[1])
        assert seen[0].tolist()[-1] == dropped
        assert metrics["moe/drop_frac"].item() == pytest.approx(dropped / 128)
        assert block.assigned_E.tolist() == [0] * 4
        assert block.dropped.item() == 0

    def test_max_vio(self):
        assert self.step(self.fresh(SMALL), [8, 4, 2, 2])["moe/max_vio"].item() == pytest.approx(1.0)

    def test_nothing_is_counted_in_evaluation_or_recomputation(self):
        block, x = self.fresh(SMALL), noise(1, 8, 32)
        block(x, Context.for_tokens((1, 8), "cpu"))
        ctx = Context.for_tokens((1, 8), "cpu")
        ctx.recomputing = True
        block.train()(x, ctx)
        assert block.assigned_E.sum() == 0

    def test_padding_is_not_counted(self):
        block = self.fresh(SMALL).train()
        block(noise(1, 8, 32), Context.for_tokens((1, 8), "cpu", torch.tensor([[0, 0, 0, -1, -1, -1, -1, -1]])))
        assert block.assigned_E.sum() == 3 * 2

    @pytest.mark.parametrize("balance", ["ema_bias", "sign_bias", "aux_loss", "none"])
    def test_who_trains_the_bias(self, balance):
        block = self.fresh({**SMALL, "balance": balance})
        assert "gate.bias" in dict(block.named_parameters())
        assert block.gate.bias.requires_grad == (balance in ("aux_loss", "none"))

    def test_uniform_routing_costs_the_aux_weight(self):
        block = self.fresh({**SMALL, "balance": "aux_loss", "aux_weight": 0.3, "top_k": 4})
        with torch.no_grad():
            block.gate.weight.zero_()
        ctx = Context.for_tokens((2, 8), "cpu")
        block(noise(2, 8, 32), ctx)
        assert ctx.losses["moe/aux"].item() == pytest.approx(0.3)

    def test_aux_loss_by_hand(self):
        block = skewed(self.fresh({**SMALL, "balance": "aux_loss", "aux_weight": 1.0}))
        x, documents = noise(2, 6, 32), torch.tensor([[0, 0, 0, 0, -1, -1], [0, 0, 1, 1, 1, 1]])
        ctx = Context.for_tokens((2, 6), "cpu", documents)
        block(x, ctx)
        expected = []
        for row, document in zip(x, documents, strict=True):
            probs = torch.softmax(block.gate(row[document >= 0]), dim=-1)
            share = torch.stack([(probs.topk(2).indices == e).sum() for e in range(4)]) * 4 / (2 * len(probs))
            expected.append((share * probs.mean(dim=0)).sum())
        torch.testing.assert_close(ctx.losses["moe/aux"], torch.stack(expected).mean())
        ctx.losses["moe/aux"].backward()
        assert block.gate.bias.grad.abs().max() > 0

    # -- router -------------------------------------------------------------------------------------------------------------------
    def test_router_stays_in_fp32_under_autocast(self):
        block, x = skewed(self.fresh(SMALL)), noise(64, 32)
        exact = block._route(x)
        with torch.autocast("cpu", torch.bfloat16):
            cast = block._route(x)
        assert all(torch.equal(a, b) for a, b in zip(exact, cast, strict=True))
        rough = skewed(self.fresh({**SMALL, "router_dtype": "bf16"}))._route(x)
        assert not torch.equal(exact[0], rough[0])

    def test_bias_selects_and_weighs_or_only_selects(self):
        x = noise(50, 32)
        both, selects = (self.fresh({**SMALL, "balance": "sign_bias", "bias_in_weights": flag}) for flag in (True, False))
        for block in (both, selects):
            with torch.no_grad():
                block.gate.weight.zero_()
                block.gate.bias.copy_(torch.tensor([0.0, 2.0, 1.0, -1.0]))
        assert torch.equal(both._route(x)[1], selects._route(x)[1])
        assert both._route(x)[1][0].tolist() == [1, 2]
        torch.testing.assert_close(both._route(x)[2][0], torch.tensor([1.0, 0.0]).softmax(0).new_tensor([0.7310586, 0.2689414]))
        torch.testing.assert_close(selects._route(x)[2][0], torch.tensor([0.5, 0.5]))

    # -- accounting, init, errors -------------------------------------------------------------------------------------------------
    def test_initial_values(self):
        block = self.fresh({"type": "moe", "n_routed": 8, "inter_dim": 64})
        assert block.gate.weight.std().item() == pytest.approx(0.006, rel=0.2)
        assert block.gate.bias.tolist() == [0.0] * 8
        for weight, fan_in in ((block.w_gate_up.weight, 32), (block.w_down.weight, 64)):
            bound = fan_in**-0.5
            per_expert = weight.flatten(1)
            assert per_expert.abs().max() <= bound
            torch.testing.assert_close(per_expert.std(dim=1), torch.full((8,), bound / 3**0.5), rtol=0.05, atol=0)

    def test_active_share_is_top_k_of_n(self):
        block = self.on_meta({"type": "moe", "n_routed": 16, "top_k": 2, "inter_dim": 8})
        assert block.active_fraction("w_down.weight") == 0.125
        assert block.active_fraction("shared.0.w_down.weight") == 1

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"top_k": 5}, "top_k must be at most n_routed"),
            ({"inter_dim": 12}, "multiples of 8"),
            ({"balance": "none", "bias_in_weights": False}, "bias_in_weights must be true"),
        ],
    )
    def test_bad_settings_are_refused(self, change, message):
        config = self.parsed({**SMALL, **change})
        layer = make_layer("ffn", config, self.settings())
        with pytest.raises(RecipeError, match=message):
            config.check(layer, layer.model)

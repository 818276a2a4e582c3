from collections.abc import Callable

import pytest
import torch
from torch import nn

from hymo.errors import HymoError
from hymo.model import build_hymo
from hymo.recipe import Recipe, load_recipe
from hymo.train.optimizer import Optimizers, clip_gradients, gradient_squares, is_scale, sort_parameters

Tiny = Callable[..., Recipe]


def leaves(names: list[str]) -> set[str]:
    """Names without the place of their layer: layers.4.mixer.wo.weight → mixer.wo.weight."""
    return {name.split(".", 2)[2] if name.startswith("layers.") else name for name in names}


def test_the_full_model_is_sorted_as_specified() -> None:
    recipe = load_recipe("v1_0")
    model = build_hymo(recipe, "meta")
    groups = sort_parameters(model, recipe.optimizer)
    size = {name: p.numel() for name, p in model.named_parameters()}
    assert leaves(groups.normuon) == {
        *(f"mixer.{name}.weight" for name in ("wq_a", "wq_b", "wkv_a", "wkv_b", "wo")),
        *(f"mixer.{name}.weight" for name in ("in_proj", "b_proj", "c_proj", "g_proj", "out_proj", "skip_proj")),
    }
    mla = 896 * 224 + 224 * 2048 + 896 * 160 + 128 * 4 * (96 + 128) + 2048 * 896
    gdn = 896 * 1280 + 3 * 1280 * 1280 + 1280 * 896 + 896 * 896
    assert sum(size[name] for name in groups.normuon) == 8 * mla + 24 * gdn
    assert leaves(groups.adamw_nodecay) == {
        "mixer_norm.weight", "ffn_norm.weight", "norm.weight", "mixer.A_log", "mixer.D", "mixer.dt_bias",
        "mixer.q_norm.weight", "mixer.kv_norm.weight", "mixer.q_norm_qk", "mixer.k_norm_qk",
    }
    decayed = leaves(groups.adamw)
    assert {"embedding.weight", "mixer.conv.weight", "mixer.dt_proj.weight", "ffn.gate.weight"} <= decayed
    ffns = [name for name in groups.adamw if name.startswith("layers.") and ".ffn." in name]
    assert sum(size[name] for name in ffns) == 792_723_456 + 49_545_216 + 8 * 16 * 896
    assert sum(n for name, n in size.items() if name in groups.adamw and name.startswith("mtp.")) == 12_386_304
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert leaves(sorted(frozen)) == {"ffn.gate.bias"}      # ema_bias moves it, no optimizer does
    placed = [*groups.normuon, *groups.adamw, *groups.adamw_nodecay]
    assert sorted(placed) == sorted(size.keys() - frozen)


def test_knobs_move_experts_and_hidden_matrices(tiny: Tiny) -> None:
    model = build_hymo(tiny(), "meta")
    by_default = sort_parameters(model, tiny().optimizer)
    experts = sort_parameters(model, tiny("optimizer.experts=normuon").optimizer)
    moved = set(experts.normuon) - set(by_default.normuon)
    assert leaves(sorted(moved)) == {"ffn.w_gate_up.weight", "ffn.w_down.weight"}
    assert set(by_default.adamw) - set(experts.adamw) == moved
    none = sort_parameters(model, tiny("optimizer.hidden=adamw", "optimizer.experts=normuon").optimizer)
    assert none.normuon == []
    assert set(none.adamw) == set(by_default.adamw) | set(by_default.normuon)


def test_a_trained_router_bias_is_not_decayed(tiny: Tiny) -> None:
    recipe = tiny("model.layers.M.ffn.balance=aux_loss")
    groups = sort_parameters(build_hymo(recipe, "meta"), recipe.optimizer)
    assert "layers.0.ffn.gate.bias" in groups.adamw_nodecay


def test_a_parameter_that_no_rule_knows_is_an_error(tiny: Tiny) -> None:
    model = build_hymo(tiny(), "meta")
    model.layer(0).mixer.register_parameter("table", nn.Parameter(torch.zeros(2, 2)))
    with pytest.raises(HymoError, match=r"got 'layers\.0\.mixer\.table' of shape \(2, 2\); hold it in nn\.Linear"):
        sort_parameters(model, tiny().optimizer)


@pytest.mark.parametrize(("name", "ndim", "scale"), [("a.A_log", 2, True), ("a.D", 1, True), ("a.dt_bias", 1, True), ("a.k_norm_qk", 2, True),
                                                   ("a.head_scale", 2, True), ("a.weight", 2, False), ("a.mask_ID", 2, False)])
def test_scales_by_name(name: str, ndim: int, scale: bool) -> None:
    assert is_scale(name, torch.zeros([2] * ndim)) is scale


def test_adamw_follows_its_formula_and_spares_scales(tiny: Tiny) -> None:
    """Two steps on the embedding (decayed) and the final norm (not), in float64 by hand."""
    recipe = tiny("optimizer.adamw.lr=0.01", "optimizer.adamw.weight_decay=0.5")
    model = build_hymo(recipe)
    optimizers = Optimizers(model, recipe.optimizer)
    for decay, p in ((0.5, model.embedding.weight), (0.0, model.norm.weight)):
        with torch.no_grad():
            p.fill_(2.0)
        w, m, v = p.detach().double().clone(), 0.0, 0.0
        for t, multiplier in ((1, 1.0), (2, 0.25)):
            optimizers.zero_grad()
            p.grad = torch.full_like(p, 0.1 * t)
            rates = optimizers.step(multiplier)
            assert rates == {"lr/normuon": pytest.approx(2e-3 * multiplier), "lr/adamw": pytest.approx(0.01 * multiplier)}
            g, lr = 0.1 * t, 0.01 * multiplier
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            w = w * (1 - lr * decay) - lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)) ** 0.5 + 1e-8)
        torch.testing.assert_close(p.detach().double(), w, rtol=0, atol=1e-6)


def test_a_bad_step_changes_no_weight_and_no_moment(tiny: Tiny) -> None:
    recipe = tiny()
    model = build_hymo(recipe)
    optimizers = Optimizers(model, recipe.optimizer)
    for bad, moves in ((1.0, False), (0.0, True)):
        before = {**{n: p.detach().clone() for n, p in model.named_parameters()}, **{n: t.clone() for n, t in optimizers.tensors().items()}}
        for p in optimizers.parameters():
            p.grad = torch.full_like(p, float("nan") if bad else 1.0)
        optimizers.step(1.0, torch.tensor(bad))
        after = {**dict(model.named_parameters()), **optimizers.tensors()}
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert bool(changed) is moves


def test_clipping_is_by_the_norm_of_everything() -> None:
    def parameters() -> list[nn.Parameter]:
        found = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 1)), nn.Parameter(torch.zeros(3))]
        found[0].grad, found[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])      # the third has none
        return found

    for limit, wanted in ((1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])):
        found = parameters()
        norm = gradient_squares(found).sqrt()
        assert float(norm) == pytest.approx(5.0)
        clip_gradients(found, norm, limit)
        assert [float(found[0].grad[0]), float(found[1].grad[0, 0])] == pytest.approx(wanted, rel=1e-5)     # type: ignore[index]


def test_state_of_a_finished_step_is_all_there_before_the_first(tiny: Tiny) -> None:
    recipe = tiny("optimizer.experts=normuon")
    model = build_hymo(recipe)
    optimizers = Optimizers(model, recipe.optimizer)
    before = {name: t.shape for name, t in optimizers.tensors().items()}
    for p in optimizers.parameters():
        p.grad = torch.ones_like(p)
    optimizers.step(1.0)
    assert {name: t.shape for name, t in optimizers.tensors().items()} == before
    assert before["layers.0.mixer.wo.weight/second_moment"] == (model.layer(0).mixer.wo.weight.shape[0], 1)

import torch

from hymo import Context
from hymo.testing import MixerContract

TINY = {"type": "gated_deltanet", "n_heads": 2, "head_dim": 8, "expand_v": 1.5, "impl": "reference"}


class TestGatedDeltanet(MixerContract):
    configs = {
        "reference": TINY,
        "chunked": {**TINY, "impl": "chunked"},
        "negative": {**TINY, "negative_eigenvalues": True},
        "no_gate": {**TINY, "output_gate": False},
        "no_conv": {**TINY, "d_conv": 1},
    }

    def test_flops_against_torch(self, config):
        super().test_flops_against_torch({**config, "impl": "reference"})

    def elementwise_flops(self, block, context):
        """All but the loop's two matrix products, what the key holds and what is read."""
        c = block.config
        return block.mixing_flops(context) - 4 * c.n_heads * c.head_dim * c.value_dim

    def test_equals_the_published_recurrence(self):
        """The layer against the paper's own form, S = α (I − β k kᵀ) S + β k vᵀ, token by token in float64, from the raw weights."""
        block = self.build({**TINY, "d_conv": 1}).double()
        w = {name: p.detach() for name, p in block.named_parameters()}
        x = torch.randn(1, 9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        silu = torch.nn.functional.silu
        tap = w["conv.weight"][:, 0, 0]
        q, k, v = silu(x[0] @ torch.cat([w["q_proj.weight"], w["k_proj.weight"], w["v_proj.weight"]]).T * tap).split([16, 16, 24], dim=-1)
        alpha = torch.exp(-w["A_log"].exp() * torch.log1p(torch.exp(x[0] @ w["a_proj.weight"].T + w["dt_bias"])))
        beta = 1 / (1 + torch.exp(-x[0] @ w["b_proj.weight"].T))
        out = []
        for h in range(2):
            S = torch.zeros(8, 12, dtype=torch.float64)
            rows = []
            for t in range(9):
                key, query = (z[t, 8 * h : 8 * h + 8] / z[t, 8 * h : 8 * h + 8].norm() for z in (k, q))
                value = v[t, 12 * h : 12 * h + 12]
                S = alpha[t, h] * (torch.eye(8) - beta[t, h] * torch.outer(key, key)).double() @ S + beta[t, h] * torch.outer(key, value)
                o = S.T @ query / 8**0.5
                rows.append(w["o_norm.weight"] * o / (o.square().mean() + 1e-6).sqrt())
            out.append(torch.stack(rows))
        y = (torch.cat(out, -1) * silu(x[0] @ w["g_proj.weight"].T)) @ w["o_proj.weight"].T
        torch.testing.assert_close(block(x, Context.for_tokens((1, 9), "cpu"))[0], y, atol=2e-5, rtol=0)

import math

import pytest
import torch

from hymo.ops.attention import attention, visibility
from hymo.testing import OpContract


def by_loop(q, k, v, documents=None, key_documents=None):
    """One query and one key at a time."""
    batch, heads, queries, width = q.shape
    keys, groups = k.shape[2], k.shape[1]
    rows = []
    for b in range(batch):
        for h in range(heads):
            group = h // (heads // groups)
            for t in range(queries):
                seen = [s for s in range(keys - queries + t + 1) if documents is None or documents[b, t] == key_documents[b, s]]
                scores = torch.stack([q[b, h, t] @ k[b, group, s] for s in seen]) / math.sqrt(width)
                rows.append(sum(a * v[b, group, s] for s, a in zip(seen, scores.softmax(0), strict=True)))
    return torch.stack(rows).view(batch, heads, queries, -1)


def ours(q, k, v, documents=None, key_documents=None):
    visible = visibility(q.shape[2], k.shape[2], documents, key_documents, q.device)
    return attention(q, k, v, visible, scale=q.shape[-1] ** -0.5)


def case(heads, groups, queries, keys, documents=None):
    def make(generator):
        inputs = {
            "q": torch.randn(2, heads, queries, 6, generator=generator, dtype=torch.float64),
            "k": torch.randn(2, groups, keys, 6, generator=generator, dtype=torch.float64),
            "v": torch.randn(2, groups, keys, 5, generator=generator, dtype=torch.float64),
        }
        if documents is not None:
            inputs["key_documents"] = torch.tensor(documents)
            inputs["documents"] = inputs["key_documents"][:, keys - queries :]
        return inputs

    return make


class TestAttention(OpContract):
    implementations = {"torch": ours}
    reference = staticmethod(by_loop)
    cases = {
        "square": case(4, 2, 13, 13),
        "one_query": case(4, 1, 1, 9),
        "later_queries": case(2, 2, 5, 11),
        "documents": case(4, 2, 9, 9, [[0] * 4 + [1] * 5, [3] * 8 + [7]]),
        "documents_later_queries": case(2, 1, 3, 8, [[-1] * 6 + [0] * 2, [0] * 8]),
    }


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 8), (8, 8)])
def test_no_mask_is_made_where_none_is_needed(queries, keys):
    assert visibility(queries, keys, None, None, "cpu") is None

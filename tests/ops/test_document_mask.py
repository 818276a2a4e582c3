"""Block masks against the full mask they stand for."""

import pytest
import torch

from hymo.ops.attention import visibility
from hymo.ops.document_mask import BLOCK, document_mask

ROWS = {
    "one": [700],
    "block_edges": [128, 256, 128],
    "short": [3, 1, 250, 2, 130, 1],
    "padded": [40, 300, 60],
}


def documents_of(lengths, padded=False):
    numbers = [n * 7 % 11 for n in range(len(lengths))]      # neighbours differ; they need not rise
    if padded:
        numbers[-1] = -1
    return torch.repeat_interleave(torch.tensor(numbers), torch.tensor(lengths))[None]


@pytest.mark.parametrize("window", [None, 1, 100, 129, 300])
@pytest.mark.parametrize("name", ROWS)
def test_blocks_are_those_of_the_full_mask(name, window):
    documents = documents_of(ROWS[name], padded=name == "padded")
    length = documents.shape[1]
    full = visibility(length, length, documents, documents, "cpu", window)[0, 0]
    mask = document_mask(documents, window)

    blocks = -(-length // BLOCK)
    some, all_ = torch.zeros(blocks, blocks), torch.zeros(blocks, blocks)
    for i in range(blocks):
        for j in range(blocks):
            pairs = full[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
            some[i, j], all_[i, j] = pairs.any(), pairs.all()

    def listed(counts, indices):
        dense = torch.zeros(blocks, blocks)
        for i in range(blocks):
            dense[i, indices[0, 0, i, : counts[0, 0, i]].long()] = 1
        return dense

    whole = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    looked_at = listed(mask.kv_num_blocks, mask.kv_indices)
    torch.testing.assert_close(looked_at + whole, some)         # every visible pair, no block that is empty, none twice
    earlier = torch.ones(blocks, blocks).tril(-1)
    torch.testing.assert_close(whole, all_ * earlier)           # on the diagonal some key is after its query

    query, key = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    torch.testing.assert_close(mask.mask_mod(torch.zeros_like(query), torch.zeros_like(query), query, key), full)

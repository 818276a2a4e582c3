import pytest
import torch

from hymo.generate.decode import Decoder
from tests.made import model_of, tiny

PROMPTS = [[5, 80, 3, 200], [7]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replayed_step_is_the_step(dtype):
    def logits(replayed):
        decoder = Decoder(model_of(tiny()).cuda(), PROMPTS, dtype, room=8)
        found = [decoder.read()]
        if not replayed:
            decoder.advance = None
            decoder.state = decoder.model.initial_state(2, dtype=dtype)
            decoder.room = 0
            found = [decoder.read()]
        assert (decoder.advance is not None) == replayed
        for token in range(8):
            found.append(decoder.step(torch.tensor([token, 9], device="cuda")).clone())
        return torch.stack(found)

    torch.testing.assert_close(logits(True), logits(False), atol=1e-4 if dtype == torch.float32 else 5e-2, rtol=0)

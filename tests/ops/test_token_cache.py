import torch

from hymo.ops.token_cache import append, with_room


def test_append_makes_a_new_tensor_unless_a_place_is_given():
    old, new = torch.arange(6.0).view(1, 3, 2), torch.full((1, 1, 2), 9.0, dtype=torch.float64)
    joined = append(old, new, None)
    assert joined[0].tolist() == [[0, 1], [2, 3], [4, 5], [9, 9]]
    assert joined.dtype == old.dtype
    roomy = with_room(old, 2, value=-1)
    assert roomy[0].tolist() == [[0, 1], [2, 3], [4, 5], [-1, -1], [-1, -1]]
    assert append(roomy, new, torch.tensor([3])) is roomy
    assert roomy[0].tolist() == [[0, 1], [2, 3], [4, 5], [9, 9], [-1, -1]]
    assert old[0].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_room_is_made_along_time_whatever_the_shape():
    assert with_room(torch.zeros(2, 3, 4, 5), 7).shape == (2, 10, 4, 5)
    assert with_room(torch.zeros(2, 3), 7).shape == (2, 10)

import hashlib

from hymo.data.order import permutation


def test_orders_differ_between_epochs_and_seeds_and_not_between_runs():
    orders = {(seed, epoch): tuple(permutation(50, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(set(orders.values())) == 4
    assert all(sorted(order) == list(range(50)) for order in orders.values())


def philox(key: int, blocks: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011), in plain integers."""
    mask = 2**64 - 1
    out = []
    for block in range(1, blocks + 1):
        c, k = [block, 0, 0, 0], [key & mask, key >> 64]
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(b >> 64) ^ c[1] ^ k[0], b & mask, (a >> 64) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        out += c
    return out


def test_an_order_is_the_published_generator_s_and_so_outlives_numpy_s_versions():
    key = int(hashlib.sha256(b'[0, 2, "rows"]').hexdigest()[:16], 16)
    draws = philox(key, 2)
    assert permutation(8, 0, 2, "rows").tolist() == sorted(range(8), key=lambda i: draws[i])

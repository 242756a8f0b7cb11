"""Wiring tier: the counter-based generator against its published answers and its promises."""

import pytest
import torch

from common import rng


def test_philox_known_answers():
    # Random123's kat_vectors for philox4x32, 10 rounds; of its rows only the first leaves the
    # upper half of the counter zero, as ours always is.
    zero = rng.philox(torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    words = [f"{w:08x}" for w in zero[0].tolist()]
    assert words == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]


def test_philox_against_plain_integers():
    def reference(k0, k1, counter):
        c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        return c

    key = rng.key(7, "noise", step=3, sample_id="clip")
    k0, k1 = key.tolist()
    counters = [0, 1, 12345, 2**32 - 1, 2**32, 2**40 + 17]
    got = rng.philox(key, torch.tensor(counters)).tolist()
    assert got == [reference(k0, k1, c) for c in counters]


def test_subsets_equal_the_whole():
    key = rng.key(0, "noise", step=1, sample_id="a")
    everything = rng.normal(key, torch.arange(1000))
    some = torch.tensor([999, 3, 500, 4, 5])
    assert torch.equal(rng.normal(key, some), everything[some])
    rows = rng.normal_rows(key, torch.arange(50), 20)
    assert torch.equal(rows.flatten(), everything)
    assert torch.equal(rng.normal_rows(key, torch.tensor([7, 2]), 20), rows[[7, 2]])


def test_rows_with_a_key_each():
    keys = rng.keys(0, "noise", step=1, sample_ids=["a", "b"])
    rows = rng.normal_rows(keys[[0, 1, 1]], torch.tensor([0, 0, 1]), 8)
    assert torch.equal(rows[0], rng.normal_rows(keys[0], torch.tensor([0]), 8)[0])
    assert torch.equal(rows[1:], rng.normal_rows(keys[1], torch.tensor([0, 1]), 8))


def test_keys_differ_by_every_part():
    keys = [
        rng.key(1, "p", step=2, sample_id="s"),
        rng.key(2, "p", step=2, sample_id="s"),
        rng.key(1, "q", step=2, sample_id="s"),
        rng.key(1, "p", step=3, sample_id="s"),
        rng.key(1, "p", step=2, sample_id="t"),
    ]
    assert len({tuple(k.tolist()) for k in keys}) == 5
    # The border between purpose and sample id counts too.
    assert rng.key(0, "ab", sample_id="c").tolist() != rng.key(0, "a", sample_id="bc").tolist()


def test_moments():
    x = rng.normal_rows(rng.key(5, "m"), torch.arange(50_000), 16, torch.float64).flatten()
    n = x.numel()
    assert abs(x.mean()) < 5 / n**0.5
    assert abs(x.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs((x**4).mean() - 3) < 5 * (96 / n) ** 0.5
    lagged = (x[1:] * x[:-1]).mean()
    assert abs(lagged) < 5 / n**0.5
    u = rng.uniform(rng.key(5, "u"), torch.arange(n))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5


def test_permutation_and_integer():
    p = rng.permutation(rng.key(0, "order", step=4), 1000)
    assert sorted(p.tolist()) == list(range(1000)) and p.tolist() != list(range(1000))
    draws = {rng.integer(rng.key(0, "i", step=s), 3) for s in range(50)}
    assert draws == {0, 1, 2}


@pytest.mark.parametrize("width", [1, 3, 6])
def test_rows_of_any_width(width):
    key, wide = rng.key(0, "x"), -(-width // 4) * 4
    rows = rng.normal_rows(key, torch.arange(5), width)
    assert rows.shape == (5, width)
    assert torch.equal(rows, rng.normal_rows(key, torch.arange(5), wide)[:, :width])
    last = torch.arange(4 * wide, 4 * wide + width)
    assert torch.equal(rows[4], rng.normal(key, last))

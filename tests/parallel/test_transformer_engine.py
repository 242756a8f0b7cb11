"""Wiring tier: what TransformerEngine's context parallelism is not asked to do."""

from importlib.util import find_spec

import pytest

from common.errors import ConfigError
from parallel.context import Comm
from parallel.groups import Groups
from parallel.layout import Lens, ShardedDense, ShardedPacked, split_evenly, split_lens
from parallel.topology import Topology
from parallel.transformer_engine import Heads, TransformerEngineAttention, refusal

EVEN = ((16, 32), (16, 32))
EIGHT = Heads(num_q=8, num_k=4, head_dim=64)
SIX = Heads(num_q=6, num_k=6, head_dim=64)


def packed(lens: tuple[Lens, Lens], causal: bool = False) -> ShardedPacked:
    return ShardedPacked.of(split_lens(lens[0], 4), split_lens(lens[1], 4), 0, causal=causal)


@pytest.mark.parametrize(
    ("lens", "causal", "heads", "comm", "fp8", "message"),
    [
        (EVEN, False, EIGHT, "p2p", False, None),
        (EVEN, False, EIGHT, "a2a", False, None),
        (((16, 20), (16, 20)), False, EIGHT, "p2p", False, "multiples of 2 x cp = 8, not 20"),
        (((16,), (8,)), False, EIGHT, "p2p", False, "serves self-attention"),
        (EVEN, True, EIGHT, "p2p", False, "wants first and last chunks in pairs"),
        (EVEN, False, EIGHT, "p2p", True, "no FP8 for packed sequences over ranks"),
        (EVEN, False, EIGHT, "a2a+all_gather", False, "does not know comm=a2a+all_gather"),
        (
            EVEN,
            False,
            SIX,
            "a2a",
            False,
            "wants heads that 4 ranks",
        ),
        (EVEN, False, Heads(num_q=8, num_k=2, head_dim=8), "a2a", False, "key heads that 4 ranks"),
        (EVEN, False, Heads(num_q=8, num_k=2, head_dim=8), "a2a+p2p", False, None),
    ],
)
def test_refused_by_name(lens, causal, heads, comm: Comm, fp8, message):
    reason = refusal(packed(lens, causal), heads, comm, ulysses=2, cp=4, fp8=fp8)
    assert (reason is None) == (message is None), reason
    if message is not None:
        assert reason is not None
        assert message in reason


def test_dense_rows():
    def dense(n: int) -> ShardedDense:
        sizes = split_evenly(n, 4)
        return ShardedDense(sizes_q=sizes, sizes_k=sizes, part=0)

    assert refusal(dense(64), EIGHT, "p2p", ulysses=1, cp=4, fp8=True) is None
    reason = refusal(dense(60), EIGHT, "p2p", ulysses=1, cp=4, fp8=True)
    assert reason == "wants lengths that are multiples of 2 x cp = 8, not 60"


@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="it is installed")
def test_absent_is_said():
    groups = Groups(
        topology=Topology(), tp=None, ulysses=None, ring=None, cp=None, dp=None, dp_cp=None
    )
    with pytest.raises(ConfigError, match=r"needs its package .* install transformer-engine"):
        TransformerEngineAttention(groups, EIGHT, comm="p2p")

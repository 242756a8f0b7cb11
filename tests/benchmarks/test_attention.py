"""Wiring tier: the benchmark of attention at toy sizes; its figures mean nothing here."""

import torch

from benchmarks._attention_kernels import Problem, blocks, kernel, sdpa
from benchmarks.attention import Settings, measure


def test_all_subjects_compute_the_same():
    problem = Problem(lens=(80,), heads=2, head_dim=8, device=torch.device("cpu"))
    outs = []
    for passes in (sdpa(problem), kernel(problem, "eager"), kernel(problem, "cpu_flash")):
        out = passes.forward()
        outs.append(out[0] if isinstance(out, tuple) else out)
    outs += [blocks(problem, n).forward()[0] for n in (1, 3)]  # type: ignore[index]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-5, rtol=0)
    assert problem.flops == 4 * 80 * 80 * 2 * 8


def test_what_cannot_run_says_so():
    rows = list(measure(Settings(lengths=[32, 80], blocks_at=64, rounds=1, ranks=0)))
    measured = {(row.case, row.subject) for row in rows if row.value is not None}
    assert ("kernels, 80 tokens", "vfm eager") in measured
    assert ("blocks, 64 tokens", "vfm, 8 blocks") in measured
    if not torch.cuda.is_available():
        absent = [row for row in rows if row.value is None]
        assert len(absent) == 5
        assert {row.unit for row in absent} == {"not run: no GPU on this machine"}

# SPDX-License-Identifier: Apache-2.0
# pytest tests/planner/test_pass_texts.py
"""What each pass does, as text: the graph before planning, and the graph after the pass.

A pass that plans gets inputs in the default layout. Passes that it builds on run before it; the last one named is the
one that the test is about.
"""

from __future__ import annotations

from collections.abc import Callable

from graph_text import parse

from torch_spyre._inductor.passes import (
    dedup,
    division,
    layouts,
    parts,
    pieces,
    pool,
    scratchpad,
    spans,
    tiling,
    views,
)
from torch_spyre._inductor.planning.layout_rules import make_layout
from torch_spyre._inductor.planning.plan_graph import InputSpec, PlanBuffer, PlanGraph
from torch_spyre._inductor.planning.plan_options import PlanOptions
from torch_spyre._inductor.tilegraph.graph import Graph

OPTIONS = PlanOptions(cores=32, lx_share=0.2, keeps_in_lx=True, follows_hints=True)


def read(text: str) -> Graph:
    graph = parse(text)
    assert graph.text() == text.lstrip(), "the text is not what it would be printed as"
    return graph


def rewritten(before: str, run: Callable[[Graph], Graph]) -> str:
    """The text after a pass that needs no layouts."""
    return run(read(before)).text()


def planned(before: str, *passes: Callable[[PlanGraph], PlanGraph | None]) -> str:
    """The text after passes that plan."""
    graph = read(before)
    stored = [PlanBuffer(**vars(graph.buffers[name])) for name in graph.inputs]
    specs = [InputSpec(make_layout(b, list(range(len(b.size))))) for b in stored]
    plan = PlanGraph.of(graph, specs, OPTIONS)
    for run in passes:
        plan = run(plan) or plan
    return plan.text()


def test_dedup() -> None:
    """The same exponentials over renamed dims are computed once."""
    before = """
graph g(a) -> (o, r)
  input a: float16[64, 128] stride [128, 1]
  temp t: float16[64, 128] stride [128, 1]
  temp u: float16[64, 128] stride [128, 1]
  output o: float16[64, 128] stride [128, 1]
  output r: float16[64, 128] stride [128, 1]
  n0: t[128*p0+p1] = exp(a[128*p0+p1]) over p0:64, p1:128
  n1: o[128*p0+p1] = neg(t[128*p0+p1]) over p0:64, p1:128
  n2: u[128*q1+q0] = exp(a[128*q1+q0]) over q0:128, q1:64
  n3: r[128*q1+q0] = add(u[128*q1+q0], a[128*q1+q0]) over q0:128, q1:64
"""
    after = """
graph g(a) -> (o, r)
  input a: float16[64, 128] stride [128, 1]
  temp t: float16[64, 128] stride [128, 1]
  output o: float16[64, 128] stride [128, 1]
  output r: float16[64, 128] stride [128, 1]
  n0: t[128*p0+p1] = exp(a[128*p0+p1]) over p0:64, p1:128
  n1: o[128*p0+p1] = neg(t[128*p0+p1]) over p0:64, p1:128
  n3: r[128*q1+q0] = add(t[128*q1+q0], a[128*q1+q0]) over q0:128, q1:64
"""
    assert rewritten(before, dedup.run) == after.lstrip()


def test_views() -> None:
    """A transposed copy is read through, and one value for each row is computed once and broadcast."""
    before = """
graph g(a, b) -> (o)
  input a: float16[64, 128] stride [128, 1]
  input b: float16[128, 64] stride [64, 1]
  temp t: float16[128, 64] stride [64, 1]
  temp u: float16[128, 64] stride [64, 1]
  output o: float16[128, 64] stride [64, 1]
  copy: t[64*p0+p1] = identity(a[128*p1+p0]) over p0:128, p1:64
  row: u[64*p0+p1] = exp(b[64*p0]) over p0:128, p1:64
  add: o[64*p0+p1] = add(t[64*p0+p1], u[64*p0+p1]) over p0:128, p1:64
"""
    after = """
graph g(a, b) -> (o)
  input a: float16[64, 128] stride [128, 1]
  input b: float16[128, 64] stride [64, 1]
  temp u: float16[128, 1] stride [1, 1]
  output o: float16[128, 64] stride [64, 1]
  row: u[p0] = exp(b[64*p0]) over p0:128
  add: o[64*p0+p1] = add(a[128*p1+p0], u[p0]) over p0:128, p1:64
"""
    assert rewritten(before, views.run) == after.lstrip()


def test_spans() -> None:
    """A matmul whose left operand spans 512 MiB becomes two, added in fp32 and rounded once."""
    before = """
graph g(a, b) -> (c)
  input a: float16[4096, 65536] stride [65536, 1]
  input b: float16[65536, 4096] stride [4096, 1]
  output c: float16[4096, 4096] stride [4096, 1]
  mm: c[4096*m+n] = batchmatmul(a[65536*m+k], b[4096*k+n]) over m:4096, n:4096, k:65536
    reduces k
"""
    after = """
graph g(a, b) -> (c)
  input a: float16[4096, 65536] stride [65536, 1] [1024, 4096, 64]/[64, 65536, 1] SEN169_FP16 memory+0x0
  input b: float16[65536, 4096] stride [4096, 1] [64, 65536, 64]/[64, 4096, 1] SEN169_FP16 memory+0x0
  output c: float16[4096, 4096] stride [4096, 1]
  temp w3: float32[4096, 4096] stride [4096, 1]
  temp w4: float32[4096, 4096] stride [4096, 1]
  temp w5: float32[4096, 4096] stride [4096, 1]
  mm_k0: w3[4096*m+n] = batchmatmul(a[65536*m+k], b[4096*k+n]) over m:4096, n:4096, k:32768
    reduces k
    note: a part of k, 32768 of 65536: all of it spans more than 256 MiB
  mm_k1: w4[4096*m+n] = batchmatmul(a[65536*m+k+32768], b[4096*k+n+134217728]) over m:4096, n:4096, k:32768
    reduces k
    note: a part of k, 32768 of 65536: all of it spans more than 256 MiB
  mm_sum1: w5[4096*m+n] = add(w3[4096*m+n], w4[4096*m+n]) over m:4096, n:4096
  mm_rounded: c[4096*m+n] = fp32todl16(w5[4096*m+n]) over m:4096, n:4096
"""
    assert planned(before, spans.run) == after.lstrip()


def test_parts() -> None:
    """A sum over 400 MB is more than a core reaches: it is done in two parts, added in order."""
    before = """
graph g(a) -> (s)
  input a: float32[100000000] stride [1]
  output s: float32[] stride []
  sum: s[0] = sum(a[p0]) over p0:100000000
    reduces p0
"""
    after = """
graph g(a) -> (s)
  input a: float32[100000000] stride [1] [3125000, 32]/[32, 1] IEEE_FP32 memory+0x0
  output s: float32[] stride []
  temp w2: float32[] stride []
  temp w3: float32[] stride []
  temp w4: float32[] stride []
  sum_p00_sum: w2[0] = sum(a[p0]) over p0:67108864
    reduces p0
    note: a part of p0, 67108864 of 100000000: all of it is more than a core reaches
  sum_p067108864_sum: w3[0] = sum(a[p0+67108864]) over p0:32891136
    reduces p0
    note: a part of p0, 32891136 of 100000000: all of it is more than a core reaches
  sum_add_5_2: w4[0] = add(w2[0], w3[0]) over one point
  sum_identity_5_3: s[0] = identity(w4[0]) over one point
"""
    assert planned(before, parts.run) == after.lstrip()


def test_pieces() -> None:
    """The mask knows 512 of 4 x 512 rows: its reader cuts the joined dim, so neighbours and temporaries do too."""
    before = """
graph g(a, mask) -> (o)
  input a: float16[2048, 128] stride [128, 1]
  input mask: float16[512, 128] stride [128, 1]
  temp t: float16[2048, 128] stride [128, 1]
  output o: float16[2048, 128] stride [128, 1]
  n0: t[128*p0+p1] = exp(a[128*p0+p1]) over p0:2048, p1:128
  n1: o[128*p0+p1] = add(t[128*p0+p1], mask[128*(p0%512)+p1]) over p0:2048, p1:128
"""
    after = """
graph g(a, mask) -> (o)
  input a: float16[2048, 128] stride [128, 1] [2, 2048, 64]/[64, 128, 1] SEN169_FP16 memory+0x0
  input mask: float16[512, 128] stride [128, 1] [2, 512, 64]/[64, 128, 1] SEN169_FP16 memory+0x0
  temp t: float16[4, 512, 128] stride [65536, 128, 1]
  output o: float16[2048, 128] stride [128, 1]
  n0: t[65536*p0.1+128*p0.0+p1] = exp(a[65536*p0.1+128*p0.0+p1]) over p0.1:4, p0.0:512, p1:128
    note: walked in pieces like its neighbours: p0 as 4 x 512
  n1: o[65536*p0.1+128*p0.0+p1] = add(t[65536*p0.1+128*p0.0+p1], mask[128*p0.0+p1]) over p0.1:4, p0.0:512, p1:128
    note: walked in pieces like its neighbours: p0 as 4 x 512
"""
    assert planned(before, pieces.run) == after.lstrip()


def test_layouts() -> None:
    """An operand that is read across its sticks is re-laid by a copy before its reader."""
    before = """
graph g(a, b) -> (o)
  input a: float16[128, 256] stride [256, 1]
  input b: float16[256, 128] stride [128, 1]
  output o: float16[128, 256] stride [256, 1]
  add: o[256*p0+p1] = add(a[256*p0+p1], b[p0+128*p1]) over p0:128, p1:256
"""
    after = """
graph g(a, b) -> (o)
  input a: float16[128, 256] stride [256, 1] [4, 128, 64]/[64, 256, 1] SEN169_FP16 memory+0x0
  input b: float16[256, 128] stride [128, 1] [2, 256, 64]/[64, 128, 1] SEN169_FP16 memory+0x0
  output o: float16[128, 256] stride [256, 1] [4, 128, 64]/[64, 256, 1] SEN169_FP16 memory+0x0
  temp c3: float16[128, 256] stride [256, 1] [4, 128, 64]/[64, 256, 1] SEN169_FP16 memory+0x0
  add_copy_b: c3[256*p0+p1] = ReStickifyOpHBM(b[p0+128*p1]) over p0:128, p1:256
    split p0:128/1, p1:256/1; cores by one
    b at [p0//64, p1, p0%64]
    c3 at [p1//64, p0, p1%64]
    note: b re-laid with p1 in the stick for add
  add: o[256*p0+p1] = add(a[256*p0+p1], c3[256*p0+p1]) over p0:128, p1:256
    split p0:128/1, p1:256/1; cores by one
    a at [p1//64, p0, p1%64]
    c3 at [p1//64, p0, p1%64]
    o at [p1//64, p0, p1%64]
    note: p1 in the sticks: 131072 bytes to re-lay (p0 131072 bytes)
"""
    assert planned(before, layouts.run) == after.lstrip()


def test_division() -> None:
    """The cores share rows and columns of a matmul, in whole sticks; none of them shares k."""
    before = """
graph g(a, b) -> (c)
  input a: float16[512, 256] stride [256, 1]
  input b: float16[256, 1024] stride [1024, 1]
  output c: float16[512, 1024] stride [1024, 1]
  mm: c[1024*m+n] = batchmatmul(a[256*m+k], b[1024*k+n]) over m:512, n:1024, k:256
    reduces k
"""
    after = """
graph g(a, b) -> (c)
  input a: float16[512, 256] stride [256, 1] [4, 512, 64]/[64, 256, 1] SEN169_FP16 memory+0x0
  input b: float16[256, 1024] stride [1024, 1] [16, 256, 64]/[64, 1024, 1] SEN169_FP16 memory+0x0
  output c: float16[512, 1024] stride [1024, 1] [16, 512, 64]/[64, 1024, 1] SEN169_FP16 memory+0x0
  mm: c[1024*m+n] = batchmatmul(a[256*m+k], b[1024*k+n]) over m:512, n:1024, k:256
    reduces k
    split m:512/4, n:1024/8, k:256/1; cores by m, n
    a at [k//64, m, k%64]
    b at [n//64, k, n%64]
    c at [n//64, m, n%64]
"""
    assert planned(before, layouts.run, division.run) == after.lstrip()


def test_tiling() -> None:
    """Slices of t and u that LX cannot hold together are done chunk by chunk in one tile loop of all three nodes."""
    before = """
graph g(a) -> (o)
  input a: float16[65536, 512] stride [512, 1]
  temp t: float16[65536, 512] stride [512, 1]
  temp u: float16[65536, 512] stride [512, 1]
  output o: float16[65536, 512] stride [512, 1]
  n0: t[512*p0+p1] = exp(a[512*p0+p1]) over p0:65536, p1:512
  n1: u[512*p0+p1] = neg(t[512*p0+p1]) over p0:65536, p1:512
  n2: o[512*p0+p1] = add(t[512*p0+p1], u[512*p0+p1]) over p0:65536, p1:512
"""
    after = """
graph g(a) -> (o)
  input a: float16[65536, 512] stride [512, 1] [8, 65536, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  temp t: float16[65536, 512] stride [512, 1] [8, 65536, 64]/[64, 512, 1] SEN169_FP16 memory+0x0 per trip
  temp u: float16[65536, 512] stride [512, 1] [8, 65536, 64]/[64, 512, 1] SEN169_FP16 memory+0x0 per trip
  output o: float16[65536, 512] stride [512, 1] [8, 65536, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  n0: t[512*p0+p1] = exp(a[512*p0+p1]) over p0:65536, p1:512
    split p0:65536/4 by 5462, p1:512/8; cores by p1, p0
    in tile loop 1
    a at [p1//64, p0, p1%64]
    t at [p1//64, p0, p1%64]
  n1: u[512*p0+p1] = neg(t[512*p0+p1]) over p0:65536, p1:512
    split p0:65536/4 by 5462, p1:512/8; cores by p1, p0
    in tile loop 1
    t at [p1//64, p0, p1%64]
    u at [p1//64, p0, p1%64]
  n2: o[512*p0+p1] = add(t[512*p0+p1], u[512*p0+p1]) over p0:65536, p1:512
    split p0:65536/4 by 5462, p1:512/8; cores by p1, p0
    in tile loop 1
    t at [p1//64, p0, p1%64]
    u at [p1//64, p0, p1%64]
    o at [p1//64, p0, p1%64]
"""
    assert planned(before, layouts.run, division.run, tiling.run) == after.lstrip()


def test_scratchpad() -> None:
    """Temporaries that each core reads as it wrote them get LX addresses; both are alive at n2."""
    before = """
graph g(a) -> (o)
  input a: float16[1024, 512] stride [512, 1]
  temp t: float16[1024, 512] stride [512, 1]
  temp u: float16[1024, 512] stride [512, 1]
  output o: float16[1024, 512] stride [512, 1]
  n0: t[512*p0+p1] = exp(a[512*p0+p1]) over p0:1024, p1:512
  n1: u[512*p0+p1] = neg(t[512*p0+p1]) over p0:1024, p1:512
  n2: o[512*p0+p1] = add(t[512*p0+p1], u[512*p0+p1]) over p0:1024, p1:512
"""
    after = """
graph g(a) -> (o)
  input a: float16[1024, 512] stride [512, 1] [8, 1024, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  temp t: float16[1024, 512] stride [512, 1] [8, 1024, 64]/[64, 512, 1] SEN169_FP16 lx+0x0 [1, 256, 64]
  temp u: float16[1024, 512] stride [512, 1] [8, 1024, 64]/[64, 512, 1] SEN169_FP16 lx+0x8000 [1, 256, 64]
  output o: float16[1024, 512] stride [512, 1] [8, 1024, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  n0: t[512*p0+p1] = exp(a[512*p0+p1]) over p0:1024, p1:512
    split p0:1024/4, p1:512/8; cores by p1, p0
    a at [p1//64, p0, p1%64]
    t at [p1//64, p0, p1%64]
  n1: u[512*p0+p1] = neg(t[512*p0+p1]) over p0:1024, p1:512
    split p0:1024/4, p1:512/8; cores by p1, p0
    t at [p1//64, p0, p1%64]
    u at [p1//64, p0, p1%64]
  n2: o[512*p0+p1] = add(t[512*p0+p1], u[512*p0+p1]) over p0:1024, p1:512
    split p0:1024/4, p1:512/8; cores by p1, p0
    t at [p1//64, p0, p1%64]
    u at [p1//64, p0, p1%64]
    o at [p1//64, p0, p1%64]
"""
    assert planned(before, layouts.run, division.run, scratchpad.run) == after.lstrip()


def test_pool() -> None:
    """Temporaries in memory share one pool: w takes the place of t, which is not read after n2."""
    before = """
graph g(a) -> (o)
  input a: float16[64, 512] stride [512, 1]
  temp t: float16[64, 512] stride [512, 1]
  temp u: float16[64, 512] stride [512, 1]
  temp w: float16[64, 512] stride [512, 1]
  output o: float16[64, 512] stride [512, 1]
  n0: t[512*p0+p1] = exp(a[512*p0+p1]) over p0:64, p1:512
  n1: u[512*p0+p1] = neg(t[512*p0+p1]) over p0:64, p1:512
  n2: w[512*p0+p1] = add(t[512*p0+p1], u[512*p0+p1]) over p0:64, p1:512
  n3: o[512*p0+p1] = neg(w[512*p0+p1]) over p0:64, p1:512
"""
    after = """
graph g(a) -> (o)
  input a: float16[64, 512] stride [512, 1] [8, 64, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  temp t: float16[64, 512] stride [512, 1] [8, 64, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  temp u: float16[64, 512] stride [512, 1] [8, 64, 64]/[64, 512, 1] SEN169_FP16 memory+0x10000
  temp w: float16[64, 512] stride [512, 1] [8, 64, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  output o: float16[64, 512] stride [512, 1] [8, 64, 64]/[64, 512, 1] SEN169_FP16 memory+0x0
  n0: t[512*p0+p1] = exp(a[512*p0+p1]) over p0:64, p1:512
    split p0:64/1, p1:512/1; cores by one
    a at [p1//64, p0, p1%64]
    t at [p1//64, p0, p1%64]
  n1: u[512*p0+p1] = neg(t[512*p0+p1]) over p0:64, p1:512
    split p0:64/1, p1:512/1; cores by one
    t at [p1//64, p0, p1%64]
    u at [p1//64, p0, p1%64]
  n2: w[512*p0+p1] = add(t[512*p0+p1], u[512*p0+p1]) over p0:64, p1:512
    split p0:64/1, p1:512/1; cores by one
    t at [p1//64, p0, p1%64]
    u at [p1//64, p0, p1%64]
    w at [p1//64, p0, p1%64]
  n3: o[512*p0+p1] = neg(w[512*p0+p1]) over p0:64, p1:512
    split p0:64/1, p1:512/1; cores by one
    w at [p1//64, p0, p1%64]
    o at [p1//64, p0, p1%64]
"""
    assert planned(before, layouts.run, pool.run) == after.lstrip()

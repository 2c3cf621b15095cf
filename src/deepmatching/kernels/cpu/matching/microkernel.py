"""The inner loop of correlation: a few reference points against a stretch of target positions.

Numba has no way to say that a block of sums should stay in registers, so this loop is written in LLVM's
intermediate representation. It is a matrix product whose right-hand side is never assembled: the target's cells of
one patch row are neighbours in memory, and a table says where each row of the matrix starts.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

POINTS = 4  #: reference points that share the target's cells


def _vectors() -> tuple[int, int]:
    """(floats in a vector, vectors per point) such that all sums and operands fit into this CPU's registers."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 6  # 4 × 6 sums of 32 registers
    if features.get("avx"):
        return 8, 3  # 4 × 3 sums of 16 registers
    return 4, 6 if features.get("neon") else 2


LANES, VECTORS = _vectors()
WIDE = LANES * VECTORS  #: target positions of :func:`correlate_wide`
NARROW = LANES * max(1, VECTORS // 2)  #: target positions of :func:`correlate_narrow`


def _micro_kernel(vectors: int) -> Any:
    def typed(
        context: Any, filters: Any, cells: Any, first: Any, offsets: Any, scores: Any, column: Any
    ) -> tuple[Any, Any]:
        signature = types.void(filters, cells, types.intp, offsets, scores, types.intp)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = [context.make_array(signature.args[n])(context, builder, arguments[n]) for n in (0, 1, 3, 4)]
            _emit(builder, vectors, arrays, arguments[2], arguments[5])
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _emit(builder: Any, vectors: int, arrays: Any, first: Any, column: Any) -> None:
    """sums[r][v] += filters[k, r] · vector v of the cells at first + offsets[k], for all k; then scores = sums."""
    filters, cells, offsets, scores = arrays
    index, floats = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
    terms = builder.extract_value(offsets.shape, 0)

    before = builder.block
    loop = builder.append_basic_block("terms")
    after = builder.append_basic_block("sums")
    builder.branch(loop)

    builder.position_at_end(loop)
    k = builder.phi(index)
    k.add_incoming(index(0), before)
    sums = [[builder.phi(floats) for _ in range(vectors)] for _ in range(POINTS)]
    start = builder.add(first, builder.load(builder.gep(offsets.data, [k])))
    values = []
    for v in range(vectors):
        place = builder.gep(cells.data, [builder.add(start, index(v * LANES))])
        values.append(builder.load(builder.bitcast(place, floats.as_pointer()), align=4))
    for r in range(POINTS):
        place = builder.gep(filters.data, [builder.add(builder.mul(k, index(POINTS)), index(r))])
        weight = _broadcast(builder, builder.load(place))
        for v in range(vectors):
            product = builder.fmul(values[v], weight, flags=("contract",))
            total = builder.fadd(sums[r][v], product, flags=("contract",))
            sums[r][v].add_incoming(ir.Constant(floats, None), before)
            sums[r][v].add_incoming(total, loop)
            sums[r][v] = total
    following = builder.add(k, index(1))
    k.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, terms), loop, after)

    builder.position_at_end(after)
    pitch = builder.extract_value(scores.shape, 1)
    for r in range(POINTS):
        row = builder.add(column, builder.mul(pitch, index(r)))
        for v in range(vectors):
            place = builder.gep(scores.data, [builder.add(row, index(v * LANES))])
            builder.store(sums[r][v], builder.bitcast(place, floats.as_pointer()), align=4)


def _broadcast(builder: Any, value: Any) -> Any:
    vector = ir.VectorType(ir.FloatType(), LANES)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


#: correlate_wide(filters, cells, first, offsets, scores, column):
#: scores[r, column + x] = Σ_k filters[k, r] · cells[first + offsets[k] + x] for r < POINTS, x < WIDE.
#: filters (K, POINTS), cells (N,), offsets (K,) int64 and scores (POINTS, ≥ column + WIDE) are C-contiguous.
correlate_wide = _micro_kernel(VECTORS)

#: The same for NARROW positions.
correlate_narrow = _micro_kernel(max(1, VECTORS // 2))

// SPDX-License-Identifier: Apache-2.0
// Products of one column whose batch lies in the sticks, as those of a depthwise convolution: the lanes of a vector are
// batches, and every value of k is one multiply-add of two vectors.
#pragma once
#include "matmul_operands.h"

SPYRE_ISA_BEGIN

constexpr int kLaneVectors = 4;  // vectors of batches that are summed at a time: a stick of 16-bit elements

/// The batch dim along which all operands are dense, in blocks of whole vectors; -1 if there is none.
inline int lane_dim(const Shape& shape, int batch, const View* const (&views)[3]) {
  for (int d = 0; d < batch; ++d) {
    bool dense = shape.extent[d] >= 16;
    for (const View* v : views) dense &= v->dim[d].inner == format_bytes(v->format) && v->dim[d].block % 16 == 0;
    if (dense) return d;
  }
  return -1;
}

/// One row: kLaneVectors or fewer vectors of A times those of B, which lie one after the other for each k.
template <Format f, int vectors>
void multiply_lanes(const std::byte* a, const int64_t* at, int64_t depth, const float* b, float* to) {
  F sum[vectors];
  SPYRE_UNROLL
  for (int v = 0; v < vectors; ++v) sum[v] = splat(0.0f);
  for (int64_t k = 0; k < depth; ++k, b += 16 * kLaneVectors) {
    F x[vectors];
    load_vectors<f, vectors>(a + at[k], x);
    SPYRE_UNROLL
    for (int v = 0; v < vectors; ++v) sum[v] = fma(x[v], load(b + v * 16), sum[v]);
  }
  SPYRE_UNROLL
  for (int v = 0; v < vectors; ++v) store(to + v * 16, sum[v]);
}

/// The same for lanes that do not fill vectors, or any format.
inline void multiply_some_lanes(Format f, const std::byte* a, const int64_t* at, int64_t depth, const float* b,
                                int64_t lanes, float* to) {
  alignas(64) float line[16 * kLaneVectors] = {};
  F sum[kLaneVectors];
  for (F& s : sum) s = splat(0.0f);
  for (int64_t k = 0; k < depth; ++k, b += 16 * kLaneVectors) {
    load_run(f, a + at[k], format_bytes(f), lanes, line);
    for (int v = 0; v < kLaneVectors; ++v) sum[v] = fma(load(line + v * 16), load(b + v * 16), sum[v]);
  }
  for (int v = 0; v < kLaneVectors; ++v) store(to + v * 16, sum[v]);
}

using LanesFunction = void (*)(const std::byte*, const int64_t*, int64_t, const float*, float*);

template <Format f>
LanesFunction lanes_function(int64_t lanes) {
  switch (lanes) {
    case 16:
      return multiply_lanes<f, 1>;
    case 32:
      return multiply_lanes<f, 2>;
    case 48:
      return multiply_lanes<f, 3>;
    case 64:
      return multiply_lanes<f, 4>;
    default:
      return nullptr;
  }
}

/// Byte offsets of some operands at every point of the dims in `mask`, row-major, the last one fastest.
inline int64_t* lane_offsets(ScratchSlot slot, const Shape& shape, uint32_t mask, const View* const* views, int n,
                             int64_t& count) {
  count = 1;
  for (int d = 0; d < shape.rank; ++d) count *= mask >> d & 1 ? shape.extent[d] : 1;
  int64_t* to = static_cast<int64_t*>(scratch(slot, sizeof(int64_t) * static_cast<size_t>(n * count)));
  for (int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < n; ++v) to[i * n + v] = 0;
    for (int64_t d = shape.rank - 1, rest = i; d >= 0; --d) {
      if (!(mask >> d & 1)) continue;
      for (int v = 0; v < n; ++v) to[i * n + v] += offset_of(views[v]->dim[d], rest % shape.extent[d]);
      rest /= shape.extent[d];
    }
  }
  return to;
}

/// Dims of [0, dims) along which B moves.
inline uint32_t moving(const Shape& shape, int dims, const View& b) {
  uint32_t found = 0;
  for (int d = 0; d < dims; ++d) {
    const bool same = b.dim[d].inner == 0 && (b.dim[d].block == 0 || b.dim[d].outer == 0);
    if (shape.extent[d] > 1 && !same) found |= 1u << d;
  }
  return found;
}

/// The rows that share one B, `lane` in vectors. `rows` are the offsets of A and C.
inline void multiply_lane_rows(const Problem& p, const View* const (&views)[3], int lane, int64_t extent,
                               const int64_t* base, const int64_t* rows, int64_t count) {
  constexpr int64_t kLanes = 16 * kLaneVectors;
  const View &c = *views[0], &a = *views[1], &b = *views[2];
  const auto depth = static_cast<size_t>(p.k);
  float* weights = static_cast<float*>(scratch(kScratchB, sizeof(float) * kLanes * depth));
  int64_t* at = static_cast<int64_t*>(scratch(kScratchA, sizeof(int64_t) * depth));
  for (int64_t k = 0; k < p.k; ++k) at[k] = p.a.offset_of_k(p.a.column, k);
  alignas(64) float sums[kLanes];
  for (int64_t l = 0, lanes; l < extent; l += lanes) {
    lanes = min64(kLanes, extent - l);
    for (const View* v : views)
      if (const int64_t block = v->dim[lane].block) lanes = min64(lanes, block - l % block);
    for (int64_t k = 0; k < p.k; ++k) {
      float* to = weights + k * kLanes;
      const std::byte* from = b.base + base[2] + offset_of(b.dim[lane], l) + p.b.offset_of_k(p.b.row, k);
      load_run(b.format, from, format_bytes(b.format), lanes, to);
      for (int64_t i = lanes; i < kLanes; ++i) to[i] = 0.0f;
    }
    LanesFunction run = nullptr;
    if (a.format == Format::SEN169_FP16) run = lanes_function<Format::SEN169_FP16>(lanes);
    if (a.format == Format::IEEE_FP32) run = lanes_function<Format::IEEE_FP32>(lanes);
    for (int64_t r = 0; r < count; ++r) {
      const std::byte* from = a.base + base[1] + offset_of(a.dim[lane], l) + rows[2 * r + 1];
      if (run) {
        run(from, at, p.k, weights, sums);
      } else {
        multiply_some_lanes(a.format, from, at, p.k, weights, lanes, sums);
      }
      std::byte* to = c.base + base[0] + offset_of(c.dim[lane], l) + rows[2 * r];
      store_run(c.format, to, format_bytes(c.format), lanes, sums);
    }
  }
}

/// Does the whole product if it is of this kind. `p` knows its taps.
inline bool multiply_batches(const Shape& shape, int m, const Problem& p, const View& c, const View& a, const View& b) {
  if (shape.extent[m + 1] != 1 || p.accumulate || is_integer(a.format) || is_integer(b.format)) return false;
  const View* const views[3] = {&c, &a, &b};
  const int lane = lane_dim(shape, m, views);
  if (lane < 0) return false;
  const uint32_t apart = moving(shape, m + 1, b) & ~(1u << lane), all = (2u << m) - 1;
  int64_t groups, count;
  const int64_t* base = lane_offsets(kScratchRuns, shape, apart, views, 3, groups);
  const int64_t* rows = lane_offsets(kScratchRows, shape, all & ~apart & ~(1u << lane), views, 2, count);
  for (int64_t g = 0; g < groups; ++g)
    multiply_lane_rows(p, views, lane, shape.extent[lane], base + 3 * g, rows, count);
  return true;
}

SPYRE_ISA_END

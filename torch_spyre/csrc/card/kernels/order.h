// SPDX-License-Identifier: Apache-2.0
// Kernels that order values: arg_reduce and sort.
//
// Both compare int32 keys whose order is that of the values: integers are their own key, floats map their bits
// monotonically, -0 and +0 to the same key, and NaN to the largest.
#pragma once
#include "walk.h"

SPYRE_ISA_BEGIN

/// Keys of n floats. With `reversed` the order is that of the negated values; NaN stays the largest.
inline void float_keys(const float* x, int64_t n, bool reversed, int32_t* key) {
  const I flip = splat_i(reversed ? -1 : 0);
  for (int64_t i = 0; i < n; i += 16) {
    const int m = static_cast<int>(min64(16, n - i));
    const F v = add(load_n(x + i, m), splat(0.0f));  // -0 becomes +0
    const I u = bits(v);
    I k = xor_(xor_(u, and_(sar<31>(u), splat_i(0x7FFFFFFF))), flip);
    store_i_n(key + i, select(unordered(v), splat_i(0x7FFFFFFF), k), m);
  }
}

/// The line as keys, through `values` (floats) or directly (integers).
inline void load_keys(const View& in, const std::byte* base, int dim, int64_t v, int64_t n, bool reversed,
                      float* values, int32_t* key) {
  if (is_integer(in.format)) {
    load_line(in, base, dim, v, n, key);
    for (int64_t i = 0; reversed && i < n; ++i) key[i] = ~key[i];
  } else {
    load_line(in, base, dim, v, n, values);
    float_keys(values, n, reversed, key);
  }
}

struct Best {
  int32_t key, index;
};
SPYRE_INLINE Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.index < a.index) ? b : a; }

/// First largest key of a line: lane l takes the elements l, l + 16, ...
inline Best best_of_line(const View& in, const std::byte* base, int dim, int64_t extent, bool reversed) {
  alignas(64) float values[kChunk];
  alignas(64) int32_t key[kChunk], index[16];
  I top = splat_i(INT32_MIN), where = splat_i(INT32_MAX);
  Best best{INT32_MIN, INT32_MAX};
  for (int l = 0; l < 16; ++l) index[l] = l;
  const I lane = load_i(index);
  for (int64_t v = 0; v < extent; v += kChunk) {
    const int64_t n = min64(kChunk, extent - v);
    load_keys(in, base, dim, v, n, reversed, values, key);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      const I k = load_i(key + i), at = add(lane, splat_i(static_cast<int32_t>(v + i)));
      const M more = lt(top, k);
      // Equal keys keep the first index; the start value has none yet.
      where = select(more, at, select(eq(top, k), minimum(where, at), where));
      top = select(more, k, top);
    }
    for (; i < n; ++i) best = better(best, {key[i], static_cast<int32_t>(v + i)});
  }
  store_i(key, top);
  store_i(index, where);
  for (int l = 0; l < 16; ++l) best = better(best, {key[l], index[l]});
  return best;
}

/// Up to 16 lines side by side.
inline void best_of_columns(const View& in, const std::byte* base, int64_t step, int m, int dim, int64_t extent,
                            bool reversed, int32_t* index) {
  alignas(64) float values[16] = {};
  alignas(64) int32_t key[16] = {};
  I top = splat_i(INT32_MIN), where = splat_i(0);
  for (int64_t v = 0; v < extent; ++v) {
    const std::byte* p = base + offset_of(in.dim[dim], v);
    if (is_integer(in.format)) {
      load_run_int(in.format, p, step, m, key);
      if (reversed) store_i(key, xor_(load_i(key), splat_i(-1)));
    } else {
      load_run(in.format, p, step, m, values);
      float_keys(values, 16, reversed, key);
    }
    const I k = load_i(key);
    const M more = lt(top, k);
    where = select(more, splat_i(static_cast<int32_t>(v)), where);
    top = select(more, k, top);
  }
  store_i_n(index, where, m);
}

void arg_reduce(ROp op, const Shape& shape, int dim, const View* out_index, const View* out_value, const View& in) {
  const View* views[3] = {&in, out_index ? out_index : out_value, out_value ? out_value : out_index};
  const int64_t extent = shape.extent[dim];
  const bool reversed = op == ROp::min;
  if (is_empty(shape)) return;
  for_each_loops<3>(shape, ~(1u << dim), views, 3, [&](const Loops<3>& loops) {
    const int inner = loops.rank - 1;
    const int64_t n = inner < 0 ? 1 : loops.extent[inner];
    const int64_t no_step[3] = {}, *step = inner < 0 ? no_step : loops.stride[inner];
    const bool lines = n < 8 || in.dim[dim].inner == format_bytes(in.format);
    for_each_point(loops, inner < 0 ? 0 : inner, [&](std::byte* const* p) {
      for (int64_t i = 0; i < n; i += 16) {
        const int m = static_cast<int>(min64(16, n - i));
        const std::byte* base = p[0] + i * step[0];
        int32_t index[16];
        if (lines) {
          for (int l = 0; l < m; ++l) index[l] = best_of_line(in, base + l * step[0], dim, extent, reversed).index;
        } else {
          best_of_columns(in, base, step[0], m, dim, extent, reversed, index);
        }
        if (out_index) store_run_int(out_index->format, p[1] + i * step[1], step[1], m, index);
        for (int l = 0; out_value && l < m; ++l) {
          const std::byte* from = base + l * step[0] + offset_of(in.dim[dim], index[l]);
          move_run(out_value->format, p[2] + (i + l) * step[2], 0, in.format, from, 0, 1);
        }
      }
    });
  });
}

/// Key and index in one number: its order is the order of the keys, ties by index.
using Entry = uint64_t;
SPYRE_INLINE Entry entry_of(int32_t key, int64_t index) {
  return static_cast<Entry>(static_cast<uint32_t>(key) ^ 0x80000000u) << 32 | static_cast<uint32_t>(index);
}

inline void sort_short(Entry* a, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const Entry x = a[i];
    int64_t j = i;
    for (; j > 0 && a[j - 1] > x; --j) a[j] = a[j - 1];
    a[j] = x;
  }
}

/// Radix sort of the key bytes from the lowest up; it keeps the order of equal keys. Returns where the result is.
inline Entry* sort_entries(Entry* a, Entry* spare, int64_t n) {
  constexpr int kShort = 48;
  if (n <= kShort) {
    sort_short(a, n);
    return a;
  }
  int64_t count[4][256] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (int digit = 0; digit < 4; ++digit) ++count[digit][a[i] >> (32 + 8 * digit) & 255];
  }
  for (int digit = 0; digit < 4; ++digit) {
    const int shift = 32 + 8 * digit;
    if (count[digit][a[0] >> shift & 255] == n) continue;  // all equal here
    int64_t at[256], sum = 0;
    for (int b = 0; b < 256; ++b) {
      at[b] = sum;
      sum += count[digit][b];
    }
    for (int64_t i = 0; i < n; ++i) spare[at[a[i] >> shift & 255]++] = a[i];
    Entry* t = a;
    a = spare;
    spare = t;
  }
  return a;
}

/// Restores the heap (largest entry first) of n entries below position i.
SPYRE_INLINE void sift(Entry* a, int64_t i, int64_t n) {
  const Entry x = a[i];
  for (int64_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && a[child + 1] > a[child]) ++child;
    if (a[child] <= x) break;
    a[i] = a[child];
  }
  a[i] = x;
}

/// The k smallest entries, sorted, in a[0..k): a heap of the best so far turns most others away.
inline void sort_top(Entry* a, int64_t n, int64_t k) {
  for (int64_t i = k / 2 - 1; i >= 0; --i) sift(a, i, k);
  for (int64_t i = k; i < n; ++i) {
    if (a[i] >= a[0]) continue;
    a[0] = a[i];
    sift(a, 0, k);
  }
  for (int64_t end = k - 1; end > 0; --end) {
    const Entry largest = a[0];
    a[0] = a[end];
    a[end] = largest;
    sift(a, 0, end);
  }
}

void sort(const Shape& shape, int dim, bool descending, [[maybe_unused]] bool stable, int64_t k, const View* out_value,
          const View* out_index, const View& in) {
  const View* const views[3] = {&in, out_value ? out_value : &in, out_index ? out_index : &in};
  if (is_empty(shape) || k <= 0) return;
  const int64_t n = shape.extent[dim];
  const size_t elements = static_cast<size_t>(n) + 16;
  int32_t* key = static_cast<int32_t*>(scratch(kScratchA, elements * 4));
  float* values = static_cast<float*>(scratch(kScratchB, elements * 4));
  Entry* entries = static_cast<Entry*>(scratch(kScratchC, elements * 16));
  const bool integers = is_integer(in.format);
  for_each_line(shape, dim, views, [&](std::byte* const* p) {
    load_keys(in, p[0], dim, 0, n, false, values, key);
    const int32_t flip = descending ? -1 : 0;
    for (int64_t i = 0; i < n; ++i) entries[i] = entry_of(key[i] ^ flip, i);
    const Entry* sorted = entries;
    if (k <= n / 16) {
      sort_top(entries, n, k);
    } else {
      sorted = sort_entries(entries, entries + elements, n);
    }
    for (int64_t v = 0; v < k; v += kChunk) {
      const int64_t m = min64(kChunk, k - v);
      int32_t index[kChunk], whole[kChunk];
      float real[kChunk];
      for (int64_t i = 0; i < m; ++i) {
        index[i] = static_cast<int32_t>(static_cast<uint32_t>(sorted[v + i]));
        if (integers) whole[i] = key[index[i]];
        if (!integers) real[i] = values[index[i]];
      }
      if (out_value && integers) store_line(*out_value, p[1], dim, v, m, whole);
      if (out_value && !integers) store_line(*out_value, p[1], dim, v, m, real);
      if (out_index) store_line(*out_index, p[2], dim, v, m, index);
    }
  });
}

SPYRE_ISA_END

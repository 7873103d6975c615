// SPDX-License-Identifier: Apache-2.0
// Copies with conversion: DMA between host tensors and device layouts, restickify, moves between memories.
#pragma once
#include "convert.h"
#include "half.h"
#include "layout.h"
#include "transpose.h"

SPYRE_ISA_BEGIN

/// Rows of n contiguous elements, `out` and `in` bytes apart.
struct Rows {
  int64_t n, rows = 1, out = 0, in = 0;
};

/// Converts rows. False if a value does not fit.
using ConvertFunction = bool (*)(Format to, Format from, std::byte* out, const std::byte* in, const Rows& r);

inline bool convert_same(Format to, Format, std::byte* out, const std::byte* in, const Rows& r) {
  const int64_t bytes = r.n * format_bytes(to);
  for (int64_t row = 0; row < r.rows; ++row, out += r.out, in += r.in) {
    if (bytes == 128) {
      __builtin_memcpy(out, in, 128);
    } else {
      __builtin_memcpy(out, in, static_cast<size_t>(bytes));
    }
  }
  return true;
}

constexpr bool is_host_float(Format f) {
  return f == Format::IEEE_FP32 || f == Format::IEEE_FP16 || f == Format::BFLOAT16;
}

template <Format to, Format from>
SPYRE_INLINE void convert_row(std::byte* out, const std::byte* in, int64_t n) {
  constexpr bool kHost = from == Format::SEN169_FP16 && is_host_float(to);
  constexpr bool kFromHalf = from == Format::IEEE_FP16;
  constexpr int kIn = vector_bytes(from), kOut = vector_bytes(to);
  int64_t i = 0;
  constexpr bool kHalves = (from == Format::IEEE_FP16 && to == Format::SEN169_FP16) ||
                           (from == Format::SEN169_FP16 && to == Format::IEEE_FP16);
  for (; i + 32 <= n; i += 32) {
    if constexpr (kHalves) {
      if (convert_half<to == Format::SEN169_FP16>(out + i * kOut, in + i * kIn)) continue;
    }
    F a, b;
    load_pair<from, kHost>(in + i * kIn, a, b);
    if constexpr (from == Format::SEN169_FP16 && to == Format::IEEE_FP32) {  // NaN is canonical already
      store(reinterpret_cast<float*>(out) + i, a);
      store(reinterpret_cast<float*>(out) + i + 16, b);
    } else {
      store_pair<to, kFromHalf>(out + i * kOut, a, b);
    }
  }
  for (; i < n; i += 16) {
    const int m = static_cast<int>(min64(16, n - i));
    store_vector<to, kFromHalf>(out + i * kOut, load_vector<from, kHost>(in + i * kIn, m), m);
  }
}

constexpr int64_t kAheadBytes = 4096;  // bytes; a prefetch past the end does no harm

template <Format to, Format from>
bool convert_vector(Format, Format, std::byte* out, const std::byte* in, const Rows& r) {
  // A stick is the commonest row: without loops it costs its arithmetic.
  if (r.n == 32 || r.n == 64) {
    for (int64_t row = 0; row < r.rows; ++row, out += r.out, in += r.in) {
      // The rows of the sticks to come: scratchpads of many cores do not stay in the host's caches.
      __builtin_prefetch(out + kAheadBytes, 1);
      __builtin_prefetch(out + kAheadBytes + 64, 1);
      convert_row<to, from>(out, in, 32);
      if (r.n == 64) convert_row<to, from>(out + 32 * vector_bytes(to), in + 32 * vector_bytes(from), 32);
    }
    return true;
  }
  for (int64_t row = 0; row < r.rows; ++row, out += r.out, in += r.in) convert_row<to, from>(out, in, r.n);
  return true;
}

/// Row after row, for the conversions that are not worth more.
template <bool (*convert)(Format, Format, std::byte*, const std::byte*, int64_t)>
bool each_row(Format to, Format from, std::byte* out, const std::byte* in, const Rows& r) {
  bool fits = true;
  for (int64_t row = 0; row < r.rows; ++row) fits &= convert(to, from, out + row * r.out, in + row * r.in, r.n);
  return fits;
}

inline bool convert_integers(Format to, Format from, std::byte* out, const std::byte* in, int64_t n) {
  const int ob = format_bytes(to), ib = format_bytes(from);
  bool fits = true;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t x = read_int(from, in + i * ib);
    fits &= x == static_cast<int32_t>(x) || from != Format::IEEE_INT64;
    write_int(to, out + i * ob, x);
  }
  return fits;
}

inline bool convert_int64_to_int32(Format, Format, std::byte* out, const std::byte* in, int64_t n) {
  int64_t lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t x = read_as<int64_t>(in + i * 8);
    lost |= x ^ static_cast<int32_t>(x);
    write_as(out + i * 4, static_cast<int32_t>(x));
  }
  return lost == 0;
}

inline bool convert_int32_to_int64(Format, Format, std::byte* out, const std::byte* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) write_as(out + i * 8, static_cast<int64_t>(read_as<int32_t>(in + i * 4)));
  return true;
}

inline bool convert_any(Format to, Format from, std::byte* out, const std::byte* in, int64_t n) {
  const int ob = format_bytes(to), ib = format_bytes(from);
  float t[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = min64(kChunk, n - i);
    load_run(from, in + i * ib, ib, m, t);
    store_run(to, out + i * ob, ob, m, t);
  }
  return true;
}

template <Format to>
inline ConvertFunction pick_vector_from(Format from) {
  switch (from) {
    case Format::SEN169_FP16:
      return convert_vector<to, Format::SEN169_FP16>;
    case Format::IEEE_FP32:
      return convert_vector<to, Format::IEEE_FP32>;
    case Format::IEEE_FP16:
      return convert_vector<to, Format::IEEE_FP16>;
    case Format::BFLOAT16:
      return convert_vector<to, Format::BFLOAT16>;
    default:
      return each_row<convert_any>;
  }
}

inline ConvertFunction pick_convert(Format to, Format from) {
  if (to == from) return convert_same;
  if (to == Format::IEEE_INT32 && from == Format::IEEE_INT64) return each_row<convert_int64_to_int32>;
  if (to == Format::IEEE_INT64 && from == Format::IEEE_INT32) return each_row<convert_int32_to_int64>;
  if (is_integer(to) && is_integer(from)) return each_row<convert_integers>;
  switch (to) {
    case Format::SEN169_FP16:
      return pick_vector_from<Format::SEN169_FP16>(from);
    case Format::IEEE_FP32:
      return pick_vector_from<Format::IEEE_FP32>(from);
    case Format::IEEE_FP16:
      return pick_vector_from<Format::IEEE_FP16>(from);
    case Format::BFLOAT16:
      return pick_vector_from<Format::BFLOAT16>(from);
    default:
      return each_row<convert_any>;
  }
}

inline void gather_raw(int bytes, void* to, const std::byte* p, int64_t stride, int64_t n) {
  switch (bytes) {
    case 1:
      return gather_elements<uint8_t>(to, p, stride, n);
    case 2:
      return gather_elements<uint16_t>(to, p, stride, n);
    case 4:
      return gather_elements<uint32_t>(to, p, stride, n);
    default:
      return gather_elements<uint64_t>(to, p, stride, n);
  }
}
inline void scatter_raw(int bytes, std::byte* p, int64_t stride, const void* from, int64_t n) {
  switch (bytes) {
    case 1:
      return scatter_elements<uint8_t>(p, stride, from, n);
    case 2:
      return scatter_elements<uint16_t>(p, stride, from, n);
    case 4:
      return scatter_elements<uint32_t>(p, stride, from, n);
    default:
      return scatter_elements<uint64_t>(p, stride, from, n);
  }
}

/// What a copy does, apart from where.
struct Transfer {
  Format to, from;
  int to_bytes, from_bytes;
  ConvertFunction convert;

  Transfer(Format to, Format from)
      : to(to),
        from(from),
        to_bytes(format_bytes(to)),
        from_bytes(format_bytes(from)),
        convert(pick_convert(to, from)) {}

  /// n elements at constant strides.
  bool run(std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride, int64_t n) const {
    const bool out_dense = out_stride == to_bytes, in_dense = in_stride == from_bytes;
    if (out_dense && in_dense) return convert(to, from, out, in, {n});
    alignas(64) std::byte source[kChunk * 8], target[kChunk * 8];
    bool fits = true;
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = min64(kChunk, n - i);
      const std::byte* s = in + i * in_stride;
      std::byte* t = out + i * out_stride;
      if (!in_dense) gather_raw(from_bytes, source, s, in_stride, m);
      fits &= convert(to, from, out_dense ? t : target, in_dense ? s : source, {m});
      if (!out_dense) scatter_raw(to_bytes, t, out_stride, target, m);
    }
    return fits;
  }
};

constexpr int64_t kStreamBytes = 4 << 20;  // larger results bypass the cache: nothing of them would be left to reuse
constexpr int64_t kLine = 64;

/// Dense runs whose results go past the cache. `out` and the run are whole cache lines.
inline bool stream_run(const Transfer& t, std::byte* out, const std::byte* in, int64_t n) {
  alignas(64) std::byte target[kChunk * 8];
  bool fits = true;
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = min64(kChunk, n - i);
    const std::byte* s = in + i * t.from_bytes;
    if (t.to != t.from) {
      fits &= t.convert(t.to, t.from, target, s, {m});
      s = target;
    }
    for (int64_t b = 0; b < m * t.to_bytes; b += kLine) stream_line(out + i * t.to_bytes + b, s + b);
  }
  return fits;
}

inline bool can_stream(const Loops<2>& loops, const Transfer& t) {
  const int inner = loops.rank - 1;
  if (inner < 0 || loops.stride[inner][0] != t.to_bytes || loops.stride[inner][1] != t.from_bytes) return false;
  int64_t bytes = t.to_bytes, lines = reinterpret_cast<int64_t>(loops.base[0]) | loops.extent[inner] * t.to_bytes;
  for (int d = 0; d <= inner; ++d) bytes *= loops.extent[d];
  for (int d = 0; d < inner; ++d) lines |= loops.stride[d][0];
  return bytes >= kStreamBytes && lines % kLine == 0;
}

/// Innermost dim: one run. Of the two dims around it, the one that goes on where the last run ended in `in` is the
/// outer loop over tiles of the other: few streams to read, pieces of a tile to write.
inline bool copy_runs(const Loops<2>& loops, const Transfer& transfer) {
  const int inner = loops.rank - 1, n_outer = loops.rank > 3 ? loops.rank - 3 : 0;
  const int64_t n = inner < 0 ? 1 : loops.extent[inner];
  const int64_t so = inner < 0 ? 0 : loops.stride[inner][0], si = inner < 0 ? 0 : loops.stride[inner][1];
  int64_t extent[2] = {1, 1}, to[2] = {}, from[2] = {};
  for (int i = 0; i < 2 && loops.rank - 2 - i >= 0; ++i) {
    extent[i] = loops.extent[loops.rank - 2 - i];
    to[i] = loops.stride[loops.rank - 2 - i][0];
    from[i] = loops.stride[loops.rank - 2 - i][1];
  }
  const bool crossed = extent[1] > 1 && abs64(from[1]) < abs64(from[0]);
  const int near = crossed ? 1 : 0, far = 1 - near;
  const int64_t tile = abs64(to[near]) < abs64(to[far]) ? 1 : 8;
  const bool stream = can_stream(loops, transfer);
  const bool dense = so == transfer.to_bytes && si == transfer.from_bytes && !stream;
  bool fits = true;
  for_each_point(loops, n_outer, [&](std::byte* const* p) {
    for (int64_t f0 = 0; f0 < extent[far]; f0 += tile) {
      const int64_t f1 = min64(f0 + tile, extent[far]);
      if (dense && tile == 1) {
        fits &= transfer.convert(transfer.to, transfer.from, p[0] + f0 * to[far], p[1] + f0 * from[far],
                                 {n, extent[near], to[near], from[near]});
        continue;
      }
      for (int64_t i = 0; i < extent[near]; ++i) {
        if (dense) {
          fits &= transfer.convert(transfer.to, transfer.from, p[0] + i * to[near] + f0 * to[far],
                                   p[1] + i * from[near] + f0 * from[far], {n, f1 - f0, to[far], from[far]});
          continue;
        }
        for (int64_t f = f0; f < f1; ++f) {
          std::byte* out = p[0] + i * to[near] + f * to[far];
          const std::byte* in = p[1] + i * from[near] + f * from[far];
          fits &= stream ? stream_run(transfer, out, in, n) : transfer.run(out, so, in, si, n);
        }
      }
    }
  });
  if (stream) stream_fence();
  return fits;
}

/// Out is dense along dim o, in along dim i: tiles are converted (if need be) and transposed.
inline bool copy_transposed(Loops<2> loops, int o, int i, const Transfer& transfer) {
  const int64_t kTile = 64;
  const int64_t no = loops.extent[o], ni = loops.extent[i];
  const int64_t out_row = loops.stride[i][0], in_row = loops.stride[o][1];
  int outer = 0;
  for (int d = 0; d < loops.rank; ++d) {
    if (d == o || d == i) continue;
    loops.extent[outer] = loops.extent[d];
    loops.stride[outer][0] = loops.stride[d][0];
    loops.stride[outer][1] = loops.stride[d][1];
    ++outer;
  }
  alignas(64) std::byte converted[64 * 64 * 8];
  const bool same = transfer.to == transfer.from;
  bool fits = true;
  for_each_point(loops, outer, [&](std::byte* const* p) {
    for (int64_t a = 0; a < no; a += kTile) {
      const int64_t rows = min64(kTile, no - a);
      for (int64_t b = 0; b < ni; b += kTile) {
        const int64_t columns = min64(kTile, ni - b);
        std::byte* out = p[0] + a * transfer.to_bytes + b * out_row;
        const std::byte* in = p[1] + a * in_row + b * transfer.from_bytes;
        int64_t pitch = in_row;
        if (!same) {
          pitch = kTile * transfer.to_bytes;
          for (int64_t r = 0; r < rows; ++r) {
            fits &= transfer.convert(transfer.to, transfer.from, converted + r * pitch, in + r * in_row, {columns});
          }
          in = converted;
        }
        transpose(transfer.to_bytes, out, out_row, in, pitch, rows, columns);
      }
    }
  });
  return fits;
}

inline bool copy_loops(const Loops<2>& loops, const Transfer& transfer) {
  int o = -1, i = -1;
  for (int d = 0; d < loops.rank; ++d) {
    if (loops.stride[d][0] == transfer.to_bytes) o = d;
    if (loops.stride[d][1] == transfer.from_bytes) i = d;
  }
  if (o >= 0 && i >= 0 && o != i && loops.extent[o] >= 4 && loops.extent[i] >= 4) {
    return copy_transposed(loops, o, i, transfer);
  }
  return copy_runs(loops, transfer);
}

/// Layouts that do not separate: stretch after stretch along the dim that gives the longest ones.
inline bool copy_stretches(const Shape& shape, const View& out, const View& in, const Transfer& transfer) {
  int inner = shape.rank - 1;
  const LayoutMap& layout = *(out.layout ? out.layout : in.layout);
  for (int d = shape.rank - 1; d >= 0; --d) {
    if (layout.stride[d] > 0 && shape.extent[d] > 1 &&
        (layout.stride[d] < layout.stride[inner] || shape.extent[inner] == 1 || layout.stride[inner] <= 0)) {
      inner = d;
    }
  }
  int64_t index[kMaxDims] = {};
  bool fits = true;
  for (;;) {
    const int64_t extent = shape.rank ? shape.extent[inner] : 1;
    for (int64_t v = 0; v < extent;) {
      index[inner < 0 ? 0 : inner] = v;
      const Stretch a = stretch_at(shape, out, index, inner < 0 ? 0 : inner, extent - v);
      const Stretch b = stretch_at(shape, in, index, inner < 0 ? 0 : inner, extent - v);
      const int64_t n = min64(a.n, b.n);
      fits &= transfer.run(out.base + a.offset, a.step, in.base + b.offset, b.step, n);
      v += n;
    }
    int d = shape.rank - 1;
    for (; d >= 0; --d) {
      if (d == inner) continue;
      if (++index[d] < shape.extent[d]) break;
      index[d] = 0;
    }
    if (d < 0) return fits;
  }
}

bool copy(const Shape& shape, const View& out, const View& in) {
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.extent[d] <= 0) return true;
  }
  const Transfer transfer(out.format, in.format);
  Map maps[2][kMaxDims];
  Box<2> box;
  if (!maps_of(shape, out, maps[0], &box.base[0]) || !maps_of(shape, in, maps[1], &box.base[1])) {
    return copy_stretches(shape, out, in, transfer);
  }
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.extent[d] == 1) continue;
    box.extent[box.rank] = shape.extent[d];
    box.map[box.rank][0] = maps[0][d];
    box.map[box.rank][1] = maps[1][d];
    ++box.rank;
  }
  bool fits = true;
  split_and_run(box, [&](const Loops<2>& loops) { fits &= copy_loops(loops, transfer); });
  return fits;
}

SPYRE_ISA_END

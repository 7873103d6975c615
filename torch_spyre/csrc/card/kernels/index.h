// SPDX-License-Identifier: Apache-2.0
// gather and scatter: elements of a table at addresses that other elements name.
#pragma once
#include "copy.h"
#include "walk.h"

SPYRE_ISA_BEGIN

/// Offset of an entry that a masked kernel skips.
constexpr int64_t kSkipped = INT64_MIN;

/// The indices of one gather or scatter, and what happens to a value out of range.
struct Indices {
  const TableIndex* index;
  int n;
  bool masked;
  BadIndex* bad;

  /// Adds what n_points values of index k contribute to the offsets, if all are int32 in range and the table has one
  /// step for each.
  static bool add_plain(const TableIndex& t, const std::byte* p, int64_t step, int64_t n_points, int64_t* offset) {
    if (t.view.format != Format::IEEE_INT32 || t.along.block != 0) return false;
    bool inside = true;
    for (int64_t i = 0; i < n_points; ++i) {
      const int64_t v = read_as<int32_t>(p + i * step);
      inside &= v >= 0 && v < t.limit;
    }
    if (!inside) return false;
    for (int64_t i = 0; i < n_points; ++i) offset[i] += read_as<int32_t>(p + i * step) * t.along.inner;
    return true;
  }

  /// Adds what n_points values of index k contribute to the offsets. False at the first one out of range.
  bool add(int k, const std::byte* p, int64_t step, int64_t n_points, int64_t* offset) const {
    const TableIndex& t = index[k];
    if (!masked && add_plain(t, p, step, n_points, offset)) return true;
    const Format f = t.view.format;
    for (int64_t i = 0; i < n_points; ++i) {
      const int64_t v = f == Format::IEEE_INT32 ? read_as<int32_t>(p + i * step) : read_int(f, p + i * step);
      if (v >= 0 && v < t.limit) {
        if (offset[i] != kSkipped) offset[i] += offset_of(t.along, v);
        continue;
      }
      offset[i] = kSkipped;
      if (masked) continue;
      *bad = {v, t.limit};
      return false;
    }
    return true;
  }

  /// Byte offsets of the table entries that points [first, first + n_points) of a stretch name; p and step are those of
  /// the indices.
  bool resolve(std::byte* const* p, const int64_t* step, int64_t first, int64_t n_points, int64_t* offset) const {
    for (int64_t i = 0; i < n_points; ++i) offset[i] = 0;
    for (int k = 0; k < n; ++k) {
      if (!add(k, p[k] + first * step[k], step[k], n_points, offset)) return false;
    }
    return true;
  }

  bool all_still(const int64_t* step) const {
    for (int k = 0; k < n; ++k) {
      if (step[k]) return false;
    }
    return true;
  }
};

constexpr int kTableViews = 2 + kMaxIndices;

/// n elements of the table at offsets from places that are `step` apart, side by side.
template <typename Element>
inline void take_elements(std::byte* to, const std::byte* table, int64_t step, const int64_t* offset, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const Element x = offset[j] == kSkipped ? Element{} : read_as<Element>(table + j * step + offset[j]);
    write_as(to + j * static_cast<int64_t>(sizeof(Element)), x);
  }
}

/// n elements of the table whose offsets are known, to a run of the output.
inline void gather_run(Format to, std::byte* out, int64_t out_step, Format from, const std::byte* table, int64_t step,
                       const int64_t* offset, int64_t n) {
  const int bytes = format_bytes(from);
  alignas(64) std::byte staged[kChunk * 8];
  std::byte* taken = to == from && out_step == bytes ? out : staged;
  if (bytes == 1)
    take_elements<uint8_t>(taken, table, step, offset, n);
  else if (bytes == 2)
    take_elements<uint16_t>(taken, table, step, offset, n);
  else if (bytes == 4)
    take_elements<uint32_t>(taken, table, step, offset, n);
  else
    take_elements<uint64_t>(taken, table, step, offset, n);
  if (taken == staged) move_run(to, out, out_step, from, staged, bytes, n);
}

constexpr int64_t kAhead = 8;  // rows of a table that are fetched before they are copied

/// Rows of a table whose indices do not vary along the row: each is moved whole.
inline bool gather_rows(const Indices& indices, const Rectangle<kTableViews>& r, const View& out, const View& table,
                        std::byte* const* p) {
  int64_t offset[kChunk];
  constexpr std::byte zero[8] = {};
  for (int64_t i = 0; i < r.rows; i += kChunk) {
    const int64_t m = min64(kChunk, r.rows - i);
    if (!indices.resolve(p + 2, r.row_stride + 2, i, m, offset)) return false;
    for (int64_t j = 0; j < m; ++j) {
      const std::byte* row = p[1] + (i + j) * r.row_stride[1];
      std::byte* to = p[0] + (i + j) * r.row_stride[0];
      if (offset[j] == kSkipped) {
        move_run(out.format, to, r.stride[0], table.format, zero, 0, r.n);
        continue;
      }
      if (j + kAhead < m && offset[j + kAhead] != kSkipped) {
        const std::byte* next = row + kAhead * r.row_stride[1] + offset[j + kAhead];
        __builtin_prefetch(next);
        __builtin_prefetch(next + 64);
      }
      move_run(out.format, to, r.stride[0], table.format, row + offset[j], r.stride[1], r.n);
    }
  }
  return true;
}

/// A rectangle of a table that one set of indices names, as a page is: moved like a copy, transposed if need be.
inline bool gather_rectangle(const Indices& indices, const Rectangle<kTableViews>& r, const Transfer& transfer,
                             std::byte* const* p) {
  int64_t offset;
  if (!indices.resolve(p + 2, r.row_stride + 2, 0, 1, &offset)) return false;
  Loops<2> loops;
  loops.operands = 2;
  for (int k = 0; k < 2; ++k) loops.base[k] = p[k];
  loops.base[1] += offset;
  const int64_t extent[2] = {r.rows, r.n};
  const int64_t* const stride[2] = {r.row_stride, r.stride};
  for (int d = 0; d < 2; ++d) {
    if (extent[d] == 1) continue;
    loops.extent[loops.rank] = extent[d];
    for (int k = 0; k < 2; ++k) loops.stride[loops.rank][k] = stride[d][k];
    ++loops.rank;
  }
  return copy_loops(loops, transfer);
}

constexpr int64_t kCrossedTile = 64;

/// A loop along which the table is dense and the indices do not vary, while the output is dense along the innermost
/// one; -1 if there is none. Element by element, each of them would be a line of memory of its own.
inline int crossed_loop(const Indices& indices, const Loops<kTableViews>& loops, int bytes) {
  const int inner = loops.rank - 1;
  if (inner < 1 || indices.masked || loops.stride[inner][0] != bytes) return -1;
  for (int d = 0; d < inner; ++d) {
    if (loops.extent[d] >= 8 && loops.stride[d][1] == bytes && indices.all_still(loops.stride[d] + 2)) return d;
  }
  return -1;
}

/// Moves runs of the table along loop `d`, a tile at a time, and transposes the tile into the output.
inline bool gather_crossed(const Indices& indices, Loops<kTableViews> loops, int d, int bytes) {
  const int64_t columns = loops.extent[d], out_row = loops.stride[d][0];
  for (--loops.rank; d < loops.rank; ++d) {
    loops.extent[d] = loops.extent[d + 1];
    for (int k = 0; k < loops.operands; ++k) loops.stride[d][k] = loops.stride[d + 1][k];
  }
  const int inner = loops.rank - 1;
  const int64_t n = loops.extent[inner], pitch = kCrossedTile * bytes;
  const int64_t* step = loops.stride[inner];
  alignas(64) std::byte tile[kCrossedTile * kCrossedTile * 8];
  int64_t offset[kCrossedTile];
  bool ok = true;
  for_each_point(loops, inner, [&](std::byte* const* p) {
    for (int64_t i = 0; ok && i < n; i += kCrossedTile) {
      const int64_t m = min64(kCrossedTile, n - i);
      ok = indices.resolve(p + 2, step + 2, i, m, offset);
      for (int64_t c = 0; ok && c < columns; c += kCrossedTile) {
        const int64_t width = min64(kCrossedTile, columns - c);
        for (int64_t j = 0; j < m; ++j) {
          const std::byte* from = p[1] + (i + j) * step[1] + offset[j] + c * bytes;
          __builtin_memcpy(tile + j * pitch, from, static_cast<size_t>(width * bytes));
        }
        transpose(bytes, p[0] + i * bytes + c * out_row, out_row, tile, pitch, m, width);
      }
    }
  });
  return ok;
}

/// A row along which the indices vary: element by element.
inline bool gather_row(const Indices& indices, const int64_t* step, int64_t n, const View& out, const View& table,
                       std::byte* const* p) {
  int64_t offset[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t m = min64(kChunk, n - i);
    if (!indices.resolve(p + 2, step + 2, i, m, offset)) return false;
    gather_run(out.format, p[0] + i * step[0], step[0], table.format, p[1] + i * step[1], step[1], offset, m);
  }
  return true;
}

bool gather(const Shape& shape, const View& out, const View& table, const TableIndex* index, int n_index, bool masked,
            BadIndex* bad) {
  const Indices indices{index, n_index, masked, bad};
  const View* views[kTableViews] = {&out, &table};
  for (int k = 0; k < n_index; ++k) views[2 + k] = &index[k].view;
  bool ok = true;
  for_each_loops<kTableViews>(shape, ~0u, views, 2 + n_index, [&](const Loops<kTableViews>& loops) {
    int n_outer;
    const Rectangle<kTableViews> r = rectangle_of(loops, &n_outer);
    const bool whole = indices.all_still(r.stride + 2);
    const int bytes = format_bytes(table.format);
    const int crossed = !whole && out.format == table.format ? crossed_loop(indices, loops, bytes) : -1;
    if (crossed >= 0) {
      ok = ok && gather_crossed(indices, loops, crossed, bytes);
      return;
    }
    const bool same = whole && indices.all_still(r.row_stride + 2) && !masked && out.format == table.format;
    const Transfer transfer(out.format, same ? table.format : out.format);
    for_each_point(loops, n_outer, [&](std::byte* const* p) {
      if (same) {
        ok = ok && gather_rectangle(indices, r, transfer, p);
        return;
      }
      if (whole) {
        ok = ok && gather_rows(indices, r, out, table, p);
        return;
      }
      std::byte* row[kTableViews];
      for (int64_t i = 0; ok && i < r.rows; ++i) {
        for (int k = 0; k < loops.operands; ++k) row[k] = p[k] + i * r.row_stride[k];
        ok = gather_row(indices, r.stride, r.n, out, table, row);
      }
    });
  });
  return ok;
}

/// table += in, n elements that lie apart.
inline void add_run(Format to, std::byte* out, int64_t out_step, Format from, const std::byte* in, int64_t in_step,
                    int64_t n) {
  alignas(64) float f[2][kChunk];
  alignas(64) int32_t i[2][kChunk];
  for (int64_t v = 0; v < n; v += kChunk) {
    const int64_t m = min64(kChunk, n - v);
    for (int64_t j = m; j % 16 != 0; ++j) f[0][j] = f[1][j] = 0.0f, i[0][j] = i[1][j] = 0;
    std::byte* p = out + v * out_step;
    const std::byte* q = in + v * in_step;
    if (is_integer(to)) {
      load_run_int(to, p, out_step, m, i[0]);
      load_run_int(from, q, in_step, m, i[1]);
      for (int64_t j = 0; j < m; j += 16) store_i(i[0] + j, add(load_i(i[0] + j), load_i(i[1] + j)));
      store_run_int(to, p, out_step, m, i[0]);
    } else {
      load_run(to, p, out_step, m, f[0]);
      load_run(from, q, in_step, m, f[1]);
      for (int64_t j = 0; j < m; j += 16) store(f[0] + j, add(load(f[0] + j), load(f[1] + j)));
      store_run(to, p, out_step, m, f[0]);
    }
  }
}

/// n elements of the table's own format to offsets from places that are `step` apart.
template <typename Element>
inline void put_elements(std::byte* to, int64_t step, const std::byte* from, int64_t from_step, const int64_t* offset,
                         int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    if (offset[j] != kSkipped) write_as(to + j * step + offset[j], read_as<Element>(from + j * from_step));
  }
}

/// table = in, up to kChunk elements whose offsets are known, in order.
inline void put_run(Format to, std::byte* out, int64_t out_step, Format from, const std::byte* in, int64_t in_step,
                    const int64_t* offset, int64_t n) {
  alignas(64) std::byte staged[kChunk * 8];
  const int bytes = format_bytes(to);
  if (to != from) {
    move_run(to, staged, bytes, from, in, in_step, n);
    in = staged;
    in_step = bytes;
  }
  if (bytes == 1) return put_elements<uint8_t>(out, out_step, in, in_step, offset, n);
  if (bytes == 2) return put_elements<uint16_t>(out, out_step, in, in_step, offset, n);
  if (bytes == 4) return put_elements<uint32_t>(out, out_step, in, in_step, offset, n);
  put_elements<uint64_t>(out, out_step, in, in_step, offset, n);
}

/// table += in, up to kChunk elements whose offsets are known, one after the other: several may go to one place.
inline void add_elements(Format to, std::byte* out, int64_t out_step, Format from, const std::byte* in, int64_t in_step,
                         const int64_t* offset, int64_t n) {
  if (is_integer(to)) {
    int32_t values[kChunk], x;
    load_run_int(from, in, in_step, n, values);
    for (int64_t j = 0; j < n; ++j) {
      if (offset[j] == kSkipped) continue;
      std::byte* p = out + j * out_step + offset[j];
      load_run_int(to, p, 0, 1, &x);
      x = static_cast<int32_t>(static_cast<uint32_t>(x) + static_cast<uint32_t>(values[j]));
      store_run_int(to, p, 0, 1, &x);
    }
    return;
  }
  alignas(64) float values[kChunk];
  load_run(from, in, in_step, n, values);
  for (int64_t j = 0; j < n; ++j) {
    if (offset[j] == kSkipped) continue;
    std::byte* p = out + j * out_step + offset[j];
    if (to == Format::IEEE_FP32) {
      const float sum = read_as<float>(p) + values[j];
      write_as(p, sum == sum ? sum : float_of(0x7FC00000u));
      continue;
    }
    float x;
    load_run(to, p, 0, 1, &x);
    x += values[j];
    store_run(to, p, 0, 1, &x);
  }
}

bool scatter(const Shape& shape, const View& table, const View& in, const TableIndex* index, int n_index,
             bool accumulate, bool masked, BadIndex* bad) {
  const Indices indices{index, n_index, masked, bad};
  const View still;
  const View* views[kTableViews] = {&table, &in};
  for (int k = 0; k < kMaxIndices; ++k) views[2 + k] = k < n_index ? &index[k].view : &still;
  int64_t offset[kChunk];
  const auto several = accumulate ? add_elements : put_run;
  return for_each_stretch(shape, views, [&](const int64_t*, std::byte* const* p, const int64_t* step, int64_t n) {
    if (indices.all_still(step + 2) && (step[0] != 0 || n == 1)) {
      if (!indices.resolve(p + 2, step + 2, 0, 1, offset)) return false;
      if (offset[0] == kSkipped) return true;
      const auto row = accumulate ? add_run : move_run;
      row(table.format, p[0] + offset[0], step[0], in.format, p[1], step[1], n);
      return true;
    }
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = min64(kChunk, n - i);
      if (!indices.resolve(p + 2, step + 2, i, m, offset)) return false;
      several(table.format, p[0] + i * step[0], step[0], in.format, p[1] + i * step[1], step[1], offset, m);
    }
    return true;
  });
}

SPYRE_ISA_END

// SPDX-License-Identifier: Apache-2.0
// gather and scatter: elements of a table at addresses that other elements name.
#pragma once
#include "walk.h"

SPYRE_ISA_BEGIN

/// Copies the raw bytes of one element.
SPYRE_INLINE void copy_element(std::byte* out, const std::byte* in, int bytes) {
  switch (bytes) {
    case 1:
      return write_as(out, read_as<uint8_t>(in));
    case 2:
      return write_as(out, read_as<uint16_t>(in));
    case 4:
      return write_as(out, read_as<uint32_t>(in));
    default:
      return write_as(out, read_as<uint64_t>(in));
  }
}

/// Byte offsets of the table entries that n indices name. False at the first one outside [0, limit).
inline bool resolve(Format f, const std::byte* p, int64_t step, int64_t n, const DimMap& along, int64_t limit,
                    int64_t* offset, int64_t* bad) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t v = f == Format::IEEE_INT32 ? read_as<int32_t>(p + i * step) : read_int(f, p + i * step);
    if (v < 0 || v >= limit) {
      *bad = v;
      return false;
    }
    offset[i] = offset_of(along, v);
  }
  return true;
}

bool gather(const Shape& shape, const View& out, const View& table, const View& index, const DimMap& along,
            int64_t limit, int64_t* bad) {
  const View* views[3] = {&out, &table, &index};
  const int bytes = format_bytes(table.format);
  alignas(64) std::byte staged[kChunk * 8];
  int64_t offset[kChunk];
  bool ok = true;
  for_each_loops<3>(shape, ~0u, views, 3, [&](const Loops<3>& loops) {
    const int inner = loops.rank - 1;
    const int64_t n = inner < 0 ? 1 : loops.extent[inner];
    const int64_t no_step[3] = {}, *step = inner < 0 ? no_step : loops.stride[inner];
    for_each_point(loops, inner < 0 ? 0 : inner, [&](std::byte* const* p) {
      if (step[2] == 0) {
        ok = ok && resolve(index.format, p[2], 0, 1, along, limit, offset, bad);
        if (ok) move_run(out.format, p[0], step[0], table.format, p[1] + offset[0], step[1], n);
        return;
      }
      for (int64_t i = 0; ok && i < n; i += kChunk) {
        const int64_t m = min64(kChunk, n - i);
        ok = resolve(index.format, p[2] + i * step[2], step[2], m, along, limit, offset, bad);
        if (!ok) return;
        const std::byte* q = p[1] + i * step[1];
        for (int64_t j = 0; j < m; ++j) copy_element(staged + j * bytes, q + j * step[1] + offset[j], bytes);
        move_run(out.format, p[0] + i * step[0], step[0], table.format, staged, bytes, m);
      }
    });
  });
  return ok;
}

/// table += in, n elements that lie apart.
inline void add_run(Format to, std::byte* out, int64_t out_step, Format from, const std::byte* in, int64_t in_step,
                    int64_t n) {
  alignas(64) float f[2][kChunk] = {};
  alignas(64) int32_t i[2][kChunk] = {};
  for (int64_t v = 0; v < n; v += kChunk) {
    const int64_t m = min64(kChunk, n - v);
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

/// One element, without the buffers of add_run.
inline void add_element(Format to, std::byte* out, Format from, const std::byte* in) {
  if (is_integer(to)) {
    int32_t x, y;
    load_run_int(to, out, 0, 1, &x);
    load_run_int(from, in, 0, 1, &y);
    x = static_cast<int32_t>(static_cast<uint32_t>(x) + static_cast<uint32_t>(y));
    return store_run_int(to, out, 0, 1, &x);
  }
  if (to == Format::IEEE_FP32 && from == Format::IEEE_FP32) {
    const float sum = read_as<float>(out) + read_as<float>(in);
    return write_as(out, sum == sum ? sum : float_of(0x7FC00000u));
  }
  float x, y;
  load_run(to, out, 0, 1, &x);
  load_run(from, in, 0, 1, &y);
  x += y;
  store_run(to, out, 0, 1, &x);
}

bool scatter(const Shape& shape, const View& table, const View& in, const View& index, const DimMap& along,
             int64_t limit, bool accumulate, int64_t* bad) {
  const View* const views[3] = {&table, &in, &index};
  int64_t offset[kChunk];
  return for_each_stretch(shape, views, [&](const int64_t*, std::byte* const* p, const int64_t* step, int64_t n) {
    if (step[2] == 0 && (step[0] != 0 || n == 1)) {
      if (!resolve(index.format, p[2], 0, 1, along, limit, offset, bad)) return false;
      std::byte* to = p[0] + offset[0];
      if (accumulate) {
        n == 1 ? add_element(table.format, to, in.format, p[1])
               : add_run(table.format, to, step[0], in.format, p[1], step[1], n);
      } else {
        move_run(table.format, to, step[0], in.format, p[1], step[1], n);
      }
      return true;
    }
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = min64(kChunk, n - i);
      if (!resolve(index.format, p[2] + i * step[2], step[2], m, along, limit, offset, bad)) return false;
      for (int64_t j = 0; j < m; ++j) {
        std::byte* to = p[0] + (i + j) * step[0] + offset[j];
        const std::byte* from = p[1] + (i + j) * step[1];
        if (accumulate) {
          add_element(table.format, to, in.format, from);
        } else {
          move_run(table.format, to, 0, in.format, from, 0, 1);
        }
      }
    }
    return true;
  });
}

SPYRE_ISA_END

// SPDX-License-Identifier: Apache-2.0
// C entry points of the kernels, for tests that load the library through ctypes.
//
// A view is a pointer, a format code and rank x 3 int64 (block, inner, outer); or, when `layout` is not null, the
// int64 array [offset, rank strides, rank directs, n, n x (host stride, extent, byte stride)].
#include <cstring>
#include <vector>

#include "dispatch.h"
#include "spyre/card.h"

namespace {

using namespace spyre::card;

struct PlainView {
  void* base;
  int64_t format;
  const int64_t* maps;
  const int64_t* layout;
};

Shape shape_of(int rank, const int64_t* extent) {
  Shape s;
  s.rank = rank;
  for (int d = 0; d < rank; ++d) s.extent[d] = extent[d];
  return s;
}

View view_of(int rank, const PlainView& v, LayoutMap* layout) {
  View r;
  r.base = static_cast<std::byte*>(v.base);
  r.format = static_cast<Format>(v.format);
  if (!v.layout) {
    for (int d = 0; d < rank; ++d) r.dim[d] = {v.maps[3 * d], v.maps[3 * d + 1], v.maps[3 * d + 2]};
    return r;
  }
  const int64_t* p = v.layout;
  layout->offset = *p++;
  for (int d = 0; d < rank; ++d) layout->stride[d] = *p++;
  for (int d = 0; d < rank; ++d) layout->direct[d] = *p++;
  layout->n_device_dims = static_cast<int>(*p++);
  for (int d = 0; d < layout->n_device_dims; ++d, p += 3) layout->device[d] = {p[0], p[1], p[2]};
  r.layout = layout;
  return r;
}

std::vector<View> views_of(int rank, const PlainView* in, int n) {
  std::vector<View> views;
  for (int k = 0; k < n; ++k) views.push_back(view_of(rank, in[k], nullptr));
  return views;
}

/// `along` holds n x (block, inner, outer, limit).
std::vector<TableIndex> indices_of(int rank, const PlainView* in, const int64_t* along, int n) {
  std::vector<TableIndex> indices;
  for (int k = 0; k < n; ++k, along += 4)
    indices.push_back({view_of(rank, in[k], nullptr), {along[0], along[1], along[2]}, along[3]});
  return indices;
}

}  // namespace

#define SPYRE_EXPORT extern "C" __attribute__((visibility("default")))

SPYRE_EXPORT void spyre_vector_op(int op, int compute, int rank, const int64_t* extent, const PlainView* out,
                                  const PlainView* in, int n_in) {
  vector_op(static_cast<VOp>(op), static_cast<Compute>(compute), shape_of(rank, extent), view_of(rank, *out, nullptr),
            views_of(rank, in, n_in).data(), n_in);
}

SPYRE_EXPORT void spyre_reduce(int op, int compute, int rank, const int64_t* extent, uint32_t mask, int accumulate,
                               const PlainView* out, const PlainView* in) {
  reduce(static_cast<ROp>(op), static_cast<Compute>(compute), shape_of(rank, extent), mask, accumulate != 0,
         view_of(rank, *out, nullptr), view_of(rank, *in, nullptr));
}

SPYRE_EXPORT void spyre_matmul(int rank, const int64_t* extent, int accumulate, int taps, const PlainView* c,
                               const PlainView* a, const PlainView* b) {
  matmul(shape_of(rank, extent), accumulate != 0, taps, view_of(rank, *c, nullptr), view_of(rank, *a, nullptr),
         view_of(rank, *b, nullptr));
}

SPYRE_EXPORT int spyre_copy(int rank, const int64_t* extent, const PlainView* out, const PlainView* in) {
  LayoutMap layouts[2];
  return copy(shape_of(rank, extent), view_of(rank, *out, &layouts[0]), view_of(rank, *in, &layouts[1]));
}

SPYRE_EXPORT void spyre_sum_views(int rank, const int64_t* extent, const PlainView* out, const PlainView* in, int n) {
  sum_views(shape_of(rank, extent), view_of(rank, *out, nullptr), views_of(rank, in, n).data(), n);
}

SPYRE_EXPORT int spyre_gather(int rank, const int64_t* extent, const PlainView* out, const PlainView* table,
                              const PlainView* index, const int64_t* along, int n_index, int masked, int64_t* bad) {
  BadIndex found{};
  const bool ok = gather(shape_of(rank, extent), view_of(rank, *out, nullptr), view_of(rank, *table, nullptr),
                         indices_of(rank, index, along, n_index).data(), n_index, masked != 0, &found);
  *bad = found.value;
  return ok;
}

SPYRE_EXPORT int spyre_scatter(int rank, const int64_t* extent, const PlainView* table, const PlainView* in,
                               const PlainView* index, const int64_t* along, int n_index, int accumulate, int masked,
                               int64_t* bad) {
  BadIndex found{};
  const bool ok =
      scatter(shape_of(rank, extent), view_of(rank, *table, nullptr), view_of(rank, *in, nullptr),
              indices_of(rank, index, along, n_index).data(), n_index, accumulate != 0, masked != 0, &found);
  *bad = found.value;
  return ok;
}

SPYRE_EXPORT void spyre_iota(int rank, const int64_t* extent, const PlainView* out, int64_t start,
                             const int64_t* step) {
  DimMap steps[kMaxDims];
  for (int d = 0; d < rank; ++d) steps[d] = {step[3 * d], step[3 * d + 1], step[3 * d + 2]};
  iota(shape_of(rank, extent), view_of(rank, *out, nullptr), start, steps);
}

SPYRE_EXPORT void spyre_scan(int op, int compute, int rank, const int64_t* extent, int dim, const PlainView* out,
                             const PlainView* in) {
  scan(static_cast<ROp>(op), static_cast<Compute>(compute), shape_of(rank, extent), dim, view_of(rank, *out, nullptr),
       view_of(rank, *in, nullptr));
}

SPYRE_EXPORT void spyre_arg_reduce(int op, int rank, const int64_t* extent, int dim, const PlainView* out_index,
                                   const PlainView* out_value, const PlainView* in) {
  const View value = out_value ? view_of(rank, *out_value, nullptr) : View{};
  const View index = out_index ? view_of(rank, *out_index, nullptr) : View{};
  arg_reduce(static_cast<ROp>(op), shape_of(rank, extent), dim, out_index ? &index : nullptr,
             out_value ? &value : nullptr, view_of(rank, *in, nullptr));
}

SPYRE_EXPORT void spyre_sort(int rank, const int64_t* extent, int dim, int descending, int64_t k,
                             const PlainView* out_value, const PlainView* out_index, const PlainView* in) {
  const View value = out_value ? view_of(rank, *out_value, nullptr) : View{};
  const View index = out_index ? view_of(rank, *out_index, nullptr) : View{};
  sort(shape_of(rank, extent), dim, descending != 0, true, k, out_value ? &value : nullptr,
       out_index ? &index : nullptr, view_of(rank, *in, nullptr));
}

SPYRE_EXPORT uint32_t spyre_encode(float value, int format) { return encode(value, format); }
SPYRE_EXPORT float spyre_decode(uint32_t code, int format) { return decode(code, format); }
SPYRE_EXPORT int spyre_set_isa(const char* name) { return set_isa(name); }
SPYRE_EXPORT const char* spyre_active_isa() { return active_isa(); }

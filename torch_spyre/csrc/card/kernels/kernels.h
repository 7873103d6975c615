// SPDX-License-Identifier: Apache-2.0
// Tile kernels: the arithmetic of the card on resolved host pointers.
//
// Enters: a shape (the iteration box) and one View per operand. Leaves: bytes written through the output view.
// Holds: nothing; every kernel is a pure function of its operands and safe to call from several threads at once.
// The executor (exec.cpp) has proved bounds before it calls here; kernels check nothing.
//
// Bits do not depend on the instruction set: each kernel exists once, on the 16-lane vectors of simd.h, and is
// compiled for AVX-512, AVX2+FMA+F16C and portable C++; dispatch.cpp picks at run time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace spyre::card {

constexpr int kMaxDims = 8;

enum class Format : uint8_t {
#define FORMAT(code, name, bytes, elems) name = code,
#include "spyre/formats.def"
#undef FORMAT
};

enum class VOp : uint16_t {
#define VOP(code, name, operands) name = code,
#include "spyre/vops.def"
#undef VOP
};

enum class ROp : uint8_t { sum = 0, max = 1, min = 2, prod = 3 };
enum class Compute : uint8_t { f32 = 0, i32 = 1 };

/// Bytes per element; 0 for formats this card does not store.
int format_bytes(Format f);
/// Elements per 128-byte stick; 0 for host-only formats.
int format_elems_per_stick(Format f);
const char* format_name(Format f);

/// Iteration box. rank 0 means one point.
struct Shape {
  int rank = 0;
  int64_t extent[kMaxDims] = {};
};

/// Byte address of index v along one iteration dim: v*inner if block==0, else (v % block)*inner + (v / block)*outer.
/// The second form is a stick dim: `block` lanes inside a stick, `outer` bytes from stick to stick.
struct DimMap {
  int64_t block = 0;
  int64_t inner = 0;
  int64_t outer = 0;
};

/// General address map, legal for copy() only: a linear host element offset is decoded greedily through a device
/// layout. offset(v) = offset + sum(v_i * stride_i); then, for each device dim in descending order of `host_stride`,
/// coord = off / host_stride; off -= coord * host_stride; bytes += coord * byte_stride. `direct` adds v_i * direct_i.
struct LayoutMap {
  int64_t offset = 0;
  int64_t stride[kMaxDims] = {};
  int64_t direct[kMaxDims] = {};
  int n_device_dims = 0;
  struct DeviceDim {
    int64_t host_stride;  // > 0, descending
    int64_t extent;
    int64_t byte_stride;
  } device[kMaxDims] = {};
};

/// One operand, resolved. With `layout` null, `dim[i]` maps iteration dim i; else `layout` does.
struct View {
  std::byte* base = nullptr;
  Format format = Format::INVALID;
  DimMap dim[kMaxDims] = {};
  const LayoutMap* layout = nullptr;
};

/// out = op(in...). Immediates are views of a 4-byte value (IEEE_FP32 or IEEE_INT32) with all-zero maps.
/// Computes in fp32 or int32, rounds once to out.format. Operands may alias element for element.
void vector_op(VOp op, Compute compute, const Shape& shape, const View& out, const View* in, int n_in);

/// Reduces the dims in `reduced_mask` (bit i = dim i); `out` has zero maps there. With `accumulate` the present value
/// of out joins last. One order for every layout and instruction set: the reduced indices, row-major, are numbered
/// i = 0..n-1; lane i % 64 combines its values i/64 = 0,1,2,... in a balanced pairwise tree (binary counter: equal
/// levels merge, leftovers merge from the smallest level up); then lane l joins l+32, l+16, ... , l+1. Accumulates in
/// fp32 (int32 for integer formats).
void reduce(ROp op, Compute compute, const Shape& shape, uint32_t reduced_mask, bool accumulate, const View& out,
            const View& in);

/// Dims: batch..., m, n, `taps` further dims of k, k. c[b,m,n] = sum over k = 0,1,2,... (its dims row-major) of
/// a[b,m,k]*b[b,k,n] with one fp32 FMA each, in that order, starting from 0 or, with `accumulate`, from c (then c must
/// be IEEE_FP32). Rounds once when it stores. SENINT8 operands accumulate in int32. Fast when a is contiguous along k,
/// b and c along n (in blocks of a stick).
void matmul(const Shape& shape, bool accumulate, int taps, const View& c, const View& a, const View& b);

/// out = in, element for element, converting the format. Both views may be LayoutMaps, host formats are allowed on
/// either side (this is also the DMA engine). Special values: design rules of docs/number-formats.md.
/// Returns false if a value does not fit (int64 outside int32): nothing else of the copy is then guaranteed.
bool copy(const Shape& shape, const View& out, const View& in);

/// out = in[0] + in[1] + ... + in[n-1], ascending, fp32 accumulation, one rounding.
void sum_views(const Shape& shape, const View& out, const View* in, int n);

constexpr int kMaxIndices = 4;

/// An index tensor (an integer format). Its value v, in [0, limit), adds along(v) to the byte address in the table.
struct TableIndex {
  View view;
  DimMap along;
  int64_t limit = 0;
};
/// An index value outside [0, limit).
struct BadIndex {
  int64_t value, limit;
};

/// out[v] = the element of `table` at the byte offset its own maps give for v, plus what each index adds. Converts by
/// the rules of vector_op (equal formats: the bytes). With `masked` an element with an index out of range is 0; else
/// that returns false, with the value in *bad, and what is already written stays. Fast when the indices do not vary
/// along the innermost contiguous run: rows and sticks are then moved whole.
bool gather(const Shape& shape, const View& out, const View& table, const TableIndex* index, int n_index, bool masked,
            BadIndex* bad);

/// The element of `table` addressed as in gather = in[v], in row-major order of v: the last write wins. With
/// `accumulate` the value is added instead, in fp32 (wrapping int32 if the table holds integers), and rounds at each
/// store. Out of range as in gather: dropped with `masked`, else false; the writes before the offending index stay.
bool scatter(const Shape& shape, const View& table, const View& in, const TableIndex* index, int n_index,
             bool accumulate, bool masked, BadIndex* bad);

/// out[v] = start + step[0](v_0) + step[1](v_1) + ..., an int64 that must not overflow: a DimMap as a map of numbers.
/// Integer formats saturate; floats round to fp32 and then to the format.
void iota(const Shape& shape, const View& out, int64_t start, const DimMap* step);

/// out[.., v, ..] = in[.., 0, ..] op ... op in[.., v, ..] along `dim`, in that order. The accumulator is fp32 (or
/// int32) and does not see the rounding of the stores. max and min as the vector operations. May run in place.
void scan(ROp op, Compute compute, const Shape& shape, int dim, const View& out, const View& in);

/// Index (IEEE_INT32) of the largest (ROp::max) or smallest (ROp::min) element along `dim`: the first of equal ones,
/// and the first NaN before anything else. `out_value` receives that element. One of the outputs may be null; both have
/// zero maps in `dim`.
void arg_reduce(ROp op, const Shape& shape, int dim, const View* out_index, const View* out_value, const View& in);

/// Sorts along `dim` and writes the first k elements (k = extent: all of them; else top k) and their indices
/// (IEEE_INT32); either output may be null. The outputs have k elements along `dim`. NaN is the largest value, -0
/// equals +0. Ties always come in the order of their indices, also with `descending` and without `stable`. May run in
/// place.
void sort(const Shape& shape, int dim, bool descending, bool stable, int64_t k, const View* out_value,
          const View* out_index, const View& in);

/// Name of the instruction set in use: "avx512", "avx2" or "portable". SPYRE_ISA overrides (for tests).
const char* active_isa();

}  // namespace spyre::card

// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set once, at run time, and owns what all of them share: format facts and working memory.
#include "dispatch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "spyre/card.h"

namespace spyre::card {

namespace {

struct FormatRow {
  int bytes, elems;
  const char* name;
};

constexpr FormatRow kFormats[] = {
#define FORMAT(code, name, bytes, elems) {bytes, elems, #name},
#include "spyre/formats.def"
#undef FORMAT
};

const FormatRow& row(Format f) {
  const size_t code = static_cast<size_t>(f);
  return kFormats[code < std::size(kFormats) ? code : static_cast<size_t>(Format::INVALID)];
}

const KernelTable* find(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx512 && (!name || !std::strcmp(name, kAvx512Kernels.name))) return &kAvx512Kernels;
  if (avx2 && (!name || !std::strcmp(name, kAvx2Kernels.name))) return &kAvx2Kernels;
#endif
  if (!name || !std::strcmp(name, kPortableKernels.name)) return &kPortableKernels;
  return nullptr;
}

const KernelTable* initial() {
  const char* wanted = std::getenv("SPYRE_ISA");
  if (!wanted || !*wanted || !std::strcmp(wanted, "auto")) return find(nullptr);
  const KernelTable* table = find(wanted);
  if (!table) {
    throw Error("InvalidArgument",
                std::string("SPYRE_ISA=") + wanted +
                    " is not available here; use auto, portable, or avx2 / avx512 on a machine that has them");
  }
  return table;
}

std::atomic<const KernelTable*>& active() {
  static std::atomic<const KernelTable*> table{initial()};
  return table;
}

const KernelTable& kernels() { return *active().load(std::memory_order_relaxed); }

/// Grows by halves, so that a sequence of slightly larger kernels does not reallocate each time.
struct Scratch {
  void* data = nullptr;
  size_t bytes = 0;
  ~Scratch() { std::free(data); }
  void* get(size_t wanted) {
    if (wanted <= bytes) return data;
    std::free(data);
    const size_t grown = (wanted + wanted / 2 + 4095) / 4096 * 4096;
    data = std::aligned_alloc(4096, grown);
    bytes = data ? grown : 0;
    if (!data) throw std::bad_alloc();
    return data;
  }
};

}  // namespace

int format_bytes(Format f) { return row(f).bytes; }
int format_elems_per_stick(Format f) { return row(f).elems; }
const char* format_name(Format f) { return row(f).name; }

void* scratch(ScratchSlot slot, size_t bytes) {
  thread_local Scratch slots[kScratchSlots];
  return slots[slot].get(bytes);
}

int64_t second_cache_bytes() {
  static const int64_t bytes = [] {
    constexpr int64_t kUsual = 512 << 10;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (found > 0) return std::clamp<int64_t>(found, kUsual / 2, kUsual * 4);
#endif
    return kUsual;
  }();
  return bytes;
}

const uint16_t* code_table(VOp op, void (*fill)(VOp op, uint16_t* table)) {
  struct Table {
    std::once_flag once;
    std::unique_ptr<uint16_t[]> codes;
  };
  static Table* const tables = new Table[256];  // never destroyed: threads may outlive main
  Table& table = tables[static_cast<uint8_t>(op)];
  std::call_once(table.once, [&] {
    auto codes = std::make_unique<uint16_t[]>(kCodes);
    fill(op, codes.get());
    table.codes = std::move(codes);
  });
  return table.codes.get();
}

bool set_isa(const char* name) {
  const KernelTable* table = find(name);
  if (table) active().store(table);
  return table != nullptr;
}

const char* active_isa() { return kernels().name; }

void vector_op(VOp op, Compute compute, const Shape& shape, const View& out, const View* in, int n_in) {
  kernels().vector_op(op, compute, shape, out, in, n_in);
}
void reduce(ROp op, Compute compute, const Shape& shape, uint32_t reduced_mask, bool accumulate, const View& out,
            const View& in) {
  kernels().reduce(op, compute, shape, reduced_mask, accumulate, out, in);
}
void matmul(const Shape& shape, bool accumulate, int taps, const View& c, const View& a, const View& b) {
  kernels().matmul(shape, accumulate, taps, c, a, b);
}
bool copy(const Shape& shape, const View& out, const View& in) { return kernels().copy(shape, out, in); }
void sum_views(const Shape& shape, const View& out, const View* in, int n) { kernels().sum_views(shape, out, in, n); }
bool gather(const Shape& shape, const View& out, const View& table, const TableIndex* index, int n_index, bool masked,
            BadIndex* bad) {
  return kernels().gather(shape, out, table, index, n_index, masked, bad);
}
bool scatter(const Shape& shape, const View& table, const View& in, const TableIndex* index, int n_index,
             bool accumulate, bool masked, BadIndex* bad) {
  return kernels().scatter(shape, table, in, index, n_index, accumulate, masked, bad);
}
void iota(const Shape& shape, const View& out, int64_t start, const DimMap* step) {
  kernels().iota(shape, out, start, step);
}
void scan(ROp op, Compute compute, const Shape& shape, int dim, const View& out, const View& in) {
  kernels().scan(op, compute, shape, dim, out, in);
}
void arg_reduce(ROp op, const Shape& shape, int dim, const View* out_index, const View* out_value, const View& in) {
  kernels().arg_reduce(op, shape, dim, out_index, out_value, in);
}
void sort(const Shape& shape, int dim, bool descending, bool stable, int64_t k, const View* out_value,
          const View* out_index, const View& in) {
  kernels().sort(shape, dim, descending, stable, k, out_value, out_index, in);
}

}  // namespace spyre::card

// SPDX-License-Identifier: Apache-2.0
// The software card: one public header, no PyTorch. Open a card, allocate, DMA in and out, load a program, launch,
// wait, read counters. Everything else under csrc/card/ is private to the library.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace spyre::card {

constexpr int kCores = 32;
constexpr uint64_t kLxBytes = 2u << 20;          // scratchpad of one core
constexpr uint64_t kSegmentBytes = 16ull << 30;  // LPDDR5 is eight segments: seven for data, the last for programs
constexpr int kDataSegments = 7;
constexpr uint64_t kStickBytes = 128;

/// Every failure of the card. `kind` is one of: InvalidProgram, InvalidArgument, OutOfMemory, OutOfBounds,
/// UninitializedRead, RaceDetected, DeviceLost, Overflow. what() says what was done, where, and what to do.
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string& message)
      : std::runtime_error(kind + ": " + message), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

/// A host tensor as DMA sees it. Formats are codes of formats.def; strides in elements.
struct HostTensor {
  void* data = nullptr;
  int format = 2;
  std::vector<int64_t> size, stride;
};

/// A device tensor as DMA sees it: a strided view (in host elements) of a storage that was laid out by
/// (device_size, stride_map). `address` is the card address of the storage's first byte.
struct DeviceTensor {
  uint64_t address = 0;
  int format = 2;
  std::vector<int64_t> device_size, stride_map;
  int64_t host_offset = 0;
  std::vector<int64_t> host_stride;  // one per dim of the host tensor it is copied from or to
  bool whole_storage = false;        // dma_in covers every element of the storage: padding lanes become zero
};

/// A decoded, verified program. Immutable; may be launched on any card, many times, from any thread.
class Program {
 public:
  /// Decodes and proves a binary of docs/program-format.md. Throws Error(InvalidProgram), or what the proof found:
  /// OutOfBounds, UninitializedRead, RaceDetected. With integer launch scalars the proof happens at launch.
  static std::shared_ptr<const Program> load(std::span<const std::byte> binary);
  virtual ~Program() = default;
  virtual int n_args() const = 0;
  virtual int n_scalars() const = 0;
  virtual uint64_t arg_bytes(int i) const = 0;  // least size a buffer bound to argument i must have
  virtual std::string disassemble() const = 0;
};

struct Buffer {
  uint64_t address;
  uint64_t bytes;
};

/// Launch scalar: integers and fp32 share the slot, the program says which.
union Scalar {
  int64_t i;
  float f;
};

struct Counters {
  uint64_t launches = 0, instructions = 0;
  uint64_t memory_read_bytes = 0, memory_write_bytes = 0;  // LPDDR5 traffic of tile instructions
  uint64_t lx_read_bytes = 0, lx_write_bytes = 0, ring_bytes = 0;
  uint64_t dma_in_bytes = 0, dma_out_bytes = 0;
};

/// One card. Work submitted to it runs in order, asynchronously to the caller; an error sticks until `clear_error`.
class Card {
 public:
  static std::unique_ptr<Card> open(int index);
  virtual ~Card() = default;

  /// First fit, 128-byte granularity, coalescing; never crosses a segment. Throws Error(OutOfMemory).
  virtual uint64_t allocate(uint64_t bytes) = 0;
  virtual void free(uint64_t address) = 0;
  virtual uint64_t allocated_bytes() const = 0;
  virtual uint64_t total_bytes() const = 0;

  /// DMA, ordered with launches. dma_in may return before the copy ran only if `blocking` is false.
  virtual void dma_in(const HostTensor& src, const DeviceTensor& dst, bool blocking = true) = 0;
  virtual void dma_out(const DeviceTensor& src, const HostTensor& dst, bool blocking = true) = 0;
  /// Raw bytes, for tests and tools.
  virtual void write(uint64_t address, std::span<const std::byte> bytes) = 0;
  virtual void read(uint64_t address, std::span<std::byte> bytes) = 0;

  /// Queues the program. Arguments are checked (count, size, alignment) before it is queued.
  virtual void launch(std::shared_ptr<const Program> program, std::span<const Buffer> args,
                      std::span<const Scalar> scalars) = 0;
  /// Waits for everything queued so far; throws the sticky error, if any.
  virtual void synchronize() = 0;
  virtual bool idle() const = 0;
  virtual void clear_error() = 0;
  virtual Counters counters() const = 0;
};

/// Host threads that run the cores of a program (default: SPYRE_HOST_THREADS, else hardware threads). Results never
/// depend on it.
void set_host_threads(int n);
int host_threads();

/// fp32 <-> code of one element, for constants and tests.
uint32_t encode(float value, int format);
float decode(uint32_t code, int format);

}  // namespace spyre::card

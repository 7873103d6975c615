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

/// Streams of a card: 0 is the default one, 1-32 have low and 33-64 high priority.
constexpr int kStreams = 65;
constexpr int kFirstHighPriorityStream = 33;

/// Every failure of the card. `kind` is one of: InvalidProgram, InvalidArgument, OutOfMemory, OutOfBounds,
/// UninitializedRead, RaceDetected, IndexOutOfRange, Overflow, ZeroDivision, AssertionFailed, DeviceFault, DeviceLost.
/// what() says what was done, where, and what to do.
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

union Scalar;

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
  virtual uint64_t duration_ns() const = 0;     // what a launch adds to the device clock
  virtual uint64_t work() const = 0;            // element operations of a launch; 0 if integer launch scalars decide
  /// Whether a launch with these scalars needs no further proof; `prove` makes it now, which may take seconds.
  virtual bool proved(std::span<const Scalar> scalars) const = 0;
  virtual void prove(std::span<const Scalar> scalars) const = 0;
  virtual std::string disassemble() const = 0;
  virtual std::span<const std::byte> binary() const = 0;  // what it was loaded from
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
  uint64_t page_reclaims = 0;                              // times freed pages went back to meet the host budget
  uint64_t compute_ns = 0, dma_in_ns = 0, dma_out_ns = 0;  // busy time of each engine on the device clock
};

/// What a transfer adds to the device clock: latency + bytes / rate. The device description holds the values to use;
/// these defaults (PCIe 5.0 x16 as measured) are for tools that open a card without one.
struct DmaTiming {
  double latency_ns = 3500, in_bytes_per_ns = 57, out_bytes_per_ns = 57;
};

/// A point in a stream: complete when everything submitted to the stream before it has run. `time_ns` is when that
/// happens on the device clock.
struct Marker {
  int stream = 0;
  uint64_t sequence = 0;
  uint64_t time_ns = 0;
};

/// A launch or transfer as the device clock booked it.
struct Activity {
  enum class Kind : uint8_t { launch, dma_in, dma_out } kind;
  int stream;
  uint64_t start_ns, end_ns;
  uint64_t bytes;                          // of a transfer
  std::shared_ptr<const Program> program;  // of a launch
};

/// Is told about every launch and transfer, in the thread that submits it: at once, or after a blocking transfer.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void booked(const Activity& activity) = 0;
};

/// What `inject_fault` can break.
enum class Fault { allocation, dma, launch, device_lost };
Fault fault_named(const std::string& name);

/// One card. Work of one stream runs in the order of submission, asynchronously to the caller. Streams are independent
/// of each other, except that a stream can wait for a marker of another and that memory which was freed while queued
/// work still used it is not touched by its next owner before that work is done.
///
/// An error of asynchronous work sticks to its stream: what is queued behind is dropped, and every later submission,
/// `query` and `synchronize` of that stream throws it. A stream that waits for failed work inherits the error. After
/// DeviceLost the whole card does nothing else. `reset` makes all of it usable again.
///
/// The device clock is virtual: it advances when work is submitted, by the work's duration, on one of three engines
/// (compute, DMA in, DMA out) that run beside each other, and never by wall time.
class Card {
 public:
  static std::unique_ptr<Card> open(int index, const DmaTiming& timing = {});
  virtual ~Card() = default;

  /// First fit, 128-byte granularity, coalescing; never crosses a segment. Throws Error(OutOfMemory).
  virtual uint64_t allocate(uint64_t bytes) = 0;
  /// Queued work may still use the memory.
  virtual void free(uint64_t address) = 0;
  /// Tells that work on `stream` uses the allocation in a way the card does not see.
  virtual void record_use(uint64_t address, int stream) = 0;
  /// Waits until the card is idle, then gives the pages of freed memory back to the host.
  virtual void trim() = 0;
  virtual uint64_t allocated_bytes() const = 0;
  virtual uint64_t total_bytes() const = 0;

  /// DMA. Without `blocking` it may return before the copy ran; the host memory must stay valid until then, for which
  /// `keep` is held. An error of a blocking transfer goes to the caller and does not stick.
  virtual void dma_in(const HostTensor& src, const DeviceTensor& dst, bool blocking = true, int stream = 0,
                      std::shared_ptr<const void> keep = nullptr) = 0;
  virtual void dma_out(const DeviceTensor& src, const HostTensor& dst, bool blocking = true, int stream = 0,
                       std::shared_ptr<const void> keep = nullptr) = 0;
  /// Raw bytes; blocking.
  virtual void write(uint64_t address, std::span<const std::byte> bytes, int stream = 0) = 0;
  virtual void read(uint64_t address, std::span<std::byte> bytes, int stream = 0) = 0;
  /// The bytes as they are when the card is idle, whatever failed before: to look at what a failure left.
  virtual void peek(uint64_t address, std::span<std::byte> bytes) = 0;

  /// Queues the program. Arguments are checked (count, size, alignment) before it is queued.
  virtual void launch(std::shared_ptr<const Program> program, std::span<const Buffer> args,
                      std::span<const Scalar> scalars, int stream = 0) = 0;

  virtual Marker record(int stream) = 0;
  /// Work submitted to `stream` from now on runs after the marker is complete.
  virtual void wait(int stream, const Marker& marker) = 0;
  /// On the device clock alone: `stream` goes on at `time_ns` at the earliest (a marker of another card).
  virtual void wait_until(int stream, uint64_t time_ns) = 0;
  virtual bool complete(const Marker& marker) const = 0;
  /// These wait and throw the sticky error of the streams they waited for, if any.
  virtual void synchronize(const Marker& marker) = 0;
  virtual void synchronize(int stream) = 0;
  virtual void synchronize() = 0;
  /// True if nothing is queued; throws the sticky error.
  virtual bool query(int stream) const = 0;
  virtual bool idle() const = 0;

  /// A stream holds about a thousand commands; a submission to one that is full waits until half of them have run.
  virtual bool full(int stream) const = 0;
  virtual void make_room(int stream) = 0;

  /// Waits for queued work of healthy streams, or drops what has not begun, then forgets all errors and injected
  /// faults. Memory keeps its contents. Reading an allocation that failed or dropped work would have written throws
  /// UninitializedRead, until all of it is written.
  virtual void reset(bool drop_queued = false) = 0;
  /// Makes the n-th next (from 1) allocation, transfer or launch fail; device_lost counts transfers and launches.
  virtual void inject_fault(Fault fault, int64_t nth) = 0;

  /// When everything submitted so far is done on the device clock.
  virtual uint64_t clock_ns() const = 0;
  /// The observer of this card; null: none. It must outlive all submissions of other threads.
  virtual void observe(Observer* observer) = 0;
  /// Timing only: launches and transfers take their time on the device clock but touch no memory. What they would have
  /// written is undefined: it reads as zeros while the mode lasts, and reading it afterwards raises UninitializedRead.
  virtual void set_timing_only(bool on) = 0;
  virtual bool timing_only() const = 0;
  virtual Counters counters() const = 0;
};

/// Host threads that run the cores of a program (default: SPYRE_HOST_THREADS, else hardware threads). Results never
/// depend on it.
void set_host_threads(int n);
int host_threads();

/// Called every 50 ms by a thread that waits for a card. It may throw, and the wait ends: the queue goes on, except
/// that a blocking transfer which has not begun is taken back.
void set_wait_check(void (*check)());

/// fp32 <-> code of one element, for constants and tests.
uint32_t encode(float value, int format);
float decode(uint32_t code, int format);

}  // namespace spyre::card

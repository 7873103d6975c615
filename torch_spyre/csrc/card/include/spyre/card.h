// SPDX-License-Identifier: Apache-2.0
// The software card: one public header, no PyTorch. Open a card, allocate, DMA in and out, load a program, launch,
// wait, read counters. Everything else under csrc/card/ is private to the library.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
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
/// Behind them, streams that no user sees: exchanges with other cards wait there for their peers.
constexpr int kLinkStreams = 63;
constexpr int kAllStreams = kStreams + kLinkStreams;

/// Every failure of the card. `kind` is one of: InvalidProgram, InvalidArgument, OutOfMemory, OutOfBounds,
/// UninitializedRead, RaceDetected, IndexOutOfRange, Overflow, ZeroDivision, AssertionFailed, DeviceFault, DeviceLost,
/// and, of exchanges with other cards: PeerLost, CollectiveMismatch, CollectiveTimeout.
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

/// One box of a transfer by strides, in elements: for each index i below `size` (last dim innermost), the element of
/// the device at device_offset + sum(i * device_stride) belongs to that of the host at host_offset + sum(i *
/// host_stride). Where several elements go to the same place, one of them does.
struct TransferBox {
  std::vector<int64_t> size, host_stride, device_stride;
  int64_t host_offset = 0, device_offset = 0;
};

/// A transfer of boxes between host memory and one device storage of `bytes` bytes. Any format that has whole bytes may
/// stand on either side.
struct BoxTransfer {
  void* host = nullptr;
  int host_format = 2;
  uint64_t address = 0, bytes = 0;
  int device_format = 2;
  std::vector<TransferBox> boxes;
  bool whole_storage = false;  // dma_in: what no box covers becomes zero
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

/// A time on the device clock that depends on other cards. Until they have said theirs, `ns` is what is sure: not
/// before.
struct LaterTime {
  std::atomic<bool> known{false};
  std::atomic<uint64_t> ns{0};
};

/// A point in a stream: complete when everything submitted to the stream before it has run. `time()` is when that
/// happens on the device clock.
struct Marker {
  int stream = 0;
  uint64_t sequence = 0;
  uint64_t time_ns = 0;  // unless it is said later
  std::shared_ptr<LaterTime> later = nullptr;

  uint64_t time() const { return later ? later->ns.load(std::memory_order_acquire) : time_ns; }
};

/// What profiles show of an exchange.
struct ExchangeInfo {
  std::string kind, group, algorithm;
  uint64_t bytes = 0, wire_bytes = 0, sequence = 0;
  std::vector<int> peers;  // ranks of the world
  int rank = 0;
};

/// A launch, transfer or exchange as the device clock booked it.
struct Activity {
  enum class Kind : uint8_t { launch, dma_in, dma_out, exchange } kind;
  int stream;
  uint64_t start_ns, end_ns;
  uint64_t bytes;                          // of a transfer
  std::shared_ptr<const Program> program;  // of a launch
  std::shared_ptr<const ExchangeInfo> exchange = nullptr;
  std::shared_ptr<const LaterTime> later_start = nullptr, later_end = nullptr;

  /// Fills in times that were said later.
  void settle() {
    if (later_end) {
      const uint64_t duration = end_ns - start_ns;
      end_ns = later_end->ns.load(std::memory_order_acquire);
      start_ns = later_start ? later_start->ns.load(std::memory_order_acquire) : end_ns - duration;
    }
  }
};

/// Work that needs other cards: a collective. It occupies its stream and none of the card's engines; other streams go
/// on. Whoever made it moves the data.
class Exchange {
 public:
  /// To be called once, from any thread: the error that ended it, or null; when it ends on the device clock.
  using Done = std::function<void(const Error* error, uint64_t end_ns)>;

  virtual ~Exchange() = default;
  /// Its stream has reached it, at `arrival_ns` of the device clock. `memory` is the host address of card address 0.
  /// Must not wait for a peer longer than for a blink.
  virtual void begin(std::byte* memory, uint64_t arrival_ns, Done done) = 0;
  /// It is not wanted any more: to end soon, with an error, if it has begun; else it never will.
  virtual void cancel(const std::string& reason) = 0;
  /// A thread that waits for the card lends itself for a blink. True if something ended.
  virtual bool help() = 0;
  /// The same for the thread that runs what comes after: it stays for a while, until something ends or it is wanted
  /// elsewhere. Whoever makes `wanted` true calls `recall` then.
  virtual bool attend(const std::function<bool()>& wanted) = 0;
  virtual void recall() = 0;
  /// Whether `begin` takes so little time that the caller of Card::exchange may do it.
  virtual bool quick() const = 0;
};

/// Memory that an exchange touches.
struct ExchangeUse {
  uint64_t address, bytes;
  bool writes;
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
  /// The same by strides; blocking.
  virtual void dma_in(const BoxTransfer& transfer, int stream = 0) = 0;
  virtual void dma_out(const BoxTransfer& transfer, int stream = 0) = 0;
  /// Queues writes of one element (1, 2, 4 or 8 bytes) over and over, to a range of whole elements.
  virtual void fill(uint64_t address, uint64_t bytes, std::span<const std::byte> element, int stream = 0) = 0;
  /// Raw bytes; blocking.
  virtual void write(uint64_t address, std::span<const std::byte> bytes, int stream = 0) = 0;
  virtual void read(uint64_t address, std::span<std::byte> bytes, int stream = 0) = 0;
  /// The bytes as they are when the card is idle, whatever failed before: to look at what a failure left.
  virtual void peek(uint64_t address, std::span<std::byte> bytes) = 0;

  /// Queues the program. Arguments are checked (count, size, alignment) before it is queued.
  virtual void launch(std::shared_ptr<const Program> program, std::span<const Buffer> args,
                      std::span<const Scalar> scalars, int stream = 0) = 0;

  /// Queues an exchange on a stream of its own kind (kStreams and above), behind the markers `after`. The marker is
  /// complete when the exchange is.
  virtual Marker exchange(int stream, std::shared_ptr<Exchange> exchange, std::span<const ExchangeUse> uses,
                          std::span<const Marker> after, std::shared_ptr<const ExchangeInfo> info) = 0;
  /// Forgets errors that exchanges have left on streams: the group that failed is gone, and its user goes on alone.
  virtual void forgive_exchanges() = 0;

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

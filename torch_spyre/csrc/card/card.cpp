// SPDX-License-Identifier: Apache-2.0
// One card: memory, cores and streams behind the public interface.
#include "spyre/card.h"

#include <atomic>
#include <cstring>
#include <mutex>

#include "dma.h"
#include "exec.h"
#include "faults.h"
#include "memory.h"
#include "program.h"
#include "queue.h"
#include "sanitize.h"

namespace spyre::card {
namespace {

// Commands that a thread which waits leaves to the worker: about a tenth of a second.
constexpr uint64_t kLengthyWork = 500'000'000, kLengthyBytes = 256u << 20;

/// The fault that was injected for a command when it was submitted; it strikes when the command runs.
enum class Strike : uint8_t { none, fault, lost };

void suffer(Strike strike, const char* what) {
  if (strike == Strike::lost)
    throw Error("DeviceLost", std::string("the card stopped answering during a ") + what +
                                  " (injected fault); torch.spyre.reset() opens it again");
  if (strike == Strike::fault)
    throw Error("DeviceFault", std::string("a ") + what + " failed (injected fault); torch.spyre.reset() clears it");
}

/// What a timing-only run reads: zeros in the host's own layout.
void clear_host(const HostTensor& t, size_t dim = 0, int64_t offset = 0) {
  const int64_t bytes = format_bytes(static_cast<Format>(t.format));
  const bool run = dim + 1 == t.size.size() && t.stride[dim] == 1;
  if (run || dim == t.size.size()) {
    std::memset(static_cast<std::byte*>(t.data) + offset * bytes, 0, (run ? t.size[dim] : 1) * bytes);
    return;
  }
  for (int64_t i = 0; i < t.size[dim]; ++i) clear_host(t, dim + 1, offset + i * t.stride[dim]);
}

class CardImpl final : public Card {
  using Call = Queue::Call;

 public:
  explicit CardImpl(const DmaTiming& timing) : timing_(timing), memory_(progress_), queue_(progress_) {}

  uint64_t allocate(uint64_t bytes) override {
    queue_.throw_lost();
    if (faults_.strike(Fault::allocation))
      throw Error("OutOfMemory", "allocation of " + std::to_string(bytes) + " bytes failed (injected fault)");
    uint64_t address = memory_.allocate(bytes);
    if (sanitizing()) shadow_.allocated(address, bytes);
    return address;
  }

  void free(uint64_t address) override {
    if (sanitizing()) shadow_.freed(address);
    if (memory_.free(address)) queue_.if_idle([&] { memory_.reclaim(); });
  }
  void record_use(uint64_t address, int stream) override { used(address, 0, stream, "record_use"); }
  void trim() override {
    queue_.when_idle([&] { memory_.reclaim(); });
  }
  uint64_t allocated_bytes() const override { return memory_.allocated_bytes(); }
  uint64_t total_bytes() const override { return Memory::total_bytes(); }

  void dma_in(const HostTensor& src, const DeviceTensor& dst, bool blocking, int stream,
              std::shared_ptr<const void> keep) override {
    DmaPlan plan = plan_dma(src, dst, true);
    if (!plan.empty) transfer(plan, true, blocking, stream, std::move(keep));
  }

  void dma_out(const DeviceTensor& src, const HostTensor& dst, bool blocking, int stream,
               std::shared_ptr<const void> keep) override {
    DmaPlan plan = plan_dma(dst, src, false);
    if (timing_only_) clear_host(dst);
    if (!plan.empty) transfer(plan, false, blocking, stream, std::move(keep));
  }

  void dma_in(const BoxTransfer& t, int stream) override { transfer(t, true, stream); }
  void dma_out(const BoxTransfer& t, int stream) override { transfer(t, false, stream); }
  void fill(uint64_t address, uint64_t bytes, std::span<const std::byte> element, int stream) override;

  void write(uint64_t address, std::span<const std::byte> bytes, int stream) override {
    std::vector<Point> after = used(address, bytes.size(), stream, "write").first;
    queue_.throw_sticky(stream);
    writing(address, bytes.size(), bytes.size());
    if (sanitizing()) shadow_.written(address, address + bytes.size());
    transfer_now(true, bytes.size(), stream, std::move(after),
                 [&] { std::memcpy(memory_.at(address), bytes.data(), bytes.size()); });
  }

  void read(uint64_t address, std::span<std::byte> bytes, int stream) override {
    std::vector<Point> after = used(address, bytes.size(), stream, "read").first;
    queue_.throw_sticky(stream);
    check_defined(address, stream);
    if (timing_only_) std::memset(bytes.data(), 0, bytes.size());
    transfer_now(false, bytes.size(), stream, std::move(after),
                 [&] { std::memcpy(bytes.data(), memory_.at(address), bytes.size()); });
  }

  void peek(uint64_t address, std::span<std::byte> bytes) override {
    used(address, bytes.size(), 0, "peek");
    queue_.when_idle([&] { std::memcpy(bytes.data(), memory_.at(address), bytes.size()); });
  }

  void launch(std::shared_ptr<const Program> program, std::span<const Buffer> args, std::span<const Scalar> scalars,
              int stream) override;

  Marker exchange(int stream, std::shared_ptr<Exchange> exchange, std::span<const ExchangeUse> uses,
                  std::span<const Marker> after, std::shared_ptr<const ExchangeInfo> info) override;
  void forgive_exchanges() override { queue_.forgive_exchanges(); }

  Marker record(int stream) override { return queue_.record(any_stream(stream)); }
  void wait(int stream, const Marker& marker) override {
    const bool known = marker.stream >= 0 && marker.stream < kAllStreams;
    if (!known || marker.sequence > progress_.tail(marker.stream).sequence)
      throw Error("InvalidArgument", "wait: a marker that was not recorded on this card");
    queue_.wait(any_stream(stream), marker);
  }
  void wait_until(int stream, uint64_t time_ns) override { queue_.wait_until(checked(stream), time_ns); }
  bool complete(const Marker& marker) const override { return progress_.done({marker.stream, marker.sequence}); }
  void synchronize(const Marker& marker) override { queue_.synchronize(marker); }
  void synchronize(int stream) override { queue_.synchronize(checked(stream)); }
  void synchronize() override { queue_.synchronize(); }
  bool query(int stream) const override {
    bool done = progress_.done(progress_.tail(checked(stream)));
    queue_.throw_sticky(stream);
    return done;
  }
  bool idle() const override { return queue_.idle(); }

  bool full(int stream) const override { return queue_.full(checked(stream)); }
  void make_room(int stream) override { queue_.make_room(checked(stream)); }

  void reset(bool drop_queued) override {
    queue_.reset(drop_queued);
    faults_.disarm();
  }
  void inject_fault(Fault fault, int64_t nth) override { faults_.arm(fault, nth); }

  uint64_t clock_ns() const override { return queue_.clock().latest(); }
  void observe(Observer* observer) override { observer_.store(observer, std::memory_order_release); }
  void set_timing_only(bool on) override { timing_only_ = on; }
  bool timing_only() const override { return timing_only_; }
  Counters counters() const override {
    Counters c;
    {
      std::lock_guard lock(counters_mutex_);
      c = counters_;
    }
    Clock clock = queue_.clock();
    c.compute_ns = clock.busy(Engine::compute);
    c.dma_in_ns = clock.busy(Engine::dma_in);
    c.dma_out_ns = clock.busy(Engine::dma_out);
    return c;
  }

 private:
  class LaunchCommand;
  class DmaCommand;
  class FillCommand;

  static int checked(int stream) {
    if (stream < 0 || stream >= kStreams)
      throw Error("InvalidArgument",
                  "stream " + std::to_string(stream) + "; a card has streams 0.." + std::to_string(kStreams - 1));
    return stream;
  }

  /// The same, and streams of exchanges.
  static int any_stream(int stream) { return stream >= kStreams && stream < kAllStreams ? stream : checked(stream); }

  /// What work that uses the memory has to wait for, and the number of the allocation.
  std::pair<std::vector<Point>, uint64_t> used(uint64_t address, uint64_t bytes, int stream, const char* what) {
    std::vector<Point> after;
    const uint64_t number = memory_.use(address, bytes, checked(stream), what, after);
    return {std::move(after), number};
  }

  Cost dma_cost(bool to_device, uint64_t bytes) const {
    double rate = to_device ? timing_.in_bytes_per_ns : timing_.out_bytes_per_ns;
    return {to_device ? Engine::dma_in : Engine::dma_out,
            static_cast<uint64_t>(timing_.latency_ns + static_cast<double>(bytes) / rate)};
  }

  Strike strike(Fault fault) {
    if (faults_.strike(Fault::device_lost)) return Strike::lost;
    return faults_.strike(fault) ? Strike::fault : Strike::none;
  }

  void transfer(const DmaPlan& plan, bool to_device, bool blocking, int stream, std::shared_ptr<const void> keep);
  void transfer(const BoxTransfer& boxes, bool to_device, int stream);

  template <class Copy>
  void transfer_now(bool to_device, uint64_t bytes, int stream, std::vector<Point> after, Copy&& copy) {
    Strike fate = strike(Fault::dma);
    auto run = [&, compute = !timing_only_] {
      suffer(fate, "transfer");
      if (compute) copy();
      count_dma(to_device, bytes);
    };
    const Cost cost = dma_cost(to_device, bytes);
    booked_dma(to_device, stream, queue_.run_now(stream, run, cost, std::move(after)), bytes);
  }

  void booked_dma(bool to_device, int stream, const Booked& at, uint64_t bytes) {
    tell(to_device ? Activity::Kind::dma_in : Activity::Kind::dma_out, stream, at, bytes, nullptr);
  }
  void tell(Activity::Kind kind, int stream, const Booked& at, uint64_t bytes, std::shared_ptr<const Program> program,
            std::shared_ptr<const ExchangeInfo> info = nullptr) {
    if (Observer* observer = observer_.load(std::memory_order_acquire))
      observer->booked({kind, stream, at.start_ns, at.end_ns, bytes, std::move(program), std::move(info),
                        at.later_start, at.later_end});
  }

  /// Announces a launch or transfer that writes up to `written` bytes of a range; in a timing-only run, that what is
  /// there means nothing from now on.
  void writing(uint64_t address, uint64_t bytes, uint64_t written) {
    memory_.wrote(address, bytes, timing_only_);
    if (!timing_only_) commit(address, bytes, written);
  }

  /// What failed since the call looked for an error is that error's, not the tensor's.
  void check_defined(uint64_t address, int stream, Call call = Call::asks) const {
    using Contents = Memory::Contents;
    const Contents contents = timing_only_ ? Contents::values : memory_.contents(address);
    if (contents == Contents::timed)
      throw Error("UninitializedRead", "address " + std::to_string(address) +
                                           " belongs to a tensor that a timing-only run made: its values were never "
                                           "computed; make it again outside torch_spyre.predict.timing_only()");
    if (contents == Contents::dropped) {
      queue_.throw_sticky(stream, call);
      throw Error("UninitializedRead",
                  "address " + std::to_string(address) +
                      " belongs to a tensor that work would have written which failed or was "
                      "dropped: its values were never computed; make it again, or write all of it");
    }
  }

  void count_dma(bool to_device, uint64_t bytes) {
    std::lock_guard lock(counters_mutex_);
    (to_device ? counters_.dma_in_bytes : counters_.dma_out_bytes) += bytes;
  }

  /// Accounts for a coming write; gives back freed pages if the host budget is reached.
  void commit(uint64_t address, uint64_t bytes, uint64_t written) {
    if (memory_.commit(address, bytes, written)) return;
    trim();
    {
      std::lock_guard lock(counters_mutex_);
      ++counters_.page_reclaims;
    }
    if (!memory_.commit(address, bytes, written)) memory_.throw_budget(bytes);
  }

  void count_launch(const Counters& c) {
    std::lock_guard lock(counters_mutex_);
    ++counters_.launches;
    counters_.instructions += c.instructions;
    counters_.memory_read_bytes += c.memory_read_bytes;
    counters_.memory_write_bytes += c.memory_write_bytes;
    counters_.lx_read_bytes += c.lx_read_bytes;
    counters_.lx_write_bytes += c.lx_write_bytes;
    counters_.ring_bytes += c.ring_bytes;
  }

  DmaTiming timing_;
  std::atomic<Observer*> observer_{nullptr};
  std::atomic<bool> timing_only_{false};
  Progress progress_;
  Memory memory_;
  MemoryShadow shadow_;
  Executor executor_;
  Faults faults_;
  mutable std::mutex counters_mutex_;
  Counters counters_;
  Queue queue_;  // last: its worker uses everything above and must stop first
};

class CardImpl::LaunchCommand final : public Command {
 public:
  LaunchCommand(CardImpl& card, std::shared_ptr<const ProgramImpl> program, std::shared_ptr<const Proof> proof)
      : card_(card), program_(std::move(program)), proof_(std::move(proof)) {
    launch.image = &program_->image();
    launch.proof = proof_.get();
  }
  void run() override {
    suffer(fate, "launch");
    if (compute) launch.shadow ? card_.executor_.run_sanitized(launch) : card_.executor_.run(launch);
    card_.count_launch(proof_->counters);
  }
  void dropped() override {
    for (auto [address, number] : written) card_.memory_.lost_write(address, number);
  }
  bool lengthy() const override { return compute && proof_->work > kLengthyWork; }

  Launch launch;
  std::vector<std::pair<uint64_t, uint64_t>> written;  // addresses and numbers of allocations
  Strike fate = Strike::none;
  bool compute = true;

 private:
  CardImpl& card_;
  std::shared_ptr<const ProgramImpl> program_;
  std::shared_ptr<const Proof> proof_;
};

class CardImpl::DmaCommand final : public Command {
 public:
  DmaCommand(CardImpl& card, const DmaPlan& plan, bool to_device, uint64_t number, std::shared_ptr<const void> keep)
      : card_(card),
        plan_(plan),
        to_device_(to_device),
        number_(number),
        keep_(std::move(keep)),
        fate_(card.strike(Fault::dma)),
        compute_(!card.timing_only_) {}
  void run() override {
    suffer(fate_, "transfer");
    if (compute_) run_dma(plan_, to_device_, card_.memory_.at(0));
    card_.count_dma(to_device_, plan_.bytes);
  }
  void dropped() override {
    if (to_device_) card_.memory_.lost_write(plan_.storage_address, number_);
  }
  bool lengthy() const override { return compute_ && plan_.bytes > kLengthyBytes; }

 private:
  CardImpl& card_;
  DmaPlan plan_;
  bool to_device_;
  uint64_t number_;  // of the allocation on the card
  std::shared_ptr<const void> keep_;
  Strike fate_;
  bool compute_;
};

void CardImpl::transfer(const DmaPlan& plan, bool to_device, bool blocking, int stream,
                        std::shared_ptr<const void> keep) {
  auto [after, number] = used(plan.storage_address, plan.storage_bytes, stream, to_device ? "dma_in" : "dma_out");
  queue_.throw_sticky(stream, blocking ? Call::asks : Call::brings_work);
  if (to_device)
    writing(plan.storage_address, plan.storage_bytes, plan.bytes);
  else
    check_defined(plan.storage_address, stream);
  if (sanitizing() && to_device)
    for_each_device_run(plan, [&](uint64_t begin, uint64_t end) { shadow_.written(begin, end); });
  if (blocking || sanitizing()) {
    transfer_now(to_device, plan.bytes, stream, std::move(after), [&] { run_dma(plan, to_device, memory_.at(0)); });
    return;
  }
  const Cost cost = dma_cost(to_device, plan.bytes);
  const Booked at = queue_.submit(stream, std::make_unique<DmaCommand>(*this, plan, to_device, number, std::move(keep)),
                                  cost, std::move(after));
  booked_dma(to_device, stream, at, plan.bytes);
}

void CardImpl::transfer(const BoxTransfer& boxes, bool to_device, int stream) {
  const std::vector<DmaPlan> plans = plan_boxes(boxes, to_device);
  if (plans.empty()) return;
  std::vector<Point> after = used(boxes.address, boxes.bytes, stream, to_device ? "dma_in" : "dma_out").first;
  queue_.throw_sticky(stream);
  uint64_t moved = 0;
  for (const DmaPlan& plan : plans) moved += plan.bytes;
  if (to_device)
    writing(boxes.address, boxes.bytes, moved);
  else
    check_defined(boxes.address, stream);
  if (!to_device && timing_only_)
    for (const TransferBox& box : boxes.boxes) {
      std::byte* begin =
          static_cast<std::byte*>(boxes.host) + box.host_offset * format_bytes(static_cast<Format>(boxes.host_format));
      clear_host({begin, boxes.host_format, box.size, box.host_stride});
    }
  if (sanitizing() && to_device)
    for (const DmaPlan& plan : plans)
      for_each_device_run(plan, [&](uint64_t begin, uint64_t end) { shadow_.written(begin, end); });
  transfer_now(to_device, moved, stream, std::move(after), [&] {
    for (const DmaPlan& plan : plans) run_dma(plan, to_device, memory_.at(0));
  });
}

class CardImpl::FillCommand final : public Command {
 public:
  FillCommand(CardImpl& card, uint64_t address, uint64_t bytes, std::span<const std::byte> element, uint64_t number)
      : card_(card),
        address_(address),
        bytes_(bytes),
        element_(element.begin(), element.end()),
        number_(number),
        fate_(card.strike(Fault::dma)),
        compute_(!card.timing_only_) {}
  void run() override {
    suffer(fate_, "transfer");
    if (compute_) run_fill(card_.memory_.at(address_), bytes_, element_);
    card_.count_dma(true, bytes_);
  }
  void dropped() override { card_.memory_.lost_write(address_, number_); }
  bool lengthy() const override { return compute_ && bytes_ > kLengthyBytes; }

 private:
  CardImpl& card_;
  uint64_t address_, bytes_;
  std::vector<std::byte> element_;
  uint64_t number_;  // of the allocation
  Strike fate_;
  bool compute_;
};

void CardImpl::fill(uint64_t address, uint64_t bytes, std::span<const std::byte> element, int stream) {
  const size_t n = element.size();
  if ((n != 1 && n != 2 && n != 4 && n != 8) || bytes % n)
    throw Error("InvalidArgument", "fill: " + std::to_string(bytes) + " bytes with an element of " + std::to_string(n) +
                                       "; an element has 1, 2, 4 or 8 bytes, and the range whole elements");
  auto [after, number] = used(address, bytes, stream, "fill");
  queue_.throw_sticky(stream, Call::brings_work);
  writing(address, bytes, bytes);
  auto command = std::make_unique<FillCommand>(*this, address, bytes, element, number);
  const Cost cost = dma_cost(true, bytes);
  Booked at;
  if (sanitizing()) {
    shadow_.written(address, address + bytes);
    at = queue_.run_now(stream, [&] { command->run(); }, cost, std::move(after));
  } else {
    at = queue_.submit(stream, std::move(command), cost, std::move(after));
  }
  booked_dma(true, stream, at, bytes);
}

void check_argument(const Image& image, size_t a, const Buffer& buffer) {
  if (buffer.bytes < image.args[a].bytes)
    throw Error("InvalidArgument", "launch: argument " + std::to_string(a) + " has " + std::to_string(buffer.bytes) +
                                       " bytes, the program touches " + std::to_string(image.args[a].bytes));
  if (buffer.address % kStickBytes)
    throw Error("InvalidArgument", "launch: argument " + std::to_string(a) + " at address " +
                                       std::to_string(buffer.address) + " is not 128-byte aligned");
}

void check_scalars(const Image& image, std::span<const Scalar> scalars) {
  for (const Operand& o : image.operands) {
    if (o.space != Space::SCALAR || o.format != Format::IEEE_INT32) continue;
    int64_t value = scalars[o.index].i;
    if (value != static_cast<int32_t>(value))
      throw Error("Overflow", "launch: scalar " + std::to_string(o.index) + " is " + std::to_string(value) +
                                  ", which lies outside int32");
  }
}

void CardImpl::launch(std::shared_ptr<const Program> program, std::span<const Buffer> args,
                      std::span<const Scalar> scalars, int stream) {
  checked(stream);
  auto loaded = std::dynamic_pointer_cast<const ProgramImpl>(program);
  if (!loaded) throw Error("InvalidArgument", "launch: no program; load one with Program::load");
  const Image& image = loaded->image();
  if (args.size() != image.args.size() || scalars.size() != image.scalar_is_float.size())
    throw Error("InvalidArgument", "launch: " + std::to_string(args.size()) + " buffers and " +
                                       std::to_string(scalars.size()) + " scalars given, the program takes " +
                                       std::to_string(image.args.size()) + " and " +
                                       std::to_string(image.scalar_is_float.size()));
  if (image.n_int_scalars) check_scalars(image, scalars);
  queue_.throw_sticky(stream, Call::brings_work);
  auto proof = loaded->proof_for(scalars);
  const uint64_t written = proof->counters.memory_write_bytes;
  auto command = std::make_unique<LaunchCommand>(*this, loaded, std::move(proof));
  command->written.reserve(args.size());
  command->launch.args.reserve(args.size());
  std::vector<Point> after;
  for (size_t a = 0; a < args.size(); ++a) {
    check_argument(image, a, args[a]);
    const bool writes = image.args[a].access & kWrite;
    if (args[a].bytes) {
      const uint64_t number = memory_.use(args[a].address, args[a].bytes, stream, "launch", after);
      if (writes) command->written.emplace_back(args[a].address, number);
    }
    if (image.args[a].access & kRead) check_defined(args[a].address, stream, Call::brings_work);
    if (writes) writing(args[a].address, image.args[a].bytes, written);
    command->launch.args.push_back(memory_.at(args[a].address));
  }
  command->launch.scalars.assign(scalars.begin(), scalars.end());
  command->fate = strike(Fault::launch);
  command->compute = !timing_only_;
  const Cost cost{Engine::compute, image.duration_ns};
  Booked at;
  if (sanitizing()) {
    command->launch.shadow = &shadow_;
    command->launch.memory = memory_.at(0);
    at = queue_.run_now(stream, [&] { command->run(); }, cost, std::move(after));
  } else {
    at = queue_.submit(stream, std::move(command), cost, std::move(after));
  }
  tell(Activity::Kind::launch, stream, at, 0, std::move(program));
}

Marker CardImpl::exchange(int stream, std::shared_ptr<Exchange> exchange, std::span<const ExchangeUse> uses,
                          std::span<const Marker> after, std::shared_ptr<const ExchangeInfo> info) {
  if (stream < kStreams || stream >= kAllStreams)
    throw Error("InvalidArgument", "exchange: stream " + std::to_string(stream) + " is not one for exchanges, " +
                                       std::to_string(kStreams) + ".." + std::to_string(kAllStreams - 1));
  queue_.throw_sticky(stream, Call::brings_work);
  std::vector<Point> points;
  std::vector<std::pair<uint64_t, uint64_t>> written;
  for (const ExchangeUse& use : uses) {
    if (!use.bytes) continue;
    const uint64_t number = memory_.use(use.address, use.bytes, stream, "exchange", points);
    if (use.writes) {
      written.emplace_back(use.address, number);
      writing(use.address, use.bytes, use.bytes);
      if (sanitizing()) shadow_.written(use.address, use.address + use.bytes);
    } else {
      check_defined(use.address, stream, Call::brings_work);
    }
  }
  auto dropped = [this, written = std::move(written)] {
    for (auto [address, number] : written) memory_.lost_write(address, number);
  };
  Marker end;
  const Booked at =
      queue_.exchange(stream, std::move(exchange), memory_.at(0), std::move(dropped), std::move(points), after, end);
  const uint64_t bytes = info ? info->bytes : 0;
  tell(Activity::Kind::exchange, stream, at, bytes, nullptr, std::move(info));
  return end;
}

}  // namespace

Fault fault_named(const std::string& name) {
  if (name == "allocation") return Fault::allocation;
  if (name == "dma") return Fault::dma;
  if (name == "launch") return Fault::launch;
  if (name == "device_lost") return Fault::device_lost;
  throw Error("InvalidArgument", "fault '" + name + "'; known are allocation, dma, launch and device_lost");
}

std::unique_ptr<Card> Card::open(int index, const DmaTiming& timing) {
  if (index < 0) throw Error("InvalidArgument", "card index " + std::to_string(index) + " is negative");
  if (!(timing.latency_ns >= 0 && timing.in_bytes_per_ns > 0 && timing.out_bytes_per_ns > 0))
    throw Error("InvalidArgument", "DMA timing needs a latency of at least 0 and positive rates");
  read_sanitize_variable();
  return std::make_unique<CardImpl>(timing);
}

}  // namespace spyre::card

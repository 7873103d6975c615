// SPDX-License-Identifier: Apache-2.0
// Operations: what createXxxParams keeps and what a stream does with it.
#include <cstdio>
#include <cstring>

#include "flex/runtime.h"
#include "spyre/sanitizer.h"

namespace flex {
namespace {

using internal::ActivitySink;
using internal::ApiCall;
using internal::CardWork;
using internal::Runtime;
using spyre::card::Buffer;
using spyre::card::Card;
using spyre::card::Error;

// Raw bytes up to here are copied aside, so that a launch does not wait for the work before it.
constexpr uint64_t kStagedBytes = 64 << 10;

struct Transfer final : DmaParams {
  void* host = nullptr;
  uint64_t bytes = 0;
  bool to_device = false;
  const CompositeAddress* address = nullptr;
  std::shared_ptr<data_conversion_info> conversion;
};

struct Compute final : ComputeParams {
  const CompositeAddress* program = nullptr;
  std::vector<const CompositeAddress*> tensors;
  std::string name;
  uint64_t bootstrap = 0;
};

struct HostCallback final : HostCallbackParams {
  std::function<void(void*)> callback;
  void* argument = nullptr;
  bool pipeline_barrier = false;
};

template <class Known, class Params>
Known& known(Params* params, const char* what) {
  auto* found = dynamic_cast<Known*>(params);
  if (!found) throw Error("InvalidArgument", std::string(what) + ": parameters that this library did not make");
  return *found;
}

std::atomic<uint32_t> correlations{0};

/// A call as a profiler sees it, and through the card's observer what the card does for it.
class Recorded final : public spyre::card::Observer {
 public:
  Recorded(ApiCall call, CardWork::Kind kind, int stream)
      : sink_(Runtime::get().sink.load(std::memory_order_acquire)), call_(call) {
    if (!sink_) return;
    work_.kind = kind;
    work_.stream = stream;
    work_.queued_ns = internal::host_now_ns();
    correlation_ = ++correlations;
    current = this;
  }
  ~Recorded() {
    if (!sink_) return;
    current = nullptr;
    sink_->called(call_, work_.queued_ns, internal::host_now_ns(), correlation_);
    if (booked_) sink_->worked(work_, correlation_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  void name(const std::string& kernel) {
    if (sink_) work_.name = kernel;
  }
  void booked(const spyre::card::Activity& activity) override {
    booked_ = true;
    work_.duration_ns += activity.end_ns - activity.start_ns;
    work_.bytes += activity.bytes;
  }

  static thread_local Recorded* current;

 private:
  ActivitySink* sink_;
  ApiCall call_;
  CardWork work_;
  uint32_t correlation_ = 0;
  bool booked_ = false;
};

thread_local Recorded* Recorded::current = nullptr;

/// The card tells of its work in the thread that submits it.
class ToCurrentCall final : public spyre::card::Observer {
 public:
  void booked(const spyre::card::Activity& activity) override {
    if (Recorded::current) Recorded::current->booked(activity);
  }
};

const Chunk& only_chunk(const CompositeAddress* address, const char* what) {
  if (!address) throw Error("InvalidArgument", std::string(what) + ": no address");
  internal::dmva(*address);
  return address->chunks().front();
}

void check_raw(const Transfer& t, const Chunk& chunk, const char* what) {
  if (t.bytes > chunk.size)
    throw Error("OutOfBounds", std::string(what) + ": " + std::to_string(t.bytes) + " bytes, the address has " +
                                   std::to_string(chunk.size));
}

void write_raw(Card& card, int stream, const Transfer& t, uint64_t address) {
  const auto allocation = Runtime::get().find(address);
  const std::span<const std::byte> content(static_cast<const std::byte*>(t.host), t.bytes);
  if (t.bytes > kStagedBytes || address % spyre::card::kStickBytes) {
    card.write(address, content, stream);
  } else {
    constexpr int kBytes = static_cast<int>(DataFormats::SENINT8);
    const auto staged = std::make_shared<std::vector<std::byte>>(content.begin(), content.end());
    const std::vector<int64_t> size{static_cast<int64_t>(t.bytes)}, step{1};
    card.dma_in({staged->data(), kBytes, size, step}, {address, kBytes, size, step, 0, step}, false, stream, staged);
  }
  allocation->wrote(address - allocation->address, content);
}

void finish(DmaParams& params) {
  if (params.callback) params.callback(nullptr);
  params.callback = nullptr;
}

/// What SPYRE_SANITIZE=1 found and does not throw.
void print_warnings(const std::string& kernel) {
  if (spyre::card::sanitize_mode() == spyre::card::Sanitize::off) return;
  for (const std::string& message : spyre::card::new_sanitizer_warnings())
    std::fprintf(stderr, "flex: sanitizer: kernel '%s': %s\n", kernel.c_str(), message.c_str());
}

bool has_error(Card& card, int stream) {
  try {
    card.query(stream);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace

namespace internal {
void observe_card(spyre::card::Card& card) {
  static ToCurrentCall observer;
  card.observe(&observer);
}
}  // namespace internal

DmaParams* createDmaParams(void* host, size_t bytes, bool to_device, const CompositeAddress* address,
                           std::shared_ptr<data_conversion_info> conversion) {
  auto params = std::make_unique<Transfer>();
  params->host = host;
  params->bytes = bytes;
  params->to_device = to_device;
  params->address = address;
  params->conversion = std::move(conversion);
  return params.release();
}
void destroyDmaParams(DmaParams* params) { delete params; }

ComputeParams* createComputeParams(const CompositeAddress* program, std::vector<const CompositeAddress*> tensors,
                                   std::string name, uint64_t bootstrap_offset) {
  auto params = std::make_unique<Compute>();
  params->program = program;
  params->tensors = std::move(tensors);
  params->name = std::move(name);
  params->bootstrap = bootstrap_offset;
  return params.release();
}
void destroyComputeParams(ComputeParams* params) { delete params; }

HostCallbackParams* createHostCallbackParams(std::function<void(void*)> callback, void* argument,
                                             bool pipeline_barrier) {
  auto params = std::make_unique<HostCallback>();
  params->callback = std::move(callback);
  params->argument = argument;
  params->pipeline_barrier = pipeline_barrier;
  return params.release();
}
void destroyHostCallbackParams(HostCallbackParams* params) { delete params; }

void RuntimeStream::launchOperationH2D(DmaParams* params) {
  Transfer& t = known<Transfer>(params, "launchOperationH2D");
  const Chunk& chunk = only_chunk(t.address, "launchOperationH2D");
  if (!t.to_device || (t.conversion && !t.conversion->isHostToSen_))
    throw Error("InvalidArgument", "launchOperationH2D: parameters for a transfer to the host");
  Card& card = Runtime::get().card();
  Recorded call(ApiCall::transfer_in, CardWork::Kind::copy_in, card_stream_);
  if (t.conversion) {
    internal::convert(card, card_stream_, t.host, t.bytes, chunk, *t.conversion);
  } else {
    check_raw(t, chunk, "launchOperationH2D");
    if (t.bytes) write_raw(card, card_stream_, t, internal::dmva(*t.address));
  }
  finish(t);
}

void RuntimeStream::launchOperationD2H(DmaParams* params) {
  Transfer& t = known<Transfer>(params, "launchOperationD2H");
  const Chunk& chunk = only_chunk(t.address, "launchOperationD2H");
  if (t.to_device || (t.conversion && t.conversion->isHostToSen_))
    throw Error("InvalidArgument", "launchOperationD2H: parameters for a transfer to the card");
  Card& card = Runtime::get().card();
  Recorded call(ApiCall::transfer_out, CardWork::Kind::copy_out, card_stream_);
  if (t.conversion) {
    internal::convert(card, card_stream_, t.host, t.bytes, chunk, *t.conversion);
  } else {
    check_raw(t, chunk, "launchOperationD2H");
    if (t.bytes) card.read(internal::dmva(*t.address), {static_cast<std::byte*>(t.host), t.bytes}, card_stream_);
  }
  finish(t);
}

void RuntimeStream::launchOperationCompute(ComputeParams* params) {
  Compute& c = known<Compute>(params, "launchOperationCompute");
  only_chunk(c.program, "launchOperationCompute");
  Runtime& runtime = Runtime::get();
  Card& card = runtime.card();
  Recorded call(ApiCall::launch_compute, CardWork::Kind::compute, card_stream_);
  call.name(c.name);
  const uint64_t at = internal::dmva(*c.program);
  const auto memory = runtime.find(at);
  std::vector<uint64_t> arguments;
  const std::shared_ptr<const internal::Job> job = memory->job(at - memory->address + c.bootstrap, arguments);
  if (!c.tensors.empty()) {
    if (c.tensors.size() != job->arguments)
      throw Error("InvalidArgument", "launchOperationCompute: kernel '" + c.name + "' takes " +
                                         std::to_string(job->arguments) + " tensors, " +
                                         std::to_string(c.tensors.size()) + " are given");
    for (size_t i = 0; i < arguments.size(); ++i) {
      only_chunk(c.tensors[i], "launchOperationCompute");
      arguments[i] = internal::dmva(*c.tensors[i]);
    }
  }
  std::vector<uint64_t> bound;
  bound.reserve(job->positions.size());
  for (uint32_t position : job->positions) bound.push_back(arguments[position]);
  std::vector<Buffer> buffers;
  buffers.reserve(bound.size());
  runtime.buffers(bound, buffers);
  card.launch(job->program, buffers, {}, card_stream_);
  print_warnings(c.name);
}

void RuntimeStream::launchOperationHostCallback(HostCallbackParams* params) {
  HostCallback& h = known<HostCallback>(params, "launchOperationHostCallback");
  if (!h.callback) throw Error("InvalidArgument", "launchOperationHostCallback: nothing to call");
  if (h.pipeline_barrier) synchronize();
  h.callback(h.argument);
}

void RuntimeStream::fillAsync(const CompositeAddress* address, double value, DataFormats format, bool) {
  const Chunk& chunk = only_chunk(address, "fillAsync");
  const std::vector<std::byte> element = internal::fill_element(value, format);
  Card& card = Runtime::get().card();
  Recorded call(ApiCall::fill, CardWork::Kind::fill, card_stream_);
  const uint64_t at = internal::dmva(*address);
  const auto allocation = Runtime::get().find(at);
  card.fill(at, chunk.size, element, card_stream_);
  if (allocation->type != MemoryType::Program) return;
  std::vector<std::byte> content(chunk.size);
  for (size_t i = 0; i < content.size(); ++i) content[i] = element[i % element.size()];
  allocation->wrote(at - allocation->address, content);
}

void RuntimeStream::synchronize() {
  Card& card = Runtime::get().card();
  Recorded call(ApiCall::wait, CardWork::Kind::compute, card_stream_);
  card.synchronize(card_stream_);
}

bool RuntimeStream::query() { return Runtime::get().card().query(card_stream_); }

bool RuntimeStream::needsShutdown() { return has_error(Runtime::get().card(), card_stream_); }

}  // namespace flex

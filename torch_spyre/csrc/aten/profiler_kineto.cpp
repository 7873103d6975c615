// SPDX-License-Identifier: Apache-2.0
// The device in torch.profiler: a child profiler of Kineto, registered through PyTorch's hook for PrivateUse1, and the
// event timer of the older profilers.
//
// Enters: what `profiler.cpp` recorded. Leaves: Kineto activities: a host event for each call (`privateuse1_runtime`),
// a kernel or memcpy on the device, a flow between them, and a counter of allocated memory.
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/csrc/utils/pybind.h>

#include <map>

#include "device.h"
#include "profiler.h"

namespace spyre {
namespace {

namespace py = pybind11;
using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using Kind = card::Activity::Kind;

using Metadata = std::vector<std::pair<std::string, std::string>>;  // key, value as JSON

/// What torch_spyre.profiler.programs says about the programs of a session, each asked once.
class Programs {
 public:
  const Metadata& of(const profiler::Event& event) {
    const auto key = std::pair(event.activity.program.get(), event.name);
    auto found = known_.find(key);
    if (found == known_.end()) found = known_.emplace(key, ask(event)).first;
    return found->second;
  }

 private:
  static Metadata ask(const profiler::Event& event) {
    py::gil_scoped_acquire gil;
    const py::error_scope in_flight;
    try {
      const auto binary = event.activity.program->binary();
      const py::bytes bytes(reinterpret_cast<const char*>(binary.data()), binary.size());
      const auto answer = py::module_::import("torch_spyre.profiler.programs").attr("metadata")(bytes, event.name);
      Metadata metadata;
      for (const auto& item : answer) {
        const auto pair = py::cast<py::tuple>(item);
        metadata.emplace_back(pair[0].cast<std::string>(), pair[1].cast<std::string>());
      }
      return metadata;
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("profile of a spyre program");
      return {};
    }
  }
  std::map<std::pair<const card::Program*, std::string>, Metadata> known_;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    begin_ns_ = profiler::host_now_ns();
    profiler::start();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    profiler::stop();
    end_ns_ = profiler::host_now_ns();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(device_info(0));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, begin_ns_, end_ns_);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(begin_ns_, end_ns_, "spyre");
    buffer_->gpuOpCount = 0;
    Programs programs;
    int32_t flow = 0;
    for (const auto& event : profiler::take_events()) {
      name_tracks(logger, event);
      add_call(event, ++flow, linked);
      add_device(event, flow, linked, programs);
    }
    for (const auto& point : profiler::take_memory()) add_memory(point);
    for (const auto& activity : buffer_->activities) activity->log(logger);
  }

  void pushCorrelationId(uint64_t id) override { profiler::push_op(id); }
  void popCorrelationId() override { profiler::pop_op(); }
  void pushUserCorrelationId(uint64_t id) override { profiler::push_scope(id); }
  void popUserCorrelationId() override { profiler::pop_scope(); }

  std::string getDeviceProperties() override {
    std::string text;
    for (c10::DeviceIndex i = 0; i < device_count_or_zero(); ++i) {
      text += c10::str(i ? ", " : "", "{\"id\": ", static_cast<int>(i), ", \"name\": \"AIU ", static_cast<int>(i),
                       "\", \"totalGlobalMem\": ", card::kDataSegments * card::kSegmentBytes,
                       ", \"computeCapability\": \"dd2\", \"multiProcessorCount\": ", card::kCores,
                       ", \"sharedMemPerMultiprocessor\": ", card::kLxBytes, "}");
    }
    return text;
  }

 private:
  GenericTraceActivity& add(ActivityType type, const std::string& name, int64_t begin, int64_t end) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = begin;
    activity.endTime = end;
    return activity;
  }

  static libkineto::DeviceInfo device_info(int device) {
    return {device, device + libkineto::kExceedMaxPid, c10::str("spyre:", device), c10::str("AIU ", device)};
  }

  void name_tracks(libkineto::ActivityLogger& logger, const profiler::Event& event) {
    const auto device = event.device, stream = event.activity.stream;
    if (named_.emplace(device, -1).second) {
      logger.handleDeviceInfo(device_info(device), begin_ns_);
    }
    if (named_.emplace(device, stream).second) {
      logger.handleResourceInfo({stream, stream, device, c10::str("stream ", stream)}, begin_ns_);
    }
  }

  void add_call(const profiler::Event& event, int32_t flow, const libkineto::getLinkedActivityCallback& linked) {
    auto& call =
        add(ActivityType::PRIVATEUSE1_RUNTIME, call_name(event.activity.kind), event.host_begin_ns, event.host_end_ns);
    call.id = flow;
    call.device = libkineto::processId();
    call.resource = event.thread;
    call.threadId = event.thread;
    call.flow.id = flow;
    call.flow.type = libkineto::kLinkAsyncCpuGpu;
    call.flow.start = 1;
    call.linked = event.op ? linked(static_cast<int32_t>(event.op)) : nullptr;
    call.addMetadata("correlation", flow);
  }

  void add_device(const profiler::Event& event, int32_t flow, const libkineto::getLinkedActivityCallback& linked,
                  Programs& programs) {
    const auto& a = event.activity;
    const bool copies = a.kind == Kind::dma_in || a.kind == Kind::dma_out;
    const auto type = copies ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL;
    const auto duration = static_cast<int64_t>(a.end_ns - a.start_ns);
    auto& work = add(type, name_of(event), event.shown_ns, event.shown_ns + duration);
    work.id = flow;
    work.device = event.device;
    work.resource = a.stream;
    work.threadId = event.thread;
    work.flow.id = flow;
    work.flow.type = libkineto::kLinkAsyncCpuGpu;
    work.flow.start = 0;
    work.linked = event.op ? linked(static_cast<int32_t>(event.op)) : nullptr;
    work.addMetadata("device", event.device);
    work.addMetadata("stream", a.stream);
    work.addMetadata("correlation", flow);
    work.addMetadata("device_start_ns", a.start_ns);
    work.addMetadata("device_duration_ns", duration);
    if (!event.user_line.empty()) work.addMetadata("user_line", quoted(event.user_line));
    if (a.kind == Kind::launch) {
      for (const auto& [key, value] : programs.of(event)) work.addMetadata(key, value);
    } else if (a.exchange) {
      describe_exchange(*a.exchange, work);
    } else {
      work.addMetadata("bytes", a.bytes);
      work.addMetadata("memory bandwidth (GB/s)", static_cast<double>(a.bytes) / std::max<int64_t>(duration, 1));
    }
  }

  static const char* call_name(Kind kind) {
    if (kind == Kind::exchange) return "aiuCollective";
    return kind == Kind::launch ? "aiuLaunchControlBlocks" : "aiuMemcpy";
  }

  /// What tools that analyse communication look for.
  static void describe_exchange(const card::ExchangeInfo& info, libkineto::GenericTraceActivity& work) {
    work.addMetadata("coll_kind", quoted(info.kind));
    work.addMetadata("coll_group", quoted(info.group));
    work.addMetadata("coll_algo", quoted(info.algorithm));
    work.addMetadata("coll_bytes", info.bytes);
    work.addMetadata("coll_wire_bytes", info.wire_bytes);
    work.addMetadata("coll_sequence", info.sequence);
    work.addMetadata("coll_rank", info.rank);
    work.addMetadata("coll_peers", quoted(c10::str(c10::Join(",", info.peers))));
    work.addMetadata("Collective name", quoted(info.kind));
    work.addMetadata("Process Group Name", quoted(info.group));
    work.addMetadata("Group size", static_cast<int64_t>(info.peers.size()));
  }

  static std::string name_of(const profiler::Event& event) {
    // Tools know kernels that communicate by this prefix.
    if (event.activity.kind == Kind::exchange) return "ncclDevKernel_spyreccl_" + event.activity.exchange->kind;
    if (event.activity.kind == Kind::dma_in) return "Memcpy (HtoD)";
    if (event.activity.kind == Kind::dma_out) return "Memcpy (DtoH)";
    return event.name.empty() ? "program" : event.name;
  }

  void add_memory(const profiler::MemoryPoint& point) {
    auto& counter = add(ActivityType::MTIA_COUNTERS, "allocated memory", point.time_ns, point.time_ns);
    counter.device = point.device;
    counter.addCounterValue("bytes", static_cast<double>(point.bytes));
  }

  int64_t begin_ns_ = 0, end_ns_ = 0;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::set<std::pair<int, int>> named_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "spyre";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types{ActivityType::PRIVATEUSE1_RUNTIME, ActivityType::CONCURRENT_KERNEL,
                                              ActivityType::GPU_MEMCPY};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    // A profile of the host alone asks for PRIVATEUSE1_RUNTIME too.
    return types.count(ActivityType::CONCURRENT_KERNEL) ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

/// The timer of profilers without Kineto: markers of the current stream, on the device clock.
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, torch::profiler::impl::ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const auto index = current_device();
    if (device) *device = index;
    *event = std::make_shared<card::Marker>(card_of(index).record(current_stream_id(index)));
    if (cpu_ns) *cpu_ns = profiler::host_now_ns();
  }
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* begin,
                const torch::profiler::impl::ProfilerVoidEventStub* end) const override {
    const auto time = [](const auto* e) { return static_cast<const card::Marker*>(e->get())->time(); };
    return static_cast<float>(static_cast<double>(time(end) - time(begin)) / 1e3);  // us
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override {
    for (c10::DeviceIndex i = 0; i < device_count_or_zero(); ++i) op(i);
  }
  void synchronize() const override {
    for (c10::DeviceIndex i = 0; i < device_count_or_zero(); ++i) synchronize_device(i);
  }
};

const bool registered = [] {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  return true;
}();

}  // namespace
}  // namespace spyre

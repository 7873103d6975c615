// SPDX-License-Identifier: Apache-2.0
// Records are kept as the runtime makes them and go into the profiler's buffers when it flushes.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <variant>

#include "flex/runtime.h"
#include "libaiupti/aiupti_activity.h"

namespace {

using flex::internal::ApiCall;
using flex::internal::CardWork;
using flex::internal::Runtime;

using Record = std::variant<AIUpti_ActivityAPI, AIUpti_ActivityCompute, AIUpti_ActivityMemcpy, AIUpti_ActivityMemset,
                            AIUpti_ActivityMemory>;
using Request = void (*)(uint8_t**, size_t*, size_t*);
using Complete = void (*)(uint8_t*, size_t, size_t);

constexpr size_t kMostRecords = 1 << 20;
constexpr size_t kKinds = 9;

static_assert(sizeof(AIUpti_ActivityCompute::name) == sizeof(flex::aiupti::AIUpti_ActivityCB::name));

/// Bytes of a record in a buffer; 0 for a kind that is never written.
size_t record_bytes(AIUpti_ActivityKind kind) {
  switch (kind) {
    case AIUPTI_ACTIVITY_KIND_RUNTIME:
      return sizeof(AIUpti_ActivityAPI);
    case AIUPTI_ACTIVITY_KIND_CMPT:
      return sizeof(AIUpti_ActivityCompute);
    case AIUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(AIUpti_ActivityMemcpy);
    case AIUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(AIUpti_ActivityMemset);
    case AIUPTI_ACTIVITY_KIND_MEMORY:
      return sizeof(AIUpti_ActivityMemory);
    default:
      return 0;
  }
}
static_assert(sizeof(AIUpti_ActivityAPI) % 8 == 0 && sizeof(AIUpti_ActivityCompute) % 8 == 0 &&
              sizeof(AIUpti_ActivityMemcpy) % 8 == 0 && sizeof(AIUpti_ActivityMemset) % 8 == 0 &&
              sizeof(AIUpti_ActivityMemory) % 8 == 0);

AIUpti_runtime_api_trace_cbid cbid(ApiCall call) {
  switch (call) {
    case ApiCall::launch_compute:
      return AIUPTI_RUNTIME_TRACE_CBID_LAUNCH_CB_CMPT;
    case ApiCall::transfer_in:
      return AIUPTI_RUNTIME_TRACE_CBID_DATA_TRANSFER_HTOD;
    case ApiCall::transfer_out:
      return AIUPTI_RUNTIME_TRACE_CBID_DATA_TRANSFER_DTOH;
    case ApiCall::fill:
      return AIUPTI_RUNTIME_TRACE_CBID_LAUNCH_CB_DMI;
    case ApiCall::allocate:
      return AIUPTI_RUNTIME_TRACE_CBID_MALLOC;
    case ApiCall::wait:
      return AIUPTI_RUNTIME_TRACE_CBID_SCHEDULE_WAIT;
  }
  return AIUPTI_RUNTIME_TRACE_CBID_INVALID;
}

uint32_t device() {
  const auto context = Runtime::get().context();
  return context ? static_cast<uint32_t>(context->deviceId()) : 0;
}

template <class Made>
Made record_of(AIUpti_ActivityKind kind) {
  Made made{};
  made.kind = kind;
  return made;
}

class Recorder final : public flex::internal::ActivitySink {
 public:
  static Recorder& get() {
    static Recorder* recorder = new Recorder;  // outlives whatever still calls the runtime at exit
    return *recorder;
  }

  void called(ApiCall call, uint64_t start_ns, uint64_t end_ns, uint32_t correlation) override {
    if (!wants(AIUPTI_ACTIVITY_KIND_RUNTIME)) return;
    auto made = record_of<AIUpti_ActivityAPI>(AIUPTI_ACTIVITY_KIND_RUNTIME);
    made.cbid = cbid(call);
    made.start = start_ns;
    made.end = std::max(start_ns, end_ns);
    made.process_id = static_cast<uint32_t>(getpid());
    made.correlation_id = correlation;
    made.data = static_cast<uint64_t>(gettid());
    keep(made);
  }

  void worked(const CardWork& work, uint32_t correlation) override {
    std::lock_guard lock(mutex_);
    // Engines run beside each other, and each does one thing at a time.
    uint64_t& engine = engines_[work.kind == CardWork::Kind::compute    ? 0
                                : work.kind == CardWork::Kind::copy_out ? 1
                                                                        : 2];
    const uint64_t start = std::max(work.queued_ns, engine), end = start + work.duration_ns;
    engine = end;
    if (work.kind == CardWork::Kind::compute) {
      auto made = record_of<AIUpti_ActivityCompute>(AIUPTI_ACTIVITY_KIND_CMPT);
      made.queued = made.submitted = work.queued_ns;
      const size_t length = std::min(work.name.size(), sizeof made.name - 1);
      std::memcpy(made.name, work.name.data(), length);
      keep_work(made, work, start, end, correlation);
    } else if (work.kind == CardWork::Kind::fill) {
      auto made = record_of<AIUpti_ActivityMemset>(AIUPTI_ACTIVITY_KIND_MEMSET);
      made.bytes = work.bytes;
      keep_work(made, work, start, end, correlation);
    } else {
      auto made = record_of<AIUpti_ActivityMemcpy>(AIUPTI_ACTIVITY_KIND_MEMCPY);
      made.copy_kind =
          work.kind == CardWork::Kind::copy_in ? AIUPTI_ACTIVITY_MEMCPY_KIND_HTOD : AIUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
      made.bytes = work.bytes;
      keep_work(made, work, start, end, correlation);
    }
  }

  void memory(bool allocated, uint64_t address, uint64_t bytes, uint64_t start_ns, uint32_t correlation) override {
    if (!wants(AIUPTI_ACTIVITY_KIND_MEMORY)) return;
    auto made = record_of<AIUpti_ActivityMemory>(AIUPTI_ACTIVITY_KIND_MEMORY);
    made.memory_operation_type =
        allocated ? AIUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION : AIUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE;
    made.start = start_ns;
    made.end = std::max(start_ns, flex::internal::host_now_ns());
    made.bytes = bytes;
    made.address = address;
    made.device_id = device();
    made.process_id = static_cast<uint32_t>(getpid());
    made.correlation_id = correlation;
    keep(made);
  }

  void set_callbacks(Request request, Complete complete) {
    std::lock_guard lock(mutex_);
    request_ = request;
    complete_ = complete;
  }

  void want(AIUpti_ActivityKind kind, bool wanted) {
    std::lock_guard lock(mutex_);
    wanted_[kind] = wanted;
    const bool any = std::any_of(wanted_.begin(), wanted_.end(), [](const auto& w) { return w.load(); });
    Runtime::get().sink.store(any ? this : nullptr, std::memory_order_release);
  }

  /// Callbacks run without the lock: they may allocate, log, or ask for more.
  AIUpti_ResultTypes flush() {
    std::unique_lock lock(mutex_);
    if (!request_ || !complete_) return AIUPTI_ERROR_NOT_INITIALIZED;
    const Request request = request_;
    const Complete complete = complete_;
    std::deque<Record> records = std::move(records_);
    records_.clear();
    lock.unlock();
    while (!records.empty()) {
      uint8_t* buffer = nullptr;
      size_t size = 0, most = 0;
      request(&buffer, &size, &most);
      const size_t valid = buffer ? fill(records, buffer, size, most) : 0;
      if (buffer) complete(buffer, size, valid);
      if (valid == 0) {  // no buffer, or one that is too small for a record
        dropped_ += records.size();
        break;
      }
    }
    return AIUPTI_SUCCESS;
  }

  size_t take_dropped() { return dropped_.exchange(0); }

 private:
  bool wants(AIUpti_ActivityKind kind) const { return wanted_[kind].load(std::memory_order_relaxed); }

  void keep(const Record& record) {
    std::lock_guard lock(mutex_);
    keep_locked(record);
  }
  void keep_locked(const Record& record) {
    if (records_.size() < kMostRecords)
      records_.push_back(record);
    else
      ++dropped_;
  }
  template <class Made>
  void keep_work(Made& made, const CardWork& work, uint64_t start, uint64_t end, uint32_t correlation) {
    if (!wants(made.kind)) return;
    made.start = start;
    made.end = end;
    made.device_id = device();
    made.stream_id = static_cast<uint32_t>(work.stream);
    made.correlation_id = correlation;
    keep_locked(made);
  }

  static size_t fill(std::deque<Record>& records, uint8_t* buffer, size_t size, size_t most) {
    size_t valid = 0;
    for (size_t n = 0; !records.empty() && (most == 0 || n < most); ++n) {
      const bool fits = std::visit(
          [&](const auto& record) {
            if (size - valid < sizeof record) return false;
            std::memcpy(buffer + valid, &record, sizeof record);
            valid += sizeof record;
            return true;
          },
          records.front());
      if (!fits) break;
      records.pop_front();
    }
    return valid;
  }

  std::mutex mutex_;
  Request request_ = nullptr;
  Complete complete_ = nullptr;
  std::array<std::atomic<bool>, kKinds> wanted_{};
  std::deque<Record> records_;
  std::array<uint64_t, 3> engines_{};  // when each is free: compute, out, in
  std::atomic<size_t> dropped_{0};
};

bool known(AIUpti_ActivityKind kind) { return kind > AIUPTI_ACTIVITY_KIND_INVALID && kind < kKinds; }

}  // namespace

AIUpti_ResultTypes aiuptiActivityRegisterCallbacks(Request request, Complete complete) {
  if (!request || !complete) return AIUPTI_ERROR_INVALID_PARAMETER;
  Recorder::get().set_callbacks(request, complete);
  return AIUPTI_SUCCESS;
}

AIUpti_ResultTypes aiuptiActivityEnable(AIUpti_ActivityKind kind) {
  if (!known(kind)) return AIUPTI_ERROR_INVALID_PARAMETER;
  Recorder::get().want(kind, true);
  return AIUPTI_SUCCESS;
}

AIUpti_ResultTypes aiuptiActivityDisable(AIUpti_ActivityKind kind) {
  if (!known(kind)) return AIUPTI_ERROR_INVALID_PARAMETER;
  Recorder::get().want(kind, false);
  return AIUPTI_SUCCESS;
}

AIUpti_ResultTypes aiuptiFlushAllActivities() { return Recorder::get().flush(); }

AIUpti_ResultTypes aiuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, AIUpti_Activity** record) {
  if (!record || (!buffer && valid)) return AIUPTI_ERROR_INVALID_PARAMETER;
  uint8_t* next = buffer;
  if (*record) next = reinterpret_cast<uint8_t*>(*record) + record_bytes((*record)->kind);
  const size_t left = next >= buffer && next <= buffer + valid ? static_cast<size_t>(buffer + valid - next) : 0;
  auto* found = reinterpret_cast<AIUpti_Activity*>(next);
  const bool there = left >= sizeof(AIUpti_Activity) && record_bytes(found->kind) && record_bytes(found->kind) <= left;
  *record = there ? found : nullptr;
  return there ? AIUPTI_SUCCESS : AIUPTI_ERROR_MAX_LIMIT_REACHED;
}

AIUpti_ResultTypes aiuptiActivityGetNumDroppedRecords(size_t* dropped) {
  if (!dropped) return AIUPTI_ERROR_INVALID_PARAMETER;
  *dropped = Recorder::get().take_dropped();
  return AIUPTI_SUCCESS;
}

// SPDX-License-Identifier: Apache-2.0
// Recording: the card's observers, the host side of each call, and where the trace shows an activity.
#include "profiler.h"

#include <ThreadUtil.h>  // Kineto
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>

#include "device.h"
#include "enumerate.h"

namespace spyre::profiler {

std::atomic<bool> recording{false};

namespace {

namespace py = pybind11;

std::mutex mutex;
std::vector<Event> events;
std::vector<MemoryPoint> memory;

struct Thread {
  std::vector<uint64_t> ops, scopes;
  std::vector<Event> open;                // booked inside the calls that are open
  std::vector<const std::string*> names;  // of those calls
  std::vector<int64_t> begins;
};
thread_local Thread thread;

/// The device clock in host time. It stands still while the host is slow, so an activity is shown at its device time
/// plus the idle time that the host has caused so far: never before the call that submitted it, never overlapping on
/// an engine or a stream, with its exact duration.
class Timeline {
 public:
  int64_t place(uint64_t start_ns, int64_t submitted_ns) {
    offset_ = std::max(offset_, submitted_ns - static_cast<int64_t>(start_ns));
    return static_cast<int64_t>(start_ns) + offset_;
  }
  void restart() { offset_ = 0; }

 private:
  int64_t offset_ = 0;
};
std::array<Timeline, kMaxDevices> timelines;  // guarded by the mutex

void finish(Event event) {
  std::lock_guard lock(mutex);
  events.push_back(std::move(event));
}

class DeviceObserver final : public card::Observer {
 public:
  int device = 0;
  void booked(const card::Activity& activity) override {
    Event event;
    event.activity = activity;
    event.device = device;
    event.thread = libkineto::systemThreadId();
    if (!thread.ops.empty()) event.op = thread.ops.back();
    if (!thread.scopes.empty()) event.scope = thread.scopes.back();
    if (!thread.names.empty()) {
      if (thread.names.back()) event.name = *thread.names.back();
      event.host_begin_ns = thread.begins.back();
      thread.open.push_back(std::move(event));
      return;
    }
    event.host_begin_ns = event.host_end_ns = host_now_ns();
    finish(std::move(event));
  }
};
std::array<DeviceObserver, kMaxDevices> observers;

bool is_user_code(std::string_view file) {
  if (file.empty() || file.front() == '<') return false;
  for (std::string_view inner : {"/site-packages/torch/", "/torch_spyre/", "/torchinductor_", "/contextlib.py"}) {
    if (file.find(inner) != std::string_view::npos) return false;
  }
  return true;
}

std::string user_line() {
  if (!Py_IsInitialized()) return {};
  py::gil_scoped_acquire gil;
  const py::error_scope in_flight;  // the call may have failed
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(
      PyEval_GetFrame() ? Py_NewRef(reinterpret_cast<PyObject*>(PyEval_GetFrame())) : nullptr));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
    if (file && is_user_code(file)) return std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(f));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return {};
}

}  // namespace

int64_t host_now_ns() { return c10::getTime(); }

void Call::begin(const std::string* name) {
  active_ = true;
  first_ = thread.open.size();
  thread.names.push_back(name);
  thread.begins.push_back(host_now_ns());
}

void Call::end() {
  thread.names.pop_back();
  thread.begins.pop_back();
  const auto now = host_now_ns();
  const auto line = thread.open.size() > first_ ? user_line() : std::string();
  for (size_t i = first_; i < thread.open.size(); ++i) {
    thread.open[i].host_end_ns = now;
    thread.open[i].user_line = line;
    finish(std::move(thread.open[i]));
  }
  thread.open.resize(first_);
}

void start() {
  {
    std::lock_guard lock(mutex);
    events.clear();
    memory.clear();
    for (auto& timeline : timelines) timeline.restart();
  }
  recording = true;
  for (c10::DeviceIndex i = 0; i < device_count_or_zero(); ++i) {
    if (is_open(i)) card_opened(i, card_of(i));
  }
}

void stop() {
  recording = false;
  for (c10::DeviceIndex i = 0; i < device_count_or_zero(); ++i) {
    if (is_open(i)) card_of(i).observe(nullptr);
  }
}

std::vector<Event> take_events() {
  std::lock_guard lock(mutex);
  for (Event& event : events) {
    event.activity.settle();
    event.shown_ns = timelines[event.device].place(event.activity.start_ns, event.host_begin_ns);
  }
  return std::exchange(events, {});
}

std::vector<MemoryPoint> take_memory() {
  std::lock_guard lock(mutex);
  return std::exchange(memory, {});
}

void card_opened(int device, card::Card& card) {
  if (!recording) return;
  observers[device].device = device;
  card.observe(&observers[device]);
}

void memory_changed(int device, uint64_t total) {
  std::lock_guard lock(mutex);
  memory.push_back({device, host_now_ns(), total});
}

void push_op(uint64_t id) { thread.ops.push_back(id); }
void pop_op() {
  if (!thread.ops.empty()) thread.ops.pop_back();
}
void push_scope(uint64_t id) { thread.scopes.push_back(id); }
void pop_scope() {
  if (!thread.scopes.empty()) thread.scopes.pop_back();
}

}  // namespace spyre::profiler

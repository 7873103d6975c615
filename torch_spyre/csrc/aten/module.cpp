// SPDX-License-Identifier: Apache-2.0
// torch_spyre._C: the Python face of the device.
#include <ATen/core/Generator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <mutex>

#include "device.h"
#include "errors.h"
#include "generator.h"
#include "python_objects.h"
#include "storage.h"

namespace spyre {
namespace {

namespace py = pybind11;

void synchronize(std::optional<int64_t> device) {
  py::gil_scoped_release no_gil;
  if (device) return synchronize_device(checked(*device));
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) synchronize_device(i);
}

/// Ctrl-C while a thread waits for a card: Python's handler runs, and what it raises ends the wait.
void answer_signals() {
  if (!Py_IsInitialized() || gettid() != getpid()) return;  // Python runs handlers in the main thread
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error error;
  error.persist();
  throw error;
}

void seed(const at::Generator& generator, uint64_t value) {
  auto copy = generator;
  std::lock_guard lock(copy.mutex());
  copy.set_current_seed(value);
}

at::Tensor get_rng_state(int64_t device) {
  auto g = default_generator(checked(device));
  std::lock_guard lock(g.mutex());
  return g.get_state();
}

void set_rng_state(const at::Tensor& state, int64_t device) {
  auto g = default_generator(checked(device));
  std::lock_guard lock(g.mutex());
  g.set_state(state);
}

py::dict allocator_stats(int64_t device) {
  const auto stats = device_allocator()->getDeviceStats(checked(device));
  const auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  py::dict d;
  d["allocated_bytes.all.current"] = stats.allocated_bytes[aggregate].current;
  d["allocation.all.current"] = stats.allocation[aggregate].current;
  return d;
}

void bind_random(py::module_& m) {
  m.def(
      "manual_seed", [](uint64_t value, int64_t device) { seed(default_generator(checked(device)), value); },
      py::arg("seed"), py::arg("device") = -1);
  m.def(
      "manual_seed_all",
      [](uint64_t value) {
        for (c10::DeviceIndex i = 0; i < device_count(); ++i) seed(default_generator(i), value);
      },
      py::arg("seed"));
  m.def(
      "initial_seed", [](int64_t device) { return default_generator(checked(device)).current_seed(); },
      py::arg("device") = -1);
  m.def("get_rng_state", &get_rng_state, py::arg("device") = -1);
  m.def("set_rng_state", &set_rng_state, py::arg("new_state"), py::arg("device") = -1);
  m.def(
      "draw_key",
      [](int64_t device, std::optional<at::Generator> generator) {
        const uint64_t key = draw_key(generator, checked(device));
        return std::pair(static_cast<int32_t>(key), static_cast<int32_t>(key >> 32));
      },
      py::arg("device") = -1, py::arg("generator") = py::none(),
      "The next key of a generator, by default the device's, as two int32 launch scalars.");
  m.def(
      "_get_default_generator", [](int64_t device) { return default_generator(checked(device)); },
      py::arg("device") = -1);
}

void bind_streams(py::module_& m) {
  m.def("current_stream", [](int64_t device) { return current_stream(checked(device)); }, py::arg("device"));
  m.def("default_stream", [](int64_t device) { return default_stream(checked(device)); }, py::arg("device"));
  m.def(
      "get_stream_from_pool", [](int64_t device, int priority) { return stream_from_pool(checked(device), priority); },
      py::arg("device"), py::arg("priority") = 0);
  m.def(
      "set_current_stream",
      [](c10::Stream stream) {
        // Streams of exchanges are not for programs.
        TORCH_CHECK(stream.id() >= 0 && stream.id() < card::kStreams, "stream ", stream.id(),
                    " does not exist; a card has 0..", card::kStreams - 1);
        return exchange_stream(stream);
      },
      py::arg("stream"));
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def(
      "set_device",
      [](int64_t index) {
        TORCH_CHECK(index != -1, no_such_device(index));
        set_current_device(checked(index));
      },
      py::arg("index"));
  m.def("start_runtime", [] { card_of(current_device()); }, "Opens the card of the current device.");
  m.def("is_initialized", [] { return any_open() && !in_bad_fork(); });
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("synchronize", &synchronize, py::arg("device") = py::none());
  m.def("total_memory", [](int64_t device) { return card_of(checked(device)).total_bytes(); }, py::arg("device") = -1);
  m.def(
      "reset",
      [](int64_t device, bool drop_queued) {
        const auto index = checked(device);
        py::gil_scoped_release no_gil;
        reset_device(index, drop_queued);
      },
      py::arg("device") = -1, py::arg("drop_queued") = false,
      "Clears errors and injected faults of a card, after its queued work or instead of it.");
  m.def(
      "clock_ns", [](int64_t device) { return card_of(checked(device)).clock_ns(); }, py::arg("device") = -1,
      "When all work submitted so far is done on the device clock.");
  m.def(
      "_inject_fault",
      [](const std::string& kind, int64_t nth, int64_t device) {
        on_card([&] { card_of(checked(device)).inject_fault(card::fault_named(kind), nth); });
      },
      py::arg("kind"), py::arg("nth") = 1, py::arg("device") = -1,
      "Fails the nth next 'allocation', 'dma' or 'launch', or loses the card at the nth next dma or launch.");
  m.def("_spyre_get_allocator_stats", &allocator_stats, py::arg("device"));
  m.def(
      "_spyre_reset_accumulated_stats",
      [](int64_t device) { device_allocator()->resetAccumulatedStats(checked(device)); }, py::arg("device"));
  m.def(
      "_spyre_reset_peak_stats", [](int64_t device) { device_allocator()->resetPeakStats(checked(device)); },
      py::arg("device"));
  card::set_wait_check(&answer_signals);
  bind_random(m);
  bind_streams(m);
}

}  // namespace spyre

PYBIND11_MODULE(_C, m) {
  m.doc() = "The spyre device: layouts, memory, streams, launches.";
  spyre::bind_layout(m);
  spyre::bind_device(m);
  spyre::bind_launch(m);
  spyre::bind_eager(m);
  spyre::bind_eager_buckets(m);
  spyre::bind_monitor(m);
  spyre::bind_recording(m);
  spyre::bind_distributed(m);
  spyre::register_structured_ops();
}

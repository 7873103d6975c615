// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include <atomic>

#include "../card/counters_dict.h"
#include "device.h"
#include "monitor.h"
#include "profiler.h"
#include "python_objects.h"

namespace spyre {
namespace {

namespace py = pybind11;

std::atomic<bool> hook_set{false};
PyObject* hook = nullptr;  // guarded by the GIL

void set_memory_hook(const py::object& function) {
  PyObject* old = hook;
  hook = function.is_none() ? nullptr : Py_NewRef(function.ptr());
  hook_set = hook != nullptr;
  Py_XDECREF(old);
}

py::dict card_counters(int64_t device) {
  const auto index = checked(device);
  return is_open(index) ? card::counters_dict(card_of(index).counters()) : py::dict();
}

}  // namespace

void notify_memory_hook(int device, uint64_t address, int64_t change) {
  if (!hook_set.load(std::memory_order_relaxed) || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (!hook) return;
  const py::error_scope in_flight;  // memory may be freed while an exception unwinds
  const auto function = py::reinterpret_borrow<py::object>(hook);
  try {
    function(device, address, change);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("memory history of spyre");
  }
}

/// (name, program or None, device, stream, start_ns, duration_ns, bytes) of each launch, transfer and exchange.
py::list recorded() {
  py::list list;
  for (const auto& e : profiler::take_events()) {
    const auto& a = e.activity;
    using Kind = card::Activity::Kind;
    const std::string name = a.exchange               ? a.exchange->kind
                             : a.kind == Kind::launch ? e.name
                             : a.kind == Kind::dma_in ? "HtoD"
                                                      : "DtoH";
    list.append(py::make_tuple(name, std::const_pointer_cast<card::Program>(a.program), e.device, a.stream, a.start_ns,
                               a.end_ns - a.start_ns, a.bytes));
  }
  return list;
}

void bind_monitor(py::module_& m) {
  m.def(
      "_record_activities", [](bool on) { on ? profiler::start() : profiler::stop(); }, py::arg("on"),
      "Records launches and transfers without torch.profiler, which must not run meanwhile.");
  m.def("_recorded_activities", &recorded, "What was recorded since _record_activities(True).");
  m.def(
      "_set_timing_only", [](bool on, int64_t device) { card_of(checked(device)).set_timing_only(on); }, py::arg("on"),
      py::arg("device") = -1, "Launches and transfers take their time on the device clock but touch no memory.");
  m.def(
      "_timing_only",
      [](int64_t device) {
        const auto index = checked(device);
        return is_open(index) && card_of(index).timing_only();
      },
      py::arg("device") = -1);
  m.def("_is_open", [](int64_t device) { return is_open(checked(device)); }, py::arg("device"));
  m.def("_card_counters", &card_counters, py::arg("device"), "Counters of an open card; empty if it is not open.");
  m.def("_set_memory_hook", &set_memory_hook, py::arg("function"),
        "Calls function(device, address, change in bytes) at every allocation "
        "and free; None: no more.");
}

}  // namespace spyre

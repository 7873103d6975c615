// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include "python_objects.h"
#include "recording.h"
#include "snapshot.h"

namespace spyre {
namespace {

/// Lets Python collect snapshots that are part of a cycle.
void collectable(PyHeapTypeObject* heap_type) {
  auto* type = &heap_type->ht_type;
  type->tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!pybind11::detail::is_holder_constructed(self)) return 0;
    return pybind11::cast<Snapshot&>(pybind11::handle(self)).traverse(visit, arg);
  };
  type->tp_clear = [](PyObject* self) {
    if (!pybind11::detail::is_holder_constructed(self)) return 0;
    pybind11::cast<Snapshot&>(pybind11::handle(self)).clear();
    return 0;
  };
}

}  // namespace

void bind_recording(pybind11::module_& m) {
  namespace py = pybind11;
  py::class_<Recording>(m, "Recording", "Launches of a thread between start() and stop(), to be replayed.")
      .def(py::init<>())
      .def("start", &Recording::start, NotNone())
      .def("stop", &Recording::stop, NotNone())
      .def("same_as", &Recording::same_as, py::arg("other"),
           "The same programs on the same outside memory, and on inside memory allocated in the same order.")
      .def("replay", &Recording::replay, NotNone(), py::call_guard<py::gil_scoped_release>(),
           "Makes all launches again, on the memory that they used.")
      .def_property_readonly("spoiled", &Recording::spoiled, NotNone(), "Why it cannot be replayed; empty if it can.")
      .def("__len__", &Recording::size, NotNone());
  m.def(
      "spoil_recording", [](const char* reason) { Recording::spoil_active(reason); }, py::arg("reason"),
      "What this thread is doing depends on more than its launches; nothing unless it records them.");
  py::class_<Snapshot>(m, "Snapshot", "What dicts and lists hold, and where tensors lie.",
                       py::custom_type_setup(&collectable))
      .def(py::init([](const py::list& containers, const py::list& tensors) {
             for (const auto& tensor : tensors) py::cast<at::Tensor>(tensor);  // raises for anything else
             return std::make_unique<Snapshot>(containers.ptr(), tensors.ptr());
           }),
           py::arg("containers"), py::arg("tensors"))
      .def("holds", &Snapshot::holds, NotNone(), "Whether all of it is still so.");
}

}  // namespace spyre

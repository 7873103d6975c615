// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

namespace spyre {

void raise(const std::string& kind, const std::string& message) {
  if (!Py_IsInitialized()) TORCH_CHECK(false, kind, ": ", message);
  pybind11::gil_scoped_acquire gil;
  pybind11::object type;
  try {
    type = pybind11::module_::import("torch_spyre.errors").attr(kind.c_str());
  } catch (pybind11::error_already_set&) {
    type = pybind11::reinterpret_borrow<pybind11::object>(PyExc_RuntimeError);
  }
  PyErr_SetString(type.ptr(), message.c_str());
  python_error error;
  error.persist();
  throw error;
}

void raise(const card::Error& error) {
  if (error.kind() == "OutOfMemory") TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  raise(error.kind(), error.what());
}

}  // namespace spyre

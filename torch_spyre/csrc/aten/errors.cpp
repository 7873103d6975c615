// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

namespace spyre {

void raise(const std::string& kind, const std::string& message) {
  if (!Py_IsInitialized()) TORCH_CHECK(false, kind, ": ", message);
  pybind11::gil_scoped_acquire gil;
  const auto errors = pybind11::module_::import("torch_spyre.errors");
  if (pybind11::hasattr(errors, kind.c_str())) {
    PyErr_SetString(pybind11::object(errors.attr(kind.c_str())).ptr(), message.c_str());
  } else {
    PyErr_SetString(PyExc_RuntimeError, (kind + ": " + message).c_str());
  }
  python_error error;
  error.persist();
  throw error;
}

void warn_user(const std::string& message) {
  if (!Py_IsInitialized()) {
    TORCH_WARN(message);
    return;
  }
  pybind11::gil_scoped_acquire gil;
  try {
    pybind11::module_::import("torch_spyre.logging_config").attr("warn_user")(message);
  } catch (pybind11::error_already_set& e) {  // warnings that are errors
    e.restore();
    python_error error;
    error.persist();
    throw error;
  }
}

namespace {

/// A message about a running program gets a line that says how to reproduce its kernel.
std::string with_reproducer(const std::string& message) {
  if (message.find(", from ") == std::string::npos || !Py_IsInitialized()) return message;
  pybind11::gil_scoped_acquire gil;
  return pybind11::module_::import("torch_spyre.errors").attr("with_reproducer")(message).cast<std::string>();
}

}  // namespace

void raise(const card::Error& error) {
  if (error.kind() == "OutOfMemory") TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  // The class of the exception already says the kind.
  const std::string text = error.what(), prefix = error.kind() + ": ";
  raise(error.kind(), with_reproducer(text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text));
}

}  // namespace spyre

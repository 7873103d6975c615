// SPDX-License-Identifier: Apache-2.0
#include "snapshot.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "errors.h"
#include "launch.h"
#include "storage.h"

namespace spyre {
namespace {

/// A number that no two contents of dicts share, or 0 where Python does not keep one.
uint64_t version_of([[maybe_unused]] PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  return 0;
#endif
}

/// Shape, layout and address; of a tensor that is not on the card its version too, as values of it become launch
/// scalars.
size_t state_of_tensor(const at::Tensor& tensor) {
  Key key;
  if (tensor.is_privateuseone()) {
    key.add_tensor(tensor, Offsets::exact);
    key.add(static_cast<int64_t>(raw_record_of(tensor).address));
  } else {
    key.add(tensor.has_storage() ? reinterpret_cast<int64_t>(tensor.storage().data()) : 0);
    key.add(tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version()));
    for (int64_t size : tensor.sizes()) key.add(size);
  }
  return KeyHash()(key.words());
}

}  // namespace

Snapshot::Snapshot(PyObject* containers, PyObject* tensors) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(containers); ++i) {
    PyObject* object = PyList_GET_ITEM(containers, i);
    if (PyDict_Check(object)) {
      add_dict(object);
    } else if (PyList_Check(object)) {
      add_list(object);
    } else {
      raise("InvalidArgument",
            std::string("a snapshot is taken of dicts and lists, not of ") + Py_TYPE(object)->tp_name);
    }
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    const auto& tensor = THPVariable_Unpack(PyList_GET_ITEM(tensors, i));
    const bool on_card = tensor.is_privateuseone();
    places_.push_back({tensor, state_of_tensor(tensor), on_card ? tensor.storage().unsafeGetStorageImpl() : nullptr,
                       on_card ? &raw_record_of(tensor) : nullptr});
  }
}

Snapshot::~Snapshot() { clear(); }

int Snapshot::traverse(visitproc visit, void* arg) const {
  for (const auto& container : containers_) Py_VISIT(container.object);
  for (PyObject* item : items_) Py_VISIT(item);
  return 0;
}

void Snapshot::clear() {
  const auto containers = std::exchange(containers_, {});
  const auto items = std::exchange(items_, {});
  places_.clear();
  for (const auto& container : containers) Py_DECREF(container.object);
  for (PyObject* item : items) Py_DECREF(item);
}

void Snapshot::add_dict(PyObject* dict) {
  containers_.push_back({Py_NewRef(dict), PyDict_GET_SIZE(dict), items_.size(), version_of(dict), true});
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    items_.push_back(Py_NewRef(key));
    items_.push_back(Py_NewRef(value));
  }
}

void Snapshot::add_list(PyObject* list) {
  containers_.push_back({Py_NewRef(list), PyList_GET_SIZE(list), items_.size(), 0, false});
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) items_.push_back(Py_NewRef(PyList_GET_ITEM(list, i)));
}

bool Snapshot::same_dict(Container& container) const {
  if (PyDict_GET_SIZE(container.object) != container.size) return false;
  if (container.size == 0) return true;
  const uint64_t version = version_of(container.object);
  if (version != 0 && version == container.version) return true;
  size_t item = container.first;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(container.object, &at, &key, &value);) {
    if (items_[item++] != key || items_[item++] != value) return false;
  }
  container.version = version;
  return true;
}

bool Snapshot::same(Container& container) const {
  if (container.is_dict) return same_dict(container);
  if (PyList_GET_SIZE(container.object) != container.size) return false;
  for (Py_ssize_t i = 0; i < container.size; ++i) {
    if (PyList_GET_ITEM(container.object, i) != items_[container.first + static_cast<size_t>(i)]) return false;
  }
  return true;
}

// The objects lie anywhere in memory, and rarely in a cache: they are fetched well before they are looked at.
bool Snapshot::holds() {
  constexpr size_t kAhead = 32;
  for (size_t i = 0; i < containers_.size(); ++i) {
    if (i + kAhead < containers_.size()) __builtin_prefetch(containers_[i + kAhead].object);
    if (!same(containers_[i])) return false;
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    fetch(i + kAhead);
    if (state_of_tensor(places_[i].tensor) != places_[i].state) return false;
  }
  return true;
}

void Snapshot::fetch(size_t place) const {
  if (place >= places_.size()) return;
  const auto* impl = reinterpret_cast<const char*>(places_[place].tensor.unsafeGetTensorImpl());
  for (size_t line = 0; line < sizeof(c10::TensorImpl); line += 64) __builtin_prefetch(impl + line);
  __builtin_prefetch(places_[place].storage);
  __builtin_prefetch(places_[place].record);
}

}  // namespace spyre

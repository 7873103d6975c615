// SPDX-License-Identifier: Apache-2.0
// What Python objects hold at one moment, to be compared later: dicts and lists by the identity of their items, tensors
// by where their values lie. Thousands of dicts are compared in some ten microseconds.
#pragma once
#include <ATen/core/Tensor.h>
#include <Python.h>

#include <vector>

namespace spyre {

class Snapshot {
 public:
  /// Containers are dicts and lists; both sequences are Python lists.
  Snapshot(PyObject* containers, PyObject* tensors);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  /// For Python's collector of cycles: what is looked at may well hold the snapshot.
  int traverse(visitproc visit, void* arg) const;
  void clear();

  /// Does everything hold what it held? Tensors of the card may have got other values in the same place.
  bool holds();

 private:
  struct Container {
    PyObject* object;  // owned
    Py_ssize_t size;
    size_t first;      // of its items
    uint64_t version;  // that Python gives to the contents of a dict
    bool is_dict;
  };
  struct Place {
    at::Tensor tensor;
    size_t state;
    const void *storage, *record;  // where they were, to be fetched early
  };

  void add_dict(PyObject* dict);
  void add_list(PyObject* list);
  bool same(Container& container) const;
  bool same_dict(Container& container) const;
  void fetch(size_t place) const;

  std::vector<Container> containers_;
  std::vector<PyObject*> items_;  // owned; keys and values of a dict in turn
  std::vector<Place> places_;
};

}  // namespace spyre

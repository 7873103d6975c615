// SPDX-License-Identifier: Apache-2.0
// BucketPlan for Python: polynomials arrive as lists of their coefficients.
#include <torch/csrc/utils/pybind.h>

#include "eager_buckets.h"
#include "errors.h"
#include "python_objects.h"

namespace spyre {
namespace {

namespace py = pybind11;

Polynomials parse_polynomials(const py::handle& list) {
  Polynomials found;
  for (const auto& item : list) {
    found.emplace_back();
    for (const auto& c : item) found.back().coefficients.push_back(c.cast<int64_t>());
  }
  return found;
}

RoomyLayout parse_layout(const py::handle& layout) {
  const auto t = py::cast<py::tuple>(layout);
  RoomyLayout made{t[0].cast<std::vector<int64_t>>(), parse_polynomials(t[1]), t[2].cast<DataFormats>()};
  if (made.device_size.empty() || made.device_size.size() != made.stride_map.size())
    raise("InvalidArgument", "BucketPlan: device_size and stride_map have one entry for each device dim");
  return made;
}

/// None: a number. (size, stride, offset, written, layout), the layout being None (not used), a SpyreTensorLayout or a
/// roomy one.
BucketTensor parse_tensor(const py::handle& tensor) {
  BucketTensor made;
  if (tensor.is_none()) return made;
  const auto t = py::cast<py::tuple>(tensor);
  made.on_card = true;
  made.size = parse_polynomials(t[0]);
  made.stride = parse_polynomials(t[1]);
  made.offset = t[2].cast<int64_t>();
  made.written = t[3].cast<bool>();
  const py::object layout = t[4];
  made.used = !layout.is_none();
  if (py::isinstance<SpyreTensorLayout>(layout)) {
    made.fixed = layout.cast<const SpyreTensorLayout*>();
  } else if (made.used) {
    made.roomy = parse_layout(layout);
  }
  return made;
}

std::shared_ptr<BucketPlan> make_bucket(std::shared_ptr<LaunchPlan> launch, std::vector<int> inputs,
                                        const std::vector<py::tuple>& outputs, std::tuple<int, int> place,
                                        std::tuple<int64_t, int64_t> range, const py::list& tensors,
                                        const std::vector<py::tuple>& results, const std::vector<py::tuple>& numbers) {
  if (!launch) raise("InvalidArgument", "BucketPlan: launch_plan is None");
  auto made = std::make_shared<BucketPlan>();
  made->launch = *launch;
  made->launch.outputs.clear();
  made->inputs = std::move(inputs);
  for (const auto& o : outputs) made->outputs.push_back(parse_binding(o));
  std::tie(made->tensor, made->dim) = place;
  std::tie(made->low, made->high) = range;
  for (const auto& t : tensors) made->tensors.push_back(parse_tensor(t));
  for (const auto& r : results)
    made->results.push_back(
        {parse_polynomials(r[0]), parse_polynomials(r[1]), r[2].cast<at::ScalarType>(), parse_layout(r[3])});
  for (const auto& n : numbers) {
    const auto pair = parse_polynomials(n);
    made->numbers.push_back({pair.at(0), pair.at(1)});
  }
  made->check();
  return made;
}

}  // namespace

void bind_eager_buckets(py::module_& m) {
  py::class_<BucketPlan, std::shared_ptr<BucketPlan>>(
      m, "BucketPlan", "A program for a bucket of sizes and what depends on the size, as coefficients of polynomials.")
      .def(py::init(&make_bucket), py::arg("launch_plan"), py::arg("inputs"), py::arg("outputs"), py::arg("place"),
           py::arg("range"), py::arg("tensors"), py::arg("results"), py::arg("numbers"))
      .def(
          "serves",
          [](const BucketPlan& plan, const std::vector<at::Tensor>& tensors) {
            std::vector<const at::Tensor*> given;
            for (const auto& t : tensors) given.push_back(&t);
            std::vector<Move> moves;
            return plan.matches(given, moves).has_value();
          },
          py::arg("tensors"), "Is this a program for a call with these tensors?");
}

}  // namespace spyre

// SPDX-License-Identifier: Apache-2.0
#include <ATen/EmptyTensor.h>
#include <c10/util/safe_numerics.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "copy.h"
#include "device.h"
#include "errors.h"
#include "python_objects.h"
#include "storage.h"

namespace spyre {
namespace {

namespace py = pybind11;

using Ints = std::vector<int64_t>;
/// Warnings inside the call become Python warnings.
using Warns = py::call_guard<torch::PyWarningHandler>;
// Interned layouts live for ever; Python only borrows them.
using Borrowed = std::unique_ptr<SpyreTensorLayout, py::nodelete>;

SpyreTensorLayout* borrow(SpyreTensorLayout layout) {
  return const_cast<SpyreTensorLayout*>(intern(std::move(layout)));
}

/// v3: (3, size, map, dtype, arrangement); v2 lacks the arrangement; v1 also had a dim map in third place.
SpyreTensorLayout* unpickle(const py::tuple& state) {
  const auto version = state.empty() ? 0 : state[0].cast<int>();
  const auto n = state.size();
  if (version == 3 && n == 5) {
    return borrow({state[1].cast<Ints>(), state[2].cast<Ints>(), state[3].cast<DataFormats>(),
                   state[4].cast<ElementArrangement>()});
  }
  if (version == 2 && n == 4)
    return borrow({state[1].cast<Ints>(), state[2].cast<Ints>(), state[3].cast<DataFormats>()});
  if (version == 1 && n == 5)
    return borrow({state[1].cast<Ints>(), state[3].cast<Ints>(), state[4].cast<DataFormats>()});
  throw py::value_error("SpyreTensorLayout: unknown pickle state of version " + std::to_string(version) + " with " +
                        std::to_string(n) + " fields; versions 1 to 3 are known");
}

/// The value of an enumeration by its number, which pybind11 takes as it comes.
template <typename Enum>
Enum named(const char* name, int64_t code, bool known) {
  if (!known) raise("InvalidArgument", c10::str(code, " is not a value of ", name, ", which begin with 0"));
  return static_cast<Enum>(code);
}
DataFormats format_of(int64_t code) { return named<DataFormats>("DataFormats", code, is_format(code)); }
ElementArrangement arrangement_of(int64_t code) {
  return named<ElementArrangement>("ElementArrangement", code, code >= 0 && code <= 3);
}

template <typename Enum>
void refuse_unknown(py::enum_<Enum>& bound, Enum (*of)(int64_t)) {
  bound.def(py::init(of), py::arg("value"), py::prepend());
  bound.def(
      "__setstate__",
      [of](py::detail::value_and_holder& v, int64_t code) {
        py::detail::initimpl::setstate<py::class_<Enum>>(v, of(code), false);
      },
      py::detail::is_new_style_constructor(), py::arg("state"), py::prepend());
}

void bind_formats(py::module_& m) {
  py::enum_<DataFormats> formats(m, "DataFormats", "Number formats of card memory.");
  formats
#define FORMAT(code, name, bytes, elems) .value(#name, DataFormats::name)
#include "spyre/formats.def"
#undef FORMAT
      .def("elems_per_stick", &elems_per_stick);
  refuse_unknown(formats, &format_of);
  py::enum_<ElementArrangement> arrangements(m, "ElementArrangement", "How elements lie inside a stick.");
  refuse_unknown(arrangements, &arrangement_of);
  arrangements.value("STANDARD", ElementArrangement::STANDARD)
      .value("DL16_TO_FP32", ElementArrangement::DL16_TO_FP32)
      .value("QFP8CH", ElementArrangement::QFP8CH)
      .value("EXX2", ElementArrangement::EXX2);
}

void bind_layout_class(py::module_& m) {
  using L = SpyreTensorLayout;
  py::class_<L, Borrowed>(m, "SpyreTensorLayout", "How a tensor lies in the sticks of card memory.")
      .def(py::init([](const Ints& size, at::ScalarType dtype) { return borrow(make_layout(size, dtype)); }),
           py::arg("host_size"), py::arg("dtype"))
      .def(py::init([](const Ints& size, const Ints& strides, at::ScalarType dtype, const Ints& order,
                       ElementArrangement ea) { return borrow(make_layout(size, strides, dtype, order, ea)); }),
           py::arg("host_size"), py::arg("host_strides"), py::arg("dtype"), py::arg("dim_order"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def(py::init([](const Ints& size, const Ints& map, DataFormats format, ElementArrangement ea) {
             return borrow({size, map, format, ea});
           }),
           py::arg("device_size"), py::arg("stride_map"), py::arg("device_dtype"),
           py::arg("element_arrangement") = ElementArrangement::STANDARD)
      .def_property_readonly("device_size", [](const L& l) { return l.device_size; })
      .def_property_readonly("stride_map", [](const L& l) { return l.stride_map; })
      .def_property_readonly("device_dtype", [](const L& l) { return l.device_dtype; })
      .def_property_readonly("element_arrangement", [](const L& l) { return l.element_arrangement; })
      .def("elems_per_stick", [](const L& l) { return elems_per_stick(l.device_dtype); })
      .def("device_bytes", &L::device_bytes, NotNone())
      .def(
          "with_element_arrangement",
          [](const L& l, ElementArrangement ea) {
            auto copy = l;
            copy.element_arrangement = ea;
            return borrow(std::move(copy));
          },
          py::arg("element_arrangement"))
      .def("__eq__", [](const L& l, const py::object& o) { return py::isinstance<L>(o) && l == o.cast<const L&>(); })
      .def("__hash__", &L::hash, NotNone())
      .def("__repr__", &L::repr, NotNone())
      .def("__copy__", [](const L& l) { return borrow(l); })
      .def("__deepcopy__", [](const L& l, const py::object&) { return borrow(l); })
      .def(py::pickle(
          [](const L& l) {
            return py::make_tuple(3, l.device_size, l.stride_map, l.device_dtype, l.element_arrangement);
          },
          &unpickle));
}

/// A layout may only be set on a storage that has room for it: the bytes are not moved.
void set_layout(const at::Tensor& t, const SpyreTensorLayout& layout) {
  auto& record = record_of(t);
  if (elems_per_stick(layout.device_dtype) == 0) {
    raise("InvalidArgument", c10::str("set_spyre_tensor_layout: ", layout.repr(), " has a format without sticks"));
  }
  if (static_cast<uint64_t>(layout.device_bytes()) > record.bytes) {
    raise("InvalidArgument", c10::str("set_spyre_tensor_layout: ", layout.repr(), " needs ", layout.device_bytes(),
                                      " bytes, but the storage has ", record.bytes));
  }
  record.layout = intern(layout);
}

/// A view must say the layout that its storage has: every tensor on a storage shares it.
void check_layout(const char* function, const at::Tensor& t, const SpyreTensorLayout& layout) {
  const auto* own = record_of(t).layout;
  if (*own == layout) return;
  raise("InvalidArgument", c10::str(function, ": the storage is laid out as ", own->repr(), ", not as ", layout.repr(),
                                    "; copy it with .to(device_layout=...)"));
}

at::Tensor as_strided_with_layout(const at::Tensor& t, const Ints& size, const Ints& stride,
                                  std::optional<int64_t> offset, const SpyreTensorLayout& layout) {
  check_layout("as_strided_with_layout", t, layout);
  return t.as_strided(size, stride, offset);
}

at::Tensor reinterpret_tensor(const at::Tensor& t, const Ints& size, const Ints& stride, int64_t offset_increment) {
  raw_record_of(t);
  int64_t offset = 0;
  TORCH_CHECK(!c10::add_overflows(t.storage_offset(), offset_increment, &offset), "Tensor: invalid storage offset ",
              t.storage_offset(), " + ", offset_increment);
  for (int64_t s : stride)
    TORCH_CHECK(s >= 0, "Negative strides are not supported at the moment, got strides: ", stride);
  check_numel(size);
  check_inside(t.storage(), t.scalar_type(), size, stride, offset);
  return make_view(t, size, stride, offset);
}

at::Tensor reinterpret_tensor_with_layout(const at::Tensor& t, const Ints& size, const Ints& stride,
                                          int64_t offset_increment, const SpyreTensorLayout& layout) {
  check_layout("reinterpret_tensor_with_layout", t, layout);
  return reinterpret_tensor(t, size, stride, offset_increment);
}

void check_format(at::ScalarType dtype, const SpyreTensorLayout& layout) {
  check_supported(dtype);
  if (layout.device_dtype == device_format(dtype)) return;
  raise("InvalidArgument", c10::str(layout.repr(), " does not store ", dtype, ", whose format is DataFormats.",
                                    format_name(device_format(dtype))));
}

at::Tensor empty_with_layout_strided(const Ints& size, const Ints& stride, at::ScalarType dtype,
                                     const SpyreTensorLayout& layout) {
  check_format(dtype, layout);
  for (int64_t s : stride)
    TORCH_CHECK(s >= 0, "Negative strides are not supported at the moment, got strides: ", stride);
  return make_tensor(current_device(), size, stride, dtype, intern(layout));
}

at::Tensor empty_with_layout(const Ints& size, const SpyreTensorLayout& layout, std::optional<at::ScalarType> dtype,
                             std::optional<at::Device> device, std::optional<bool> pin_memory,
                             std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Pin memory can only be on CPU");
  // A fresh tensor has no format to preserve: both mean a contiguous one.
  const auto chosen = format.value_or(at::MemoryFormat::Contiguous);
  TORCH_CHECK(chosen == at::MemoryFormat::Contiguous || chosen == at::MemoryFormat::Preserve,
              "Spyre backend only supports contiguous memory format, got: ", chosen);
  TORCH_CHECK(!device || device->is_privateuseone(), "a device layout needs a spyre device, got ", *device);
  const auto type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  check_format(type, layout);
  at::detail::check_size_nonnegative(size);
  const auto index = resolve_device(device ? device->index() : -1);
  return make_tensor(index, size, contiguous_strides(size), type, intern(layout));
}

/// IEEE_FP32 gives the 32-bit pattern, every other format the 16-bit SEN169 one.
uint32_t encode_constant(double value, DataFormats format) {
  const auto chosen = format == DataFormats::IEEE_FP32 ? format : DataFormats::SEN169_FP16;
  return on_card([&] { return card::encode(static_cast<float>(value), static_cast<int>(chosen)); });
}

void check_stored(DataFormats format) {
  if (elems_per_stick(format) == 0 || element_bytes(format) == 0) {
    raise("InvalidArgument", c10::str("DataFormats.", format_name(format), " is not stored by this card"));
  }
}

void bind_codes(py::module_& m) {
  m.def("encode_constant", &encode_constant, py::arg("value"), py::arg("format"));
  m.def(
      "encode",
      [](double value, DataFormats format) {
        check_stored(format);
        return card::encode(static_cast<float>(value), static_cast<int>(format));
      },
      py::arg("value"), py::arg("format"), "The code that the card stores for a value.");
  m.def(
      "decode",
      [](uint32_t code, DataFormats format) {
        check_stored(format);
        return card::decode(code, static_cast<int>(format));
      },
      py::arg("code"), py::arg("format"), "The value of a stored code, as the card computes with it.");
}

}  // namespace

void bind_layout(py::module_& m) {
  bind_formats(m);
  bind_layout_class(m);
  bind_codes(m);
  m.def(
      "get_spyre_tensor_layout",
      [](const at::Tensor& t) { return const_cast<SpyreTensorLayout*>(record_of(t).layout); }, py::arg("tensor"));
  m.def("set_spyre_tensor_layout", &set_layout, py::arg("tensor"), py::arg("layout"));
  m.def("spyre_empty_with_layout", &empty_with_layout_strided, py::arg("size"), py::arg("stride"), py::arg("dtype"),
        py::arg("layout"));
  m.def("empty_with_layout", &empty_with_layout, py::arg("size"), py::arg("layout"), py::arg("dtype") = py::none(),
        py::arg("device") = py::none(), py::arg("pin_memory") = py::none(), py::arg("memory_format") = py::none(),
        Warns());
  m.def(
      "get_elem_in_stick",
      [](at::ScalarType dtype) {
        check_supported(dtype);
        return elems_per_stick(device_format(dtype));
      },
      py::arg("dtype"), Warns());
  m.def(
      "get_device_dtype",
      [](at::ScalarType dtype) {
        if (dtype == at::kLong) warn_int64_downcast();
        return device_format(dtype);
      },
      py::arg("dtype"), Warns());
  m.def("is_supported_dtype", &is_supported, py::arg("dtype"));
  m.def("reinterpret_tensor", &reinterpret_tensor, py::arg("tensor"), py::arg("size"), py::arg("stride"),
        py::arg("offset_increment") = 0);
  m.def("reinterpret_tensor_with_layout", &reinterpret_tensor_with_layout, py::arg("tensor"), py::arg("size"),
        py::arg("stride"), py::arg("offset_increment"), py::arg("layout"));
  m.def("as_strided_with_layout", &as_strided_with_layout, py::arg("tensor"), py::arg("size"), py::arg("stride"),
        py::arg("storage_offset"), py::arg("layout"));
  m.def("copy_tensor", &copy_from, py::arg("self"), py::arg("dst"), py::arg("non_blocking") = false);
  m.def("get_downcast_warning", &downcast_warning);
  m.def("set_downcast_warning", &set_downcast_warning, py::arg("on"));
}

}  // namespace spyre

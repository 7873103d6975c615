// SPDX-License-Identifier: Apache-2.0
// torch_spyre._card: the card's public header for Python, without PyTorch. Tests and tools drive the card through it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "counters_dict.h"
#include "kernel_times.h"
#include "kernels/kernels.h"
#include "spyre/card.h"
#include "spyre/sanitizer.h"

namespace py = pybind11;

namespace spyre::card {
namespace {

/// Raises the class of torch_spyre.errors that has the error's name.
void raise(const Error& error) {
  try {
    py::object type = py::module_::import("torch_spyre.errors").attr(error.kind().c_str());
    PyErr_SetString(type.ptr(), error.what());
  } catch (py::error_already_set&) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

int format_of(const py::buffer_info& info) {
  if (info.format == "f") return static_cast<int>(Format::IEEE_FP32);
  if (info.format == "e") return static_cast<int>(Format::IEEE_FP16);
  if (info.format == "?") return static_cast<int>(Format::BOOL);
  if (info.format == "b") return static_cast<int>(Format::SENINT8);
  if (info.format == "i") return static_cast<int>(Format::IEEE_INT32);
  if (info.format == "l" || info.format == "q") return static_cast<int>(Format::IEEE_INT64);
  throw Error("InvalidArgument", "no host format for arrays of type '" + info.format + "'; pass format=");
}

/// For methods without arguments: None in place of the object raises TypeError, where pybind11 alone passes null.
using NotNone = py::pos_only;

int stored(int format) {
  if (format < 0 || format > 255 || format_bytes(static_cast<Format>(format)) == 0)
    throw Error("InvalidArgument", "format " + std::to_string(format) + " is not stored by this card");
  return format;
}

HostTensor host_tensor(const py::buffer_info& info, std::optional<int> format) {
  HostTensor t;
  t.data = info.ptr;
  t.format = format ? *format : format_of(info);
  // Other formats are refused by the card.
  const int bytes = t.format >= 0 && t.format <= 255 ? format_bytes(static_cast<Format>(t.format)) : 0;
  if (bytes != 0 && bytes != info.itemsize)
    throw Error("InvalidArgument", "an array of " + std::to_string(info.itemsize) +
                                       "-byte elements does not hold format " + std::to_string(t.format) +
                                       ", which has " + std::to_string(bytes) + " bytes");
  if (info.itemsize == 0) throw Error("InvalidArgument", "an array of elements without bytes");
  for (py::ssize_t d = 0; d < info.ndim; ++d) {
    t.size.push_back(info.shape[d]);
    if (info.strides[d] % info.itemsize)
      throw Error("InvalidArgument", "the strides of an array are whole elements; copy it to a contiguous one");
    t.stride.push_back(info.strides[d] / info.itemsize);
  }
  return t;
}

std::vector<int64_t> contiguous(const std::vector<int64_t>& size) {
  std::vector<int64_t> stride(size.size());
  int64_t next = 1;
  for (size_t d = size.size(); d-- > 0;) {
    stride[d] = next;
    if (__builtin_mul_overflow(next, size[d], &next)) throw Error("InvalidArgument", "the array is too large");
  }
  return stride;
}

using Ints = std::vector<int64_t>;

struct DmaArgs {
  HostTensor host;
  DeviceTensor device;
};

DmaArgs dma_args(const py::buffer_info& info, std::optional<int> format, uint64_t address, int device_format,
                 const Ints& device_size, const Ints& stride_map, int64_t host_offset,
                 const std::optional<Ints>& host_stride, bool whole_storage) {
  DmaArgs a{host_tensor(info, format), {}};
  a.device = {address,      device_format, device_size,
              stride_map,   host_offset,   host_stride ? *host_stride : contiguous(a.host.size),
              whole_storage};
  return a;
}

void launch(Card& card, std::shared_ptr<const Program> program, const std::vector<std::pair<uint64_t, uint64_t>>& args,
            const py::list& scalars, int stream) {
  std::vector<Buffer> buffers;
  for (auto [address, bytes] : args) buffers.push_back({address, bytes});
  std::vector<Scalar> values(scalars.size());
  for (size_t s = 0; s < values.size(); ++s) {
    if (py::isinstance<py::float_>(scalars[s]))
      values[s].f = scalars[s].cast<float>();
    else
      values[s].i = scalars[s].cast<int64_t>();
  }
  py::gil_scoped_release release;
  card.launch(std::move(program), buffers, values, stream);
}

void bind_program(py::module_& m) {
  py::class_<Program, std::shared_ptr<Program>>(m, "Program", py::module_local())
      .def_static(
          "load",
          [](const py::bytes& binary) {
            std::string_view view = binary;
            py::gil_scoped_release release;
            return std::const_pointer_cast<Program>(Program::load(std::as_bytes(std::span(view.data(), view.size()))));
          })
      .def_property_readonly("n_args", &Program::n_args, NotNone())
      .def_property_readonly("n_scalars", &Program::n_scalars, NotNone())
      .def("arg_bytes",
           [](const Program& p, int i) {
             if (i < 0 || i >= p.n_args()) throw py::index_error("argument " + std::to_string(i));
             return p.arg_bytes(i);
           })
      .def_property_readonly("duration_ns", &Program::duration_ns, NotNone())
      .def_property_readonly("work", &Program::work, NotNone())
      .def("disassemble", &Program::disassemble, NotNone());
}

void bind_dma(py::class_<Card>& card) {
  card.def(
      "dma_in",
      [](Card& c, const py::buffer& array, uint64_t address, int device_format, const Ints& device_size,
         const Ints& stride_map, int64_t host_offset, const std::optional<Ints>& host_stride, std::optional<int> format,
         bool whole_storage, bool blocking, int stream) {
        py::buffer_info info = array.request();
        DmaArgs a = dma_args(info, format, address, device_format, device_size, stride_map, host_offset, host_stride,
                             whole_storage);
        py::gil_scoped_release release;
        c.dma_in(a.host, a.device, blocking, stream);
      },
      "Copies an array into a device storage. With blocking=False keep the array alive until synchronize().",
      py::arg("array"), py::arg("address"), py::arg("device_format"), py::arg("device_size"), py::arg("stride_map"),
      py::kw_only(), py::arg("host_offset") = 0, py::arg("host_stride") = py::none(), py::arg("format") = py::none(),
      py::arg("whole_storage") = false, py::arg("blocking") = true, py::arg("stream") = 0);
  card.def(
      "dma_out",
      [](Card& c, uint64_t address, int device_format, const Ints& device_size, const Ints& stride_map,
         const py::buffer& array, int64_t host_offset, const std::optional<Ints>& host_stride,
         std::optional<int> format, bool blocking, int stream) {
        py::buffer_info info = array.request(true);
        DmaArgs a =
            dma_args(info, format, address, device_format, device_size, stride_map, host_offset, host_stride, false);
        py::gil_scoped_release release;
        c.dma_out(a.device, a.host, blocking, stream);
      },
      "Copies a view of a device storage into a writable array; see dma_in for blocking=False.", py::arg("address"),
      py::arg("device_format"), py::arg("device_size"), py::arg("stride_map"), py::arg("array"), py::kw_only(),
      py::arg("host_offset") = 0, py::arg("host_stride") = py::none(), py::arg("format") = py::none(),
      py::arg("blocking") = true, py::arg("stream") = 0);
}

void bind_streams(py::class_<Card>& card) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  // Streams of exchanges are not for programs.
  const auto record = [](Card& c, int stream) {
    if (stream >= kStreams)
      throw Error("InvalidArgument",
                  "stream " + std::to_string(stream) + "; a card has streams 0.." + std::to_string(kStreams - 1));
    return c.record(stream);
  };
  card.def("record", record, py::arg("stream") = 0)
      .def("wait", &Card::wait, py::arg("stream"), py::arg("marker"))
      .def("complete", &Card::complete, py::arg("marker"))
      .def("synchronize", py::overload_cast<>(&Card::synchronize), NotNone(), NoGil())
      .def("synchronize", py::overload_cast<int>(&Card::synchronize), py::arg("stream"), NoGil())
      .def("synchronize", py::overload_cast<const Marker&>(&Card::synchronize), py::arg("marker"), NoGil())
      .def("query", &Card::query, py::arg("stream") = 0)
      .def("idle", &Card::idle, NotNone())
      .def("reset", &Card::reset, py::arg("drop_queued") = false, NoGil())
      .def(
          "inject_fault", [](Card& c, const std::string& kind, int64_t nth) { c.inject_fault(fault_named(kind), nth); },
          py::arg("kind"), py::arg("nth") = 1)
      .def("clock_ns", &Card::clock_ns, NotNone());
}

/// Bytes that `fill` reads from a card.
template <class Fill>
py::bytes bytes_of(size_t n, const Fill& fill) {
  if (n > kSegmentBytes) throw Error("InvalidArgument", "read of " + std::to_string(n) + " bytes exceeds a segment");
  std::string bytes(n, '\0');
  {
    py::gil_scoped_release release;
    fill(std::as_writable_bytes(std::span(bytes.data(), n)));
  }
  return py::bytes(bytes);
}

void bind_card(py::module_& m) {
  py::class_<Marker>(m, "Marker", py::module_local())
      .def_readonly("stream", &Marker::stream)
      .def_readonly("sequence", &Marker::sequence)
      .def_property_readonly("time_ns", &Marker::time);
  py::class_<Card> card(m, "Card", py::module_local());
  card.def(py::init([](int index) { return Card::open(index); }), py::arg("index") = 0)
      .def("allocate", &Card::allocate, py::arg("bytes"))
      .def("record_use", &Card::record_use, py::arg("address"), py::arg("stream"))
      .def("trim", &Card::trim, NotNone(), py::call_guard<py::gil_scoped_release>())
      .def("free", &Card::free, py::arg("address"))
      .def_property_readonly("allocated_bytes", &Card::allocated_bytes, NotNone())
      .def_property_readonly("total_bytes", &Card::total_bytes, NotNone())
      .def(
          "write",
          [](Card& c, uint64_t address, const py::bytes& bytes, int stream) {
            std::string_view view = bytes;
            py::gil_scoped_release release;
            c.write(address, std::as_bytes(std::span(view.data(), view.size())), stream);
          },
          py::arg("address"), py::arg("bytes"), py::arg("stream") = 0)
      .def(
          "read",
          [](Card& c, uint64_t address, size_t n, int stream) {
            return bytes_of(n, [&](std::span<std::byte> bytes) { c.read(address, bytes, stream); });
          },
          py::arg("address"), py::arg("n"), py::arg("stream") = 0)
      .def(
          "peek",
          [](Card& c, uint64_t address, size_t n) {
            return bytes_of(n, [&](std::span<std::byte> bytes) { c.peek(address, bytes); });
          },
          py::arg("address"), py::arg("n"))
      .def("launch", &launch, py::arg("program"), py::arg("args"), py::arg("scalars") = py::list(),
           py::arg("stream") = 0,
           "Queues a program. args: (address, bytes) pairs; scalars: int or float, as the program declares.")
      .def("counters", [](const Card& c) { return counters_dict(c.counters()); });
  bind_dma(card);
  bind_streams(card);
}

py::dict report_dict(const SanitizerReport& r) {
  py::dict d;
  d["kind"] = r.kind;
  d["warning"] = r.warning;
  d["kernel"] = r.kernel;
  d["origin"] = r.origin;
  d["instruction"] = r.instruction;
  d["op"] = r.op;
  d["core"] = r.core;
  d["space"] = r.space;
  d["begin"] = r.begin;
  d["end"] = r.end;
  d["message"] = r.message;
  return d;
}

void bind_sanitizer(py::module_& m) {
  m.def(
      "set_sanitize",
      [](const std::string& mode) {
        if (mode != "off" && mode != "report" && mode != "raise")
          throw Error("InvalidArgument", "sanitize mode '" + mode + "'; known are off, report and raise");
        set_sanitize(mode == "off" ? Sanitize::off : mode == "report" ? Sanitize::report : Sanitize::raise);
      },
      py::arg("mode"));
  m.def("sanitize_mode", [] {
    constexpr const char* names[] = {"off", "report", "raise"};
    return names[static_cast<int>(sanitize_mode())];
  });
  m.def("sanitizer_reports", [] {
    py::list list;
    for (const SanitizerReport& r : sanitizer_reports()) list.append(report_dict(r));
    return list;
  });
  m.def("clear_sanitizer_reports", &clear_sanitizer_reports);
}

}  // namespace
}  // namespace spyre::card

PYBIND11_MODULE(_card, m) {
  using namespace spyre::card;
  m.doc() = "The software card without PyTorch.";
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& error) {
      raise(error);
    }
  });
  bind_program(m);
  bind_card(m);
  bind_sanitizer(m);
  m.def("set_host_threads", &set_host_threads, py::arg("n"), py::call_guard<py::gil_scoped_release>());
  m.def("host_threads", &host_threads);
  m.def("count_kernel_times", &count_kernel_times, py::arg("on"),
        "Forgets what was counted; counts from now on if on.");
  m.def(
      "kernel_times",
      [] {
        std::vector<std::tuple<std::string, std::string, uint64_t, uint64_t>> rows;
        for (const KernelTime& t : kernel_times()) rows.emplace_back(t.kind, t.shape, t.calls, t.ns);
        return rows;
      },
      "(kind, shape, calls, host nanoseconds) of the kernel calls that were counted.");
  m.def("record_timeline", &record_timeline, py::arg("on"), "Forgets the timeline; records one from now on if on.");
  m.def(
      "timeline",
      [] {
        std::vector<std::tuple<std::string, std::string, int, uint64_t, uint64_t>> rows;
        for (const TimeSpan& s : timeline()) rows.emplace_back(s.kind, s.shape, s.thread, s.start_ns, s.end_ns);
        return rows;
      },
      "(kind, shape, host thread, start, end in nanoseconds) of kernel calls, units and launches.");
  m.def(
      "encode", [](float value, int format) { return encode(value, stored(format)); }, py::arg("value"),
      py::arg("format"));
  m.def(
      "decode", [](uint32_t code, int format) { return decode(code, stored(format)); }, py::arg("code"),
      py::arg("format"));
  m.def("active_isa", &active_isa);
}

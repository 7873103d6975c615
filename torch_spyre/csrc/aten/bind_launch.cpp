// SPDX-License-Identifier: Apache-2.0
// Program, LaunchPlan and KernelLauncher for Python. The launcher is a plain C type with vectorcall: a hit costs a key,
// a lookup, the output tensors and the queueing.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <structmember.h>  // needs Python.h first

#include "device.h"
#include "errors.h"
#include "offsets.h"
#include "python_objects.h"

namespace spyre {
namespace {

namespace py = pybind11;

struct Launcher {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* name;
  PyObject* miss;
  PlanMap<LaunchPlan>* plans;
};

enum NumberTag : int64_t { kPyFloat = 8, kPyInt = 9 };

struct Inputs {
  explicit Inputs(Offsets o) : offsets(o) {}

  const Offsets offsets;
  Key key;
  c10::SmallVector<Operand, 16> operands;
  c10::DeviceIndex device = -1;
  bool moved = false;  // does any of them have a displacement?

  void add(Launcher* self, PyObject* object);
  void add_tensor(Launcher* self, const at::Tensor& t);
};

std::string name_of(Launcher* self) { return py::str(py::handle(self->name)); }

void Inputs::add_tensor(Launcher* self, const at::Tensor& t) {
  operands.push_back({&t});
  if (C10_LIKELY(t.is_privateuseone())) {
    const auto index = t.device().index();
    if (device == -1) device = index;
    TORCH_CHECK(index == device, name_of(self), ": inputs are on spyre:", static_cast<int>(device),
                " and spyre:", static_cast<int>(index), "; a kernel runs on one device");
    const auto displacement = key.add_tensor(t, offsets);
    operands.back().displacement = displacement;
    moved |= displacement != 0;
  } else {
    TORCH_CHECK(t.is_cpu() && t.dim() == 0, name_of(self),
                ": expected tensors on spyre or CPU scalars, got a tensor of rank ", t.dim(), " on ", t.device(),
                "; move it with .to(\"spyre\")");
    key.add_scalar_tensor(t);
  }
}

void Inputs::add(Launcher* self, PyObject* object) {
  if (THPVariable_Check(object)) return add_tensor(self, THPVariable_Unpack(object));
  if (PyFloat_Check(object)) {
    const double value = PyFloat_AS_DOUBLE(object);
    operands.push_back({nullptr, value, static_cast<int64_t>(value)});
    return key.add(kPyFloat);
  }
  if (PyLong_Check(object)) {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw python_error();
    operands.push_back({nullptr, static_cast<double>(value), value});
    return key.add(kPyInt);
  }
  TORCH_CHECK_TYPE(false, name_of(self), ": inputs are tensors and numbers, got ", Py_TYPE(object)->tp_name);
}

Inputs described(Launcher* self, PyObject* const* args, size_t n, Offsets offsets) {
  Inputs inputs(offsets);
  for (size_t i = 0; i < n; ++i) inputs.add(self, args[i]);
  return inputs;
}

std::shared_ptr<const LaunchPlan> known_plan(Launcher* self, const Inputs& inputs) {
  const auto it = self->plans->find(inputs.key.words());
  const bool serves =
      it != self->plans->end() && (inputs.offsets == Offsets::exact || it->second->serves(inputs.moved));
  return serves ? it->second : nullptr;
}

/// A plan that no displacement fits is kept under the offsets of its inputs.
std::shared_ptr<const LaunchPlan> plan_miss(Launcher* self, const Inputs& inputs, PyObject* const* args, size_t n) {
  const auto exact = described(self, args, n, Offsets::exact);
  if (inputs.moved)
    if (auto plan = known_plan(self, exact)) return plan;
  py::list list;
  for (size_t i = 0; i < n; ++i) list.append(py::handle(args[i]));
  const auto answer = py::handle(self->miss)(list);
  TORCH_CHECK_TYPE(py::isinstance<LaunchPlan>(answer), name_of(self), ": miss must return a LaunchPlan, got ",
                   Py_TYPE(answer.ptr())->tp_name);
  std::shared_ptr<const LaunchPlan> plan = py::cast<std::shared_ptr<LaunchPlan>>(answer);
  const auto words = (plan->displaced ? inputs : exact).key.words();
  self->plans->insert_or_assign({words.begin(), words.end()}, plan);
  return plan;
}

PyObject* launcher_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<Launcher*>(object);
  const auto n = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  TORCH_CHECK_TYPE(!kwnames || PyTuple_GET_SIZE(kwnames) == 0, name_of(self), ": no keyword arguments");
  const auto inputs = described(self, args, n, Offsets::displaced);
  auto plan = known_plan(self, inputs);
  if (C10_UNLIKELY(!plan)) plan = plan_miss(self, inputs, args, n);
  const auto device = inputs.device == -1 ? current_device() : inputs.device;
  auto outputs = plan->run(device, {inputs.operands.data(), inputs.operands.size()});
  PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(outputs.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(outputs[i])));
  }
  return result;
  END_HANDLE_TH_ERRORS
}

PyObject* launcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"name", "miss", nullptr};
  PyObject *name, *miss;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO", const_cast<char**>(keywords), &name, &miss)) return nullptr;
  auto* self = reinterpret_cast<Launcher*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = launcher_call;
  self->name = Py_NewRef(name);
  self->miss = Py_NewRef(miss);
  self->plans = new PlanMap<LaunchPlan>;
  return reinterpret_cast<PyObject*>(self);
}

int launcher_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Launcher*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->miss);
  return 0;
}

int launcher_clear(PyObject* object) {
  auto* self = reinterpret_cast<Launcher*>(object);
  Py_CLEAR(self->miss);
  return 0;
}

void launcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Launcher*>(object);
  auto* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  launcher_clear(object);
  Py_CLEAR(self->name);
  delete self->plans;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* launcher_repr(PyObject* object) {
  return PyUnicode_FromFormat("<KernelLauncher %U>", reinterpret_cast<Launcher*>(object)->name);
}

PyObject* launcher_variants(PyObject* object, void*) {
  return PyLong_FromSize_t(reinterpret_cast<Launcher*>(object)->plans->size());
}

PyObject* make_launcher_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launcher, vectorcall), READONLY, nullptr},
      {"name", T_OBJECT_EX, offsetof(Launcher, name), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyGetSetDef getset[] = {
      {"variants", launcher_variants, nullptr, "Number of plans made so far.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(launcher_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(launcher_dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(launcher_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(launcher_clear)},
      {Py_tp_repr, reinterpret_cast<void*>(launcher_repr)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {Py_tp_getset, getset},
      {Py_tp_doc,
       const_cast<char*>("KernelLauncher(name, miss): call with the kernel's inputs, get a tuple of outputs.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"torch_spyre._C.KernelLauncher", sizeof(Launcher), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  return PyType_FromSpec(&spec);
}

OutputSpec parse_output(const py::tuple& t) {
  TORCH_CHECK_TYPE(t.size() == 4 && py::isinstance<SpyreTensorLayout>(py::object(t[3])),
                   "LaunchPlan: an output is (size, stride, dtype, layout), got ", py::repr(t).cast<std::string>());
  OutputSpec output{t[0].cast<std::vector<int64_t>>(), t[1].cast<std::vector<int64_t>>(), t[2].cast<at::ScalarType>(),
                    t[3].cast<const SpyreTensorLayout*>()};
  host_bytes(output.size, output.stride, output.dtype);  // raises what no tensor can be
  return output;
}

void check_view(const std::vector<int64_t>& size, const std::vector<int64_t>& stride) {
  if (size.size() != stride.size())
    raise("InvalidArgument", c10::str("a view of ", size.size(), " sizes and ", stride.size(), " strides"));
}

ScalarSpec parse_scalar(const py::tuple& t) {
  const auto kind = t[1].cast<std::string>();
  if (kind != "i" && kind != "f" && kind != "h")
    raise("InvalidArgument", c10::str("LaunchPlan: a scalar of kind '", kind, "'; the kinds are i, f and h"));
  return {t[0].cast<int>(), ScalarSpec::Kind{kind[0]}};
}

std::shared_ptr<LaunchPlan> make_plan(std::shared_ptr<card::Program> program, const std::vector<py::tuple>& bindings,
                                      const std::vector<py::tuple>& outputs, uint64_t pool_bytes,
                                      std::vector<at::Tensor> constants, const std::vector<py::tuple>& scalars,
                                      std::string name, bool displaced) {
  if (!program) raise("InvalidArgument", "LaunchPlan: program is None; load one with Program.load");
  if (pool_bytes > card::kSegmentBytes)
    raise("InvalidArgument", c10::str("LaunchPlan: a pool of ", pool_bytes, " bytes; a segment has 16 GiB"));
  auto plan = std::make_shared<LaunchPlan>();
  plan->name = std::move(name);
  plan->program = std::move(program);
  for (const auto& b : bindings) plan->bindings.push_back(parse_binding(b));
  for (const auto& o : outputs) plan->outputs.push_back(parse_output(o));
  plan->pool_bytes = pool_bytes;
  plan->displaced = displaced;
  plan->constants = std::move(constants);
  for (const auto& s : scalars) plan->scalars.push_back(parse_scalar(s));
  for (const auto& s : plan->scalars)
    if (s.input < 0) raise("InvalidArgument", c10::str("LaunchPlan: scalar input ", s.input, " does not exist"));
  plan->check();
  return plan;
}

}  // namespace

Binding parse_binding(const py::tuple& binding) {
  const auto kind = binding[0].cast<std::string>();
  const auto index = binding[1].cast<int>();
  if (kind == "input") return {Binding::Kind::input, index};
  if (kind == "output") return {Binding::Kind::output, index};
  if (kind == "pool") return {Binding::Kind::pool, index};
  if (kind == "constant") return {Binding::Kind::constant, index};
  if (kind == "absent") return {Binding::Kind::absent, index};
  raise("InvalidArgument", "binding kind '" + kind + "'; known are input, output, pool, constant and absent");
}

void bind_launch(py::module_& m) {
  // pybind11 has no holder of a pointer to const; programs stay immutable because nothing here changes one.
  py::class_<card::Program, std::shared_ptr<card::Program>>(m, "Program",
                                                            "A verified program; may be launched many times.")
      .def_static(
          "load",
          [](const py::bytes& binary) {
            const std::string_view view = binary;
            py::gil_scoped_release release;  // a proof may take seconds
            return on_card([&] {
              return std::const_pointer_cast<card::Program>(card::Program::load(std::as_bytes(std::span(view))));
            });
          },
          py::arg("binary"))
      .def_property_readonly("n_args", &card::Program::n_args, NotNone())
      .def_property_readonly("n_scalars", &card::Program::n_scalars, NotNone())
      .def(
          "arg_bytes",
          [](const card::Program& p, int index) {
            if (index < 0 || index >= p.n_args())
              throw py::index_error(c10::str("the program has ", p.n_args(), " arguments, not one of number ", index));
            return p.arg_bytes(index);
          },
          py::arg("index"))
      .def_property_readonly("duration_ns", &card::Program::duration_ns, NotNone(),
                             "What a launch adds to the device clock.")
      .def_property_readonly("binary",
                             [](const card::Program& p) {
                               const auto b = p.binary();
                               return py::bytes(reinterpret_cast<const char*>(b.data()), b.size());
                             })
      .def("disassemble", &card::Program::disassemble, NotNone());
  py::class_<LaunchPlan, std::shared_ptr<LaunchPlan>>(m, "LaunchPlan", "A program with its buffers and scalars named.")
      .def(py::init(&make_plan), py::arg("program"), py::arg("bindings"), py::arg("outputs"), py::arg("pool_bytes") = 0,
           py::arg("constants") = std::vector<at::Tensor>{}, py::arg("scalars") = std::vector<py::tuple>{},
           py::arg("name") = "", py::arg("displaced") = false)
      .def_property_readonly("program",
                             [](const LaunchPlan& p) { return std::const_pointer_cast<card::Program>(p.program); })
      .def_property_readonly("pool_bytes", [](const LaunchPlan& p) { return p.pool_bytes; })
      .def_property_readonly(
          "displaced", [](const LaunchPlan& p) { return p.displaced; },
          "Made for the offset that view_start gives for each input; else for the storage offset itself.");
  m.def(
      "view_start",
      [](const SpyreTensorLayout& layout, const std::vector<int64_t>& size, const std::vector<int64_t>& stride,
         int64_t offset) {
        check_view(size, stride);
        const auto start = view_start(layout, size, stride, offset);
        return std::pair(start.offset, start.bytes);
      },
      py::arg("layout"), py::arg("size"), py::arg("stride"), py::arg("offset"),
      "(offset for which a program is planned, bytes that its launches add to the address), see csrc/aten/offsets.h.");
  m.def(
      "view_extents",
      [](const SpyreTensorLayout& layout, const std::vector<int64_t>& size, const std::vector<int64_t>& stride,
         int64_t offset) {
        check_view(size, stride);
        return view_extents(layout, size, stride, offset);
      },
      py::arg("layout"), py::arg("size"), py::arg("stride"), py::arg("offset"),
      "How many device coordinates along each dim, from 0 on, a view touches.");
  m.def("_set_launch_blocking", &set_launch_blocking, py::arg("on"),
        "Each launch waits for its end and raises its error.");
  m.add_object("KernelLauncher", py::reinterpret_steal<py::object>(make_launcher_type()));
}

}  // namespace spyre

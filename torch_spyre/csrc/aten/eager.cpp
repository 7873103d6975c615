// SPDX-License-Identifier: Apache-2.0
#include "eager.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <shared_mutex>
#include <unordered_set>

#include "device.h"
#include "errors.h"
#include "generator.h"
#include "operands.h"
#include "python_objects.h"
#include "spyre/sanitizer.h"

namespace torch::jit {
// Exported by libtorch_python; the header that declares them costs more than all of this file.
TORCH_PYTHON_API pybind11::object toPyObject(c10::IValue value);
TORCH_PYTHON_API c10::IValue toIValue(pybind11::handle object, const c10::TypePtr& type, std::optional<int32_t> n);
}  // namespace torch::jit

namespace spyre {
namespace {

namespace py = pybind11;
using torch::jit::Stack;

/// Plans by signature, in two generations: what has not been used since the younger one began to fill is forgotten when
/// it is full, so that sizes which grow for ever do not fill the memory.
constexpr size_t kGeneration = 8192;
constexpr size_t kBucketsPerOp = 512;
using Buckets = std::vector<std::shared_ptr<const BucketPlan>>;

struct Cache {
  std::shared_mutex mutex;
  PlanMap<EagerPlan> young, old;
  std::unordered_map<std::vector<int64_t>, Buckets, KeyHash, KeyEqual> buckets;  // by op, dtypes and ranks
  std::unordered_set<std::vector<int64_t>, KeyHash, KeyEqual> may_share;         // see allow_sharing
  int64_t cleared = 0;

  void put(std::span<const int64_t> words, const std::shared_ptr<const EagerPlan>& plan) {
    if (young.size() >= kGeneration) {
      old = std::move(young);
      young.clear();
    }
    young.insert_or_assign({words.begin(), words.end()}, plan);
  }
};
Cache& cache() {
  static auto* made = new Cache;
  return *made;
}
PyObject* compiler = nullptr;  // owned

/// Stands in each key for the knobs under which this thread plans; 0: as the process began, below 0: they have changed.
thread_local int64_t knobs_word = 0;
PyObject* knobs_reader = nullptr;  // owned; gives the word

enum Tag : int64_t {
  kNone = 16,
  kUndefined,
  kInt,
  kDouble,
  kBool,
  kString,
  kDevice,
  kList,
};

/// Everything about one call that the cache and the launch need, gathered in one pass over its arguments.
struct Call {
  Key key;
  c10::SmallVector<const at::Tensor*, 8> tensors;  // null: a number
  c10::SmallVector<double, 8> numbers;             // by the place of the null
  bool numbers_at_launch = false;                  // floats are launch scalars, not part of the key
  c10::SmallVector<uint64_t, 8> displacements;     // of the tensors, see Operand
  bool moved = false;                              // is any of them not 0?
  bool sizes = true;                               // are sizes, strides and layouts part of the key?
  Offsets offsets = Offsets::displaced;
  c10::DeviceIndex device = -1;
  std::optional<at::Generator> generator;
  const at::Tensor* foreign = nullptr;  // a tensor that is neither on spyre nor a CPU scalar
  bool cacheable = true;

  void add(const c10::IValue& v);
  void add_tensor(const at::Tensor& t);
  void add_number(double value);
  bool served_by(const EagerPlan& plan) const { return offsets == Offsets::exact || plan.launch->serves(moved); }
  Operand operand(int i) const {
    return tensors[i] ? Operand{tensors[i], 0, 0, displacements[i]}
                      : Operand{nullptr, numbers[i], static_cast<int64_t>(numbers[i])};
  }
};

void Call::add_number(double value) {
  key.add(kDouble);
  if (!numbers_at_launch) return key.add(std::bit_cast<int64_t>(value));
  tensors.push_back(nullptr);
  displacements.push_back(0);
  numbers.resize(tensors.size());
  numbers.back() = value;
}

void Call::add_tensor(const at::Tensor& t) {
  if (!t.defined()) return key.add(kUndefined);
  tensors.push_back(&t);
  displacements.push_back(0);
  if (t.is_privateuseone()) {
    const auto index = t.device().index();
    if (device == -1) device = index;
    if (index != device) foreign = &t;
    if (sizes) {
      displacements.back() = key.add_tensor(t, offsets);
      moved |= displacements.back() != 0;
    } else {
      key.add(static_cast<int64_t>(t.scalar_type()) << 8 | static_cast<int64_t>(index) << 16 | t.dim() << 32);
    }
  } else if (t.is_cpu() && t.dim() == 0) {
    key.add_scalar_tensor(t);
  } else {
    foreign = &t;
  }
}

void Call::add(const c10::IValue& v) {
  if (v.isTensor()) return add_tensor(v.toTensor());
  if (v.isNone()) return key.add(kNone);
  if (v.isInt()) return key.add(kInt), key.add(v.toInt());
  if (v.isDouble()) return add_number(v.toDouble());
  if (v.isBool()) return key.add(kBool), key.add(v.toBool());
  if (v.isDevice()) {
    const auto d = v.toDevice();
    return key.add(kDevice), key.add(static_cast<int64_t>(d.type()) << 8 | static_cast<uint8_t>(d.index()));
  }
  if (v.isString()) {
    const auto& text = v.toStringRef();
    key.add(kString), key.add(static_cast<int64_t>(text.size()));
    for (char c : text) key.add(c);
    return;
  }
  if (v.isList()) {
    const auto items = v.toListRef();
    key.add(kList), key.add(static_cast<int64_t>(items.size()));
    for (const auto& item : items) add(item);
    return;
  }
  if (v.isSymInt()) return key.add(kInt), key.add(v.toSymInt().guard_int(__FILE__, __LINE__));
  if (v.isGenerator()) {  // draws for the launch, as the device's own does where none is given
    generator = v.toGenerator();
    return key.add(kNone);
  }
  // A complex number, a custom class: the compiler decides each time.
  cacheable = false;
}

/// Index tensors may be on the host, as on other accelerators: moves them to the card. False if there were none.
bool move_indices(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex device) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack->size() - arguments.size();
  bool moved = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[base + i];
    if (arguments[i].name() != "indices" || !value.isList()) continue;
    auto list = value.toList().copy();
    for (size_t k = 0; k < list.size(); ++k) {
      const c10::IValue item = list.get(k);
      if (!item.isTensor() || !item.toTensor().is_cpu()) continue;
      list.set(k, item.toTensor().to(spyre_device(device)));
      moved = true;
    }
    value = std::move(list);
  }
  return moved;
}

std::shared_ptr<const EagerPlan> find(const Call& call) {
  auto& all = cache();
  std::shared_ptr<const EagerPlan> found;
  {
    std::shared_lock lock(all.mutex);
    if (const auto it = all.young.find(call.key.words()); C10_LIKELY(it != all.young.end()))
      return call.served_by(*it->second) ? it->second : nullptr;
    const auto it = all.old.find(call.key.words());
    if (it == all.old.end() || !call.served_by(*it->second)) return nullptr;
    found = it->second;
  }
  std::unique_lock lock(all.mutex);
  all.put(call.key.words(), found);
  return found;
}

/// Steps of optimisers, whose numbers change from call to call; torch_spyre/decompositions/optimisers.py has their
/// formulas.
bool numbers_at_launch(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name, overload = op.operator_name().overload_name;
  if (!name.starts_with("aten::")) return false;
  name.remove_prefix(6);
  if (name.starts_with("_fused_")) {
    const bool known =
        name == "_fused_sgd_" || name == "_fused_adam_" || name == "_fused_adamw_" || name == "_fused_adagrad_";
    return known && (overload.empty() || overload == "tensor_lr");
  }
  if (name.ends_with('_')) name.remove_suffix(1);
  if (name == "add" || name == "sub") return overload == "Tensor";
  if (name == "lerp") return overload == "Scalar";
  return overload.empty() && (name == "addcdiv" || name == "addcmul");
}

void read_knobs() {
  py::gil_scoped_acquire gil;
  knobs_word = knobs_reader ? py::reinterpret_borrow<py::object>(knobs_reader)().cast<int64_t>() : 0;
}

Call describe(const c10::OperatorHandle& op, const Stack& stack, bool sizes, Offsets offsets = Offsets::displaced) {
  if (C10_UNLIKELY(knobs_word < 0)) read_knobs();
  Call call;
  call.sizes = sizes;
  call.offsets = offsets;
  call.numbers_at_launch = numbers_at_launch(op);
  call.key.add(reinterpret_cast<int64_t>(&op.schema()));
  call.key.add(knobs_word);
  const auto n = static_cast<int64_t>(op.schema().arguments().size());
  for (auto it = stack.end() - n; it != stack.end(); ++it) call.add(*it);
  return call;
}

/// The launch of a bucket's program for this call; null if it does not serve it.
std::shared_ptr<const EagerPlan> in_bucket(const BucketPlan& bucket, const Call& call) {
  std::vector<Move> moves;
  const auto n = bucket.matches({call.tensors.data(), call.tensors.size()}, moves);
  if (!n) return nullptr;
  auto plan = std::make_shared<EagerPlan>();
  plan->launch = bucket.launch_for(*n);
  plan->inputs = bucket.inputs;
  plan->outputs = bucket.outputs;
  plan->numbers = bucket.numbers_for(*n);
  plan->moves = std::move(moves);
  return plan;
}

/// A plan for sizes that are new but lie in a bucket that was planned before.
std::shared_ptr<const EagerPlan> find_bucket(const c10::OperatorHandle& op, const Stack& stack, const Call& call) {
  auto& all = cache();
  if (card::sanitize_mode() != card::Sanitize::off) return nullptr;  // it would see reads of what nobody wrote
  const auto family = describe(op, stack, /*sizes=*/false);
  std::shared_ptr<const EagerPlan> plan;
  {
    std::shared_lock lock(all.mutex);
    const auto it = all.buckets.find(family.key.words());
    if (it == all.buckets.end()) return nullptr;
    for (auto bucket = it->second.rbegin(); bucket != it->second.rend() && !plan; ++bucket)
      plan = in_bucket(**bucket, call);
  }
  if (!plan) return nullptr;
  std::unique_lock lock(all.mutex);
  all.put(call.key.words(), plan);
  return plan;
}

py::object python_op(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  const auto colon = name.name.find("::");
  const auto overload = name.overload_name.empty() ? std::string("default") : name.overload_name;
  return py::module_::import("torch")
      .attr("ops")
      .attr(name.name.substr(0, colon).c_str())
      .attr(name.name.substr(colon + 2).c_str())
      .attr(overload.c_str());
}

/// Enumerations travel as integers in an IValue; the schema says which are meant.
py::object python_value(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isInt()) {
    auto type = argument.real_type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const auto code = value.toInt();
    if (type->kind() == c10::TypeKind::ScalarTypeType) return py::cast(static_cast<at::ScalarType>(code));
    if (type->kind() == c10::TypeKind::LayoutType) return py::cast(static_cast<at::Layout>(code));
    if (type->kind() == c10::TypeKind::MemoryFormatType) return py::cast(static_cast<at::MemoryFormat>(code));
  }
  return torch::jit::toPyObject(value);
}

/// The arguments of a call, by position and by keyword.
std::pair<py::tuple, py::dict> python_call(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack.size() - arguments.size();
  py::list args;
  py::dict kwargs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto value = python_value(arguments[i], stack[base + i]);
    if (arguments[i].kwarg_only()) {
      kwargs[arguments[i].name().c_str()] = std::move(value);
    } else {
      args.append(std::move(value));
    }
  }
  return {py::tuple(args), kwargs};
}

py::object ask_compiler(const c10::OperatorHandle& op, const Stack& stack) {
  if (!compiler) raise("UnsupportedOp", op_name(op) + ": spyre has no eager compiler; import torch loads torch_spyre");
  const auto [args, kwargs] = python_call(op, stack);
  return py::reinterpret_borrow<py::object>(compiler)(python_op(op), args, kwargs);
}

void push_results(const c10::OperatorHandle& op, Stack* stack, std::vector<at::Tensor> results) {
  const auto& returns = op.schema().returns();
  torch::jit::drop(*stack, op.schema().arguments().size());
  if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
    stack->emplace_back(c10::List<at::Tensor>(std::move(results)));
    return;
  }
  TORCH_CHECK(results.size() == returns.size(), op_name(op), ": the plan gives ", results.size(),
              " tensors, the op returns ", returns.size());
  for (auto& t : results) stack->emplace_back(std::move(t));
}

void push_python(const c10::OperatorHandle& op, Stack* stack, const py::object& value) {
  const auto& returns = op.schema().returns();
  torch::jit::drop(*stack, op.schema().arguments().size());
  if (returns.empty()) return;
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(value, returns[0].type(), std::nullopt));
    return;
  }
  const auto values = py::cast<py::sequence>(value);
  TORCH_CHECK(values.size() == returns.size(), op_name(op), ": got ", values.size(), " results, the op returns ",
              returns.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    stack->push_back(torch::jit::toIValue(values[i], returns[i].type(), std::nullopt));
  }
}

/// Word `place` of the random keys that the call has drawn so far, which are two words each.
Operand key_word(const Call& call, c10::DeviceIndex device, size_t place, c10::SmallVector<uint64_t, 2>& keys) {
  while (keys.size() <= place / 2) keys.push_back(draw_key(call.generator, device));
  const auto word = static_cast<int32_t>(place % 2 ? keys[place / 2] >> 32 : keys[place / 2]);
  return {nullptr, static_cast<double>(word), word};
}

void run_plan(const c10::OperatorHandle& op, Stack* stack, const Call& call, const EagerPlan& plan) {
  const auto n = static_cast<int>(call.tensors.size());
  const auto device = call.device == -1 ? current_device() : call.device;
  c10::SmallVector<Operand, 8> operands;
  c10::SmallVector<uint64_t, 2> keys;
  for (int i : plan.inputs) {
    if (i >= n) raise("InvalidArgument", c10::str(op_name(op), ": EagerPlan names tensor ", i, " of ", n));
    operands.push_back(i < 0 ? key_word(call, device, static_cast<size_t>(-1 - i), keys) : call.operand(i));
  }
  operands.append(plan.numbers.begin(), plan.numbers.end());
  std::vector<at::Tensor> moved;
  moved.reserve(plan.moves.size());
  for (const auto& move : plan.moves) {
    moved.push_back(with_room(*call.tensors[move.tensor], move));
    for (size_t k = 0; k < plan.inputs.size(); ++k)
      if (plan.inputs[k] == move.tensor) operands[k].tensor = &moved.back();
  }
  const auto made = plan.launch->run(device, {operands.data(), operands.size()});
  std::vector<at::Tensor> results;
  for (const auto& o : plan.outputs) {
    if (o.kind == Binding::Kind::absent) {
      results.emplace_back();
      continue;
    }
    const bool fresh = o.kind == Binding::Kind::output;
    const int limit = fresh ? static_cast<int>(made.size()) : n;
    if (o.index < 0 || o.index >= limit || (!fresh && !call.tensors[o.index]))
      raise("InvalidArgument", op_name(op) + ": EagerPlan output does not exist");
    results.push_back(fresh ? made[o.index] : *call.tensors[o.index]);
  }
  push_results(op, stack, std::move(results));
}

void keep_bucket(const Call& family, std::shared_ptr<const BucketPlan> bucket) {
  const auto words = family.key.words();
  std::unique_lock lock(cache().mutex);
  auto& known = cache().buckets[{words.begin(), words.end()}];
  if (known.size() >= kBucketsPerOp) known.erase(known.begin());
  known.push_back(std::move(bucket));
}

/// Plans the call in Python. Returns null if the compiler computed the result itself (it is on the stack then).
std::shared_ptr<const EagerPlan> plan_call(const c10::OperatorHandle& op, Stack* stack, const Call& call) {
  py::gil_scoped_acquire gil;
  const auto answer = ask_compiler(op, *stack);
  std::shared_ptr<const EagerPlan> plan;
  if (py::isinstance<EagerPlan>(answer)) plan = py::cast<std::shared_ptr<EagerPlan>>(answer);
  if (py::isinstance<BucketPlan>(answer)) {
    std::shared_ptr<const BucketPlan> bucket = py::cast<std::shared_ptr<BucketPlan>>(answer);
    plan = in_bucket(*bucket, call);
    if (!plan) raise("InvalidArgument", op_name(op) + ": the BucketPlan does not serve the call it was made for");
    keep_bucket(describe(op, *stack, /*sizes=*/false), std::move(bucket));
  }
  if (plan) {
    // The compiler may have been the first to look at the knobs of this thread.
    const auto offsets = plan->launch->displaced ? Offsets::displaced : Offsets::exact;
    const auto words = call.cacheable ? describe(op, *stack, /*sizes=*/true, offsets).key : Key();
    std::unique_lock lock(cache().mutex);
    if (call.cacheable) cache().put(words.words(), plan);
    return plan;
  }
  const bool computed = py::isinstance<py::tuple>(answer) && py::len(answer) == 2 &&
                        py::object(answer[py::int_(0)]).equal(py::str("result"));
  TORCH_CHECK_TYPE(computed, "the eager compiler must return an EagerPlan or (\"result\", value), got ",
                   py::str(py::type::of(answer)).cast<std::string>());
  push_python(op, stack, answer[py::int_(1)]);
  return nullptr;
}

void boxed_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { run_eager(op, stack); }

/// May the operands of a call lie in the memory that it writes, as `words` say? Some ops read what they have written;
/// as everywhere in PyTorch, they refuse it. Asked once for each signature.
void allow_sharing(const c10::OperatorHandle& op, const Stack& stack, std::span<const int64_t> words) {
  auto call = describe(op, stack, /*sizes=*/true);
  for (const auto word : words) call.key.add(word);
  const auto key = call.key.words();
  auto& all = cache();
  {
    std::shared_lock lock(all.mutex);
    if (call.cacheable && all.may_share.contains(key)) return;
  }
  py::gil_scoped_acquire gil;
  const auto [args, kwargs] = python_call(op, stack);
  py::module_::import("torch_spyre.ops.checks").attr("check")(python_op(op), args, kwargs);
  std::unique_lock lock(all.mutex);
  if (all.may_share.size() >= kGeneration) all.may_share.clear();
  all.may_share.emplace(key.begin(), key.end());
}

}  // namespace

void run_eager(const c10::OperatorHandle& op, Stack* stack, int written) {
  if (const auto words = shared_memory(op, *stack, written); C10_UNLIKELY(!words.empty())) {
    allow_sharing(op, *stack, {words.data(), words.size()});
    copy_shared(op, stack, written);
  }
  auto call = describe(op, *stack, /*sizes=*/true);
  if (C10_UNLIKELY(call.foreign != nullptr)) {
    if (!call.foreign->is_cpu() || call.device == -1 || !move_indices(op, stack, call.device))
      mixed_devices(op, call.device, *call.foreign);
    return run_eager(op, stack, written);
  }
  auto plan = call.cacheable ? find(call) : nullptr;
  if (!plan && call.cacheable && call.moved) {  // a plan for these offsets only?
    call = describe(op, *stack, /*sizes=*/true, Offsets::exact);
    plan = find(call);
  }
  if (!plan && call.cacheable) plan = find_bucket(op, *stack, call);
  if (!plan) plan = plan_call(op, stack, call);
  if (plan) run_plan(op, stack, call, *plan);
}

torch::Library& eager_library();

void bind_eager(py::module_& m) {
  py::class_<EagerPlan, std::shared_ptr<EagerPlan>>(m, "EagerPlan",
                                                    "A launch plan and how it maps to the tensors of an op call.")
      .def(py::init(
               [](std::shared_ptr<LaunchPlan> launch, std::vector<int> inputs, const std::vector<py::tuple>& outputs) {
                 // -1, -2, ... are words of random keys, all of which are drawn up to the last one named.
                 constexpr int kMostKeyWords = 64;
                 if (!launch) raise("InvalidArgument", "EagerPlan: launch_plan is None");
                 for (int i : inputs)
                   if (i < -kMostKeyWords)
                     raise("InvalidArgument", c10::str("EagerPlan: input ", i, " does not exist"));
                 auto plan = std::make_shared<EagerPlan>();
                 plan->launch = std::move(launch);
                 plan->inputs = std::move(inputs);
                 for (const auto& o : outputs) plan->outputs.push_back(parse_binding(o));
                 return plan;
               }),
           py::arg("launch_plan"), py::arg("inputs"), py::arg("outputs"));
  m.def(
      "set_eager_compiler",
      [](py::object callable) {
        Py_XDECREF(compiler);
        compiler = callable.is_none() ? nullptr : callable.release().ptr();
      },
      py::arg("callable"), "callable(op_overload, args, kwargs) -> EagerPlan or (\"result\", value).");
  m.def(
      "_take_eagerly",
      [](const std::string& name) {
        const auto dot = name.find('.');
        const auto overload = dot == std::string::npos ? "" : name.substr(dot + 1);
        const auto op = c10::Dispatcher::singleton().findOp({name.substr(0, dot), overload});
        if (!op || name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
        eager_library().impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
      },
      py::arg("name"), "Calls of an op of aten come to the eager compiler as they are, not cut into others.");
  m.def(
      "_without_warnings",
      [](const py::function& callable) {
        struct Quiet final : c10::WarningHandler {
          void process(const c10::Warning&) override {}
        } quiet;
        c10::WarningUtils::WarningHandlerGuard guard(&quiet);
        return callable();
      },
      py::arg("callable"), "callable(), and what PyTorch warns about in it is dropped.");
  m.def("clear_eager_cache", [] {
    std::unique_lock lock(cache().mutex);
    cache().young.clear();
    cache().old.clear();
    cache().buckets.clear();
    cache().may_share.clear();
    ++cache().cleared;
  });
  m.def(
      "_eager_cache_state",
      [] {
        std::shared_lock lock(cache().mutex);
        size_t buckets = 0;
        for (const auto& [key, known] : cache().buckets) buckets += known.size();
        return std::tuple(cache().young.size() + cache().old.size(), buckets, cache().cleared);
      },
      "(plans kept, programs of buckets kept, times cleared).");
  m.def(
      "_set_eager_knobs", [](int64_t word) { knobs_word = word; }, py::arg("word"),
      "Plans of this thread are kept apart from those made under another word; -1: to be asked for.");
  m.def(
      "_set_eager_knobs_reader",
      [](py::object callable) {
        Py_XDECREF(knobs_reader);
        knobs_reader = callable.is_none() ? nullptr : callable.release().ptr();
      },
      py::arg("callable"), "callable() -> the word for the knobs of this thread.");
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>()); }

/// Where ops get the boxed kernel that only some of them need.
torch::Library& eager_library() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  return *library;
}

/// Structured ops would first allocate outputs in the default layout and then arrive as their out= variant. They come
/// here as they were called instead, so that the compiler chooses the layout and one plan does the work.
void register_structured_ops() {
  auto* library = &eager_library();
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto structured =
      dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  for (const auto& name : structured) {
    const auto op = dispatcher.findOp(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    // Zeros and a copy into a view of them, whose offset is a launch argument; the op itself has an index in its key.
    if (name.name == "aten::select_backward") continue;
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
  }
  // The composite kernels of the first two only say that a device must bring its own; that of the third asks for a
  // result in the memory format that the strides of a view suggest. Those of the others call several ops that each
  // round to the element type, where compiled graphs round once.
  for (const char* name :
       {"aten::convolution_overrideable", "aten::convolution_backward_overrideable", "aten::constant_pad_nd",
        "aten::native_layer_norm", "aten::native_group_norm", "aten::logsumexp", "aten::celu",
        "aten::binary_cross_entropy_with_logits", "aten::soft_margin_loss", "aten::soft_margin_loss_backward",
        "aten::addr", "aten::addr.out", "aten::dist"}) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
  }
}

}  // namespace spyre

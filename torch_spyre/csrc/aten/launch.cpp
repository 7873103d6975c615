// SPDX-License-Identifier: Apache-2.0
#include <Python.h>

#include "launch.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "device.h"
#include "errors.h"
#include "offsets.h"
#include "profiler.h"
#include "recording.h"
#include "spyre/sanitizer.h"
#include "storage.h"

namespace spyre {
namespace {

enum Tag : int64_t { kTensor = 1, kScalarTensor = 2 };

std::atomic<bool> launch_blocking{false};

template <typename T>
T read(const at::Tensor& t) {
  return *static_cast<const T*>(t.const_data_ptr());
}

/// Value of a CPU scalar tensor without a trip through the dispatcher.
template <typename T>
T scalar_value(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return static_cast<T>(read<double>(t));
    case at::kFloat:
      return static_cast<T>(read<float>(t));
    case at::kHalf:
      return static_cast<T>(static_cast<float>(read<at::Half>(t)));
    case at::kBFloat16:
      return static_cast<T>(static_cast<float>(read<at::BFloat16>(t)));
    case at::kLong:
      return static_cast<T>(read<int64_t>(t));
    case at::kInt:
      return static_cast<T>(read<int32_t>(t));
    case at::kShort:
      return static_cast<T>(read<int16_t>(t));
    case at::kChar:
      return static_cast<T>(read<int8_t>(t));
    case at::kByte:
      return static_cast<T>(read<uint8_t>(t));
    case at::kBool:
      return static_cast<T>(read<bool>(t));
    default:
      raise("UnsupportedOp", c10::str("a scalar tensor of dtype ", t.scalar_type(), " cannot be passed to the card"));
  }
}

/// A number as operand of float16. Those between the largest that reads back as finite and the first that float16 has
/// as infinity become the former, as when a host tensor is copied.
float float16_operand(float value) {
  constexpr float kTop = 65472, kInfinite = 65520;
  const float magnitude = std::abs(value);
  return magnitude > kTop && magnitude < kInfinite ? std::copysign(kTop, value) : value;
}

card::Scalar launch_scalar(const Operand& operand, ScalarSpec::Kind kind) {
  card::Scalar s{};
  if (kind == ScalarSpec::Kind::integer) {
    s.i = operand.tensor ? scalar_value<int64_t>(*operand.tensor) : operand.i;
    return s;
  }
  const float value = operand.tensor ? scalar_value<float>(*operand.tensor) : static_cast<float>(operand.f);
  s.f = kind == ScalarSpec::Kind::fp16 ? float16_operand(value) : value;
  return s;
}

/// The thread without the interpreter, if it has it.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

void invalid(const std::string& message) { raise("InvalidArgument", "LaunchPlan: " + message); }

card::Buffer moved(const card::Buffer& whole, uint64_t displacement) {
  if (displacement > whole.bytes)
    invalid(c10::str("a view begins ", displacement, " bytes into a storage of ", whole.bytes));
  return {whole.address + displacement, whole.bytes - displacement};
}

}  // namespace

void set_launch_blocking(bool on) { launch_blocking = on; }

uint64_t Key::add_tensor(const at::Tensor& tensor, Offsets offsets) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto& record = record_of(tensor);
  const auto sizes = impl->sizes(), strides = impl->strides();
  add(kTensor | static_cast<int64_t>(tensor.scalar_type()) << 8 | static_cast<int64_t>(record.device) << 16 |
      static_cast<int64_t>(sizes.size()) << 32);
  const auto offset = impl->storage_offset();
  const auto start = offset == 0 ? ViewStart{0, 0} : view_start(*record.layout, sizes, strides, offset);
  add(offsets == Offsets::exact ? offset : start.offset);
  add(reinterpret_cast<int64_t>(record.layout));
  words_.append(sizes.begin(), sizes.end());
  words_.append(strides.begin(), strides.end());
  return start.bytes;
}

void Key::add_scalar_tensor(const at::Tensor& tensor) {
  const int64_t wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  add(kScalarTensor | static_cast<int64_t>(tensor.scalar_type()) << 8 | wrapped << 16);
}

size_t KeyHash::operator()(std::span<const int64_t> words) const {
  uint64_t h = words.size();
  for (int64_t w : words) {
    h = (h ^ static_cast<uint64_t>(w)) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
  }
  return h;
}

bool KeyEqual::operator()(std::span<const int64_t> a, std::span<const int64_t> b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void LaunchPlan::check() const {
  const auto n_args = static_cast<size_t>(program->n_args());
  const auto n_scalars = static_cast<size_t>(program->n_scalars());
  if (bindings.size() != n_args) {
    invalid(c10::str("the program has ", n_args, " arguments, but there are ", bindings.size(), " bindings"));
  }
  if (scalars.size() != n_scalars) {
    invalid(c10::str("the program has ", n_scalars, " launch scalars, but ", scalars.size(), " are given"));
  }
  for (const auto& b : bindings) {
    const bool fits =
        b.index >= 0 && (b.kind == Binding::Kind::input ||
                         (b.kind == Binding::Kind::output && b.index < static_cast<int>(outputs.size())) ||
                         (b.kind == Binding::Kind::pool && b.index == 0 && pool_bytes > 0) ||
                         (b.kind == Binding::Kind::constant && b.index < static_cast<int>(constants.size())));
    if (!fits) invalid(c10::str("a binding has the index ", b.index, ", which does not exist"));
  }
}

void submit(c10::DeviceIndex device, const std::shared_ptr<const card::Program>& program,
            std::span<const card::Buffer> buffers, std::span<const card::Scalar> scalars) {
  if (C10_UNLIKELY(!program->proved(scalars))) {
    on_card([&] {
      WithoutGil released;
      program->prove(scalars);
    });
  }
  if (C10_UNLIKELY(card_of(device).full(current_stream_id(device)))) {
    WithoutGil released;
    on_card([&] { card_of(device).make_room(current_stream_id(device)); });
  }
  with_memory([&] { card_of(device).launch(program, buffers, scalars, current_stream_id(device)); });
  if (C10_UNLIKELY(launch_blocking.load(std::memory_order_relaxed))) synchronize_stream(current_stream(device));
  if (card::sanitize_mode() != card::Sanitize::off) {
    for (const auto& warning : card::new_sanitizer_warnings()) TORCH_WARN(warning);
  }
}

Outputs LaunchPlan::run(c10::DeviceIndex device, std::span<const Operand> inputs) const {
  const profiler::Call call(&name);
  Recording* const recording = Recording::active();
  c10::SmallVector<card::Buffer, 16> buffers;
  c10::SmallVector<uint64_t, 0> displacements;  // for the recording
  const auto bind = [&](const card::Buffer& whole, uint64_t displacement = 0) {
    buffers.push_back(displacement == 0 ? whole : moved(whole, displacement));
    if (C10_UNLIKELY(recording != nullptr)) displacements.push_back(displacement);
  };
  const auto buffer_of = [&](const at::Tensor& tensor) {
    if (C10_UNLIKELY(recording != nullptr)) recording->hold(tensor);
    return raw_record_of(tensor).buffer();
  };
  Outputs results;
  for (const auto& o : outputs) results.push_back(make_tensor(device, o.size, o.stride, o.dtype, o.layout));
  // The pool may return to the allocator at once: the work of whoever gets its memory next waits for it.
  c10::DataPtr pool;
  card::Buffer pool_buffer{};
  if (pool_bytes > 0 && recording) {
    pool_buffer = recording->pool(device, pool_bytes);
  } else if (pool_bytes > 0) {
    const std::vector<int64_t> size{static_cast<int64_t>(pool_bytes)};
    pool = allocate(device, pool_bytes, nullptr, at::kByte, size, {1});
    pool_buffer = record_of(pool).buffer();
  }
  const auto n_inputs = static_cast<int>(inputs.size());
  for (const auto& b : bindings) {
    switch (b.kind) {
      case Binding::Kind::input:
        if (b.index >= n_inputs || !inputs[b.index].tensor)
          invalid(c10::str("input ", b.index, " is not a spyre tensor"));
        bind(buffer_of(*inputs[b.index].tensor), displaced ? inputs[b.index].displacement : 0);
        break;
      case Binding::Kind::output:
        bind(buffer_of(results[b.index]));
        break;
      case Binding::Kind::pool:
        bind(pool_buffer);
        break;
      case Binding::Kind::constant:
        if (raw_record_of(constants[b.index]).device != device)
          invalid(c10::str("constant ", b.index, " is on another device"));
        bind(buffer_of(constants[b.index]));
        break;
      case Binding::Kind::absent:
        invalid("a program has no use for an absent binding");
    }
  }
  c10::SmallVector<card::Scalar, 8> values;
  for (const auto& s : scalars) {
    if (s.input < 0 || s.input >= n_inputs) invalid(c10::str("scalar input ", s.input, " does not exist"));
    values.push_back(launch_scalar(inputs[s.input], s.kind));
  }
  const std::span<const card::Buffer> bound(buffers.data(), buffers.size());
  const std::span<const card::Scalar> numbers(values.data(), values.size());
  submit(device, program, bound, numbers);
  if (C10_UNLIKELY(recording != nullptr)) recording->launched(device, *this, bound, displacements, numbers);
  return results;
}

}  // namespace spyre

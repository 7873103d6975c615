// SPDX-License-Identifier: Apache-2.0
// Launching planned programs: the plan, the key under which it is cached, and the cache.
//
// Enters: tensors and numbers. Leaves: fresh output tensors, and a program queued on the card of the inputs.
// A plan is made for one combination of shapes, strides, layouts and starts of views (offsets.h); the key names exactly
// those. A plan that cannot be moved along its arguments is kept under the offsets themselves.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "layout.h"
#include "spyre/card.h"

namespace spyre {

/// One input of a launch: a spyre tensor, a CPU scalar tensor, or a number.
struct Operand {
  const at::Tensor* tensor = nullptr;
  double f = 0;
  int64_t i = 0;
  uint64_t displacement = 0;  // of a tensor: bytes from its storage to where a plan that is displaced begins
};

/// How a key names the offset of a tensor.
enum class Offsets { displaced, exact };

/// Words that identify a call. Numbers and CPU scalar tensors enter by kind only: their values are launch scalars.
class Key {
 public:
  void add(int64_t word) { words_.push_back(word); }
  /// A spyre tensor: dtype, device, sizes, strides, offset and layout. Returns its displacement.
  uint64_t add_tensor(const at::Tensor& tensor, Offsets offsets);
  /// A CPU tensor of rank 0.
  void add_scalar_tensor(const at::Tensor& tensor);
  std::span<const int64_t> words() const { return {words_.data(), words_.size()}; }

 private:
  c10::SmallVector<int64_t, 96> words_;
};

struct KeyHash {
  using is_transparent = void;
  size_t operator()(std::span<const int64_t> words) const;
  size_t operator()(const std::vector<int64_t>& words) const { return (*this)(std::span(words)); }
};
struct KeyEqual {
  using is_transparent = void;
  bool operator()(std::span<const int64_t> a, std::span<const int64_t> b) const;
};
template <typename T>
using PlanMap = std::unordered_map<std::vector<int64_t>, std::shared_ptr<const T>, KeyHash, KeyEqual>;

struct Binding {
  enum class Kind : uint8_t { input, output, pool, constant, absent } kind;  // absent: a result that nobody asked for
  int index;
};

struct OutputSpec {
  std::vector<int64_t> size, stride;
  c10::ScalarType dtype;
  LayoutPtr layout;
};

struct ScalarSpec {
  int input;
  enum class Kind : char { integer = 'i', fp32 = 'f', fp16 = 'h' } kind;  // fp16: fp32, an operand of float16
};

using Outputs = c10::SmallVector<at::Tensor, 4>;

/// Launches wait for their end, so that an error is raised where its launch was made.
void set_launch_blocking(bool on);

/// Queues a program on the current stream of `device`.
void submit(c10::DeviceIndex device, const std::shared_ptr<const card::Program>& program,
            std::span<const card::Buffer> buffers, std::span<const card::Scalar> scalars);

struct LaunchPlan {
  std::string name;  // of the kernel, for profiles
  std::shared_ptr<const card::Program> program;
  std::vector<Binding> bindings;
  std::vector<OutputSpec> outputs;
  uint64_t pool_bytes = 0;
  std::vector<at::Tensor> constants;
  std::vector<ScalarSpec> scalars;
  /// Serves views that begin elsewhere in their storages too: the program is made for the offset that the key names,
  /// and the launch adds the displacement of each input to its address. Else it is made for the offsets themselves.
  bool displaced = false;

  /// May it run on inputs of its key, some of which (`moved`) have a displacement?
  bool serves(bool moved) const { return displaced || !moved; }
  /// Raises InvalidArgument if bindings and scalars do not fit the program.
  void check() const;
  /// Allocates the outputs and queues the program on the current stream of `device`.
  Outputs run(c10::DeviceIndex device, std::span<const Operand> inputs) const;
};

}  // namespace spyre

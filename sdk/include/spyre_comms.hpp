// SPDX-License-Identifier: Apache-2.0
// Collectives between the cards of several processes. Rank and size come from RANK and WORLD_SIZE, and the processes
// that give the same MASTER_ADDR and MASTER_PORT find each other, on one host or several (LOCAL_WORLD_SIZE).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "flex/flex.hpp"
#include "spyre_comms_tensor.hpp"

namespace spyre_comms {

using process_id_t = int32_t;

enum class SpyreReductionOpType { SUM, UNSUPPORTED };

/// A collective that has been described. Errors are std::exceptions.
class WorkSchedule {
 public:
  virtual ~WorkSchedule() = default;
  /// Queues it behind what has been launched on the stream of the library. Once.
  virtual void start() = 0;
  /// Until it is done. Throws what went wrong.
  virtual void wait() = 0;
  /// True if it is done. Throws what went wrong.
  virtual bool query() = 0;
};

/// Every rank makes the same calls in the same order, except send and recv, which pair up by rank and tag.
class Context {
 public:
  virtual ~Context() = default;
  virtual process_id_t getRank() const = 0;
  virtual process_id_t getSize() const = 0;
  virtual std::shared_ptr<WorkSchedule> broadcast(Tensor& tensor, process_id_t root) = 0;
  virtual std::shared_ptr<WorkSchedule> allreduce(Tensor& tensor, SpyreReductionOpType op) = 0;
  virtual std::shared_ptr<WorkSchedule> reduce(Tensor& tensor, SpyreReductionOpType op, process_id_t root) = 0;
  virtual std::shared_ptr<WorkSchedule> allgather(std::vector<Tensor>& outputs, Tensor& input) = 0;
  virtual std::shared_ptr<WorkSchedule> gather(std::vector<Tensor>& outputs, Tensor& input, process_id_t root) = 0;
  virtual std::shared_ptr<WorkSchedule> barrier() = 0;
  virtual std::shared_ptr<WorkSchedule> send(Tensor& tensor, process_id_t rank, int tag) = 0;
  virtual std::shared_ptr<WorkSchedule> recv(Tensor& tensor, process_id_t rank, int tag) = 0;
};

/// Waits until every rank has come. Throws if one does not within SPYRE_COMMS_TIMEOUT_S seconds (default 300).
void initialize_library(std::shared_ptr<flex::RuntimeContext> context, flex::RuntimeStream* stream);
void finalize_library();
/// Null before the library is initialised and after it has been finalised.
std::shared_ptr<Context> get_world_context();

}  // namespace spyre_comms

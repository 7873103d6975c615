// SPDX-License-Identifier: Apache-2.0
// What a collective call returns: points in streams of cards. Waiting for it orders the current stream behind it and
// does not stop the host, unless the host itself needs the outcome.
#pragma once
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <vector>

#include "spyre/links.h"

namespace spyre {

/// An exchange that a recording makes again: each replay leaves its own marker here.
struct Recorded {
  uint64_t recording, number;
  card::Marker marker;
};

struct Point {
  c10::DeviceIndex device;
  card::Marker marker;
  std::shared_ptr<Recorded> recorded;  // null if nothing was recorded when it was made
};

class SpyreWork final : public c10d::Work {
 public:
  SpyreWork(int rank, c10d::OpType type, std::vector<Point> points, std::vector<at::Tensor> outputs, bool blocks_host,
            std::shared_ptr<const card::GroupExchange> exchange);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  std::vector<at::Tensor> result() override { return outputs_; }
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

  const std::vector<Point>& points() const { return points_; }

 private:
  void wait_on_host(std::chrono::milliseconds timeout);

  std::vector<Point> points_;
  std::vector<at::Tensor> outputs_;
  bool blocks_host_;
  std::shared_ptr<const card::GroupExchange> exchange_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace spyre

// SPDX-License-Identifier: Apache-2.0
// Gloo's sends and receives cannot be asked whether they are done, only waited for: a thread for each lane and
// direction waits.
#include "gloo_link.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace spyre {
namespace {

using Gloo = c10::intrusive_ptr<c10d::Backend>;
constexpr std::chrono::hours kLong{24 * 365};  // the group itself knows when a collective is too late

/// One transfer: shared by the flow, which asks, and the thread, which moves. It has bytes of its own: Gloo cannot take
/// a transfer back, so it may end after the collective that asked for it.
struct Transfer {
  std::vector<std::byte> bytes;
  std::atomic<bool> done{false};
  std::string error;  // written before `done`
};
using TransferPtr = std::shared_ptr<Transfer>;

class GlooFlow final : public card::Flow {
 public:
  /// What is received goes to `to`.
  GlooFlow(TransferPtr transfer, int peer, std::span<std::byte> to)
      : transfer_(std::move(transfer)), peer_(peer), to_(to) {}
  bool advance(bool& moved) override {
    if (told_) return true;
    if (!transfer_->done.load(std::memory_order_acquire)) return false;
    if (!transfer_->error.empty())
      throw card::Error("PeerLost", "the connection to rank " + std::to_string(peer_) +
                                        " is gone: " + transfer_->error + "; destroy the group to go on without it");
    std::copy_n(transfer_->bytes.begin(), to_.size(), to_.begin());
    transfer_.reset();
    return moved = told_ = true;
  }

 private:
  TransferPtr transfer_;
  int peer_;
  std::span<std::byte> to_;
  bool told_ = false;
};

/// A thread that moves one transfer after another.
class Mover {
 public:
  Mover(Gloo gloo, int peer, int tag, bool sends, std::function<void()> bell)
      : gloo_(std::move(gloo)), peer_(peer), tag_(tag), sends_(sends), bell_(std::move(bell)) {}

  ~Mover() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      if (work_) work_->abort();
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  TransferPtr add(std::vector<std::byte> bytes) {
    auto transfer = std::make_shared<Transfer>();
    transfer->bytes = std::move(bytes);
    std::lock_guard lock(mutex_);
    queue_.push_back(transfer);
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    wake_.notify_all();
    return transfer;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      auto transfer = std::move(queue_.front());
      queue_.pop_front();
      try {
        std::vector<at::Tensor> tensors{
            at::from_blob(transfer->bytes.data(), {static_cast<int64_t>(transfer->bytes.size())}, at::kByte)};
        work_ = sends_ ? gloo_->send(tensors, peer_, tag_) : gloo_->recv(tensors, peer_, tag_);
        auto work = work_;
        lock.unlock();
        const bool moved = work->wait(kLong);
        lock.lock();
        if (!moved) transfer->error = "given up";
      } catch (const std::exception& e) {
        if (!lock.owns_lock()) lock.lock();
        transfer->error = std::string(e.what()).substr(0, 200);
      }
      work_.reset();
      transfer->done.store(true, std::memory_order_release);
      bell_();
    }
  }

  Gloo gloo_;
  int peer_, tag_;
  bool sends_;
  std::function<void()> bell_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<TransferPtr> queue_;
  c10::intrusive_ptr<c10d::Work> work_;
  bool stop_ = false;
  std::thread thread_;
};

class GlooLink final : public card::Link {
 public:
  GlooLink(const Gloo& gloo, int peer, const std::function<void()>& bell) : peer_(peer) {
    for (int lane = 0; lane < card::kLanes; ++lane)
      for (const bool sends : {false, true})
        movers_[lane][sends] = std::make_unique<Mover>(gloo, peer, lane, sends, bell);
  }

  std::unique_ptr<card::Flow> send(card::Lane lane, std::span<const std::byte> bytes) override {
    auto transfer = mover(lane, true).add({bytes.begin(), bytes.end()});
    return std::make_unique<GlooFlow>(std::move(transfer), peer_, std::span<std::byte>());
  }
  std::unique_ptr<card::Flow> receive(card::Lane lane, std::span<std::byte> bytes) override {
    return std::make_unique<GlooFlow>(mover(lane, false).add(std::vector<std::byte>(bytes.size())), peer_, bytes);
  }
  std::string lost() override { return ""; }  // a flow says so
  const char* name() const override { return "tcp"; }

 private:
  Mover& mover(card::Lane lane, bool sends) { return *movers_[static_cast<int>(lane)][sends]; }

  int peer_;
  std::array<std::array<std::unique_ptr<Mover>, 2>, card::kLanes> movers_;
};

}  // namespace

std::unique_ptr<card::Link> gloo_link(c10::intrusive_ptr<c10d::Backend> gloo, int peer, std::function<void()> bell) {
  return std::make_unique<GlooLink>(gloo, peer, bell);
}

}  // namespace spyre

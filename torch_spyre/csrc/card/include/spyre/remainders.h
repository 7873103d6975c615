// SPDX-License-Identifier: Apache-2.0
// What is left of the host offsets of a strided walk while their digits are taken off, the largest stride first: that
// is how a layout turns an offset into device coordinates.
#pragma once
#include <cstddef>
#include <cstdint>

namespace spyre {

/// A set of numbers that holds all remainders: `begin` plus, of each step, any multiple from 0 to `last`.
class Remainders {
 public:
  explicit Remainders(int64_t begin) : begin_(begin), end_(begin), known_(begin >= 0) {}

  /// One dim of the walk; to be called before any digit is taken.
  void add(int64_t size, int64_t stride) {
    if (size <= 1 || stride == 0) return;
    known_ = known_ && stride > 0 && n_ < kMost;
    if (!known_) return;
    steps_[n_++] = {stride, size - 1};
    known_ = measure();
  }

  /// False if all that is known is that they lie below the stride that was taken last.
  bool known() const { return known_; }
  int64_t begin() const { return begin_; }
  /// The greatest of them. There is none before the first digit is taken unless they are known.
  int64_t end() const { return end_; }

  /// Takes the digit of this stride, which is positive, off each of them.
  void take(int64_t stride) {
    if (known_ && end_ < stride) return;
    begin_ %= stride;
    for (size_t i = 0; i < n_; ++i) steps_[i].step %= stride;
    if (known_ && !(measure() && end_ < stride)) known_ = repeat(stride) && measure();
    if (!known_) end_ = stride - 1;
  }

 private:
  static constexpr size_t kMost = 32;
  struct Step {
    int64_t step, last;
  };

  bool measure() {
    end_ = begin_;
    for (size_t i = 0; i < n_; ++i)
      if (!reach(steps_[i], end_)) return false;
    return true;
  }

  static bool reach(const Step& s, int64_t& end) {
    int64_t length;
    return !__builtin_mul_overflow(s.step, s.last, &length) && !__builtin_add_overflow(end, length, &end);
  }

  /// They passed the stride. If they fall on the same places each time, because one step divides the stride and all
  /// others are multiples of it or stay below it, then those places are what is left.
  bool repeat(int64_t stride) {
    size_t found = n_;
    for (size_t i = 0; i < n_; ++i) {
      const int64_t step = steps_[i].step;
      if (step > 0 && stride % step == 0 && is_period(step) && (found == n_ || step > steps_[found].step)) found = i;
    }
    if (found == n_) return false;
    const int64_t period = steps_[found].step;
    begin_ %= period;
    for (size_t i = 0; i < n_; ++i)
      if (steps_[i].step >= period) steps_[i].step = 0;
    steps_[found] = {period, stride / period - 1};
    return true;
  }

  bool is_period(int64_t period) const {
    int64_t end = begin_ % period;
    for (size_t i = 0; i < n_; ++i)
      if (steps_[i].step >= period ? steps_[i].step % period != 0 : !reach(steps_[i], end)) return false;
    return end < period;
  }

  int64_t begin_, end_;
  bool known_;
  size_t n_ = 0;
  Step steps_[kMost];
};

}  // namespace spyre

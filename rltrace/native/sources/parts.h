// Where the time of an op goes, for benchmarks: only in a library that is built with RLTRACE_TIMED.

#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace rltrace {

enum class Part { ARGUMENTS, CALL, INPUTS, GENERATOR, MODULE, SITE, RUN, RESULTS, SETTINGS, CELLS };
constexpr std::array PART_NAMES = {"arguments", "call", "inputs",  "generator", "module",
                                   "site",      "run",  "results", "settings",  "cells"};

// Nanoseconds that ops spent in each part.
class Parts {
 public:
#ifdef RLTRACE_TIMED
  void begin() { last_ = now(); }
  void end(Part part) {
    const int64_t time = now();
    nanoseconds_[static_cast<size_t>(part)] += time - last_;
    last_ = time;
  }
#else
  void begin() {}
  void end(Part) {}
#endif

  int64_t of(Part part) const { return nanoseconds_[static_cast<size_t>(part)]; }

 private:
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  int64_t last_ = 0;
  std::array<int64_t, PART_NAMES.size()> nanoseconds_{};
};

}  // namespace rltrace

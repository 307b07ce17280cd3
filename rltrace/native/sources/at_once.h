// Calls of one op at once: the calling thread makes the first, a thread of its own each other one.
//
// A thread here has the state of dispatch, grad and autocast that the caller has, which Python cannot hand over, and
// its own team of OpenMP. It has ended when the call returns.

#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace rltrace {

// Warnings were shown by the program's own call.
class Unshown final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

class CallsAtOnce {
 public:
  CallsAtOnce(c10::OperatorHandle op, std::vector<torch::jit::Stack>& stacks)
      : op_(std::move(op)), stacks_(stacks), left_(stacks.size(), true), errors_(stacks.size()) {}

  // Make all; throws the error of the first that failed. Returns whether they were made at once.
  bool make() {
    std::vector<std::thread> others;
    sigset_t all, before;  // signals are for the threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 1; i < stacks_.size() && !flushes_denormals(); ++i) try {
        others.emplace_back([this, i] { call_as_caller(i); });
      } catch (const std::system_error&) {
        break;  // no thread is left
      }
    awaited_ = others.size() + 1;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    call(0);
    for (auto& other : others) other.join();
    const bool at_once = std::count(left_.begin(), left_.end(), true) == 0;
    for (size_t i = 1; i < stacks_.size(); ++i)
      if (left_[i]) call(i);
    for (const auto& error : errors_)
      if (error) std::rethrow_exception(error);
    return at_once;
  }

 private:
  // Whether the calling thread takes denormal numbers for 0, which threads of another team may not do.
  static bool flushes_denormals() {
    volatile float least = std::numeric_limits<float>::min();
    return least / 2 == 0;
  }

  void call_as_caller(size_t i) noexcept {
    at::ThreadLocalStateGuard state(state_);
    at::RecordFunctionGuard unseen(false);
    if (at::get_num_threads() != threads_) {
      ++there_;
      return;
    }
    at::parallel_for(0, threads_, 1, [](int64_t, int64_t) {});  // so that its team is there
    call(i);
  }

  void call(size_t i) noexcept {
    c10::WarningUtils::WarningHandlerGuard silent(&unshown_);
    left_[i] = false;
    for (++there_; there_ < awaited_;) std::this_thread::yield();
    try {
      op_.callBoxed(&stacks_[i]);
    } catch (...) {
      errors_[i] = std::current_exception();
    }
  }

  const c10::OperatorHandle op_;
  std::vector<torch::jit::Stack>& stacks_;
  std::vector<char> left_;
  std::vector<std::exception_ptr> errors_;
  std::atomic<size_t> there_ = 0, awaited_ = std::numeric_limits<size_t>::max();
  // Threads that have begun, and those that are to begin before any makes its call.
  const int threads_ = at::get_num_threads();
  const at::ThreadLocalState state_;
  Unshown unshown_;
};

// What each call returns, and whether they were made at once; ``calls``: their positional and named arguments.
inline std::pair<py::list, bool> call_at_once(const std::string& name, const std::string& overload,
                                              const std::vector<std::pair<py::tuple, py::dict>>& calls) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  std::vector<torch::jit::Stack> stacks;
  torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  for (const auto& [args, named] : calls)
    stacks.push_back(torch::jit::createStackForSchema(op.schema(), args, py::kwargs(named), std::nullopt));
  const bool at_once = [&] {
    py::gil_scoped_release released;
    return CallsAtOnce(op, stacks).make();
  }();
  py::list results;
  for (auto& stack : stacks) results.append(torch::jit::createPyObjectForStack(std::move(stack)));
  return {std::move(results), at_once};
}

}  // namespace rltrace

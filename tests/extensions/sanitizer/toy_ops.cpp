// Operators that give something else when they are called again: one keeps a count, in one threads race; and one whose
// calls wait for each other.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <thread>
#include <vector>

using torch::stable::Tensor;

static float calls = 0;
static const auto loaded_by = std::this_thread::get_id();

void count(Tensor x) { static_cast<float*>(x.data_ptr())[0] += ++calls; }

void race(Tensor x) {
  volatile float* total = static_cast<float*>(x.data_ptr());
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; k++)
    threads.emplace_back([=] {
      for (int i = 0; i < 1000000; i++) *total = *total + 1;
    });
  for (auto& thread : threads) thread.join();
}

void meet(Tensor x) {
  static std::atomic<int> there = 0;
  for (++there; there < 2;) std::this_thread::yield();
  static_cast<float*>(x.data_ptr())[0] = there;
  static_cast<float*>(x.data_ptr())[1] = std::this_thread::get_id() == loaded_by;
}

STABLE_TORCH_LIBRARY(toy_ops, library) {
  library.def("count(Tensor(a!) x) -> ()");
  library.def("race(Tensor(a!) x) -> ()");
  library.def("meet(Tensor(a!) x) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(toy_ops, CPU, library) {
  library.impl("count", TORCH_BOX(&count));
  library.impl("race", TORCH_BOX(&race));
  library.impl("meet", TORCH_BOX(&meet));
}

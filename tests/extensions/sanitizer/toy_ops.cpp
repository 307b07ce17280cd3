// Operators that give something else when they are called again: one keeps a count, in one threads race.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <thread>
#include <vector>

using torch::stable::Tensor;

static float calls = 0;

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

STABLE_TORCH_LIBRARY(toy_ops, library) {
  library.def("count(Tensor(a!) x) -> ()");
  library.def("race(Tensor(a!) x) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(toy_ops, CPU, library) {
  library.impl("count", TORCH_BOX(&count));
  library.impl("race", TORCH_BOX(&race));
}

// Interception: torch hands each op that reaches a dispatch mode to its interpreter, through a table of functions. Ours
// takes the ops of the recorder's modes and passes on everything else.
//
// The recorder's mode stays on torch's stack of modes, so the order of modes, the compiler and the program's modules
// see what they see without this engine.

#pragma once

#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <atomic>
#include <memory>
#include <unordered_map>

#include "row.h"

namespace rltrace {

// The recorder of each armed mode. Changed with the interpreter's lock; threads remember what they have found.
class Modes {
 public:
  static Modes& all() {
    static auto& modes = *new Modes();
    return modes;
  }

  void arm(PyObject* mode, std::shared_ptr<Recorder> recorder, py::object stream) {
    disarm(mode);
    recorder->arm(std::move(stream));
    by_mode_[mode] = std::move(recorder);
    ++generation_;
  }

  void disarm(PyObject* mode) {
    const auto found = by_mode_.find(mode);
    if (found == by_mode_.end()) return;
    found->second->disarm();
    by_mode_.erase(found);
    ++generation_;
  }

  // The recorder of the mode on top of the calling thread's stack; nullptr: another mode, or one that is not armed.
  const std::shared_ptr<Recorder>& here() {
    static const std::shared_ptr<Recorder> none;
    const auto depth = c10::impl::TorchDispatchModeTLS::stack_len();
    if (depth == 0) return none;
    PyObject* mode = c10::impl::TorchDispatchModeTLS::get_stack_at(depth - 1)->ptr(getPyInterpreter());
    Thread& thread = Thread::here();
    if (thread.mode != mode || thread.generation != generation_) {
      py::gil_scoped_acquire held;
      const auto found = by_mode_.find(mode);
      thread.recorder = found == by_mode_.end() ? nullptr : found->second;
      thread.mode = mode;
      thread.generation = generation_;
    }
    return thread.recorder;
  }

 private:
  std::unordered_map<PyObject*, std::shared_ptr<Recorder>> by_mode_;
  std::atomic<u64> generation_{1};
};

// Calls of modules whose beginning was followed, in the calling thread.
class ModuleCalls {
 public:
  static bool enter(PyObject* module) {
    const std::shared_ptr<Recorder>& recorder = Modes::all().here();
    if (recorder == nullptr || !recorder->enter_known(module)) return false;
    Thread::here().called_in.push_back(recorder);
    return true;
  }

  static void leave() {
    auto& recorders = Thread::here().called_in;
    recorders.back()->leave();
    recorders.pop_back();
  }
};

class Interpreter final : public c10::impl::PyInterpreterVTable {
 public:
  // Take the place of torch's table, for the rest of the process.
  static void install() {
    static const auto* installed = new Interpreter(getPyInterpreter()->vtable_);
    if (getPyInterpreter()->vtable_ != installed) getPyInterpreter()->vtable_ = installed;
  }

  void dispatch(const c10::OperatorHandle& op, Stack* stack) const override {
    Recorder* recorder = Modes::all().here().get();
    if (recorder == nullptr || !recorder->observe(op, stack)) torch_->dispatch(op, stack);
  }

  // Autograd detaches tensors that it saves by way of this function, past the dispatcher.
  c10::intrusive_ptr<TensorImpl> detach(const TensorImpl* tensor) const override {
    Recorder* recorder = Modes::all().here().get();
    if (recorder == nullptr || tensor->key_set().has(c10::DispatchKey::Python)) return torch_->detach(tensor);
    Stack stack;
    stack.emplace_back(owned(const_cast<TensorImpl*>(tensor)));
    if (!recorder->observe(detach_, &stack)) return torch_->detach(tensor);
    return stack.back().toTensor().getIntrusivePtr();
  }

  using Key = c10::DispatchKey;
  using Keys = c10::DispatchKeySet;
  using Handle = c10::OperatorHandle;
  using Device = c10::DeviceType;
  using Format = at::MemoryFormat;

  std::string name() const override { return torch_->name(); }
  void incref(PyObject* object) const override { torch_->incref(object); }
  void decref(PyObject* object) const override { torch_->decref(object); }
  bool try_incref(const c10::impl::PyObjectSlot& slot) const override { return torch_->try_incref(slot); }
  size_t refcnt(PyObject* object) const override { return torch_->refcnt(object); }
  void reportErrorCallback(PyObject* callback, Key key) const override { torch_->reportErrorCallback(callback, key); }
  void python_op_registration_trampoline(const Handle& op, Key key, Keys keys, Stack* stack, bool with_keys,
                                         bool with_op) const override {
    call_python_kernel([&] { torch_->python_op_registration_trampoline(op, key, keys, stack, with_keys, with_op); });
  }
  void throw_abstract_impl_not_imported_error(std::string op, const char* module, const char* context) const override {
    torch_->throw_abstract_impl_not_imported_error(std::move(op), module, context);
  }
  void python_dispatcher(const Handle& op, Keys keys, Stack* stack) const override {
    torch_->python_dispatcher(op, keys, stack);
  }
  bool is_contiguous(const TensorImpl* t, Format format) const override { return torch_->is_contiguous(t, format); }
  c10::SymBool sym_is_contiguous(const TensorImpl* t, Format format) const override {
    return torch_->sym_is_contiguous(t, format);
  }
  bool is_strides_like(const TensorImpl* t, Format format) const override { return torch_->is_strides_like(t, format); }
  bool is_non_overlapping_and_dense(const TensorImpl* t) const override {
    return torch_->is_non_overlapping_and_dense(t);
  }
  c10::Device device(const TensorImpl* t) const override { return torch_->device(t); }
  int64_t dim(const TensorImpl* t) const override { return torch_->dim(t); }
  c10::IntArrayRef strides(const TensorImpl* t) const override { return torch_->strides(t); }
  c10::IntArrayRef sizes(const TensorImpl* t) const override { return torch_->sizes(t); }
  c10::SymIntArrayRef sym_sizes(const TensorImpl* t) const override { return torch_->sym_sizes(t); }
  c10::Layout layout(const TensorImpl* t) const override { return torch_->layout(t); }
  int64_t numel(const TensorImpl* t) const override { return torch_->numel(t); }
  c10::SymInt sym_numel(const TensorImpl* t) const override { return torch_->sym_numel(t); }
  c10::SymIntArrayRef sym_strides(const TensorImpl* t) const override { return torch_->sym_strides(t); }
  c10::SymInt sym_storage_offset(const TensorImpl* t) const override { return torch_->sym_storage_offset(t); }
  void trace_gpu_event_creation(Device type, uintptr_t event) const override {
    torch_->trace_gpu_event_creation(type, event);
  }
  void trace_gpu_event_deletion(Device type, uintptr_t event) const override {
    torch_->trace_gpu_event_deletion(type, event);
  }
  void trace_gpu_event_record(Device type, uintptr_t event, uintptr_t stream) const override {
    torch_->trace_gpu_event_record(type, event, stream);
  }
  void trace_gpu_event_wait(Device type, uintptr_t event, uintptr_t stream) const override {
    torch_->trace_gpu_event_wait(type, event, stream);
  }
  void trace_gpu_memory_allocation(Device type, uintptr_t at) const override {
    torch_->trace_gpu_memory_allocation(type, at);
  }
  void trace_gpu_memory_deallocation(Device type, uintptr_t at) const override {
    torch_->trace_gpu_memory_deallocation(type, at);
  }
  void trace_gpu_stream_creation(Device type, uintptr_t stream) const override {
    torch_->trace_gpu_stream_creation(type, stream);
  }
  void trace_gpu_device_synchronization(Device type) const override { torch_->trace_gpu_device_synchronization(type); }
  void trace_gpu_stream_synchronization(Device type, uintptr_t stream) const override {
    torch_->trace_gpu_stream_synchronization(type, stream);
  }
  void trace_gpu_event_synchronization(Device type, uintptr_t event) const override {
    torch_->trace_gpu_event_synchronization(type, event);
  }
  void reset_backward_hooks(const TensorImpl* t) const override { torch_->reset_backward_hooks(t); }

 private:
  explicit Interpreter(const c10::impl::PyInterpreterVTable* torch)
      : torch_(torch), detach_(c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "")) {}

  const c10::impl::PyInterpreterVTable* torch_;
  const c10::OperatorHandle detach_;
};

}  // namespace rltrace

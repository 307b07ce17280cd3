// The recorder of one thread: its cells, modules, settings and events, and how an op is run below it. ``row.h`` writes
// the row of an op.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PythonDispatcherTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <array>
#include <map>
#include <optional>

#include "frames.h"
#include "operators.h"
#include "state.h"

namespace rltrace {

// As in rltrace/trace/format/schema.py and rltrace/recorder/core/row_buffer.py; checked when the library is loaded.
struct Constants {
  static constexpr u32 MARKED = 1, RNG = 2, VIEW = 4, ALLOCATION = 8, VALUE_BOOL = 16, VALUE_INTEGER = 32,
                       VALUE_FLOAT = 64, VALUE_COMPLEX = 128;
  static constexpr u32 PHASE = 0xFFu << 16, BACKWARD = 5u << 16 | 1u << 24;
  static constexpr u32 TORCH_GENERATOR = 1u << 10;
  static constexpr i64 SLOT_UNKNOWN = 1023;
  static constexpr i64 STORAGE_OFFSET = 0, LAST_WRITER = 1;
  static constexpr i64 OUTSIDE = SLOT_UNKNOWN << 2, OUTSIDE_READ = OUTSIDE | 1;
  static constexpr i64 MIXED = (-1LL << 12) | SLOT_UNKNOWN << 2;
  static constexpr i64 UNKNOWN = (-2LL << 12) | SLOT_UNKNOWN << 2;
  static constexpr i64 OVERWRITTEN = (-3LL << 12) | SLOT_UNKNOWN << 2;
};

inline i64 row_of(i64 writer) { return (writer + 0xFFF) >> 12; }
inline i64 pack_writer(i64 row, i64 slot) { return (row << 12) - (std::min(slot, Constants::SLOT_UNKNOWN) << 2); }
inline i64 pack_read(i64 row, i64 place) {
  return -(-row * 4096 | std::min(place, Constants::SLOT_UNKNOWN) << 2 | 2);
}

// Settings that are checked at every op (``Snapshot`` in settings.py), of the calling thread.
struct Settings {
  bool gradients, inference, flushes, onednn, deterministic, warn_only, tf32;
  int fp16_reduction, bf16_reduction, threads;
  caffe2::TypeMeta default_dtype;

  static Settings now() {
    const auto& context = at::globalContext();
    volatile double subnormal = 5e-324;
    return {c10::GradMode::is_enabled(),
            c10::InferenceMode::is_enabled(),
            subnormal == 0.0,
            context.userEnabledMkldnn(),
            context.deterministicAlgorithms(),
            context.deterministicAlgorithmsWarnOnly(),
            context.allowTF32CuBLAS(),
            static_cast<int>(context.allowFP16ReductionCuBLAS()),
            static_cast<int>(context.allowBF16ReductionCuBLAS()),
            at::get_num_threads(),
            c10::get_default_dtype()};
  }

  bool operator==(const Settings& other) const = default;
};

// Digest of the state of torch's default generator (``state_digest`` in rng_state.py).
inline u64 default_generator_digest() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor bytes;
  {
    std::lock_guard<std::mutex> drawing(generator.mutex());
    bytes = generator.get_state();
  }
  return digests::digest(bytes.const_data_ptr(), static_cast<size_t>(bytes.numel()), 0);
}

// How many ops there were, and which of them were left to Python.
struct Counts {
  u64 ops = 0;
  std::map<std::pair<std::string, std::string>, u64> handed;  // by operator and reason
};

struct Unlocked {
  explicit Unlocked(Lock& lock) : lock(lock) { lock.unlock(); }
  ~Unlocked() { lock.lock(); }
  Lock& lock;
};

// The recorder's own code in Python: the tables are unlocked, the interpreter is held, and the recorder's mode and the
// program's ``__torch_function__`` are off.
class PythonSection {
 public:
  explicit PythonSection(Lock& lock) : unlocked_(lock) {}

 private:
  struct Interpreter {
    py::gil_scoped_acquire held;
  };
  struct NoTorchFunction {
    using TLS = at::impl::PythonTorchFunctionTLS;
    NoTorchFunction() { TLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED); }
    ~NoTorchFunction() { TLS::set_disabled_state(before); }
    const at::impl::TorchFunctionDisabledState before = TLS::get_disabled_state();
  };
  Unlocked unlocked_;
  Interpreter interpreter_;
  NoTorchFunction no_torch_function_;
  torch::torch_dispatch_mode::StashTorchDispatchModeGuard mode_is_off_;
};

// Tables of one thread that are used anew for each op.
struct Scratch {
  Arguments arguments;
  Words stack, words;
  std::vector<c10::intrusive_ptr<TensorImpl>> kept;
  std::vector<u64> addresses;
  std::vector<i64> link_notes;

  void clear() {
    arguments.clear();
    stack.clear();
    kept.clear();
    addresses.clear();
    link_notes.clear();
  }
};

class Recorder;

// What belongs to one thread.
struct Thread {
  Operators operators;
  std::vector<std::unique_ptr<Scratch>> scratches;  // an op may run others that are recorded: each has its own
  size_t depth = 0;
  bool excludes_python = false;  // as ``run`` does
  std::vector<char> gathered;

  PyObject* mode = nullptr;  // the mode that was looked up last, and its recorder
  u64 generation = 0;
  std::shared_ptr<Recorder> recorder;
  std::vector<std::shared_ptr<Recorder>> called_in;  // of each call of a module that is followed

  static Thread& here() {
    thread_local __attribute__((tls_model("initial-exec"))) Thread* thread = nullptr;
    if (thread == nullptr) thread = make();
    return *thread;
  }

 private:
  static Thread* make() {
    thread_local std::unique_ptr<Thread> owner;
    owner = std::make_unique<Thread>();
    return owner.get();
  }
};

class ScratchHere {
 public:
  explicit ScratchHere(Thread& thread) : thread_(thread) {
    if (thread.depth == thread.scratches.size()) thread.scratches.push_back(std::make_unique<Scratch>());
    scratch_ = thread.scratches[thread.depth++].get();
    scratch_->clear();
  }
  ~ScratchHere() {
    scratch_->kept.clear();
    --thread_.depth;
  }
  ScratchHere(const ScratchHere&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  Thread& thread_;
  Scratch* scratch_;
};

const c10::DispatchKeySet PYTHON_KEYS({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});

// Whether the calling thread's ``run`` excludes the keys of Python.
class ExcludesPython {
 public:
  ExcludesPython(Thread& thread, bool excludes) : thread_(thread), before_(thread.excludes_python) {
    thread_.excludes_python = excludes;
  }
  ~ExcludesPython() { thread_.excludes_python = before_; }
  ExcludesPython(const ExcludesPython&) = delete;

 private:
  Thread& thread_;
  const bool before_;
};

// Run the op itself, with the recorder's mode off.
inline void run(const Operator& op, Stack* stack, Thread& thread) {
  if (op.is_aten && c10::impl::TorchDispatchModeTLS::stack_len() == 1) {  // excluding the keys is enough, and cheaper
    c10::impl::ExcludeDispatchKeyGuard guard(PYTHON_KEYS);
    const ExcludesPython excludes(thread, true);
    op.handle.callBoxed(stack);
  } else {
    torch::torch_dispatch_mode::StashTorchDispatchModeGuard guard;
    op.handle.callBoxed(stack);
  }
}

// Call a kernel that is written in Python: modes and subclasses in it work, and the recorder's mode is off, not excluded.
template <class Call>
void call_python_kernel(Call call) {
  Thread& thread = Thread::here();
  if (!thread.excludes_python) return call();
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ForceDispatchKeyGuard keys_are_not_excluded(keys.included_, keys.excluded_ - PYTHON_KEYS);
  torch::torch_dispatch_mode::StashTorchDispatchModeGuard mode_is_off;
  const ExcludesPython excludes(thread, false);
  call();
}

[[noreturn]] inline void throw_into_program(py::error_already_set& error) {
  error.restore();
  python_error raised;
  raised.persist();
  throw raised;
}

class Recorder {
 public:
  Recorder(std::shared_ptr<State> state, std::shared_ptr<Writers> writers, i64 number, unsigned long owner)
      : fixed(state->mutex),
        links(state->mutex),
        integers(state->mutex),
        floats(state->mutex),
        digests(state->mutex),
        link_notes(state->mutex),
        state(std::move(state)),
        writers(std::move(writers)),
        number_(number),
        owner_(owner) {}

  // --- read and written by Python, with the interpreter's lock

  Cells<u32> fixed;
  Cells<i64> links, integers;
  Cells<double> floats;
  Cells<u64> digests;
  Cells<i64> link_notes;
  std::shared_ptr<State> state;
  std::shared_ptr<Writers> writers;
  std::atomic<i64> row{0}, limit{0};
  i64 phase = 0, module = 0, digested = 0;
  i64 first_row = 0;  // of the current step, or of the window: no earlier row counts as its writer
  bool marked = false;
  std::atomic<bool> settings_known{false};
  PyObject* anchor = nullptr;  // frame of the top anchor; its owner keeps it alive
  Counts counts;

  Counts take_counts() {
    const Lock lock(state->mutex);
    return counts;
  }

  // --- settings

  // The snapshot of the last op, and what Python sets in its place.
  py::object snapshot() const { return used_ != nullptr ? used_->snapshot : snapshot_; }

  void set_snapshot(py::object snapshot) {
    snapshot_ = std::move(snapshot);
    used_ = nullptr;
    settings_known = false;
  }

  // Rows are of these settings from ``row`` on.
  void add_epoch(i64 row, i64 settings) {
    if (epoch_ == settings) return;
    epoch_ = settings;
    epochs_.emplace_back(row, settings);
  }

  // The epochs since the last call.
  std::vector<std::pair<i64, i64>> take_epochs() {
    std::vector<std::pair<i64, i64>> taken;
    Lock lock(state->mutex);
    taken.swap(epochs_);
    return taken;
  }

  // --- events, by the thread of the stream, between ops

  // Write one event (``OpRecorder.write_event``), called from ``frame``; whether the stream has reached its limit.
  // ``cells``: op, module, scalars, flags, number of digests. ``intern``: gives the id of a stack not seen before.
  bool write_event(const std::array<u32, 5>& cells, const std::vector<u64>& digested, const std::vector<i64>& whole,
                   const std::vector<double>& real, PyObject* frame, const py::function& intern) {
    event_stack_.clear();
    frames::walk(frames::of(frame), nullptr, event_stack_);
    const u64 hash = event_stack_.hash();
    Lock lock(state->mutex);
    u32 site;
    if (const u32* known = state->sites.find(event_stack_, hash)) {
      site = *known;
    } else {
      const u64 cleared = state->sites_cleared;
      lock.unlock();
      site = intern(py::handle(frame)).cast<u32>();
      lock.lock();
      if (state->sites_cleared == cleared) state->sites.add(event_stack_, hash, site);
    }
    const auto& [op, module, scalars, flags, count] = cells;
    const u32 row_cells[] = {op, 0, site, module, scalars, (static_cast<u32>(phase) & Constants::PHASE) | flags, count};
    fixed.values.insert(fixed.values.end(), std::begin(row_cells), std::end(row_cells));
    digests.values.insert(digests.values.end(), digested.begin(), digested.end());
    integers.values.insert(integers.values.end(), whole.begin(), whole.end());
    floats.values.insert(floats.values.end(), real.begin(), real.end());
    return row++ >= limit;
  }

  // --- modules (``ModuleStack``), by the thread of the stream

  PyObject* known_modules = nullptr;  // a dict of ids by ``id(module)``, which its owner keeps alive

  bool is_own_thread() const { return PyThread_get_thread_ident() == owner_; }
  size_t depth() const { return outer_.size(); }

  // Whether the call of a module is followed; not of an outermost one, or of one that has no name yet.
  bool enter_known(PyObject* called) {
    if (outer_.empty() || !is_own_thread()) return false;
    const auto key = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(called));
    PyObject* known = PyDict_GetItemWithError(known_modules, key.ptr());
    if (known == nullptr) return false;
    enter(PyLong_AsLongLong(known));
    return true;
  }

  void enter(i64 called) {
    outer_.push_back({module, NO_ANCHORS});
    change_module(called);
  }

  // A backward pass: its ops belong to modules by their nodes.
  void enter_backward(i64 anchors) {
    outer_.push_back({module, anchors});
    module = 0;
  }

  // Returns the number of anchors before the call; -1: it added none.
  i64 leave() {
    if (outer_.empty()) return NO_ANCHORS;
    const Outer outer = outer_.back();
    outer_.pop_back();
    change_module(outer.module);
    return outer.anchors;
  }

  i64 module_of(u64 sequence) const {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), sequence);
    return after == starts_.begin() || sequence >> 63 ? 0 : modules_[after - starts_.begin() - 1];
  }

  // Ops of the mode are recorded from now on, until ``disarm``; both with the interpreter's lock.
  void arm(py::object stream) {
    stream_ = std::move(stream);
    armed_ = true;
  }

  // A thread may still be inside an op, which needs the stream.
  void disarm() {
    armed_ = false;
    if (present_ == 0) stream_ = py::object();
  }

  // --- hooks, which may want ops of the stream (``OpHook.wants``); these are handed to Python

  void set_hooked(bool is_hooked) {
    is_hooked_ = is_hooked;
    forget_wanted();
  }

  // The step has changed, or the hooks have.
  void forget_wanted() {
    const Lock lock(state->mutex);
    wanted_.clear();
    ++wanted_era_;
  }

  // --- the hot path

  // Run the op and write its row; false where nothing was done and Python is to handle the op.
  bool observe(const c10::OperatorHandle& handle, Stack* stack);

 private:
  // A thread that is inside ``observe``.
  class Presence {
   public:
    explicit Presence(Recorder& recorder) : recorder_(recorder) { ++recorder_.present_; }
    ~Presence() { --recorder_.present_; }
    Presence(const Presence&) = delete;

   private:
    Recorder& recorder_;
  };

  struct KnownSettings {
    Settings settings;
    u64 era;
    i64 number;
    py::object snapshot;
  };

  void use(const KnownSettings& known) {
    settings_ = known.settings;
    used_ = &known;
    settings_known = true;
  }

  struct Outer {
    i64 module, anchors;
  };
  static constexpr i64 NO_ANCHORS = -1;
  static constexpr size_t MAX_BREAKS = 100'000;

  // Autograd nodes belong to the new module, from the next one on.
  void change_module(i64 to) {
    if (to == module) return;
    module = to;
    const u64 sequence = at::sequence_number::peek();
    if (!starts_.empty() && starts_.back() == sequence) {
      modules_.back() = module;
      return;
    }
    starts_.push_back(sequence);
    modules_.push_back(module);
    if (starts_.size() <= MAX_BREAKS) return;
    starts_.erase(starts_.begin(), starts_.begin() + MAX_BREAKS / 2);
    modules_.erase(modules_.begin(), modules_.begin() + MAX_BREAKS / 2);
  }

  struct Row;  // row.h

  // Write some of a row; false where that failed, which the stream knows.
  template <class Write>
  static bool guarded(Row& row, Write write);

  const char* obstacle_of(Operator& op, const Stack* stack, Scratch& scratch, const torch::autograd::Node* node) {
    if (node == nullptr && !is_own_thread()) return "a thread without Python";
    if (at::impl::PythonTorchFunctionTLS::stack_len() > 0) return "a mode of __torch_function__";
    if (c10::impl::PythonDispatcherTLS::get_state() != nullptr) return "the Python dispatcher";
    const IValue* arguments = &*(stack->end() - static_cast<i64>(op.parameters.size()));
    if (!scratch.arguments.read(op, arguments)) return scratch.arguments.obstacle;
    return is_hooked_ && is_wanted(op, node) ? "a hook" : nullptr;
  }

  // Id of the module that an op belongs to, one of a node with those of its forward.
  i64 module_here(const torch::autograd::Node* node) const {
    return node != nullptr && module == 0 ? module_of(node->sequence_nr()) : module;
  }

  // Whether a hook wants ops of this operator, where the thread is now; asked once in a step.
  bool is_wanted(Operator& op, const torch::autograd::Node* node) {
    const i64 where = module_here(node);
    const u32 when = node == nullptr ? static_cast<u32>(phase) : Constants::BACKWARD;
    Lock lock(state->mutex);
    wanted_key_.clear();
    for (u64 word : {reinterpret_cast<u64>(&op), static_cast<u64>(where), static_cast<u64>(when)}) wanted_key_.add(word);
    if (const bool* known = wanted_.find(wanted_key_, wanted_key_.hash())) return *known;
    const u64 era = wanted_era_;
    const Words key = wanted_key_;
    bool is_wanted = true;
    {
      PythonSection python(lock);
      try {
        const py::object asked = stream_.attr("hooks_want")(op.function(), where, when);
        is_wanted = asked.cast<bool>();
      } catch (py::error_already_set& error) {  // the hook raises it again, for the op
        error.discard_as_unraisable("rltrace");
      }
    }
    if (wanted_era_ == era) wanted_.add(key, key.hash(), is_wanted);
    return is_wanted;
  }

  void hand_over(const Operator& op, const char* obstacle) {
    const Lock lock(state->mutex);
    ++counts.ops;
    ++counts.handed[{c10::toString(op.handle.operator_name()), obstacle}];
  }

  std::atomic<bool> armed_{false};
  std::atomic<i64> present_{0};
  py::object stream_;  // while armed
  const i64 number_;
  const unsigned long owner_;
  Settings settings_{};
  std::vector<std::unique_ptr<KnownSettings>> known_settings_;
  const KnownSettings* used_ = nullptr;  // the snapshot, where the library has chosen it
  py::object snapshot_;
  Words event_stack_;
  bool is_hooked_ = false;
  KeyTable<bool> wanted_;  // by operator, module and phase
  Words wanted_key_;
  u64 wanted_era_ = 0;
  i64 epoch_ = -1;
  std::vector<std::pair<i64, i64>> epochs_;
  std::vector<Outer> outer_;
  std::vector<u64> starts_;  // from the autograd node with this sequence number on, ops belong to this module
  std::vector<i64> modules_;
};

}  // namespace rltrace

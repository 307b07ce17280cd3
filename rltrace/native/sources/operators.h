// Operators and the arguments of their calls, from torch's stack: what of them makes up the signature of a call.
//
// Arguments are read as a dispatch mode in Python gets them: defaults are left out, a number that was wrapped as a
// tensor is a number, an undefined tensor is None, and by the schema an integer may be a dtype.

#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "state.h"

namespace rltrace {

using c10::IValue;
using c10::TensorImpl;
using Stack = torch::jit::Stack;

enum class IntegerMeaning : uint8_t { NUMBER, DTYPE, LAYOUT, MEMORY_FORMAT };

struct Parameter {
  const IValue* initial;  // its default; nullptr: it has none
  IntegerMeaning meaning;
};

// One overload, as its schema describes it.
struct Operator {
  c10::OperatorHandle handle;
  std::vector<Parameter> parameters;
  size_t positional;  // parameters before the first that is keyword-only
  size_t returns;
  bool is_aten;
  py::object func;  // torch.ops.…, once it has been needed

  // With the interpreter held.
  const py::object& function() {
    if (!func) func = py::reinterpret_borrow<py::object>(torch::detail::getTorchApiFunction(handle));
    return func;
  }
};

inline IntegerMeaning meaning_of(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return IntegerMeaning::DTYPE;
    case c10::TypeKind::LayoutType:
      return IntegerMeaning::LAYOUT;
    case c10::TypeKind::MemoryFormatType:
      return IntegerMeaning::MEMORY_FORMAT;
    default:
      return IntegerMeaning::NUMBER;
  }
}

inline std::unique_ptr<Operator> make_operator(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  auto made = std::make_unique<Operator>(
      Operator{handle, {}, 0, schema.returns().size(), handle.operator_name().name.rfind("aten::", 0) == 0, {}});
  for (const auto& argument : schema.arguments()) {
    const auto& initial = argument.default_value();
    made->parameters.push_back({initial.has_value() ? &*initial : nullptr, meaning_of(argument)});
    if (!argument.kwarg_only()) made->positional = made->parameters.size();
  }
  return made;
}

// All operators that were met, by handle. One that a library takes back is forgotten: its handle's memory may become
// another's. It is kept, as calls are known by its address.
class AllOperators {
 public:
  static AllOperators& get() {
    static auto& all = *new AllOperators();
    return all;
  }

  // Changes when an operator was forgotten.
  u64 era() const { return era_.load(std::memory_order_relaxed); }

  Operator& of(const void* key, const c10::OperatorHandle& handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& entry = by_key_[key];
    if (entry == nullptr) entry = make_operator(handle);
    return *entry;
  }

 private:
  struct Listener final : c10::OpRegistrationListener {
    explicit Listener(AllOperators& all) : all(all) {}
    void onOperatorRegistered(const c10::OperatorHandle&) override {}
    void onOperatorDeregistered(const c10::OperatorHandle& op) override { all.forget(&op.operator_name()); }
    AllOperators& all;
  };

  AllOperators() : listening_(c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>(*this))) {}

  void forget(const void* key) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return;
    forgotten_.push_back(std::move(found->second));
    by_key_.erase(found);
    ++era_;
  }

  std::mutex mutex_;
  std::unordered_map<const void*, std::unique_ptr<Operator>> by_key_;
  std::vector<std::unique_ptr<Operator>> forgotten_;
  std::atomic<u64> era_{0};
  c10::RegistrationHandleRAII listening_;
};

// Operators by handle, as one thread remembers them.
class Operators {
 public:
  Operator& of(const c10::OperatorHandle& handle) {
    if (const u64 era = all_.era(); era != era_) {
      known_.assign(KNOWN, {});
      era_ = era;
    }
    const void* key = &handle.operator_name();
    Known& known = known_[reinterpret_cast<u64>(key) >> 6 & (KNOWN - 1)];
    if (known.key != key) known = {key, &all_.of(key, handle)};
    return *known.op;
  }

 private:
  struct Known {
    const void* key = nullptr;
    Operator* op = nullptr;
  };
  static constexpr size_t KNOWN = 512;
  std::vector<Known> known_ = std::vector<Known>(KNOWN);
  AllOperators& all_ = AllOperators::get();
  u64 era_ = 0;
};

inline bool is_default(const Parameter& parameter, const IValue& value) {
  const IValue* initial = parameter.initial;
  if (initial == nullptr) return false;
  if (initial->isNone()) return value.isNone();
  if (initial->isInt()) return value.isInt() && value.toInt() == initial->toInt();
  if (initial->isBool()) return value.isBool() && value.toBool() == initial->toBool();
  if (initial->isDouble()) return value.isDouble() && value.toDouble() == initial->toDouble();
  return *initial == value;
}

// Number of positional arguments that are passed: trailing defaults are left out.
inline size_t passed_positionals(const Operator& op, const IValue* arguments) {
  size_t count = op.positional;
  while (count > 0 && is_default(op.parameters[count - 1], arguments[count - 1])) --count;
  return count;
}

// --- signatures ------------------------------------------------------------------------------------------------------

const c10::DispatchKeySet UNUSUAL_KEYS({
    c10::DispatchKey::Python, c10::DispatchKey::Quantized, c10::DispatchKey::MkldnnCPU, c10::DispatchKey::Sparse,
    c10::DispatchKey::SparseCsr, c10::DispatchKey::NestedTensor, c10::DispatchKey::Conjugate,
    c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor, c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Batched,
});

// Whether it is a strided tensor in host memory, of no subclass and with nothing lazy about it.
inline bool is_plain(const TensorImpl& tensor) {
  return tensor.device_type() == c10::kCPU && !tensor.key_set().has_any(UNUSUAL_KEYS) &&
         tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.has_symbolic_sizes_strides();
}

inline u64 address_of(const TensorImpl& tensor) {
  return reinterpret_cast<u64>(tensor.unsafe_storage().unsafeGetStorageImpl());
}

// The first element of a plain tensor; null: it has no memory.
inline const char* start_of(const TensorImpl& tensor) {
  try {
    const auto* start = static_cast<const char*>(tensor.unsafe_storage().data());
    return start == nullptr ? nullptr : start + tensor.storage_offset() * static_cast<i64>(tensor.itemsize());
  } catch (const c10::Error&) {  // a storage without memory
    return nullptr;
  }
}

// Copy elements in row-major order.
inline void gather(const char* from, c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t itemsize, char*& to) {
  const i64 step = strides[0] * static_cast<i64>(itemsize);
  const bool is_row = sizes.size() == 1;
  if (is_row && strides[0] == 1) {
    std::memcpy(to, from, sizes[0] * itemsize);
    to += sizes[0] * itemsize;
    return;
  }
  for (i64 i = 0; i < sizes[0]; ++i) {
    if (!is_row) {
      gather(from + i * step, sizes.slice(1), strides.slice(1), itemsize, to);
      continue;
    }
    std::memcpy(to, from + i * step, itemsize);
    to += itemsize;
  }
}

constexpr size_t MAX_DIMENSIONS = 24;

inline void layout_key(const TensorImpl& tensor, Words& key) {
  key.clear();
  key.add(static_cast<u64>(c10::typeMetaToScalarType(tensor.dtype())));
  for (i64 size : tensor.sizes()) key.add(static_cast<u64>(size));
  for (i64 stride : tensor.strides()) key.add(static_cast<u64>(stride));
}

enum class Tag : u64 {
  TENSOR = 1, NONE, INTEGER, FLOAT, COMPLEX, FALSE_, TRUE_, LIST, STRING, ENUM, CPU, OBJECT, INSTANCE, GENERATOR
};

// The arguments of one call, sorted as in a row, and their signature.
struct Arguments {
  Words key;
  std::vector<TensorImpl*> tensors;  // borrowed: from the stack, until the op has run
  std::vector<i64> integers;
  std::vector<double> floats;
  const IValue* generator = nullptr;  // borrowed, as tensors
  const char* obstacle = nullptr;     // why Python is to handle the call

  void clear() {
    key.clear();
    tensors.clear();
    integers.clear();
    floats.clear();
    generator = nullptr;
    obstacle = nullptr;
  }

  // Read all arguments; false where there is an obstacle.
  bool read(const Operator& op, const IValue* arguments) {
    const size_t passed = passed_positionals(op, arguments), count = op.parameters.size();
    if (count > 64) return refuse("more than 64 parameters");
    key.add(reinterpret_cast<u64>(&op));
    key.add(passed);
    const size_t named = key.size();
    key.add(0);
    for (size_t i = 0; i < passed; ++i)
      if (!read(arguments[i], op.parameters[i].meaning)) return false;
    for (size_t i = op.positional; i < count; ++i) {
      if (is_default(op.parameters[i], arguments[i])) continue;
      key[named] |= u64{1} << i;
      if (!read(arguments[i], op.parameters[i].meaning)) return false;
    }
    return true;
  }

 private:
  bool refuse(const char* why) {
    obstacle = why;
    return false;
  }

  void tag(Tag tag) { key.add(static_cast<u64>(tag)); }

  bool integer(i64 value) {
    tag(Tag::INTEGER);
    integers.push_back(value);
    return true;
  }

  bool floating(double value) {
    tag(Tag::FLOAT);
    floats.push_back(value);
    return true;
  }

  bool boolean(bool value) {
    tag(value ? Tag::TRUE_ : Tag::FALSE_);
    return true;
  }

  bool read(const IValue& value, IntegerMeaning meaning) {
    if (value.isTensor()) return read_tensor(value.toTensor());
    if (value.isNone()) {
      tag(Tag::NONE);
      return true;
    }
    if (value.isInt()) {
      if (meaning == IntegerMeaning::NUMBER) return integer(value.toInt());
      tag(Tag::ENUM);
      key.add(static_cast<u64>(meaning));
      key.add(static_cast<u64>(value.toInt()));
      return true;
    }
    if (value.isBool()) return boolean(value.toBool());
    if (value.isDouble()) return floating(value.toDouble());
    if (value.isComplexDouble()) {
      tag(Tag::COMPLEX);
      floats.push_back(value.toComplexDouble().real());
      floats.push_back(value.toComplexDouble().imag());
      return true;
    }
    if (value.isString()) {
      const std::string& text = value.toStringRef();
      tag(Tag::STRING);
      key.add(text.size());
      for (size_t at = 0; at < text.size(); at += sizeof(u64)) {
        u64 word = 0;
        std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
        key.add(word);
      }
      return true;
    }
    if (value.isDevice()) {
      if (value.toDevice().type() != c10::kCPU) return refuse("a device");
      tag(Tag::CPU);
      key.add(static_cast<u64>(value.toDevice().index()));
      return true;
    }
    if (value.isList()) {
      const auto items = value.toListRef();
      tag(Tag::LIST);
      key.add(items.size());
      for (const IValue& item : items)
        if (!read(item, meaning)) return false;
      return true;
    }
    if (value.isObject()) return read_object(value);
    if (value.isGenerator()) return read_generator(value);
    if (value.isPyObject()) return read_instance(value.toPyObjectHolder()->getPyObject());
    return refuse("an object");
  }

  bool read_generator(const IValue& value) {
    if (value.toGenerator().device().type() != c10::kCPU) return refuse("a device");
    if (generator != nullptr) return refuse("several generators");
    tag(Tag::GENERATOR);
    generator = &value;
    return true;
  }

  // An instance of a class, which describes it alone, but where Python reads its value. Calls nothing that needs the
  // interpreter. The class is alive as long as the call: Python's signature holds it.
  bool read_instance(const PyObject* instance) {
    PyTypeObject* type = Py_TYPE(instance);
    constexpr auto READ =
        Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS;
    const unsigned long flags = PyType_GetFlags(type);
    if (!(flags & Py_TPFLAGS_HEAPTYPE) || flags & READ) return refuse("an object");
    for (auto* base : {&PyFloat_Type, &PyComplex_Type, reinterpret_cast<PyTypeObject*>(THPVariableClass)})
      if (PyType_IsSubtype(type, base)) return refuse("an object");
    tag(Tag::INSTANCE);
    key.add(reinterpret_cast<u64>(type));
    return true;
  }

  // A script object that its type alone describes; of process groups and reductions, Python reads more.
  bool read_object(const IValue& value) {
    const auto& type = value.toObjectRef().type();
    const std::string& name = type->name()->name();
    if (name == "ProcessGroup" || name == "ReduceOp") return refuse("a process group");
    tag(Tag::OBJECT);
    key.add(reinterpret_cast<u64>(type.get()));
    return true;
  }

  bool read_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      tag(Tag::NONE);
      return true;
    }
    TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (impl.is_wrapped_number()) {
      switch (tensor.scalar_type()) {
        case at::kDouble:
          return floating(*tensor.const_data_ptr<double>());
        case at::kLong:
          return integer(*tensor.const_data_ptr<i64>());
        case at::kBool:
          return boolean(*tensor.const_data_ptr<bool>());
        default:
          return refuse("a wrapped number");
      }
    }
    if (!is_plain(impl)) return refuse(impl.device_type() == c10::kCPU ? "a tensor that is not plain" : "a device");
    if (impl.dim() > static_cast<i64>(MAX_DIMENSIONS)) return refuse("many dimensions");
    tag(Tag::TENSOR);
    key.add(static_cast<u64>(c10::typeMetaToScalarType(impl.dtype())) | static_cast<u64>(impl.dim()) << 8);
    for (i64 size : impl.sizes()) key.add(static_cast<u64>(size));
    for (i64 stride : impl.strides()) key.add(static_cast<u64>(stride));
    tensors.push_back(&impl);
    return true;
  }
};

// --- Python ----------------------------------------------------------------------------------------------------------
//
// With the interpreter's lock.

inline at::Tensor owned(TensorImpl* tensor) {
  return at::Tensor(c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::unsafe_reclaim_from_nonowning(tensor));
}

inline py::list python_tensors(const std::vector<TensorImpl*>& tensors) {
  py::list made;
  for (TensorImpl* tensor : tensors) made.append(py::cast(owned(tensor)));
  return made;
}

inline py::object python_value(const IValue& value, IntegerMeaning meaning) {
  if (value.isInt()) {
    const auto number = value.toInt();
    switch (meaning) {
      case IntegerMeaning::DTYPE:
        return py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(number))));
      case IntegerMeaning::LAYOUT:
        return py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(number))));
      case IntegerMeaning::MEMORY_FORMAT:
        return py::reinterpret_borrow<py::object>(
            reinterpret_cast<PyObject*>(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number))));
      case IntegerMeaning::NUMBER:
        break;
    }
  }
  return torch::jit::toPyObject(value);
}

struct PythonArguments {
  py::tuple positional;
  py::object named;  // a dict, or None
};

inline PythonArguments python_arguments(const Operator& op, const IValue* arguments) {
  const size_t passed = passed_positionals(op, arguments);
  py::tuple positional(passed);
  for (size_t i = 0; i < passed; ++i) positional[i] = python_value(arguments[i], op.parameters[i].meaning);
  py::dict named;
  for (size_t i = op.positional; i < op.parameters.size(); ++i)
    if (!is_default(op.parameters[i], arguments[i]))
      named[py::str(op.handle.schema().arguments()[i].name())] =
          python_value(arguments[i], op.parameters[i].meaning);
  if (named.size() == 0) return {positional, py::none()};
  return {positional, named};
}

}  // namespace rltrace

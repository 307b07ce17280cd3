// Digests of the activation rows of small tensors in host memory, whose rows are their elements along leading axes.

#pragma once

#include <vector>

#include "digest.h"
#include "operators.h"
#include "tables.h"

namespace rltrace {

// With the interpreter's lock, in one thread.
class RowReader {
 public:
  // Read tensors like this one from now on. ``form``: what ``read`` returns for them; ``seed``: of a whole tensor.
  void know(const py::handle& tensor, py::object form, u64 seed, u64 row_seed, size_t count) {
    const TensorImpl& impl = *THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
    const size_t size = static_cast<size_t>(impl.numel()) * impl.itemsize();
    if (!is_plain(impl) || impl.dim() == 0 || impl.dim() > static_cast<i64>(MAX_DIMENSIONS) || count == 0 || size == 0)
      return;
    layout_key(impl, key_);
    if (forms_.find(key_, key_.hash()) == nullptr)
      forms_.add(key_, key_.hash(), {std::move(form), seed, row_seed, size, count});
  }

  // (form, digest of the tensor, digests of its rows); None: Python is to read it.
  py::object read(const py::handle& tensor) {
    if (!THPVariable_CheckExact(tensor.ptr())) return py::none();
    const TensorImpl& impl = *THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
    if (!is_plain(impl)) return py::none();
    layout_key(impl, key_);
    const Form* form = forms_.find(key_, key_.hash());
    const char* start = form == nullptr ? nullptr : start_of(impl);
    if (start == nullptr) return py::none();
    copy_.resize(form->size);  // nothing may write to it between the two
    char* end = copy_.data();
    if (impl.is_contiguous()) {
      std::memcpy(end, start, form->size);
    } else {
      gather(start, impl.sizes(), impl.strides(), impl.itemsize(), end);
    }
    const size_t each = form->size / form->count;
    rows_.clear();
    for (size_t row = 0; row < form->count; ++row)
      rows_.push_back(digests::digest(copy_.data() + row * each, each, form->row_seed));
    const py::bytes rows(reinterpret_cast<const char*>(rows_.data()), rows_.size() * sizeof(u64));
    return py::make_tuple(form->form, digests::digest(copy_.data(), form->size, form->seed), rows);
  }

 private:
  struct Form {
    py::object form;
    u64 seed, row_seed;
    size_t size, count;
  };

  KeyTable<Form> forms_;
  Words key_;
  std::vector<char> copy_;
  std::vector<u64> rows_;
};

}  // namespace rltrace

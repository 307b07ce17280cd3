// Digests of the activation rows of small tensors in host memory, whose rows are their elements along leading axes.

#pragma once

#include <array>
#include <vector>

#include "digest.h"
#include "operators.h"
#include "tables.h"

namespace rltrace {

// Makes the rows of tensors (``packers.TENSOR``) for one ``RowDigests``, and leaves to it what is rare. With the
// interpreter's lock; Python that is called may have another thread of the stream use the same reader.
class RowReader {
 public:
  // ``digests``: the owner. ``names``: ids by name. ``places``: of digests of rows, by (digest of a tensor, axes).
  RowReader(const py::handle& digests, py::dict names, py::dict places)
      : digests_(digests), names_(std::move(names)), places_(std::move(places)) {}

  // Read tensors like this one from now on. ``form``: its id of layout, and its axes as bits; ``seed``: of all of it.
  void know(const py::handle& tensor, const py::tuple& form, u64 seed, u64 row_seed, size_t count, bool may_be_key) {
    const TensorImpl& impl = *THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
    const size_t size = static_cast<size_t>(impl.numel()) * impl.itemsize();
    if (!is_plain(impl) || impl.dim() == 0 || impl.dim() > static_cast<i64>(MAX_DIMENSIONS)) return;
    layout_key(impl, key_);
    if (forms_.find(key_, key_.hash()) == nullptr)
      forms_.add(key_, key_.hash(),
                 {form[0].cast<u64>(), form[1].cast<u64>(), seed, row_seed, size, count, may_be_key});
  }

  // The row of a tensor, as bytes; None: Python is to find it. ``at``: rows that the stream has.
  py::object take(u64 part, const py::handle& name, const py::handle& tensor, const py::handle& at, bool with_value,
                  bool within_op) {
    Row row;
    if (!read(part, name, tensor, at, with_value, within_op, row)) return py::none();
    return py::bytes(reinterpret_cast<const char*>(row.data()), sizeof row);
  }

  // Appends the rows of the tensors among ``values`` to a bytearray in order, each value with its name; false, and
  // nothing is appended: something rare is among them. ``valued``: whether values are recorded, too; by name, or for
  // all.
  bool take_all(const py::bytearray& rows, const py::handle& part, const py::tuple& names, const py::tuple& values,
                const py::handle& at, const py::handle& valued) {
    std::vector<Named> found;
    size_t left = MAX_OBJECTS;
    for (size_t place = 0; place < values.size(); ++place)
      if (!walk(names[place], values[place], 0, left, found)) return false;
    for (const Named& one : found) {
      const bool with_value = PyBool_Check(valued.ptr()) ? valued.ptr() == Py_True : valued[one.name].cast<bool>();
      Row own;
      if (read(part.cast<u64>(), one.name, one.tensor, at, with_value, false, own)) {
        append(rows, reinterpret_cast<const char*>(own.data()), sizeof own);
        continue;
      }
      const py::object made = digests_.attr("take")(part, one.name, one.tensor, at, py::arg("with_value") = with_value);
      if (!made.is_none()) append(rows, PyBytes_AsString(made.ptr()), PyBytes_Size(made.ptr()));
    }
    return true;
  }

 private:
  using Row = std::array<u64, 7>;

  struct Form {
    u64 layout, axes, seed, row_seed;
    size_t size, count;
    bool may_be_key;
  };

  // Owned, as Python that is called may empty the container that it was found in.
  struct Named {
    py::object name, tensor;
  };

  // Reads the row of a tensor; false: Python is to do it.
  bool read(u64 part, const py::handle& name, const py::handle& tensor, const py::handle& at, bool with_value,
            bool within_op, Row& row) {
    if (is_full_ || !THPVariable_CheckExact(tensor.ptr())) return false;
    const TensorImpl& impl = *THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
    if (!is_plain(impl)) return false;
    layout_key(impl, key_);
    const Form* found = forms_.find(key_, key_.hash());
    const char* start = found == nullptr ? nullptr : start_of(impl);
    if (found == nullptr || (start == nullptr && found->size != 0)) return false;
    const Form form = *found;  // more may be known once Python has been called
    std::vector<char> copy = std::move(copy_);
    copy.resize(form.size);  // nothing may write to it between the two digests
    if (impl.is_contiguous()) {
      if (form.size != 0) std::memcpy(copy.data(), start, form.size);
    } else if (form.size != 0) {
      char* end = copy.data();
      gather(start, impl.sizes(), impl.strides(), impl.itemsize(), end);
    }
    const u64 whole = digests::digest(copy.data(), form.size, form.seed);
    const py::object place = place_of(form, whole, copy.data());
    is_full_ = place.is_none();
    if (is_full_) return false;
    const bool is_key = form.may_be_key && !within_op;
    if ((with_value || is_key) && !digests_.attr("knows")(whole).cast<bool>())
      digests_.attr("add_value")(whole, form.layout, py::bytes(copy.data(), form.size), at, is_key);
    copy_ = std::move(copy);
    auto id = find(names_, name);
    if (!id) id = digests_.attr("name")(name);
    row = {part, id.cast<u64>(), form.layout, form.axes, whole, place.cast<u64>(), form.count};
    return true;
  }

  // Of the digests of rows with these bytes, which may be new; None: the limit is reached.
  py::object place_of(const Form& form, u64 whole, const char* bytes) {
    const py::tuple key = py::make_tuple(whole, form.axes);
    const auto place = find(places_, key);
    return place ? place : digests_.attr("add")(key, row_digests(form, bytes));
  }

  static void append(const py::bytearray& rows, const char* bytes, Py_ssize_t size) {
    const Py_ssize_t before = PyByteArray_GET_SIZE(rows.ptr());
    if (PyByteArray_Resize(rows.ptr(), before + size) != 0) throw py::error_already_set();
    std::memcpy(PyByteArray_AS_STRING(rows.ptr()) + before, bytes, static_cast<size_t>(size));
  }

  // Fewer than what Python walks, so that its limits need no look here.
  static constexpr size_t MAX_OBJECTS = 512;
  static constexpr int MAX_DEPTH = 4;
  static constexpr size_t MAX_CLASSES = 16;
  static constexpr size_t MAX_NAME = 128;

  // As ``named_tensors``; false where it does more than look into plain tuples, lists, dictionaries and dataclasses.
  bool walk(const py::handle& name, const py::handle& value, int depth, size_t& left, std::vector<Named>& found) {
    PyObject* const object = value.ptr();
    if (left-- == 0 || PyUnicode_GET_LENGTH(name.ptr()) > static_cast<Py_ssize_t>(MAX_NAME)) return false;
    if (THPVariable_CheckExact(object)) {
      found.push_back({py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value)});
      return true;
    }
    if (is_number_or_text(object)) return true;
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      if (depth == MAX_DEPTH) return false;
      for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(object); ++at) {
        const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(object, at));
        if (is_number_or_text(item.ptr())) continue;
        if (!walk(inside(name, checked(PyUnicode_FromFormat("%zd", at))), item, depth + 1, left, found)) return false;
      }
      return true;
    }
    if (PyDict_CheckExact(object)) {
      if (depth == MAX_DEPTH) return false;
      PyObject *key, *item;
      for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &item);) {
        if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) return false;
        const auto owned = py::reinterpret_borrow<py::object>(item);
        const auto word =
            PyUnicode_CheckExact(key) ? py::reinterpret_borrow<py::object>(key) : checked(PyObject_Str(key));
        if (!walk(inside(name, word), owned, depth + 1, left, found)) return false;
      }
      return true;
    }
    auto* const tensor = reinterpret_cast<PyTypeObject*>(THPVariableClass);
    for (PyTypeObject* one : {&PyTuple_Type, &PyList_Type, &PyDict_Type, tensor})
      if (PyType_IsSubtype(Py_TYPE(object), one)) return false;
    const py::object fields = fields_of(reinterpret_cast<PyObject*>(Py_TYPE(object)));
    return fields.is_none() || (depth < MAX_DEPTH && walk_fields(name, value, fields, depth, left, found));
  }

  // The names of the fields of a dataclass, a tuple; None: the class is none, and Python does not look into it.
  py::object fields_of(PyObject* kind) {
    for (const auto& [known, fields] : fields_)
      if (known.ptr() == kind) return fields;
    const auto owned = py::reinterpret_borrow<py::object>(kind);
    const py::object fields = digests_.attr("fields_of")(owned);
    if (fields_.size() == MAX_CLASSES) fields_.clear();
    fields_.emplace_back(owned, fields);
    return fields;
  }

  // As ``object.__getattribute__``, so that no code of the program runs; a field may not be set.
  bool walk_fields(const py::handle& name, const py::handle& value, const py::handle& fields, int depth, size_t& left,
                   std::vector<Named>& found) {
    for (const py::handle field : py::reinterpret_borrow<py::tuple>(fields)) {
      const auto item = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(value.ptr(), field.ptr()));
      if (!item) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
        PyErr_Clear();
      } else if (!is_number_or_text(item.ptr()) &&
                 !walk(inside(name, py::reinterpret_borrow<py::object>(field)), item, depth + 1, left, found)) {
        return false;
      }
    }
    return true;
  }

  static bool is_number_or_text(PyObject* object) {
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
           PyUnicode_CheckExact(object) || PyBytes_CheckExact(object);
  }

  static py::object inside(const py::handle& name, const py::object& key) {
    return PyUnicode_GET_LENGTH(name.ptr()) == 0 ? key : checked(PyUnicode_FromFormat("%U.%U", name.ptr(), key.ptr()));
  }

  static py::object row_digests(const Form& form, const char* data) {
    const size_t each = form.count == 0 ? 0 : form.size / form.count;
    auto rows = checked(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(form.count * sizeof(u64))));
    char* end = PyBytes_AS_STRING(rows.ptr());
    for (size_t row = 0; row < form.count; ++row, end += sizeof(u64)) {
      const u64 digest = digests::digest(data + row * each, each, form.row_seed);
      std::memcpy(end, &digest, sizeof digest);
    }
    return rows;
  }

  static py::object checked(PyObject* made) {
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  }

  // No object: there is none.
  static py::object find(const py::dict& values, const py::handle& key) {
    PyObject* found = PyDict_GetItemWithError(values.ptr(), key.ptr());
    if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
    return py::reinterpret_borrow<py::object>(found);
  }

  const py::handle digests_;
  const py::dict names_, places_;
  KeyTable<Form> forms_;
  std::vector<std::pair<py::object, py::object>> fields_;  // names of the fields of dataclasses
  Words key_;
  std::vector<char> copy_;
  bool is_full_ = false;  // the limit is reached
};

}  // namespace rltrace

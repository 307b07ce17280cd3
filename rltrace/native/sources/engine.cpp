// The module ``rltrace_engine``: the tables and the recorder of the native engine, for rltrace/recorder/native.py.

#include <torch/csrc/python_headers.h>

#include <torch/csrc/utils/pybind.h>

#include "at_once.h"
#include "digest.h"
#include "hidden_mode.h"
#include "interpreter.h"
#include "recorder.h"
#include "rows.h"
#include "state.h"

namespace rltrace {
namespace {

// --- tables that Python reads and writes, with the methods of list and dict that it uses

template <class T>
std::pair<size_t, size_t> range_of(const py::slice& slice, const std::vector<T>& values) {
  size_t start = 0, stop = 0, step = 0, count = 0;
  if (!slice.compute(values.size(), &start, &stop, &step, &count)) throw py::error_already_set();
  return {start, std::max(start, start + count)};
}

template <class T>
size_t index_of(i64 index, const std::vector<T>& values) {
  if (index < 0) index += static_cast<i64>(values.size());
  if (index < 0 || index >= static_cast<i64>(values.size())) throw py::index_error();
  return static_cast<size_t>(index);
}

template <class T>
void bind_cells(py::module_& m, const char* name) {
  using C = Cells<T>;
  py::class_<C>(m, name)
      .def("append",
           [](C& self, T value) {
             Lock lock(self.mutex());
             self.values.push_back(value);
           })
      .def("extend",
           [](C& self, const py::object& more) {
             std::vector<T> values;
             for (auto value : py::iter(more)) values.push_back(value.cast<T>());
             Lock lock(self.mutex());
             self.values.insert(self.values.end(), values.begin(), values.end());
           })
      .def("__len__",
           [](C& self) {
             Lock lock(self.mutex());
             return self.values.size();
           })
      .def("__getitem__",
           [](C& self, const py::slice& slice) {  // as bytes
             Lock lock(self.mutex());
             const auto [start, stop] = range_of(slice, self.values);
             return py::bytearray(reinterpret_cast<const char*>(self.values.data() + start),
                                  (stop - start) * sizeof(T));
           })
      .def("__getitem__",
           [](C& self, i64 index) {
             Lock lock(self.mutex());
             return self.values[index_of(index, self.values)];
           })
      .def("__setitem__",
           [](C& self, i64 index, T value) {
             Lock lock(self.mutex());
             self.values[index_of(index, self.values)] = value;
           })
      .def("__delitem__", [](C& self, const py::slice& slice) {
        Lock lock(self.mutex());
        const auto [start, stop] = range_of(slice, self.values);
        const auto begin = self.values.begin();
        self.values.erase(begin + static_cast<i64>(start), begin + static_cast<i64>(stop));
      });
}

// A map of the state, as Python sees it. No object is made or dropped while it is locked: that may run Python.
template <class V>
class MapView {
 public:
  MapView(std::shared_ptr<State> state, AddressMap<V>& map) : state_(std::move(state)), map_(map) {}

  std::optional<V> get(u64 address) {
    Lock lock(state_->mutex);
    const V* found = map_.find(address);
    return found == nullptr ? std::nullopt : std::optional<V>(*found);
  }

  void set(u64 address, V value) {
    [[maybe_unused]] const auto former = pop(address);  // dropped without the lock
    Lock lock(state_->mutex);
    map_.set(address, std::move(value));
  }

  bool contains(u64 address) {
    Lock lock(state_->mutex);
    return map_.contains(address);
  }

  std::optional<V> pop(u64 address) {
    Lock lock(state_->mutex);
    V* found = map_.find(address);
    if (found == nullptr) return std::nullopt;
    std::optional<V> taken(std::move(*found));
    map_.erase(address);
    return taken;
  }

  std::vector<std::pair<u64, V>> items() {
    std::vector<std::pair<u64, V>> all;
    Lock lock(state_->mutex);
    map_.each([&](u64 address, const V& value) { all.emplace_back(address, value); });
    return all;
  }

  void clear() {
    AddressMap<V> emptied;
    Lock lock(state_->mutex);
    std::swap(emptied, map_);
    lock.unlock();
  }

  void update(MapView& other) {
    Lock lock(state_->mutex);
    other.map_.each([&](u64 address, const V& value) { map_.set(address, value); });
  }

  size_t size() {
    Lock lock(state_->mutex);
    return map_.size();
  }

 private:
  std::shared_ptr<State> state_;
  AddressMap<V>& map_;
};

inline py::object to_python(const std::shared_ptr<Special>& value) { return py::cast(value); }
inline py::object to_python(i64 value) { return py::int_(value); }
inline py::object to_python(u64 value) { return py::int_(value); }

template <class V>
void bind_map(py::module_& m, const char* name) {
  using View = MapView<V>;
  const auto addresses = [](View& self) {
    py::list all;
    for (const auto& [address, _] : self.items()) all.append(address);
    return all;
  };
  py::class_<View>(m, name)
      .def(
          "get",
          [](View& self, u64 address, const py::object& otherwise) {
            const auto found = self.get(address);
            return found ? to_python(*found) : otherwise;
          },
          py::arg("address"), py::arg("otherwise") = py::none())
      .def("__getitem__",
           [](View& self, u64 address) {
             const auto found = self.get(address);
             if (!found) throw py::key_error();
             return to_python(*found);
           })
      .def("__setitem__", &View::set)
      .def("__contains__", &View::contains)
      .def("__delitem__",
           [](View& self, u64 address) {
             if (!self.pop(address)) throw py::key_error();
           })
      .def("pop",
           [](View& self, u64 address, const py::object& otherwise) {
             const auto taken = self.pop(address);
             return taken ? to_python(*taken) : otherwise;
           })
      .def("clear", &View::clear)
      .def("update", &View::update)
      .def("items", &View::items)
      .def("keys", addresses)
      .def("values",
           [](View& self) {
             py::list all;
             for (const auto& [_, value] : self.items()) all.append(to_python(value));
             return all;
           })
      .def("__iter__", [addresses](View& self) { return py::iter(addresses(self)); })
      .def("__len__", &View::size);
}

struct ReadsView {
  std::shared_ptr<State> state;
};

struct WritersView {
  std::shared_ptr<State> state;
  std::shared_ptr<Writers> writers;
};

// NumPy shares the tensor's memory, while ``array`` lives (``StorageTables.expose``).
void expose(State& state, const at::Tensor& tensor, const py::object& array) {
  const TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage() || impl.device_type() != c10::kCPU) return;
  const u64 address = address_of(impl);
  std::shared_ptr<Special> special;
  {
    Lock lock(state.mutex);
    if (!state.handles.contains(address)) {
      state.follow(address, impl.unsafe_storage().nbytes());
    }
    state.reads.pop(address);
    const auto* known = state.special.find(address);
    special = known != nullptr ? *known
                               : state.add_special(address, static_cast<i64>(impl.unsafe_storage().nbytes()), false);
  }
  py::list living = living_aliases(*special);
  living.append(py::weakref(array));
  special->aliases = living;
}

void bind_tables(py::module_& m) {
  bind_cells<u32>(m, "Cells32");
  bind_cells<i64>(m, "Cells64");
  bind_cells<u64>(m, "CellsU64");
  bind_cells<double>(m, "CellsDouble");
  bind_map<i64>(m, "Numbers");
  bind_map<u64>(m, "Addresses");
  bind_map<std::shared_ptr<Special>>(m, "Specials");

  using View = std::pair<i64, i64>;
  py::class_<Special, std::shared_ptr<Special>>(m, "Storage")
      .def_readwrite("nbytes", &Special::nbytes)
      .def_readwrite("foreign", &Special::is_foreign)
      .def_readwrite("partial", &Special::partial)
      .def_readwrite("rest_from_outside", &Special::rest_from_outside)
      .def_property(
          "aliases", [](Special& self) { return self.aliases ? self.aliases : py::none(); },
          [](Special& self, py::object aliases) { self.aliases = aliases.is_none() ? py::object() : aliases; })
      .def_property(
          "mask",
          [](Special& self) { return self.mask ? self.mask : py::bool_(self.written == Written::ALL); },
          [](Special& self, py::object mask) {
            const bool is_one = py::isinstance<py::bool_>(mask);
            self.written = !is_one ? Written::SOME : mask.ptr() == Py_True ? Written::ALL : Written::NONE;
            self.mask = is_one ? py::object() : std::move(mask);
          })
      .def_property_readonly("external",
                             [](Special& self) { return self.is_foreign || living_aliases(self).size() > 0; })
      .def_property_readonly("exposed", [](Special& self) { return self.is_foreign || bool(self.aliases); });

  py::class_<ReadsView>(m, "Reads")
      .def("find",
           [](ReadsView& self, u64 address, const View& view) -> std::optional<std::tuple<i64, i64, i64>> {
             Lock lock(self.state->mutex);
             const Read* found = self.state->reads.find(address, view.first, view.second);
             if (found == nullptr) return std::nullopt;
             return std::make_tuple(found->stream, found->row, found->packed);
           })
      .def("add",
           [](ReadsView& self, u64 address, const View& view, i64 stream, i64 row, i64 packed) {
             Lock lock(self.state->mutex);
             self.state->reads.add(address, {view.first, view.second, stream, row, packed});
           })
      .def("pop",
           [](ReadsView& self, u64 address) {
             Lock lock(self.state->mutex);
             self.state->reads.pop(address);
           })
      .def("__contains__",
           [](ReadsView& self, u64 address) {
             Lock lock(self.state->mutex);
             return self.state->reads.contains(address);
           })
      .def("clear", [](ReadsView& self) {
        Lock lock(self.state->mutex);
        self.state->reads.clear();
      });

  py::class_<WritersView>(m, "WriterMaps")
      .def_property_readonly("current",
                             [](WritersView& self) { return MapView<i64>(self.state, self.writers->current); })
      .def_property_readonly("earlier",
                             [](WritersView& self) { return MapView<i64>(self.state, self.writers->earlier); });

  py::class_<State, std::shared_ptr<State>>(m, "StorageTables")
      .def(py::init<>())
      .def_property_readonly("handles",
                             [](const std::shared_ptr<State>& self) {
                               return MapView<u64>(self, self->handles);
                             })
      .def_property_readonly("special",
                             [](const std::shared_ptr<State>& self) {
                               return MapView<std::shared_ptr<Special>>(self, self->special);
                             })
      .def("add_recent",
           [](State& self, u64 address, size_t nbytes) {
             Lock lock(self.mutex);
             return self.add_recent(address, nbytes);
           })
      .def_property_readonly("reads", [](const std::shared_ptr<State>& self) { return ReadsView{self}; })
      .def("new_writer_maps",
           [](const std::shared_ptr<State>& self) {
             Lock lock(self->mutex);
             self->writers.push_back(std::make_shared<Writers>());
             return WritersView{self, self->writers.back()};
           })
      .def("expose", expose)
      .def("add_special",
           [](State& self, u64 address, i64 nbytes, bool foreign) {
             Lock lock(self.mutex);
             return self.add_special(address, nbytes, foreign);
           })
      .def("sweep",
           [](State& self) {
             Lock lock(self.mutex);
             return self.sweep();
           })
      .def_readwrite("has_rare_entries", &State::has_rare_entries)
      .def("clear",
           [](State& self) {
             Lock lock(self.mutex);
             self.clear();
           })
      .def("forget_settings", [](State& self) { ++self.settings_era; })
      .def("forget_sites", [](State& self) {
        Lock lock(self.mutex);
        self.sites.clear();
        ++self.sites_cleared;
      });
}

// --- recorder

bool can_run_python() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

void bind_recorder(py::module_& m) {
  using R = Recorder;
  const auto internal = py::return_value_policy::reference_internal;
  py::class_<R, std::shared_ptr<R>>(m, "Recorder")
      .def(py::init([](std::shared_ptr<State> state, const WritersView& writers, i64 number, unsigned long owner) {
        // The last owner may be a thread that does not hold the interpreter.
        return std::shared_ptr<R>(new R(std::move(state), writers.writers, number, owner), [](R* recorder) {
          if (!can_run_python()) return;
          py::gil_scoped_acquire held;
          delete recorder;
        });
      }))
      .def_property_readonly("fixed", [](R& self) -> auto& { return self.fixed; }, internal)
      .def_property_readonly("links", [](R& self) -> auto& { return self.links; }, internal)
      .def_property_readonly("integers", [](R& self) -> auto& { return self.integers; }, internal)
      .def_property_readonly("floats", [](R& self) -> auto& { return self.floats; }, internal)
      .def_property_readonly("digests", [](R& self) -> auto& { return self.digests; }, internal)
      .def_property_readonly("link_notes", [](R& self) -> auto& { return self.link_notes; }, internal)
      .def_property("row", [](R& self) { return self.row.load(); }, [](R& self, i64 row) { self.row = row; })
      .def_property("limit", [](R& self) { return self.limit.load(); }, [](R& self, i64 row) { self.limit = row; })
      .def_readwrite("phase", &R::phase)
      .def_readwrite("module", &R::module)
      .def_readwrite("first_row", &R::first_row)
      .def_readwrite("digested", &R::digested)
      .def_readwrite("marked", &R::marked)
      .def_property("snapshot", &R::snapshot, &R::set_snapshot)
      .def("add_epoch",
           [](R& self, i64 row, i64 settings) {
             Lock lock(self.state->mutex);
             self.add_epoch(row, settings);
           })
      .def("take_epochs", &R::take_epochs)
      .def("set_anchor",
           [](R& self, const py::object& frame) { self.anchor = frame.is_none() ? nullptr : frame.ptr(); })
      .def("write_event",
           [](R& self, const std::array<u32, 5>& cells, const std::vector<u64>& digests,
              const std::vector<i64>& integers, const std::vector<double>& floats, const py::object& frame,
              const py::function& intern) {
             return self.write_event(cells, digests, integers, floats, frame.ptr(), intern);
           })
      .def("know_modules", [](R& self, const py::dict& known) { self.known_modules = known.ptr(); })
      .def("enter", &R::enter)
      .def("enter_backward", &R::enter_backward)
      .def("leave", &R::leave)
      .def_property_readonly("depth", &R::depth)
      .def("module_of", &R::module_of)
      .def_property_readonly("ops", [](R& self) { return self.take_counts().ops; })
      .def_property_readonly("handed", [](R& self) { return self.take_counts().handed; })
      .def("arm",
           [](std::shared_ptr<R> self, const py::object& mode, const py::object& stream, bool is_hooked) {
             Interpreter::install();
             self->set_hooked(is_hooked);
             Modes::all().arm(mode.ptr(), std::move(self), stream);
           })
      .def("forget_wanted", &R::forget_wanted);
  m.def("disarm", [](const py::object& mode) { Modes::all().disarm(mode.ptr()); });
}

// Called for every call of a module, so without pybind11's conversions.
PyObject* enter_module(PyObject*, PyObject* module) { return PyBool_FromLong(ModuleCalls::enter(module)); }

PyObject* leave_module(PyObject*, PyObject*) {
  ModuleCalls::leave();
  Py_RETURN_NONE;
}

// Digest of the digests of tensors in host memory (``digest_pages``); None: one of them has none. ``layouts``: size in
// bytes and seed of each, as words.
py::object digest_tensors(const py::list& tensors, const py::bytes& layouts) {
  const auto words = static_cast<std::string_view>(layouts);
  if (words.size() != 2 * sizeof(u64) * tensors.size()) return py::none();
  std::vector<u64> digests;
  for (auto tensor : tensors) {
    if (!THPVariable_Check(tensor.ptr())) return py::none();
    const TensorImpl& impl = *THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
    u64 layout[2];
    std::memcpy(layout, words.data() + sizeof layout * digests.size(), sizeof layout);
    const auto* start = is_plain(impl) ? start_of(impl) : nullptr;
    if (start == nullptr) return py::none();
    digests.push_back(digests::digest(start, layout[0], layout[1]));
  }
  return py::int_(digests::digest(digests.data(), digests.size() * sizeof(u64), 0));
}

PyMethodDef module_calls[] = {{"enter_module", enter_module, METH_O, nullptr},
                              {"leave_module", leave_module, METH_NOARGS, nullptr},
                              {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace rltrace

PYBIND11_MODULE(RLTRACE_MODULE, m) {
  using namespace rltrace;
  bind_tables(m);
  bind_recorder(m);
  if (PyModule_AddFunctions(m.ptr(), module_calls) != 0) throw py::error_already_set();
  m.def("hide_modes", [](const py::type& type) {
    type.inc_ref();
    return hidden_mode::hide(reinterpret_cast<PyTypeObject*>(type.ptr()));
  });
  m.def("digest_tensors", digest_tensors);
  py::class_<RowReader>(m, "RowReader")
      .def(py::init<const py::handle&, py::dict, py::dict>())
      .def("know", &RowReader::know)
      .def("take", &RowReader::take)
      .def("take_all", &RowReader::take_all);
  m.def("call_at_once", torch::wrap_pybind_function(call_at_once));
  m.def("default_generator_digest", default_generator_digest);
  m.def("digest", [](const py::buffer& bytes, u64 seed) {
    const auto info = bytes.request();
    return digests::digest(info.ptr, static_cast<size_t>(info.size * info.itemsize), seed);
  });
  m.def("constants", [] {
    using C = Constants;
    py::dict all;
    all["MARKED"] = C::MARKED;
    all["RNG"] = C::RNG;
    all["VIEW"] = C::VIEW;
    all["VALUE_BOOL"] = C::VALUE_BOOL;
    all["VALUE_INTEGER"] = C::VALUE_INTEGER;
    all["VALUE_FLOAT"] = C::VALUE_FLOAT;
    all["VALUE_COMPLEX"] = C::VALUE_COMPLEX;
    all["PHASE"] = C::PHASE;
    all["BACKWARD"] = C::BACKWARD;
    all["TORCH_GENERATOR"] = C::TORCH_GENERATOR;
    all["SLOT_UNKNOWN"] = C::SLOT_UNKNOWN;
    all["ALLOCATION"] = C::ALLOCATION;
    all["STORAGE_OFFSET"] = C::STORAGE_OFFSET;
    all["LAST_WRITER"] = C::LAST_WRITER;
    all["OUTSIDE"] = C::OUTSIDE;
    all["OUTSIDE_READ"] = C::OUTSIDE_READ;
    all["UNKNOWN"] = C::UNKNOWN;
    all["MIXED"] = C::MIXED;
    all["OVERWRITTEN"] = C::OVERWRITTEN;
    return all;
  });
}

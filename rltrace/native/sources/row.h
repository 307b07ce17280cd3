// One row as it is written: ``OpRecorder.observe`` (rltrace/recorder/core/op_recorder.py) for ops whose row follows from
// tables. The rules are those of that file; rare cases are its methods, which work on the same tables.

#pragma once

#include "recorder.h"

namespace rltrace {

// One row as it is written.
struct Recorder::Row {
  Row(Recorder& recorder, Operator& op, Scratch& scratch, Lock& lock, Stack* stack, torch::autograd::Node* node)
      : recorder(recorder), op(op), scratch(scratch), lock(lock), stack(stack), node(node) {}

  Recorder& recorder;
  Operator& op;
  Scratch& scratch;
  Lock& lock;
  Stack* stack;
  torch::autograd::Node* node;
  Call* call = nullptr;
  i64 number = 0;
  size_t links_added = 0;
  u32 flags = 0, site = 0;
  i64 module = 0;
  bool has_run = false, writes_simply = false;
  std::optional<PythonArguments> passed;  // only where writing the row needs them

  ~Row() {
    if (!passed) return;
    if (lock.owns_lock()) lock.unlock();  // never wait for the interpreter with the tables locked
    py::gil_scoped_acquire held;
    passed.reset();
  }

  State& state() { return *recorder.state; }
  std::vector<TensorImpl*>& tensors() { return scratch.arguments.tensors; }
  const IValue* arguments() const { return &*(stack->end() - static_cast<i64>(op.parameters.size())); }
  i64 here() const { return number << 12; }

  // Call a method of the stream in Python; only inside a PythonSection.
  template <class... Args>
  py::object ask(const char* method, Args&&... args) {
    return recorder.stream_.attr(method)(std::forward<Args>(args)...);
  }

  template <class T>
  static void append(std::vector<T>& cells, const std::vector<T>& more) {
    cells.insert(cells.end(), more.begin(), more.end());
  }

  void add_digest(u64 digest) {
    recorder.digests.values.push_back(digest);
    ++recorder.digested;
  }

  // --- before the op runs

  void begin() {
    ++recorder.counts.ops;
    call = find_call();
    number = recorder.row;
    append(recorder.integers.values, scratch.arguments.integers);
    append(recorder.floats.values, scratch.arguments.floats);
    recorder.digested = 0;
    recorder.marked = false;
    add_links();
    if (call->draws) add_generator();
    find_module();
    find_site();
    writes_simply = is_writing_simple();
    if (call->is_partial && !writes_simply) {
      PythonSection python(lock);
      passed = python_arguments(op, arguments());
    }
    if (call->keeps_tensors())
      for (TensorImpl* tensor : tensors())
        scratch.kept.push_back(c10::intrusive_ptr<TensorImpl>::unsafe_reclaim_from_nonowning(tensor));
  }

  Call* find_call() {
    const auto& key = scratch.arguments.key;
    const u64 hash = key.hash();
    if (const auto* found = state().calls.find(key, hash)) return found->get();
    std::unique_ptr<Call> made;
    {
      PythonSection python(lock);
      const auto [positional, named] = python_arguments(op, arguments());
      made = make_call(ask("find_call", op.function(), positional, named));
    }
    Call* call = made.get();
    state().calls.add(key, hash, std::move(made));
    return call;
  }

  static Layout layout_from(const py::handle& layout) {
    return {layout.attr("id").cast<i64>(), layout.attr("seed").cast<u64>(), layout.attr("nbytes").cast<i64>(),
            layout.attr("dense").cast<bool>(), layout.attr("later").cast<bool>()};
  }

  static std::unique_ptr<Call> make_call(const py::object& python) {
    const py::object plan = python.attr("plan");
    const auto is = [&](const char* name) { return plan.attr(name).cast<bool>(); };
    const auto role = plan.attr("role").attr("value").cast<std::string>();
    auto made = std::make_unique<Call>();
    made->python = python;
    made->plan = plan;
    made->op = plan.attr("id").cast<u32>();
    made->structure = python.attr("structure").cast<u32>();
    made->scalars = python.attr("scalars").cast<u32>();
    made->is_view = is("is_view");
    made->computes = is("computes");
    made->draws = is("draws");
    made->returns_new = is("returns_new");
    made->copies = is("copies");
    made->is_number = role == "number";
    made->is_allocation = role == "allocation";
    made->only_allocates = made->is_allocation && !is("resizes") && !is("writes_any");
    made->has_arrived = role == "arrived";
    made->is_partial = is("partial");
    made->is_custom = is("is_custom");
    made->arrives = is("arrives");
    made->may_reshape = is("may_reshape");
    for (auto layout : python.attr("layouts")) made->layouts.push_back(layout_from(layout));
    for (auto place : python.attr("written")) made->written.push_back(place.cast<size_t>());
    for (auto place : python.attr("overwritten")) {
      made->overwritten.resize(made->layouts.size());
      made->overwritten[place.cast<size_t>()] = true;
    }
    for (auto aliased : plan.attr("aliased")) made->aliased.push_back(aliased.cast<bool>());
    for (auto place : plan.attr("scratch")) made->scratch.push_back(place.cast<i64>());
    const py::object factor = python.attr("factor");
    if (!factor.is_none()) {
      made->has_factor = true;
      made->factor_is_float = factor.attr("is_float").cast<bool>();
      made->factor_from_end = factor.attr("from_end").cast<size_t>();
    }
    return made;
  }

  void add_links() {
    for (size_t place = 0; place < tensors().size(); ++place) {
      const u64 address = address_of(*tensors()[place]);
      scratch.addresses.push_back(address);
      const i64* writer = recorder.writers->current.find(address);
      i64 link;
      if (!call->overwritten.empty() && call->overwritten[place] && (writer != nullptr || call->is_view))
        link = Constants::OVERWRITTEN;
      else if (writer != nullptr)
        link = here() - *writer;
      else
        link = call->is_view ? view_link(address) : input_link(place, address);
      recorder.links.values.push_back(link);
      ++links_added;
      if (call->is_view || address == 0) continue;
      const i64 offset = tensors()[place]->storage_offset();
      if (offset != 0)
        scratch.link_notes.insert(scratch.link_notes.end(),
                                  {number, static_cast<i64>(place), Constants::STORAGE_OFFSET, offset});
    }
  }

  // Link of a view's input: it names the writer of its bytes, as the view reads nothing.
  i64 view_link(u64 address) {
    const i64* writer = recorder.writers->earlier.find(address);
    if (writer != nullptr) {
      const auto* special = state().special.find(address);
      return special != nullptr && (*special)->partial ? Constants::MIXED : here() - *writer;
    }
    if (address != 0 && is_unwritten(address)) return Constants::OUTSIDE;
    PythonSection python(lock);
    return ask("_view_link", address).template cast<i64>();
  }

  // Link of an input that no single op of this step wrote as a whole (``OpRecorder._input``).
  i64 input_link(size_t place, u64 address) {
    if (!call->overwritten.empty() && call->overwritten[place]) return Constants::OVERWRITTEN;
    if (place == 0 && call->has_factor && factor_is_zero()) return Constants::OVERWRITTEN;
    if (call->is_allocation) return Constants::UNKNOWN;
    if (call->has_arrived) return Constants::OUTSIDE;
    const Layout& layout = call->layouts[place];
    const TensorImpl& tensor = *tensors()[place];
    const std::pair<i64, i64> view(tensor.storage_offset(), layout.id);
    const bool is_external = is_written_by_others(address);
    const auto* special = state().special.find(address);
    const i64* writer = recorder.writers->earlier.find(address);
    if (special != nullptr) {
      if (const auto link = special_link(place, address, view, **special, is_external, writer)) return *link;
    } else {
      const Read* read = state().reads.find(address, view.first, view.second);
      if (read != nullptr && read->stream == recorder.number_ && read->row != number) return here() - read->packed;
      if (state().handles.contains(address)) {
        if (writer != nullptr && row_of(*writer) >= recorder.first_row) return here() - *writer;
        const i64 link = writer == nullptr ? Constants::OUTSIDE_READ : (here() - *writer) | 1;
        if ((writer != nullptr || is_unwritten(address)) && add_digest_of(tensor, layout)) {
          add_read(address, view, place);
          return link;
        }
      } else if (address != 0 && !state().has_rare_entries &&
                 (is_of_torch(tensor) || !tensor.unsafe_storage().resizable()) &&
                 add_digest_of(tensor, layout)) {  // memory from before the recording, or of others
        if (is_of_torch(tensor))
          add_read(address, view, place);
        else
          state().add_special(address, static_cast<i64>(tensor.unsafe_storage().nbytes()), true);
        follow(tensor);
        return Constants::OUTSIDE_READ;
      }
    }
    i64 link;
    std::vector<size_t> written;
    {
      PythonSection python(lock);
      link = ask("_input", call->python, python_tensors(tensors()), address, place).template cast<i64>();
      for (auto known : call->python.attr("written")) written.push_back(known.cast<size_t>());
    }
    if (written.size() > call->written.size()) call->written = std::move(written);  // learned by ``_input``
    return link;
  }

  // Link of an input in a storage that its last writer alone does not describe; none: Python finds it.
  std::optional<i64> special_link(size_t place, u64 address, const std::pair<i64, i64>& view, const Special& special,
                                  bool is_external, const i64* writer) {
    const TensorImpl& tensor = *tensors()[place];
    if (special.written == Written::NONE && call->is_custom && is_written_at(place) && tensor.numel() > 0)
      return Constants::OVERWRITTEN;
    if (special.written != Written::ALL) return std::nullopt;
    const bool is_whole = !special.partial || *special.partial == view;
    const bool is_exposed = special.is_foreign || special.aliases;
    if (writer != nullptr && is_whole && !is_exposed && row_of(*writer) >= recorder.first_row) return here() - *writer;
    const Read* read = is_external ? nullptr : state().reads.find(address, view.first, view.second);
    if (read != nullptr && read->stream == recorder.number_ && read->row != number) return here() - read->packed;
    if (writer == nullptr && !(is_external && is_unwritten(address))) return std::nullopt;
    if (!add_digest_of(tensor, call->layouts[place])) return std::nullopt;
    if (!is_external) add_read(address, view, place);
    if (writer == nullptr) return Constants::OUTSIDE_READ;
    return (is_whole ? here() - *writer : mixed_link(place, *writer, special)) | 1;
  }

  // Link of an input that several ops wrote, with a note (``RowBuffer._mixed_link``).
  i64 mixed_link(size_t place, i64 writer, const Special& special) {
    const i64 last = (number - row_of(writer)) << 1 | static_cast<i64>(special.rest_from_outside);
    append(recorder.link_notes.values, {number, static_cast<i64>(place), Constants::LAST_WRITER, last});
    return Constants::MIXED;
  }

  bool is_written_at(size_t place) const {
    return std::find(call->written.begin(), call->written.end(), place) != call->written.end();
  }

  // Whether code outside torch can write a storage now (``Storage.external``). May unlock the tables meanwhile.
  bool is_written_by_others(u64 address) {
    const auto* known = state().special.find(address);
    if (known == nullptr || (*known)->is_foreign || !(*known)->aliases) return known != nullptr && (*known)->is_foreign;
    auto special = *known;
    const Unlocked unlocked(lock);
    const py::gil_scoped_acquire held;
    const bool has_living = !living_aliases(*special).empty();
    special.reset();
    return has_living;
  }

  // Whether an op of this stream is the last writer of a storage.
  bool has_writer(u64 address) {
    return recorder.writers->current.contains(address) || recorder.writers->earlier.contains(address);
  }

  // Whether no op has written a storage; false where only Python knows.
  bool is_unwritten(u64 address) {
    const auto& all = state().writers;
    return !state().has_rare_entries && std::none_of(all.begin(), all.end(), [&](const auto& writers) {
      return writers->current.contains(address) || writers->earlier.contains(address);
    });
  }

  bool add_digest_of(const TensorImpl& tensor, const Layout& layout) {
    u64 digest;
    if (!digest_of(tensor, layout, digest)) return false;
    add_digest(digest);
    return true;
  }

  void add_read(u64 address, const std::pair<i64, i64>& view, size_t place) {
    state().reads.add(address, {view.first, view.second, recorder.number_, number,
                                pack_read(number, static_cast<i64>(place))});
  }

  bool factor_is_zero() const {
    if (call->factor_is_float) return *(recorder.floats.values.end() - static_cast<i64>(call->factor_from_end)) == 0;
    return *(recorder.integers.values.end() - static_cast<i64>(call->factor_from_end)) == 0;
  }

  // The state of the generator that the op draws from.
  void add_generator() {
    const IValue* generator = scratch.arguments.generator;
    if (generator == nullptr) {
      add_digest(default_generator_digest());
      flags = Constants::RNG | Constants::TORCH_GENERATOR;
      return;
    }
    std::pair<u64, u32> state;
    {
      PythonSection python(lock);
      state = ask("state_of", torch::jit::toPyObject(*generator)).template cast<std::pair<u64, u32>>();
    }
    add_digest(state.first);
    flags = state.second;
  }

  void find_module() {
    module = recorder.module_here(node);
    flags |= node == nullptr ? static_cast<u32>(recorder.phase) : Constants::BACKWARD;
  }

  void find_site() {
    auto& stack_key = scratch.stack;
    frames::Frame* anchor = recorder.anchor == nullptr ? nullptr : frames::of(recorder.anchor);
    const bool found = frames::walk(frames::innermost(), anchor, stack_key);
    const bool continues = anchor != nullptr && !found && node != nullptr;
    if (continues) {  // a thread of autograd, working for the call of backward
      stack_key.add(0);
      frames::walk(anchor, nullptr, stack_key);
    } else if (anchor != nullptr && !found) {
      PythonSection python(lock);
      flags = ask("check_attempt", flags).template cast<u32>();
    }
    const u64 hash = stack_key.hash();
    if (const u32* known = state().sites.find(stack_key, hash)) {
      site = *known;
      return;
    }
    u64 cleared = state().sites_cleared;
    {
      PythonSection python(lock);
      site = ask("intern_site", continues).template cast<u32>();
    }
    if (state().sites_cleared == cleared) state().sites.add(stack_key, hash, site);
  }

  // --- after it has run

  void finish() {
    has_run = true;
    if (call->is_view)
      flags |= Constants::VIEW;
    else if (call->computes)
      record_results();
    else if (call->is_number)
      record_number();
    else
      record_uncomputed();
    check_settings();
    const u32 cells[] = {call->op,
                         call->structure,
                         site,
                         static_cast<u32>(module),
                         call->scalars,
                         flags,
                         static_cast<u32>(recorder.digested)};
    append(recorder.link_notes.values, scratch.link_notes);
    recorder.fixed.values.insert(recorder.fixed.values.end(), std::begin(cells), std::end(cells));
    recorder.row = number + 1;
    if (number >= recorder.limit) {
      PythonSection python(lock);
      recorder.stream_.attr("wake_committer")();
    }
  }

  const IValue* returned() const { return &*(stack->end() - static_cast<i64>(op.returns)); }

  void record_results() {
    i64 slot = call->written.empty() ? 0 : record_written();
    if (call->returns_new) {
      const IValue* results = returned();
      const bool several = op.returns != 1 || results[0].isList();
      for (size_t i = 0; i < op.returns; ++i) {
        if (!call->aliased.empty() && call->aliased[i]) continue;
        if (results[i].isTensor()) {
          record_new(results[i].toTensor(), slot, several);
        } else if (results[i].isList()) {
          for (const IValue& item : results[i].toListRef())
            if (item.isTensor()) record_new(item.toTensor(), slot, several);
        }
      }
    }
    if (recorder.marked) flags |= Constants::MARKED;
  }

  // Digest the written arguments and make the row their last writer (``OpRecorder._record_written``).
  i64 record_written() {
    if (!writes_simply || !is_writing_simple() || (call->may_reshape && has_reshaped())) {
      PythonSection python(lock);
      if (!passed) passed = {py::tuple(), py::none()};
      const py::tuple result =
          ask("_record_written", call->python, python_tensors(tensors()), passed->positional, passed->named);
      flags |= result[1].cast<u32>();
      return result[0].cast<i64>();
    }
    // Another thread may learn of more written places while the tables are unlocked.
    const c10::SmallVector<size_t, 4> written(call->written.begin(), call->written.end());
    i64 slot = 0;
    for (size_t place : written) {
      const TensorImpl& tensor = *tensors()[place];
      const u64 address = address_of(tensor);
      u64 digest = 0;
      digest_of(tensor, call->layouts[place], digest);
      add_digest(digest);
      const i64 writer = pack_writer(number, slot++);
      if (call->layouts[place].nbytes == 0) continue;  // nothing was written
      state().reads.pop(address);
      for (auto& writers : state().writers)
        if (writers != recorder.writers) writers->drop(address);
      if (is_whole(place) && !state().special.contains(address)) {
        recorder.writers->earlier.erase(address);
        recorder.writers->current.set(address, writer);
      } else {
        record_special_write(place, address, writer);
      }
    }
    return slot;
  }

  // The op wrote in a storage that its writer alone does not describe, before or from now on.
  void record_special_write(size_t place, u64 address, i64 writer) {
    const TensorImpl& tensor = *tensors()[place];
    const bool is_external = is_whole(place) && is_written_by_others(address);
    const bool is_first_write = !has_writer(address);
    recorder.writers->current.erase(address);
    recorder.writers->earlier.set(address, writer);
    const auto* known = state().special.find(address);
    Special& special = known != nullptr
                           ? **known
                           : *state().add_special(address, static_cast<i64>(tensor.unsafe_storage().nbytes()), false);
    if (is_whole(place)) {
      special.partial.reset();
      special.written = Written::ALL;
      if (!is_external) drop_special(address);
      return;
    }
    if (!special.partial) special.rest_from_outside = is_first_write;
    special.partial = {tensor.storage_offset(), call->layouts[place].id};
  }

  // Drop a storage from ``special``, its references to arrays with the interpreter held. May unlock the tables.
  void drop_special(u64 address) {
    const auto* known = state().special.find(address);
    if (known == nullptr) return;
    auto special = *known;
    state().special.erase(address);
    if (!special->aliases) return;
    const Unlocked unlocked(lock);
    const py::gil_scoped_acquire held;
    special.reset();
  }

  // Whether the written tensor at this place is all of its storage.
  bool is_whole(size_t place) const {
    const Layout& layout = call->layouts[place];
    const auto nbytes = scratch.arguments.tensors[place]->unsafe_storage().nbytes();
    return layout.dense && layout.nbytes >= static_cast<i64>(nbytes);
  }

  // Whether what the op wrote has another layout than before.
  bool has_reshaped() {
    return std::any_of(call->written.begin(), call->written.end(), [&](size_t place) {
      return layout_of(owned(tensors()[place])).id != call->layouts[place].id;
    });
  }

  // Whether all that the op writes can be recorded here: every storage is as large as it was, no element of it is
  // unwritten afterwards, and no other view of it is among the op's tensors.
  bool is_writing_simple() {
    if (call->arrives || (call->copies && recorder.marked)) return false;
    for (size_t place : call->written) {
      const Layout& layout = call->layouts[place];
      const auto& storage = tensors()[place]->unsafe_storage();
      const u64 address = address_of(*tensors()[place]);
      const auto* special = state().special.find(address);
      const bool is_plain = is_whole(place) && special == nullptr;
      if (layout.nbytes == 0 && !layout.later) continue;
      if (layout.later || storage.data() == nullptr || !state().handles.contains(address)) return false;
      if (!is_plain && !is_special_write_simple(place, special == nullptr ? nullptr : special->get())) return false;
      // As ``_record_written`` looks at two tensors only.
      if (is_plain && !recorder.marked && tensors().size() != 2) continue;
      for (const TensorImpl* other : tensors())
        if (address_of(*other) == address && !is_same_view(*other, *tensors()[place])) return false;
    }
    return true;
  }

  static bool is_same_view(const TensorImpl& one, const TensorImpl& other) {
    return one.storage_offset() == other.storage_offset() && one.dtype() == other.dtype() &&
           one.sizes() == other.sizes() && one.strides() == other.strides();
  }

  bool is_special_write_simple(size_t place, const Special* special) {
    const bool is_first_part = special == nullptr || (!special->partial && !is_whole(place));
    const u64 address = address_of(*tensors()[place]);
    if (is_first_part && !has_writer(address) && !is_unwritten(address)) return false;  // others have written the rest
    if (special == nullptr) return true;
    if (special->nbytes != static_cast<i64>(tensors()[place]->unsafe_storage().nbytes())) return false;
    if (is_whole(place)) return special->written != Written::SOME && !call->is_partial;
    return special->written == Written::ALL;
  }

  // Digest an output that aliases no argument, and follow its storage (``OpRecorder._fresh``).
  void record_new(const at::Tensor& tensor, i64& slot, bool several) {
    if (!tensor.defined()) return;
    const i64 capped = several ? std::min(slot, Constants::SLOT_UNKNOWN) : slot;
    if (!record_new_simply(tensor, capped)) {
      PythonSection python(lock);
      ask("_fresh", py::cast(tensor), call->plan,
          call->keeps_tensors() ? python_tensors(tensors()) : py::list(), capped);
    }
    if (several && std::find(call->scratch.begin(), call->scratch.end(), slot) != call->scratch.end()) {
      PythonSection python(lock);
      ask("_clear_digest");
    }
    ++slot;
  }

  bool record_new_simply(const at::Tensor& tensor, i64 slot) {
    const TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!is_plain(impl) || impl.dim() > static_cast<i64>(MAX_DIMENSIONS)) return false;
    if (call->copies && recorder.marked) return false;
    if (!add_digest_of(impl, layout_of(tensor))) return false;
    const u64 address = address_of(impl);
    if (state().handles.contains(address)) return true;  // memory of an argument
    recorder.writers->current.set(address, (number << 12) - (slot << 2));
    follow(impl);
    return true;
  }

  // Whether torch's own allocator made its memory, so that no other code can write it.
  static bool is_of_torch(const TensorImpl& tensor) {
    const auto& storage = tensor.unsafe_storage();
    return storage.resizable() && storage.data_ptr().get_deleter() == c10::GetAllocator(c10::kCPU)->raw_deleter();
  }

  void follow(const TensorImpl& tensor) {
    if (state().follow(address_of(tensor), tensor.unsafe_storage().nbytes())) sweep();
  }

  void sweep() {
    const std::vector<u64> dead = state().sweep();
    std::vector<std::shared_ptr<Special>> dropped;
    for (u64 address : dead) {
      const auto* special = state().special.find(address);
      if (special == nullptr) continue;
      dropped.push_back(*special);
      state().special.erase(address);
    }
    if (dropped.empty() && !state().has_rare_entries) return;
    PythonSection python(lock);
    dropped.clear();
    if (state().has_rare_entries) ask("forget_storages", dead);
  }

  Layout layout_of(const at::Tensor& tensor) {
    const TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    layout_key(impl, scratch.words);
    const u64 hash = scratch.words.hash();
    if (const Layout* known = state().layouts.find(scratch.words, hash)) return *known;
    Layout made;
    {
      PythonSection python(lock);
      made = layout_from(ask("layout_of", py::cast(tensor)));
    }
    state().layouts.add(scratch.words, hash, made);
    return made;
  }

  void record_number() {
    const IValue& value = returned()[0];
    if (value.isBool()) {
      recorder.integers.values.push_back(value.toBool());
      flags |= Constants::VALUE_BOOL;
    } else if (value.isInt()) {
      recorder.integers.values.push_back(value.toInt());
      flags |= Constants::VALUE_INTEGER;
    } else if (value.isComplexDouble()) {
      recorder.floats.values.push_back(value.toComplexDouble().real());
      recorder.floats.values.push_back(value.toComplexDouble().imag());
      flags |= Constants::VALUE_COMPLEX;
    } else {  // unsigned beyond 63 bits, too
      recorder.floats.values.push_back(value.toScalar().toDouble());
      flags |= Constants::VALUE_FLOAT;
    }
    if (recorder.marked) flags |= Constants::MARKED;
  }

  void record_uncomputed() {
    if (call->only_allocates && op.returns == 1 && returned()[0].isTensor()) {
      const TensorImpl& allocated = *returned()[0].toTensor().unsafeGetTensorImpl();
      if (is_plain(allocated)) return follow_allocated(allocated);
    }
    PythonSection python(lock);
    py::object out;
    if (op.returns == 1) {
      out = torch::jit::toPyObject(returned()[0]);
    } else {
      py::tuple results(op.returns);
      for (size_t i = 0; i < op.returns; ++i) results[i] = torch::jit::toPyObject(returned()[i]);
      out = results;
    }
    flags |= ask("_record_uncomputed", call->python, python_tensors(tensors()), out).template cast<u32>();
  }

  // Follow memory that is unwritten (``OpRecorder._follow_allocated``).
  void follow_allocated(const TensorImpl& tensor) {
    const u64 address = address_of(tensor);
    flags |= Constants::ALLOCATION;
    if (state().handles.contains(address)) return;
    follow(tensor);
    state().add_special(address, static_cast<i64>(tensor.unsafe_storage().nbytes()), false)->written = Written::NONE;
    recorder.writers->earlier.set(address, pack_writer(number, 0));
  }

  void check_settings() {
    const Settings now = Settings::now();
    if (recorder.settings_known && now == recorder.settings_) return;
    for (const auto& known : recorder.known_settings_) {
      if (!recorder.settings_known || known->settings != now || known->era != state().settings_era) continue;
      recorder.add_epoch(number, known->number);
      recorder.use(*known);
      return;
    }
    PythonSection python(lock);
    ask("_update_settings");
    const py::object snapshot = recorder.snapshot_;
    const KnownSettings read{now, state().settings_era, snapshot.attr("number").cast<i64>(), snapshot};
    for (const auto& known : recorder.known_settings_) {
      if (known->settings != now) continue;
      *known = read;
      recorder.use(*known);
      return;
    }
    recorder.known_settings_.push_back(std::make_unique<KnownSettings>(read));
    recorder.use(*recorder.known_settings_.back());
  }

  // Digest of a plain tensor; false where Python is to find it.
  static bool digest_of(const TensorImpl& tensor, const Layout& layout, u64& digest) {
    if (layout.nbytes == 0 && !layout.later) {
      digest = digests::digest("", 0, layout.seed);
      return true;
    }
    const char* start = start_of(tensor);
    if (start == nullptr || layout.later) return false;
    const auto size = static_cast<size_t>(layout.nbytes);
    if (!layout.dense && !tensor.is_contiguous()) {
      auto& gathered = Thread::here().gathered;
      gathered.resize(size);
      char* end = gathered.data();
      gather(start, tensor.sizes(), tensor.strides(), tensor.itemsize(), end);
      start = gathered.data();
    }
    digest = digests::digest(start, size, layout.seed);
    return true;
  }

  // --- errors

  // The op raised and gets no row.
  void roll_back() {
    PythonSection python(lock);
    try {
      ask("drop_raised", links_added, scratch.arguments.integers.size(), scratch.arguments.floats.size(),
          scratch.addresses);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("rltrace");
    }
  }

  // The stream decides: its recording ends, the row is dropped, or the error (Ctrl-C) is the program's.
  void report(const py::object& error) {
    try {
      const bool are_alive = !has_run || call->keeps_tensors();
      ask("failed", error, has_run ? call->python : py::none(), are_alive ? python_tensors(tensors()) : py::list());
    } catch (py::error_already_set& raised) {
      throw_into_program(raised);
    }
  }
};

template <class Write>
bool Recorder::guarded(Row& row, Write write) {
  try {
    write();
    return true;
  } catch (py::error_already_set& error) {
    PythonSection python(row.lock);
    row.report(error.value());
  } catch (const std::exception& error) {
    PythonSection python(row.lock);
    row.report(py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(error.what()));
  }
  return false;
}

inline bool Recorder::observe(const c10::OperatorHandle& handle, Stack* stack) {
  const Presence presence(*this);
  if (!armed_) return false;
  Thread& thread = Thread::here();
  Operator& op = thread.operators.of(handle);
  ScratchHere scratch(thread);
  const auto node = torch::autograd::get_current_node();
  if (const char* obstacle = obstacle_of(op, stack, *scratch, node.get())) {
    hand_over(op, obstacle);
    return false;
  }
  Lock lock(state->mutex);
  Row row(*this, op, *scratch, lock, stack, node.get());
  if (!guarded(row, [&] { row.begin(); })) {
    lock.unlock();
    run(op, stack, thread);
    return true;
  }
  lock.unlock();
  try {
    run(op, stack, thread);
  } catch (...) {
    lock.lock();
    row.roll_back();
    throw;
  }
  lock.lock();
  guarded(row, [&] { row.finish(); });
  return true;
}

}  // namespace rltrace

// What all recorders of a process share, and what is theirs and read by other threads: guarded by one lock.
//
// The rules are those of rltrace/recorder/core/storages.py, which work on these tables, too.

#pragma once

#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tables.h"

namespace rltrace {

namespace py = pybind11;

// The lock is held for short sections that run no Python and never wait for the interpreter. So a thread that holds
// the interpreter may take it. Hardly ever is it taken already.
class Mutex {
 public:
  void lock() {
    for (int tries = 0; taken_.test_and_set(std::memory_order_acquire); ++tries)
      if (tries >= 64) std::this_thread::yield();
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

using Lock = std::unique_lock<Mutex>;

// Cells of one kind of the rows that are not committed: written by the thread of a stream, taken by the committer.
template <class T>
class Cells {
 public:
  explicit Cells(Mutex& mutex) : mutex_(mutex) {}

  // Without the lock, which the caller holds.
  std::vector<T> values;

  Mutex& mutex() { return mutex_; }

 private:
  Mutex& mutex_;
};

// The last writers of one stream (``Writers`` in storages.py).
struct Writers {
  AddressMap<i64> current, earlier;

  void drop(u64 address) {
    current.erase(address);
    earlier.erase(address);
  }
};

enum class Written : char { ALL, SOME, NONE };

// A storage that its last writer alone does not describe (``Storage`` in storages.py). Made and dropped without the
// interpreter where it has neither aliases nor a mask.
struct Special {
  i64 nbytes;
  bool is_foreign;
  Written written = Written::ALL;
  bool rest_from_outside = false;
  std::optional<std::pair<i64, i64>> partial = {};
  py::object aliases = {};  // null: None
  py::object mask = {};     // of SOME
};

// The weak references to NumPy arrays that are alive.
inline py::list living_aliases(const Special& special) {
  py::list living;
  if (special.aliases)
    for (auto alias : special.aliases)
      if (!alias().is_none()) living.append(alias);
  return living;
}

// A view that was digested as an input (``Reads`` in storages.py).
struct Read {
  i64 offset, layout;
  i64 stream, row, packed;
};

class Reads {
 public:
  const Read* find(u64 address, i64 offset, i64 layout) {
    std::vector<Read>* reads = by_address_.find(address);
    if (reads == nullptr) return nullptr;
    for (const Read& read : *reads)
      if (read.offset == offset && read.layout == layout) return &read;
    return nullptr;
  }

  void add(u64 address, const Read& added) {
    std::vector<Read>* reads = by_address_.find(address);
    if (reads == nullptr) {
      by_address_.set(address, {added});
      return;
    }
    for (Read& read : *reads)
      if (read.offset == added.offset && read.layout == added.layout) {
        read = added;
        return;
      }
    reads->push_back(added);
  }

  bool contains(u64 address) { return by_address_.contains(address); }
  void pop(u64 address) { by_address_.erase(address); }
  void clear() { by_address_.clear(); }

 private:
  AddressMap<std::vector<Read>> by_address_;
};

// A layout as Python interned it (``Layout`` in layouts.py).
struct Layout {
  i64 id;
  u64 seed;
  i64 nbytes;
  bool dense;
  bool later;
};

// As in storages.py.
constexpr size_t SWEEP_EVERY = 4096, SWEEP_BYTES = size_t{16} << 20, SWEEP_BYTES_EACH = size_t{8} << 10;

// Weak references to storages are those of torch.UntypedStorage._weak_ref: the address of the StorageImpl.
inline c10::intrusive_ptr_target* storage_at(u64 address) {
  return reinterpret_cast<c10::StorageImpl*>(address);  // NOLINT: an address that is kept as a number
}

inline void follow_weakly(u64 address) { c10::raw::intrusive_ptr::make_weak(storage_at(address)); }
inline bool is_dead(u64 address) { return c10::raw::weak_intrusive_ptr::use_count(storage_at(address)) == 0; }
inline void forget_weakly(u64 address) { c10::raw::weak_intrusive_ptr::decref(storage_at(address)); }

// What follows from an operator and a signature (``Call`` in calls.py).
struct Call {
  u32 op, structure, scalars;
  bool is_view, computes, draws, returns_new, copies, is_number, is_allocation, only_allocates, has_arrived, is_partial,
      is_custom, arrives, may_reshape;
  std::vector<size_t> written;
  std::vector<char> overwritten;  // by place; empty where none is
  std::vector<char> aliased;      // by return
  std::vector<i64> scratch;
  bool has_factor = false, factor_is_float = false;
  size_t factor_from_end = 0;
  std::vector<Layout> layouts;
  py::object python, plan;

  // The helpers in Python look at the op's tensors after it has run.
  bool keeps_tensors() const { return !written.empty() || copies || !(computes || is_view || is_number); }
};

// The tables of one process (``StorageTables`` in storages.py), and what its threads have seen.
struct State {
  Mutex mutex;
  AddressMap<u64> handles;
  AddressMap<std::shared_ptr<Special>> special;
  Reads reads;
  std::vector<u64> recent;
  size_t recent_bytes = 0;
  std::vector<std::shared_ptr<Writers>> writers;
  size_t sweep_at = 4 * SWEEP_EVERY;
  bool has_rare_entries = false;  // Python's own tables have entries, too

  KeyTable<Layout> layouts;
  KeyTable<std::unique_ptr<Call>> calls;
  KeyTable<u32> sites;
  u64 sites_cleared = 0, settings_era = 0;

  ~State() { clear(); }

  // Drop all entries, but those in ``special``.
  void clear() {
    handles.each([](u64 address, u64) { forget_weakly(address); });
    handles.clear();
    reads.clear();
    recent.clear();
    recent_bytes = 0;
    for (auto& table : writers) {
      table->current.clear();
      table->earlier.clear();
    }
  }

  // Follow a storage with so many bytes in host memory from now on; whether a sweep is due.
  bool follow(u64 address, size_t nbytes) {
    follow_weakly(address);
    handles.set(address, address);
    return add_recent(address, nbytes);
  }

  bool add_recent(u64 address, size_t nbytes) {
    recent.push_back(address);
    recent_bytes += nbytes;
    return recent.size() >= SWEEP_EVERY || are_many_bytes();
  }

  bool are_many_bytes() const { return recent_bytes >= std::max(SWEEP_BYTES, SWEEP_BYTES_EACH * handles.size()); }

  // Add a storage to ``special``. Its writers are no longer looked up without it.
  std::shared_ptr<Special> add_special(u64 address, i64 nbytes, bool is_foreign) {
    auto added = std::make_shared<Special>(Special{nbytes, is_foreign});
    special.set(address, added);
    for (auto& table : writers) {
      const i64* writer = table->current.find(address);
      if (writer == nullptr) continue;
      table->earlier.set(address, *writer);
      table->current.erase(address);
    }
    return added;
  }

  // Drop what is known of dead storages: the recent ones each time, all when their number has doubled, or where the
  // recent ones are large. Returns them; the entries in ``special`` are left to the caller, who needs the interpreter
  // to drop them.
  std::vector<u64> sweep() {
    const bool whole = handles.size() >= sweep_at || are_many_bytes();
    std::vector<u64> candidates, dead;
    if (whole)
      handles.each([&](u64 address, u64) { candidates.push_back(address); });
    else
      candidates.swap(recent);
    for (u64 address : candidates) {
      if (!handles.contains(address) || !is_dead(address)) continue;
      for (auto& table : writers)
        if (!table->current.erase(address)) table->earlier.erase(address);
      reads.pop(address);
      handles.erase(address);
      forget_weakly(address);
      dead.push_back(address);
    }
    recent.clear();
    recent_bytes = 0;
    if (whole) sweep_at = std::max(4 * SWEEP_EVERY, 2 * handles.size());
    return dead;
  }
};

}  // namespace rltrace

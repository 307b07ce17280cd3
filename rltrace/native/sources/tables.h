// Hash tables of the hot path, with open addressing: keys of several words, and addresses.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "digest.h"

namespace rltrace {

using i64 = int64_t;
using u32 = uint32_t;
using u64 = uint64_t;

// A key: words, of which many are appended one by one.
class Words {
 public:
  void add(u64 word) {
    if (size_ == words_.size()) words_.resize(2 * size_);
    words_[size_++] = word;
  }

  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  const u64* data() const { return words_.data(); }
  u64& operator[](size_t at) { return words_[at]; }

  // Of no importance beyond this process, so a quick one.
  u64 hash() const {
    u64 state = size_ * digests::PRIME64_1;
    for (size_t at = 0; at + 1 < size_; at += 2)
      state = digests::fold(state ^ words_[at], digests::PRIME64_2 ^ words_[at + 1]);
    if (size_ % 2 != 0) state = digests::fold(state ^ words_[size_ - 1], digests::PRIME64_3);
    return digests::avalanche(state);
  }

 private:
  std::vector<u64> words_ = std::vector<u64>(128);
  size_t size_ = 0;
};

// Values by exact keys.
template <class V>
class KeyTable {
 public:
  V* find(const Words& key, u64 hash) {
    for (size_t slot = hash & mask();; slot = (slot + 1) & mask()) {
      const int32_t number = slots_[slot];
      if (number < 0) return nullptr;
      Entry& entry = entries_[number];
      if (entry.hash == hash && entry.size == key.size() &&
          std::memcmp(&words_[entry.start], key.data(), key.size() * sizeof(u64)) == 0)
        return &entry.value;
    }
  }

  void add(const Words& key, u64 hash, V value) {
    if ((entries_.size() + 1) * 2 > slots_.size()) grow();
    put(hash, static_cast<int32_t>(entries_.size()));
    entries_.push_back({hash, words_.size(), key.size(), std::move(value)});
    words_.insert(words_.end(), key.data(), key.data() + key.size());
  }

  void clear() {
    entries_.clear();
    words_.clear();
    slots_.assign(256, -1);
  }

 private:
  struct Entry {
    u64 hash;
    size_t start, size;
    V value;
  };

  size_t mask() const { return slots_.size() - 1; }

  void put(u64 hash, int32_t number) {
    size_t slot = hash & mask();
    while (slots_[slot] >= 0) slot = (slot + 1) & mask();
    slots_[slot] = number;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, -1);
    for (size_t number = 0; number < entries_.size(); ++number)
      put(entries_[number].hash, static_cast<int32_t>(number));
  }

  std::vector<Entry> entries_;
  std::vector<u64> words_;
  std::vector<int32_t> slots_ = std::vector<int32_t>(256, -1);
};

// Values by address; 0 is no address.
template <class V>
class AddressMap {
 public:
  V* find(u64 address) {
    if (address == 0) return nullptr;
    for (size_t slot = home(address); addresses_[slot] != 0; slot = next(slot))
      if (addresses_[slot] == address) return &values_[slot];
    return nullptr;
  }

  bool contains(u64 address) { return find(address) != nullptr; }

  void set(u64 address, V value) {
    if (address == 0) return;
    if (V* found = find(address)) {
      *found = std::move(value);
      return;
    }
    if ((size_ + 1) * 2 > addresses_.size()) grow();
    put(address, std::move(value));
    ++size_;
  }

  bool erase(u64 address) {
    V* found = find(address);
    if (found == nullptr) return false;
    size_t hole = static_cast<size_t>(found - values_.data());
    for (size_t slot = next(hole); addresses_[slot] != 0; slot = next(slot)) {
      const size_t from = home(addresses_[slot]);
      const bool stays = hole <= slot ? hole < from && from <= slot : hole < from || from <= slot;
      if (stays) continue;
      addresses_[hole] = addresses_[slot];
      values_[hole] = std::move(values_[slot]);
      hole = slot;
    }
    addresses_[hole] = 0;
    values_[hole] = V();
    --size_;
    return true;
  }

  void clear() {
    if (size_ == 0) return;
    addresses_.assign(FEWEST, 0);
    values_.assign(FEWEST, V());
    size_ = 0;
  }

  size_t size() const { return size_; }

  template <class Visit>
  void each(Visit visit) {
    for (size_t slot = 0; slot < addresses_.size(); ++slot)
      if (addresses_[slot] != 0) visit(addresses_[slot], values_[slot]);
  }

 private:
  static constexpr size_t FEWEST = 1024;

  size_t home(u64 address) const {
    const u64 mixed = (address >> 4) * 0x9E3779B97F4A7C15;
    return (mixed ^ mixed >> 29) & (addresses_.size() - 1);
  }
  size_t next(size_t slot) const { return (slot + 1) & (addresses_.size() - 1); }

  void put(u64 address, V value) {
    size_t slot = home(address);
    while (addresses_[slot] != 0) slot = next(slot);
    addresses_[slot] = address;
    values_[slot] = std::move(value);
  }

  void grow() {
    std::vector<u64> addresses(addresses_.size() * 2, 0);
    std::vector<V> values(addresses.size());
    addresses.swap(addresses_);
    values.swap(values_);
    for (size_t slot = 0; slot < addresses.size(); ++slot)
      if (addresses[slot] != 0) put(addresses[slot], std::move(values[slot]));
  }

  std::vector<u64> addresses_ = std::vector<u64>(FEWEST, 0);
  std::vector<V> values_ = std::vector<V>(FEWEST);
  size_t size_ = 0;
};

}  // namespace rltrace

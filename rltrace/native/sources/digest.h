// The digest of bytes in host memory: XXH3 of pages of 16 KiB, as in rltrace/digest/reference.py.
//
// Follows the XXH3 specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). The loop over stripes is compiled
// for several instruction sets, one of which the loader chooses; all give the same bits.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define RLTRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define RLTRACE_CLONES
#endif

namespace rltrace::digests {

using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

constexpr size_t PAGE_BYTES = 16384;
constexpr size_t STRIPE = 64, BLOCK = 1024, LANES = 8;

constexpr u32 PRIME32_1 = 0x9E3779B1, PRIME32_2 = 0x85EBCA77, PRIME32_3 = 0xC2B2AE3D;
constexpr u64 PRIME64_1 = 0x9E3779B185EBCA87, PRIME64_2 = 0xC2B2AE3D27D4EB4F, PRIME64_3 = 0x165667B19E3779F9;
constexpr u64 PRIME64_4 = 0x85EBCA77C2B2AE63, PRIME64_5 = 0x27D4EB2F165667C5;
constexpr u64 PRIME_MX1 = 0x165667919E3779F9, PRIME_MX2 = 0x9FB21C651E98DF25;

alignas(64) constexpr u8 SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

template <class T>
T read(const u8* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline u64 fold(u64 a, u64 b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<u64>(product) ^ static_cast<u64>(product >> 64);
}

inline u64 rotate(u64 value, int by) { return value << by | value >> (64 - by); }

inline u64 avalanche(u64 value) {
  value ^= value >> 37;
  value *= PRIME_MX1;
  return value ^ value >> 32;
}

inline u64 avalanche_xxh64(u64 value) {
  value ^= value >> 33;
  value *= PRIME64_2;
  value ^= value >> 29;
  value *= PRIME64_3;
  return value ^ value >> 32;
}

inline u64 mix16(const u8* data, const u8* secret, u64 seed) {
  return fold(read<u64>(data) ^ (read<u64>(secret) + seed), read<u64>(data + 8) ^ (read<u64>(secret + 8) - seed));
}

inline u64 up_to_3(const u8* data, size_t n, u64 seed) {
  const u32 combined = data[n - 1] | static_cast<u32>(n) << 8 | u32{data[0]} << 16 | u32{data[n >> 1]} << 24;
  return avalanche_xxh64(((read<u32>(SECRET) ^ read<u32>(SECRET + 4)) + seed) ^ combined);
}

inline u64 up_to_8(const u8* data, size_t n, u64 seed) {
  seed ^= u64{__builtin_bswap32(static_cast<u32>(seed))} << 32;
  const u64 combined = read<u32>(data + n - 4) | u64{read<u32>(data)} << 32;
  u64 value = ((read<u64>(SECRET + 8) ^ read<u64>(SECRET + 16)) - seed) ^ combined;
  value ^= rotate(value, 49) ^ rotate(value, 24);
  value *= PRIME_MX2;
  value ^= (value >> 35) + n;
  value *= PRIME_MX2;
  return value ^ value >> 28;
}

inline u64 up_to_16(const u8* data, size_t n, u64 seed) {
  const u64 low = ((read<u64>(SECRET + 24) ^ read<u64>(SECRET + 32)) + seed) ^ read<u64>(data);
  const u64 high = ((read<u64>(SECRET + 40) ^ read<u64>(SECRET + 48)) - seed) ^ read<u64>(data + n - 8);
  return avalanche(n + __builtin_bswap64(low) + high + fold(low, high));
}

inline u64 up_to_128(const u8* data, size_t n, u64 seed) {
  u64 total = n * PRIME64_1;
  for (size_t i = 0; i <= (n - 1) / 32; ++i) {
    total += mix16(data + 16 * i, SECRET + 32 * i, seed);
    total += mix16(data + n - 16 * (i + 1), SECRET + 32 * i + 16, seed);
  }
  return avalanche(total);
}

inline u64 up_to_240(const u8* data, size_t n, u64 seed) {
  u64 total = n * PRIME64_1;
  for (size_t i = 0; i < 8; ++i) total += mix16(data + 16 * i, SECRET + 16 * i, seed);
  total = avalanche(total);
  for (size_t i = 8; i < n / 16; ++i) total += mix16(data + 16 * i, SECRET + 16 * (i - 8) + 3, seed);
  return avalanche(total + mix16(data + n - 16, SECRET + 136 - 17, seed));
}

using Lanes = u64 __attribute__((vector_size(STRIPE)));

inline __attribute__((always_inline)) void accumulate(Lanes& lanes, const u8* data, const u8* secret) {
  Lanes values, keys;
  std::memcpy(&values, data, sizeof values);
  std::memcpy(&keys, secret, sizeof keys);
  const Lanes keyed = values ^ keys;
  const Lanes products = (keyed & 0xFFFFFFFF) * (keyed >> 32);
  lanes += __builtin_shufflevector(values, values, 1, 0, 3, 2, 5, 4, 7, 6) + products;
}

// The lanes after all stripes of more than 240 bytes; ``secret`` is the secret under the seed.
RLTRACE_CLONES inline void accumulate_all(u64* result, const u8* data, size_t n, const u8* secret) {
  Lanes lanes, scramble;  // in registers: the bytes at ``data`` might be anything's
  std::memcpy(&lanes, result, sizeof lanes);
  std::memcpy(&scramble, secret + 128, sizeof scramble);
  const size_t whole_blocks = (n - 1) / BLOCK;
  for (size_t block = 0; block < whole_blocks; ++block) {
    for (size_t stripe = 0; stripe < BLOCK / STRIPE; ++stripe)
      accumulate(lanes, data + BLOCK * block + STRIPE * stripe, secret + 8 * stripe);
    lanes = (lanes ^ lanes >> 47 ^ scramble) * PRIME32_1;
  }
  for (size_t stripe = 0; stripe < (n - 1 - BLOCK * whole_blocks) / STRIPE; ++stripe)
    accumulate(lanes, data + BLOCK * whole_blocks + STRIPE * stripe, secret + 8 * stripe);
  accumulate(lanes, data + n - STRIPE, secret + sizeof SECRET - STRIPE - 7);
  std::memcpy(result, &lanes, sizeof lanes);
}

inline u64 over_240(const u8* data, size_t n, u64 seed) {
  alignas(64) u8 secret[sizeof SECRET];
  for (size_t i = 0; i < sizeof SECRET; i += 16) {
    const u64 pair[2] = {read<u64>(SECRET + i) + seed, read<u64>(SECRET + i + 8) - seed};
    std::memcpy(secret + i, pair, sizeof pair);
  }
  alignas(64) u64 lanes[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                  PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
  accumulate_all(lanes, data, n, secret);
  u64 total = n * PRIME64_1;
  for (size_t i = 0; i < 4; ++i)
    total += fold(lanes[2 * i] ^ read<u64>(secret + 11 + 16 * i), lanes[2 * i + 1] ^ read<u64>(secret + 19 + 16 * i));
  return avalanche(total);
}

inline u64 xxh3(const void* bytes, size_t n, u64 seed) {
  const auto* data = static_cast<const u8*>(bytes);
  if (n == 0) return avalanche_xxh64(seed ^ read<u64>(SECRET + 56) ^ read<u64>(SECRET + 64));
  if (n <= 3) return up_to_3(data, n, seed);
  if (n <= 8) return up_to_8(data, n, seed);
  if (n <= 16) return up_to_16(data, n, seed);
  if (n <= 128) return up_to_128(data, n, seed);
  if (n <= 240) return up_to_240(data, n, seed);
  return over_240(data, n, seed);
}

// Digest of ``n`` bytes: of one page directly, of more by the digests of their pages.
inline u64 digest(const void* bytes, size_t n, u64 seed) {
  if (n <= PAGE_BYTES) return xxh3(bytes, n, seed);
  const auto* data = static_cast<const u8*>(bytes);
  std::vector<u64> pages;
  pages.reserve(n / PAGE_BYTES + 1);
  for (size_t at = 0; at < n; at += PAGE_BYTES)
    pages.push_back(xxh3(data + at, n - at < PAGE_BYTES ? n - at : PAGE_BYTES, seed));
  return digest(pages.data(), pages.size() * sizeof(u64), seed);
}

}  // namespace rltrace::digests

// Digests of the arrays that a program compiled by XLA has in memory, taken within that program.
//
// The program gets the address of a log as an argument and passes it on from one custom call to the next, so that the
// calls run in its order. A custom call digests its arrays where they are and appends the digests; nothing is copied,
// and no array is written. Never fails the program: what cannot be digested is not in the log, and the host counts.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "digest.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using rltrace::digests::digest;
using rltrace::digests::u64;
using rltrace::digests::u8;

#define RLTRACE_C extern "C" __attribute__((visibility("default")))

namespace {

struct Log {
  int64_t stride = 1;  // every so many iterations one is digested
  int64_t start = 0;   // of the piece of the loop
  int64_t stop = 0;    // and its last iteration is digested, too
  bool within = false;  // whether values within iterations are digested
  std::atomic<int64_t> at = 0;  // the iteration that has begun last, where the program notes that
  std::vector<u64> entries;
};

template <class T>
T scalar(ffi::RemainingArgs args, size_t i) {
  T value{};
  if (auto buffer = args.get<ffi::AnyBuffer>(i); buffer.has_value() && buffer->size_bytes() == sizeof value)
    std::memcpy(&value, buffer->untyped_data(), sizeof value);
  return value;
}

std::string with_number(std::string_view text, int64_t number) {
  const size_t at = text.find('#');
  return std::string(text.substr(0, at)).append(std::to_string(number)).append(text.substr(at + 1));
}

// Arguments: the log; the iteration that ends; the row that it wrote of stacked arrays; the arrays, of which the first
// have a seed each, and the others are stacked. Of those, the rows since the iteration digested before; ``stacked``:
// their layouts, each followed by a semicolon, with "#" for the number of rows.
ffi::Error digest_iteration(ffi::RemainingArgs args, ffi::Span<const int64_t> seeds, std::string_view stacked,
                            bool reverse, ffi::ResultBuffer<ffi::U32> passed_on) {
  constexpr size_t FIRST = 3;
  auto* log = reinterpret_cast<Log*>(scalar<u64>(args, 0));
  std::memcpy(passed_on->untyped_data(), &log, sizeof log);
  const int64_t at = scalar<int32_t>(args, 1), row = scalar<int32_t>(args, 2);
  if (!log || ((at + 1) % log->stride && at + 1 != log->stop)) return ffi::Error::Success();
  const int64_t rows = at + 1 - std::max(log->start, at / log->stride * log->stride);
  for (size_t i = FIRST; i < args.size(); ++i) {
    auto array = args.get<ffi::AnyBuffer>(i);
    if (!array.has_value()) break;
    const auto* data = static_cast<const u8*>(array->untyped_data());
    if (i - FIRST < seeds.size()) {
      log->entries.push_back(digest(data, array->size_bytes(), static_cast<u64>(seeds[i - FIRST])));
      continue;
    }
    const size_t size = array->size_bytes() / array->dimensions()[0], end = stacked.find(';');
    const std::string layout = with_number(stacked.substr(0, end), rows);
    stacked.remove_prefix(end + 1);
    const u8* first = data + (reverse ? row : row + 1 - rows) * size;
    log->entries.push_back(digest(first, rows * size, digest(layout.data(), layout.size(), 0)));
  }
  return ffi::Error::Success();
}

// Arguments: the log; values within an iteration, with a seed each.
ffi::Error digest_values(ffi::RemainingArgs args, ffi::Span<const int64_t> seeds,
                         ffi::ResultBuffer<ffi::U32> passed_on) {
  auto* log = reinterpret_cast<Log*>(scalar<u64>(args, 0));
  std::memcpy(passed_on->untyped_data(), &log, sizeof log);
  if (!log || !log->within) return ffi::Error::Success();
  for (size_t i = 0; i < seeds.size(); ++i) {
    auto array = args.get<ffi::AnyBuffer>(i + 1);
    if (!array.has_value()) break;
    const auto* data = static_cast<const u8*>(array->untyped_data());
    log->entries.push_back(digest(data, array->size_bytes(), static_cast<u64>(seeds[i])));
  }
  return ffi::Error::Success();
}

// Arguments: the log; the iteration that begins, which is the result, too.
ffi::Error begin_iteration(ffi::RemainingArgs args, ffi::ResultBuffer<ffi::S32> passed_on) {
  const int32_t at = scalar<int32_t>(args, 1);
  std::memcpy(passed_on->untyped_data(), &at, sizeof at);
  if (auto* log = reinterpret_cast<Log*>(scalar<u64>(args, 0))) log->at = at;
  return ffi::Error::Success();
}

}  // namespace

RLTRACE_C XLA_FFI_Error* rltrace_digest_iteration(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .RemainingArgs()
                                   .Attr<ffi::Span<const int64_t>>("seeds")
                                   .Attr<std::string_view>("stacked")
                                   .Attr<bool>("reverse")
                                   .Ret<ffi::Buffer<ffi::U32>>()
                                   .To(digest_iteration)
                                   .release();
  return handler->Call(frame);
}

RLTRACE_C XLA_FFI_Error* rltrace_digest_values(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .RemainingArgs()
                                   .Attr<ffi::Span<const int64_t>>("seeds")
                                   .Ret<ffi::Buffer<ffi::U32>>()
                                   .To(digest_values)
                                   .release();
  return handler->Call(frame);
}

RLTRACE_C XLA_FFI_Error* rltrace_begin_iteration(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::Bind().RemainingArgs().Ret<ffi::Buffer<ffi::S32>>().To(begin_iteration).release();
  return handler->Call(frame);
}

RLTRACE_C void* rltrace_log_new() { return new Log; }
RLTRACE_C void rltrace_log_delete(void* log) { delete static_cast<Log*>(log); }

// Begin a piece of the loop.
RLTRACE_C void rltrace_log_begin(void* log, int64_t stride, int64_t start, int64_t stop, int64_t within) {
  auto* each = static_cast<Log*>(log);
  each->stride = stride;
  each->at = each->start = start;
  each->stop = stop;
  each->within = within != 0;
  each->entries.clear();
}

RLTRACE_C size_t rltrace_log_size(const void* log) { return static_cast<const Log*>(log)->entries.size(); }
RLTRACE_C const u64* rltrace_log_entries(const void* log) { return static_cast<const Log*>(log)->entries.data(); }

// Iterations of the piece that have ended.
RLTRACE_C int64_t rltrace_log_ended(const void* log) {
  const auto* each = static_cast<const Log*>(log);
  return each->at - each->start;
}

RLTRACE_C u64 rltrace_digest(const void* bytes, size_t size, u64 seed) { return digest(bytes, size, seed); }

// What keeps the functions of torch as they are without the recorder.
//
// Some 50 functions of libtorch choose other ops where a dispatch mode is on: results out of place instead of in place,
// or another algorithm, with other bits (``linalg.eigvalsh`` computes vectors, too; the backward of ``prod`` multiplies
// where it would divide). They ask ``c10::impl::dispatch_mode_enabled``, a function of another library, through the table of
// addresses that the loader fills (the global offset table). There the recorder puts a function that passes over its own
// mode, so that the program runs the ops that it runs unrecorded.

#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/python_headers.h>

#include <string_view>
#include <unordered_map>

#ifdef __linux__
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>
#endif

namespace rltrace::hidden_mode {

inline PyTypeObject* hidden = nullptr;  // the type of the recorder's modes

#ifdef __linux__

// Whether torch is summing up the gradients that reach a node (``InputBuffer::add``), by the innermost functions.
inline bool sums_gradients() {
  struct Search {
    int frames = 0;
    bool found = false;
  } search;
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* given) {
        auto& search = *static_cast<Search*>(given);
        Dl_info info{};
        void* const start = _Unwind_FindEnclosingFunction(reinterpret_cast<void*>(_Unwind_GetIP(frame) - 1));
        if (start != nullptr && dladdr(start, &info) != 0 && info.dli_sname != nullptr)
          search.found = std::string_view(info.dli_sname).find("InputBuffer3add") != std::string_view::npos;
        return search.found || ++search.frames == 6 ? _URC_END_OF_STACK : _URC_NO_REASON;
      },
      &search);
  return search.found;
}

// ``c10::impl::dispatch_mode_enabled``, where a mode of the recorder alone does not count. It does where torch sums up
// gradients, in place if nothing else holds them: the engine in Python holds them, so both have the sums out of place.
[[gnu::noinline]] inline bool program_has_mode() {
  using Modes = c10::impl::TorchDispatchModeTLS;
  if (!c10::impl::dispatch_mode_enabled()) return false;
  if (Modes::stack_len() != 1 || Py_TYPE(Modes::get_stack_at(0)->ptr(getPyInterpreter())) != hidden) return true;
  thread_local std::unordered_map<const void*, bool> callers;  // each is looked at once
  const void* const caller = __builtin_return_address(0);
  const auto known = callers.find(caller);
  return known != callers.end() ? known->second : callers.emplace(caller, sums_gradients()).first->second;
}

constexpr std::string_view ASKED = "_ZN3c104impl21dispatch_mode_enabledEv";

#if defined(__aarch64__)
constexpr auto IS_IMPORT = [](auto type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT; };
#elif defined(__x86_64__)
constexpr auto IS_IMPORT = [](auto type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT; };
#else
constexpr auto IS_IMPORT = [](auto) { return false; };
#endif

// Write an address into a table of imports, of which the loader has made a part read-only.
inline bool write_import(ElfW(Addr) at, ElfW(Addr) read_only, ElfW(Addr) read_only_end) {
  const auto page = static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE));
  auto* const start = reinterpret_cast<void*>(at & ~(page - 1));
  const bool is_protected = at >= read_only && at < read_only_end;
  if (is_protected && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(reinterpret_cast<void**>(at), reinterpret_cast<void*>(&program_has_mode), __ATOMIC_RELEASE);
  if (is_protected) mprotect(start, page, PROT_READ);
  return true;
}

// Replace the function in one loaded object, if it is a library of torch's functions.
inline int replace_in(dl_phdr_info* object, size_t, void* replaced) {
  const std::string_view path(object->dlpi_name == nullptr ? "" : object->dlpi_name);
  if (path.find("/libtorch_c") == path.npos) return 0;  // libtorch_cpu, libtorch_cuda
  const ElfW(Addr) base = object->dlpi_addr;
  const ElfW(Dyn)* entry = nullptr;
  ElfW(Addr) read_only = 0, read_only_end = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type == PT_DYNAMIC) entry = reinterpret_cast<const ElfW(Dyn)*>(base + part.p_vaddr);
    if (part.p_type != PT_GNU_RELRO) continue;
    read_only = base + part.p_vaddr;
    read_only_end = read_only + part.p_memsz;
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  struct {
    const ElfW(Rela)* first;
    size_t bytes;
  } imports[2] = {};
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    const auto value = entry->d_un.d_ptr, address = value < base ? base + value : value;  // glibc has added the base
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_JMPREL) imports[0].first = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_PLTRELSZ) imports[0].bytes = value;
    if (entry->d_tag == DT_RELA) imports[1].first = reinterpret_cast<const ElfW(Rela)*>(address);
    if (entry->d_tag == DT_RELASZ) imports[1].bytes = value;
  }
  if (symbols == nullptr || names == nullptr) return 0;
  for (const auto& [first, bytes] : imports) {
    for (size_t i = 0; first != nullptr && i < bytes / sizeof *first; ++i) {
      if (!IS_IMPORT(ELF64_R_TYPE(first[i].r_info))) continue;
      if (names + symbols[ELF64_R_SYM(first[i].r_info)].st_name != ASKED) continue;
      if (write_import(base + first[i].r_offset, read_only, read_only_end)) ++*static_cast<int*>(replaced);
    }
  }
  return 0;
}

#endif

// Pass over modes of this type from now on; the number of libraries in which torch's functions do so.
inline int hide(PyTypeObject* type) {
  int replaced = 0;
  hidden = type;
#ifdef __linux__
  dl_iterate_phdr(replace_in, &replaced);
#endif
  return replaced;
}

}  // namespace rltrace::hidden_mode

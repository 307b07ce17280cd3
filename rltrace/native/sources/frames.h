// The Python frames of a thread, read without the interpreter's lock.
//
// Only the frames of the calling thread, or of a thread that waits for it, are read: these do not change meanwhile.
// The structures are CPython's own and differ between its minor versions, so this file is compiled for one of them.

#pragma once

#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include "tables.h"

#ifdef Py_GIL_DISABLED
#error "the native engine relies on the interpreter's lock, which this CPython has not"
#endif
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "the native engine knows the frames of CPython 3.11 to 3.13"
#endif

namespace rltrace::frames {

using Frame = _PyInterpreterFrame;

// The nearest complete frame from ``frame`` outwards; frames of C code and unfinished calls are passed over.
inline Frame* complete(Frame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return _PyFrame_GetFirstComplete(frame);
#else
  while (frame != nullptr && _PyFrame_IsIncomplete(frame)) frame = frame->previous;
  return frame;
#endif
}

// The innermost frame of the calling thread; nullptr in a thread that runs no Python.
inline Frame* innermost() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  return complete(thread->current_frame);
#else
  return complete(thread->cframe->current_frame);
#endif
}

inline Frame* of(PyObject* frame) { return reinterpret_cast<PyFrameObject*>(frame)->f_frame; }

inline Frame* outer(Frame* frame) { return complete(frame->previous); }

// Append two words for every frame from ``frame`` outwards, its code and its position there; whether ``sought`` is one.
inline bool walk(Frame* frame, const Frame* sought, Words& words) {
  bool found = false;
  for (; frame != nullptr; frame = outer(frame)) {
    found |= frame == sought;
#if PY_VERSION_HEX >= 0x030D0000
    words.add(reinterpret_cast<u64>(frame->f_executable));
    words.add(reinterpret_cast<u64>(frame->instr_ptr));
#else
    words.add(reinterpret_cast<u64>(frame->f_code));
    words.add(reinterpret_cast<u64>(frame->prev_instr));
#endif
  }
  return found;
}

}  // namespace rltrace::frames

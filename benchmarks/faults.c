/* Faults of the system, for a process that loads this with LD_PRELOAD: a system call on the files below one folder
   fails, an allocation of one thread fails, or every change of those files is logged.

   cc -shared -fPIC -O1 -ftls-model=initial-exec -o faults.so faults.c -ldl

   Functions that the process calls (ctypes.CDLL(None)):
     faults_calls(folder, nth, error, ever)  the nth system call from now on fails with errno `error`; ever 1: and all
                                             after it, 2: and all writes after it; nth 0: none does, they are counted
     faults_short(nth)                       that call, if it is a write, writes half of its bytes first
     faults_counted()                        system calls since then
     faults_log(path)                        append every change to this file, NULL: no more; format: see faults.py
     faults_allocations(nth)                 the nth allocation of this thread fails; 0: none, they are counted
     faults_allocated()                      allocations of this thread since then */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[4096];
static size_t folder_length;
static long counted, failing, shortened;
static int error_number, is_ever, log_file = -1;
static char *names[FILES]; /* of open files below the folder */

static int is_below(const char *path) {
    return folder_length && path && !strncmp(path, folder, folder_length);
}

static const char *name_of(int file) {
    return file >= 0 && file < FILES ? names[file] : NULL;
}

void faults_calls(const char *path, long nth, int error, int ever) {
    pthread_mutex_lock(&lock);
    strncpy(folder, path, sizeof folder - 1);
    folder_length = strlen(folder);
    counted = shortened = 0;
    failing = nth;
    error_number = error;
    is_ever = ever;
    pthread_mutex_unlock(&lock);
}

void faults_short(long nth) { shortened = nth; }
long faults_counted(void) { return counted; }

void faults_log(const char *path) {
    if (log_file >= 0) syscall(SYS_close, log_file);
    log_file = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
}


/* Count a call; whether it fails. */
static int fails_as(int is_write) {
    pthread_mutex_lock(&lock);
    long number = ++counted;
    pthread_mutex_unlock(&lock);
    int is_after = is_ever == 1 || (is_ever == 2 && is_write);
    if (!failing || (is_after ? number < failing : number != failing)) return 0;
    errno = error_number;
    return 1;
}

static int fails(void) { return fails_as(0); }

/* One change: its letter, the lengths of two names and of the data, the offset; then names and data. */
static void note(char what, const char *one, const char *two, int64_t offset, const void *data, uint64_t length) {
    if (log_file < 0 || !one) return;
    struct __attribute__((packed)) { char what; uint32_t one, two; int64_t offset; uint64_t length; } head = {
        what, strlen(one), two ? strlen(two) : 0, offset, length};
    int before = errno;
    pthread_mutex_lock(&lock);
    syscall(SYS_write, log_file, &head, sizeof head);
    syscall(SYS_write, log_file, one, head.one);
    if (two) syscall(SYS_write, log_file, two, head.two);
    if (length && data) syscall(SYS_write, log_file, data, length);
    pthread_mutex_unlock(&lock);
    errno = before;
}

static int opened(int file, const char *path, int flags, int existed) {
    if (file >= 0 && file < FILES) {
        free(names[file]);
        names[file] = strdup(path);
        if (!existed && flags & O_CREAT) note('c', path, NULL, 0, NULL, 0);
        if (existed && flags & O_TRUNC) note('t', path, NULL, 0, NULL, 0);
    }
    return file;
}

static int open_at(int at, const char *path, int flags, int mode) {
    if (!is_below(path)) return syscall(SYS_openat, at, path, flags, mode);
    if (fails()) return -1;
    int existed = syscall(SYS_faccessat, at, path, F_OK) == 0;
    return opened(syscall(SYS_openat, at, path, flags, mode), path, flags, existed);
}

#define MODE(flags)                                                                                                    \
    int mode = 0;                                                                                                      \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode = va_arg(list, int);                                                                                      \
        va_end(list);                                                                                                  \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_at(at, path, flags, mode); }

int close(int file) {
    const char *name = name_of(file);
    if (!name) return syscall(SYS_close, file);
    free(names[file]);
    names[file] = NULL;
    int failed = fails(), number = errno; /* the file is closed all the same, as on Linux */
    int done = syscall(SYS_close, file);
    errno = number;
    return failed ? -1 : done;
}

int fcntl64(int file, int command, ...) {
    static int (*real)(int, int, void *);
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (!real) real = (int (*)(int, int, void *))dlsym(RTLD_NEXT, "fcntl64");
    int copy = real(file, command, argument);
    if (copy >= 0 && copy < FILES && name_of(file) && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) {
        free(names[copy]);
        names[copy] = strdup(names[file]);
    }
    return copy;
}

ssize_t write(int file, const void *data, size_t length) {
    const char *name = name_of(file);
    if (!name) return syscall(SYS_write, file, data, length);
    int failed = fails_as(1);
    if (failed && !(shortened && counted == shortened && length > 1)) return -1;
    int64_t offset = syscall(SYS_lseek, file, 0, SEEK_CUR);
    ssize_t done = syscall(SYS_write, file, data, failed ? length / 2 : length);
    if (done > 0) note('w', name, NULL, offset, data, done);
    return done;
}

ssize_t read(int file, void *data, size_t length) {
    if (name_of(file) && fails()) return -1;
    return syscall(SYS_read, file, data, length);
}

int ftruncate64(int file, off64_t length) {
    const char *name = name_of(file);
    if (name && fails()) return -1;
    int done = syscall(SYS_ftruncate, file, length);
    if (!done && name) note('l', name, NULL, length, NULL, 0);
    return done;
}

int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

int fstat64(int file, struct stat64 *status) {
    static int (*real)(int, struct stat64 *);
    if (!real) real = (int (*)(int, struct stat64 *))dlsym(RTLD_NEXT, "fstat64");
    if (name_of(file) && fails()) return -1;
    return real(file, status);
}

int fstat(int file, struct stat *status) { return fstat64(file, (struct stat64 *)status); }

int fsync(int file) {
    if (name_of(file) && fails()) return -1;
    int done = syscall(SYS_fsync, file);
    if (!done) note('s', name_of(file), NULL, 0, NULL, 0);
    return done;
}

#define CHANGE(what, one, two, call)                                                                                   \
    if (!is_below(one)) return call;                                                                                   \
    if (fails()) return -1;                                                                                            \
    int done = call;                                                                                                   \
    if (!done) note(what, one, two, 0, NULL, 0);                                                                       \
    return done;

int rename(const char *from, const char *to) { CHANGE('r', from, to, syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)) }
int unlink(const char *path) { CHANGE('u', path, NULL, syscall(SYS_unlinkat, AT_FDCWD, path, 0)) }
int mkdir(const char *path, mode_t mode) { CHANGE('d', path, NULL, syscall(SYS_mkdirat, AT_FDCWD, path, mode)) }
int link(const char *from, const char *to) { CHANGE('k', from, to, syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0)) }

/* --- allocations ------------------------------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static __thread long allocated, missing;

void faults_allocations(long nth) {
    allocated = 0;
    missing = nth;
}

long faults_allocated(void) { return allocated; }

static int is_missing(void) {
    if (++allocated != missing) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return is_missing() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return is_missing() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return is_missing() ? NULL : __libc_realloc(old, size); }

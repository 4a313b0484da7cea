/* A disk that fails, is full, writes half, tells lies, or takes the process with it. Preloaded into a process under test.

   While the file named by FAULT_ORDER exists it holds one order: `KIND CALLS PATH FIRST COUNT NUMBER`.
     KIND   eio | enospc   the call fails so
            short          a write takes half of the bytes, and says so
            quota          a write fails so (EDQUOT), and while the order stands no file is allocated any room
            brim           as short, and no file is allocated any room: the last bytes of a quota
            kill           SIGKILL instead of the call
            tear           half of the bytes are written, then SIGKILL
            lie            a flush does nothing and says that it was done; files are opened without O_DSYNC
     CALLS  write | sync | any
     PATH   part of the name of the file that the call is about, or *
     FIRST  the fault comes at the call of this number, counted from when the order was first seen
     COUNT  and at so many calls in all; 0: at every later one too
     NUMBER of the order; with another one the count of calls begins anew
   Each fault appends a byte to FAULT_ORDER.hit, so that a test can tell a fault that came from one that did not.
   FAULT_BOOT_ID names a file that is read in place of the kernel's boot id: after a power cut it is another one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, FAIL, SHORT, KILL, TEAR, LIE };
enum { WRITE = 1, SYNC = 2, ROOM = 4 };
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

static long seen, order_seen;

/* Straight to the kernel: the library's own functions are the ones replaced here. */
static int read_order(char *kind, char *calls, char *path, long *first, long *count) {
    const char *name = getenv("FAULT_ORDER");
    if (name == NULL) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
    char text[256];
    if (fd < 0) return 0;
    long size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (size <= 0) return 0;
    text[size] = 0;
    long number;
    if (sscanf(text, "%15s %15s %63s %ld %ld %ld", kind, calls, path, first, count, &number) != 6) return 0;
    if (__atomic_exchange_n(&order_seen, number, __ATOMIC_RELAXED) != number) {
        __atomic_store_n(&seen, 0, __ATOMIC_RELAXED);
    }
    return 1;
}

static void note_hit(void) {
    char name[512];
    snprintf(name, sizeof name, "%s.hit", getenv("FAULT_ORDER"));
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        syscall(SYS_write, fd, ".", 1);
        syscall(SYS_close, fd);
    }
}

static int is_about(int fd, const char *path) {
    char link[64], name[512];
    if (strcmp(path, "*") == 0) return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name - 1);
    if (size < 0) return 0;
    name[size] = 0;
    return strstr(name, path) != NULL;
}

/* What is to happen to this call; sets errno for FAIL. */
static int fault(int fd, int call) {
    char kind[16], calls[16], path[64];
    long first, count;
    int saved = errno;
    if (!read_order(kind, calls, path, &first, &count)) {
        errno = saved;
        return NONE;
    }
    if (call == ROOM) {
        errno = saved;
        return strcmp(kind, "quota") == 0 || strcmp(kind, "brim") == 0 ? FAIL : NONE;
    }
    int wanted = strcmp(calls, "any") == 0 ? WRITE | SYNC : strcmp(calls, "sync") == 0 ? SYNC : WRITE;
    int due = (wanted & call) && is_about(fd, path);
    errno = saved;
    if (!due) return NONE;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_RELAXED);
    if (number < first || (count && number >= first + count)) return NONE;
    note_hit();
    if (strcmp(kind, "kill") == 0) {
        syscall(SYS_kill, getpid(), SIGKILL);
        return KILL;
    }
    errno = strcmp(kind, "enospc") == 0 ? ENOSPC : strcmp(kind, "quota") == 0 ? EDQUOT : EIO;
    if (strcmp(kind, "short") == 0 || strcmp(kind, "brim") == 0) return call == WRITE ? SHORT : NONE;
    if (strcmp(kind, "tear") == 0) return call == WRITE ? TEAR : NONE;
    if (strcmp(kind, "lie") == 0) return call == SYNC ? LIE : NONE;
    return FAIL;
}

static ssize_t half(int fd, const void *data, size_t size, off64_t at, int outcome) {
    size_t part = size > 1 ? size / 2 : size;
    ssize_t written = at < 0 ? syscall(SYS_write, fd, data, part) : syscall(SYS_pwrite64, fd, data, part, at);
    if (outcome == TEAR) syscall(SYS_kill, getpid(), SIGKILL);
    return written;
}

#define FLUSH(name)                                                        \
    int name(int fd) {                                                    \
        static int (*real)(int) = NULL;                                   \
        if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, #name);   \
        int outcome = fault(fd, SYNC);                                    \
        if (outcome == NONE) return real(fd);                             \
        return outcome == LIE ? 0 : -1;                                   \
    }

#define PUT(name, parameters, arguments, data, size, at)                                  \
    ssize_t name parameters {                                                             \
        static ssize_t(*real) parameters = NULL;                                          \
        if (real == NULL) real = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);          \
        int outcome = fault(fd, WRITE);                                                   \
        if (outcome == NONE) return real arguments;                                       \
        return outcome == FAIL ? -1 : half(fd, data, size, at, outcome);                  \
    }

#define ALLOCATE(name)                                                                    \
    int name(int fd, off_t at, off_t size) {                                              \
        static int (*real)(int, off_t, off_t) = NULL;                                     \
        if (real == NULL) real = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, #name);     \
        return fault(fd, ROOM) == FAIL ? EDQUOT : real(fd, at, size);                     \
    }

#define OPEN(name)                                                                        \
    int name(const char *path, int flags, ...) {                                          \
        static int (*real)(const char *, int, ...) = NULL;                                \
        if (real == NULL) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        mode_t mode = 0;                                                                  \
        if (flags & (O_CREAT | O_TMPFILE)) {                                              \
            va_list more;                                                                 \
            va_start(more, flags);                                                        \
            mode = va_arg(more, mode_t);                                                  \
            va_end(more);                                                                 \
        }                                                                                 \
        return real(instead_of(path), honest(flags), mode);                               \
    }

static const char *instead_of(const char *path) {
    const char *other = getenv("FAULT_BOOT_ID");
    return other != NULL && strcmp(path, BOOT_ID) == 0 ? other : path;
}

static int honest(int flags) {
    char kind[16], calls[16], path[64];
    long first, count;
    int saved = errno;
    int lying = (flags & O_DSYNC) && read_order(kind, calls, path, &first, &count) && strcmp(kind, "lie") == 0;
    errno = saved;
    return lying ? flags & ~(O_SYNC | O_DSYNC) : flags;
}

FLUSH(fsync)
FLUSH(fdatasync)
PUT(write, (int fd, const void *data, size_t size), (fd, data, size), data, size, -1)
PUT(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), data, size, at)
PUT(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), data, size, at)
PUT(writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), parts[0].iov_base, parts[0].iov_len, -1)
PUT(pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), parts[0].iov_base,
    parts[0].iov_len, at)
PUT(pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at), parts[0].iov_base,
    parts[0].iov_len, at)
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)
OPEN(open)
OPEN(open64)

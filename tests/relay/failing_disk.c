/* Makes writes and flushes fail with EIO while the file named by FAIL_WHEN exists. Preloaded into a relay by a test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int failing(void) {
    const char *file = getenv("FAIL_WHEN");
    return file != NULL && access(file, F_OK) == 0;
}

#define FAIL_OR_CALL(type, name, parameters, arguments)                  \
    type name parameters {                                              \
        static type (*real) parameters = NULL;                          \
        if (real == NULL) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        if (failing()) {                                                \
            errno = EIO;                                                \
            return -1;                                                  \
        }                                                               \
        return real arguments;                                          \
    }

FAIL_OR_CALL(int, fdatasync, (int fd), (fd))
FAIL_OR_CALL(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAIL_OR_CALL(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAIL_OR_CALL(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
FAIL_OR_CALL(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))

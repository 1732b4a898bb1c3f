// A library that is loaded before the C library's and refuses requests for memory and threads, one or all from one on.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_long count, first = -1, last = -1;

// Refuse the requests from one number to another, counted from 1; -1: none, and no request is counted.
void refuse(long from, long to) { count = 0, last = to, first = from; }

long num_requests(void) { return count; }

// The C library ends the process if it finds no memory for the variables of a thread or for their destructors. The core
// asks for them right after a request of its own has shown that there is room, which this library refuses as any other.
static int is_of_variables(void *caller) {
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && (strstr(info.dli_fname, "/ld-") ||
        (info.dli_sname && !strcmp(info.dli_sname, "__cxa_thread_atexit_impl")));
}

static __attribute__((noinline)) int is_refused_for(void *caller) {
    if (first < 0 || is_of_variables(caller))
        return 0;
    long number = atomic_fetch_add(&count, 1) + 1;
    return first <= number && number <= last;
}

#define IS_REFUSED is_refused_for(__builtin_return_address(0))
#define OR_NULL(request) (IS_REFUSED ? (errno = ENOMEM, NULL) : (request))

void *malloc(size_t size) { return OR_NULL(__libc_malloc(size)); }
void *calloc(size_t number, size_t size) { return OR_NULL(__libc_calloc(number, size)); }
void *realloc(void *block, size_t size) { return OR_NULL(__libc_realloc(block, size)); }
void *memalign(size_t alignment, size_t size) { return OR_NULL(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return OR_NULL(__libc_memalign(alignment, size)); }

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *made = OR_NULL(__libc_memalign(alignment, size));
    if (made)
        *block = made;
    return made ? 0 : ENOMEM;
}

void *mmap(void *at, size_t size, int access, int flags, int file, off_t offset) {
    if (IS_REFUSED)
        return errno = ENOMEM, MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    return IS_REFUSED ? EAGAIN : real(thread, attributes, run, argument);
}

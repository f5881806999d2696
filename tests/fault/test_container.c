// SPDX-License-Identifier: Apache-2.0
//
// What containers take away: locked memory, descriptors, address space, /dev/shm, a file system to write to, memfd_create. Each case is a process of its own under that restriction, which
// connects to itself over libfabric tcp and moves bytes. Either that works, or the error names the limit and its value; it never hangs or crashes. Where a restriction cannot be had the program says so with
// status 77, a skip, which tests/expected-skips must know.

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/lien.h>

#define LEN       ((size_t)300000)
#define SANITIZED 0
#if defined(__has_feature) // clang's, which the sanitized builds are made with
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef SANITIZED
#define SANITIZED 1
#endif
#endif
// Exit statuses of a case.
#define NOT_HERE     77 // the restriction cannot be had
#define NAMED        2  // an error that names the limit
#define HANG_SECONDS 60

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "test_container: line %d: %s; log:\n%s", __LINE__, #cond, said);       \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static char said[1 << 16]; // the log

static void keep(const lien_log_line *line, void *arg)
{
    (void)arg;
    size_t at = strlen(said);
    snprintf(said + at, sizeof said - at, "%s (%s)\n", line->text, lien_errname(line->code));
}

// Opens everything and moves a body each way. The first error, or 0. Nothing stays open.
struct pair {
    lien_ctx *ctx;
    lien_pool *pool;
    lien_listener *listener;
    lien_conn *ours, *theirs;
};

static int open_pair(struct pair *p, const char *const *settings)
{
    lien_ctx_opts opts;
    char address[96];
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = keep;
    int rc = lien_ctx_open(&opts, &p->ctx);
    if (rc == 0)
        rc = lien_pool_open(p->ctx, NULL, &p->pool);
    if (rc == 0)
        rc = lien_listener_open(p->ctx, "127.0.0.1:0", NULL, &p->listener);
    if (rc == 0)
        rc = lien_listener_address(p->listener, address, sizeof address);
    if (rc == 0)
        rc = lien_conn_open_wait(p->ctx, address, NULL, &p->ours);
    return rc == 0 ? lien_listener_accept_wait(p->listener, 30000, &p->theirs) : rc;
}

static int move(struct pair *p, lien_conn *from, lien_conn *to)
{
    lien_buf *buf = NULL;
    lien_msg *msg = NULL;
    void *data;
    const void *got;
    int rc = lien_pool_alloc(p->pool, LEN, &buf);
    if (rc != 0)
        return rc;
    CHECK(lien_buf_mut(buf, &data) == 0);
    memset(data, 0x5a, LEN);
    rc = lien_send(from, "x", 1, &buf, 1, NULL);
    if (rc == 0)
        rc = lien_msg_recv_wait(to, 20000, &msg);
    if (rc == 0) {
        CHECK(lien_buf_data(lien_msg_body(msg), &got) == 0);
        CHECK(memcmp(got, data, LEN) == 0);
        lien_msg_free(&msg);
    }
    lien_buf_free(&buf);
    return rc;
}

static int round_trip(const char *const *settings)
{
    struct pair p = {0};
    int rc = open_pair(&p, settings);
    if (rc == 0)
        rc = move(&p, p.ours, p.theirs);
    if (rc == 0)
        rc = move(&p, p.theirs, p.ours);
    if (p.ours)
        CHECK(lien_conn_close(&p.ours) == 0);
    if (p.theirs)
        CHECK(lien_conn_close(&p.theirs) == 0);
    if (p.ctx)
        CHECK(lien_ctx_close(&p.ctx) == 0);
    return rc;
}

static const char *const plain[] = {"connect_ms=30000", NULL};

// -- Limits --

static void limit(__rlimit_resource_t what, rlim_t value)
{
    const struct rlimit both = {value, value};
    CHECK(setrlimit(what, &both) == 0);
}

static void no_locked_memory(unsigned n)
{
    static const uint8_t key[32] = {1};
    const lien_psk psk = {key, sizeof key};
    (void)n;
    limit(RLIMIT_MEMLOCK, 0);
    CHECK(round_trip(plain) == 0);
    lien_ctx_opts opts; // keys want locked memory, and do without
    lien_ctx *ctx;
    lien_ctx_opts_init(&opts);
    opts.psks = &psk;
    opts.n_psks = 1;
    opts.log = keep;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    CHECK(lien_ctx_close(&ctx) == 0);
}

static unsigned worked; // in the parent, of few_descriptors

static void few_descriptors(unsigned n)
{
    // What is missing may show by the end of this time alone; a busy machine may need more where nothing is missing.
    static const char *const brief[] = {"connect_ms=1000", NULL};
    char value[32];
    limit(RLIMIT_NOFILE, n);
    snprintf(value, sizeof value, "(RLIMIT_NOFILE) is %u", n);
    int rc = round_trip(brief);
    if (rc == LIEN_ETIMEDOUT && !strstr(said, value))
        rc = round_trip(plain);
    if (rc == 0)
        _exit(0);
    CHECK(strstr(said, value) != NULL);
    CHECK(rc != LIEN_EADDR); // the address is not to blame
    _exit(NAMED);
}

static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return (rlim_t)pages * 4096;
}

static void little_memory(unsigned mib)
{
    if (SANITIZED)
        _exit(NOT_HERE); // the shadow is larger than any limit
    char value[64];
    const rlim_t most = address_space() + ((rlim_t)mib << 20);
    limit(RLIMIT_AS, most);
    int rc = round_trip(plain);
    snprintf(value, sizeof value, "(RLIMIT_AS) %llu bytes", (unsigned long long)most);
    if (rc != 0) {
        CHECK(strstr(said, value) != NULL);
        CHECK(mib < 256); // which is enough for all of Lien
        _exit(NAMED);
    }
    CHECK(mib > 1); // which no thread's stack fits
    if (mib < 256)
        return;
    // Not for this.
    lien_ctx_opts opts;
    lien_ctx *ctx;
    lien_pool *pool;
    lien_buf *buf;
    lien_ctx_opts_init(&opts);
    opts.log = keep;
    CHECK(lien_ctx_open(&opts, &ctx) == 0);
    CHECK(lien_pool_open(ctx, NULL, &pool) == 0);
    CHECK(lien_pool_alloc(pool, (size_t)mib << 20, &buf) == LIEN_ENOMEM);
    CHECK(strstr(said, value) != NULL);
    CHECK(lien_pool_alloc(pool, 4096, &buf) == 0); // the pool goes on
    lien_buf_free(&buf);
    CHECK(lien_ctx_close(&ctx) == 0);
}

// -- File systems --

// Mounts of our own, as root here or in a user namespace.
static void own_mounts(void)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        _exit(NOT_HERE);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        _exit(NOT_HERE);
}

static void no_shm(unsigned n)
{
    (void)n;
    own_mounts();
    if (mount("none", "/dev/shm", "tmpfs", 0, "size=4k,nr_inodes=1") != 0)
        _exit(NOT_HERE);
    CHECK(open("/dev/shm/x", O_CREAT | O_RDWR | O_CLOEXEC, 0600) < 0);
    CHECK(round_trip(plain) == 0);
}

static void read_only(unsigned n)
{
    static const char *const dirs[] = {"/tmp", "/var", "/run", "/dev/shm", "/"};
    (void)n;
    own_mounts();
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        if (mount(dirs[i], dirs[i], NULL, MS_BIND, NULL) != 0 ||
            mount(NULL, dirs[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0)
            _exit(NOT_HERE);
    }
    CHECK(chdir("/tmp") == 0);
    CHECK(open("/tmp/lien-container", O_CREAT | O_RDWR | O_CLOEXEC, 0600) < 0 && errno == EROFS);
    CHECK(round_trip(plain) == 0);
}

// -- System calls --

static void forbid(unsigned call)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(NOT_HERE);
}

static void no_memfd(unsigned n)
{
    static const char *const guard[] = {"connect_ms=30000", "guard=1", NULL};
    (void)n;
    forbid(SYS_memfd_create);
    unsetenv("LIEN_GUARD");
    CHECK(round_trip(plain) == 0);
    CHECK(round_trip(guard) == LIEN_ENOMEM); // guard mode maps memory twice, and says so
    CHECK(strstr(said, "memfd") != NULL && strstr(said, "seccomp") != NULL);
}

static void no_populate(unsigned n) // some sandboxes know few kinds of madvise, NUMA calls none
{
    (void)n;
    forbid(SYS_mbind);
    CHECK(round_trip(plain) == 0);
}

// -- Running --

static const struct {
    const char *group, *name;
    void (*run)(unsigned n);
    unsigned n;
} cases[] = {
    {"limits", "no locked memory", no_locked_memory, 0},
    {"limits", "5 descriptors", few_descriptors, 5},
    {"limits", "8 descriptors", few_descriptors, 8},
    {"limits", "12 descriptors", few_descriptors, 12},
    {"limits", "16 descriptors", few_descriptors, 16},
    {"limits", "20 descriptors", few_descriptors, 20},
    {"limits", "24 descriptors", few_descriptors, 24},
    {"limits", "28 descriptors", few_descriptors, 28},
    {"limits", "32 descriptors", few_descriptors, 32},
    {"limits", "64 descriptors", few_descriptors, 64},
    {"memory", "1 MiB of address space", little_memory, 1},
    {"memory", "4 MiB of address space", little_memory, 4},
    {"memory", "12 MiB of address space", little_memory, 12},
    {"memory", "16 MiB of address space", little_memory, 16},
    {"memory", "24 MiB of address space", little_memory, 24},
    {"memory", "32 MiB of address space", little_memory, 32},
    {"memory", "48 MiB of address space", little_memory, 48},
    {"memory", "256 MiB of address space", little_memory, 256},
    {"mounts", "no /dev/shm", no_shm, 0},
    {"mounts", "read-only file systems", read_only, 0},
    {"calls", "no memfd_create", no_memfd, 0},
    {"calls", "no mbind", no_populate, 0},
};
#define N_CASES (sizeof cases / sizeof cases[0])

// Its exit status, or 1.
static int run(size_t i)
{
    int status;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(HANG_SECONDS);
        cases[i].run(cases[i].n);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    if (WIFSIGNALED(status)) {
        printf("%-26s FAILED: signal %d%s\n", cases[i].name, WTERMSIG(status),
               WTERMSIG(status) == SIGALRM ? ", it hung" : "");
        return 1;
    }
    const int code = WEXITSTATUS(status);
    const bool limited = cases[i].run == few_descriptors || cases[i].run == little_memory;
    worked += cases[i].run == few_descriptors && code == 0;
    printf("%-26s %s\n", cases[i].name,
           code == NOT_HERE           ? "cannot be had here"
           : code == 0                ? "works"
           : code == NAMED && limited ? "an error that names the limit"
                                      : "FAILED");
    return code == NAMED && limited ? 0 : code;
}

// One group; "limits" unless stated.
int main(int argc, char **argv)
{
    const char *group = argc > 1 ? argv[1] : "limits";
    unsigned failed = 0, missing = 0, ran = 0;
    for (size_t i = 0; i < N_CASES; i++) {
        if (strcmp(cases[i].group, group) != 0)
            continue;
        const int code = run(i);
        ran++;
        missing += code == NOT_HERE;
        failed += code != 0 && code != NOT_HERE;
    }
    if (ran == 0) {
        fprintf(stderr, "there is no group %s\n", group);
        return 2;
    }
    if (strcmp(group, "limits") == 0 && worked == 0) {
        printf("none of the limits of descriptors was enough\n");
        failed++;
    }
    return failed > 0 ? 1 : missing > 0 ? NOT_HERE : 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// A worker of the chaos test from its start to its end: its objects, the faults that it does to itself, and the levels that it compares.

#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/address.h"
#include "tests/chaos/worker.h"

#define POOL_BYTES ((size_t)96 << 20)
#define SETTLE_MS  30000u
#define MAPS_SLACK 24u // malloc's and the threads'
// What stays on the heap while a ctx is open, for the next time: the library's tables and libfabric's pools of a domain grow to the most that ran at one time (here at most some 100 connections and IN_FLIGHT
// operations): up to 200 KiB was seen, most of it by the first peace. What libfabric forgets has memory, too.
#define HEAP_FIRST ((uint64_t)512 << 10)
#define HEAP_LATER ((uint64_t)128 << 10)
// What stays when the ctx is closed: 46 KiB of libfabric's and libc's, as much in a life of ten minutes as in one of a second.
#define HEAP_CLOSED    ((uint64_t)64 << 10)
#define HEAP_FORGOTTEN ((uint64_t)4 << 10)
#define FDS_LOOKED_AT  4096
#define HUNGRY_BYTES   ((size_t)1 << 20)

struct worker worker;

uint64_t worker_id(void)
{
    return (uint64_t)(worker.self + 1) << 56 | (uint64_t)worker.slot->lives << 40 |
           ++worker.next_id;
}

void worker_count(enum chaos_op op)
{
    worker.slot->ops[op]++;
}

void worker_wrong(const char *what, int rc)
{
    if (worker.slot->wrong++ < WRONG_REPORTED)
        fprintf(stderr, "wrong: worker %u (pid %d): %s (%s)\n", worker.self, (int)getpid(), what,
                lien_errname(rc));
}

bool worker_running(void)
{
    return worker.world->phase == CHAOS_RUN;
}

bool worker_take_fault(enum chaos_fault fault)
{
    const unsigned bit = 1u << fault;
    if (!(worker.slot->faults & bit) || !(atomic_fetch_and(&worker.slot->faults, ~bit) & bit))
        return false;
    worker.slot->faulted[fault]++;
    return true;
}

// -- Levels ----------------------------------------------------------------------------------------------------------------------

static unsigned descriptors(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return 0;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n - 1; // its own descriptor
}

// The kernel's own count: a listing of /proc/self/task may end early when a thread ends meanwhile.
static unsigned threads_running(void)
{
    char line[128];
    unsigned n = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && n == 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "Threads: %u", &n);
    if (file)
        fclose(file);
    return n;
}

static unsigned mappings(void)
{
    unsigned n = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    for (int c = file ? getc(file) : EOF; c != EOF; c = getc(file))
        n += c == '\n';
    if (file)
        fclose(file);
    return n;
}

// libfabric 1.17 forgets a socket that it accepted on a fabric port when the listening endpoint closes before the socket has said all of its request: nobody can close it. It is told apart by its
// port; an endpoint of ours that leaks would leave its queues' descriptors as well.
static unsigned forgotten_sockets(void)
{
    const unsigned base = worker.world->fabric_base + worker.self * CHAOS_FABRIC_PORTS;
    unsigned n = 0;
    for (int fd = 0; fd < FDS_LOOKED_AT; fd++) {
        struct sockaddr_in here = {0};
        socklen_t len = sizeof here, len2 = sizeof(int);
        int listens = 0;
        if (getsockname(fd, (struct sockaddr *)&here, &len) != 0 || here.sin_family != AF_INET ||
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len2) != 0 || listens)
            continue;
        const unsigned port = ntohs(here.sin_port);
        n += port >= base && port < base + CHAOS_FABRIC_PORTS;
    }
    return n;
}

// Without what malloc keeps for itself: the master turned its thread caches off, whose bytes would count.
static uint64_t heap(void)
{
    malloc_trim(0);
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static struct chaos_levels levels(void)
{
    lien_ctx_stats st = {.size = sizeof st};
    lien_ctx_stats_get(worker.ctx, &st);
    const unsigned forgotten = st.conns_open == 0 ? forgotten_sockets() : 0;
    struct chaos_levels l;
    memset(&l, 0, sizeof l); // compared as bytes
    l.fds = descriptors() - forgotten;
    l.forgotten = forgotten;
    l.threads = threads_running();
    l.maps = mappings();
    l.heap = heap();
    l.conns = st.conns_open;
    l.grants = st.grants_live;
    l.grants_bytes = st.grants_bytes;
    l.pool_bytes = st.pool_bytes;
    l.quarantined = st.quarantined_bytes;
    return l;
}

static void leak(const char *what, uint64_t before, uint64_t now)
{
    worker.slot->leaks++;
    fprintf(stderr, "leak: worker %u (pid %d): %s %" PRIu64 " before, %" PRIu64 " now\n",
            worker.self, (int)getpid(), what, before, now);
}

static bool level_is_high(const struct chaos_levels *now, bool tell)
{
    const struct chaos_levels *start = &worker.slot->start;
    const struct chaos_levels *first = worker.slot->first.threads ? &worker.slot->first : now;
    const uint64_t forgotten = now->forgotten * HEAP_FORGOTTEN;
    const struct {
        const char *name;
        uint64_t start, now, slack;
    } rows[] = {
        {"descriptors", start->fds, now->fds, 0},
        {"threads", start->threads, now->threads, 0},
        {"mappings", start->maps, now->maps, MAPS_SLACK},
        {"bytes of the heap", start->heap, now->heap, HEAP_FIRST + forgotten},
        {"bytes of the heap since the first peace", first->heap, now->heap, HEAP_LATER + forgotten},
        {"connections", start->conns, now->conns, 0},
        {"grants", start->grants, now->grants, 0},
        {"bytes granted", start->grants_bytes, now->grants_bytes, 0},
        {"bytes of pools", start->pool_bytes, now->pool_bytes, 0},
        {"bytes in quarantine", start->quarantined, now->quarantined, 0},
    };
    bool high = false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].now <= rows[i].start + rows[i].slack)
            continue;
        high = true;
        if (tell)
            leak(rows[i].name, rows[i].start, rows[i].now);
    }
    return high;
}

// What the descriptors are, for whoever looks for the one too many.
static void tell_descriptors(void)
{
    for (int fd = 0; fd < FDS_LOOKED_AT; fd++) {
        char path[40], link[100] = "", ends[80] = "";
        struct sockaddr_in here = {0}, there = {0};
        socklen_t len = sizeof here, len2 = sizeof there;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, link, sizeof link - 1) < 0)
            continue;
        if (getsockname(fd, (struct sockaddr *)&here, &len) == 0 && here.sin_family == AF_INET) {
            int there_rc = getpeername(fd, (struct sockaddr *)&there, &len2);
            snprintf(ends, sizeof ends, " %u -> %d", ntohs(here.sin_port),
                     there_rc == 0 ? ntohs(there.sin_port) : -1);
        }
        fprintf(stderr, "  worker %u, descriptor %d: %s%s\n", worker.self, fd, link, ends);
    }
}

// Waits for the levels of the start.
static void settle(void)
{
    struct chaos_slot *slot = worker.slot;
    uint64_t begin = chaos_ms();
    while (chaos_ms() - begin < SETTLE_MS) {
        slot->end = levels();
        if (worker.pending == 0 && !level_is_high(&slot->end, false))
            break;
        slot->steps++;
        chaos_sleep(20);
    }
    if (slot->first.threads == 0) // none yet
        slot->first = slot->end;
    if (worker.pending != 0)
        worker_wrong("callbacks of operations that never came", (int)worker.pending);
    if (level_is_high(&slot->end, true) && slot->end.fds > slot->start.fds)
        tell_descriptors();
}

// -- Faults of its own -----------------------------------------------------------------------------------------------------------

static void starve_of_descriptors(void)
{
    struct rlimit was, low;
    if (getrlimit(RLIMIT_NOFILE, &was) != 0)
        return;
    low = was;
    low.rlim_cur = descriptors() + chaos_below(6);
    setrlimit(RLIMIT_NOFILE, &low);
    chaos_sleep(100 + chaos_below(900));
    setrlimit(RLIMIT_NOFILE, &was);
}

static void starve_of_memory(void)
{
    static lien_buf *bufs[POOL_BYTES / HUNGRY_BYTES];
    unsigned n = 0;
    while (n < sizeof bufs / sizeof bufs[0] &&
           lien_pool_alloc(worker.pool, HUNGRY_BYTES, &bufs[n]) == 0)
        n++;
    chaos_sleep(100 + chaos_below(500));
    while (n > 0)
        lien_buf_free(&bufs[--n]);
}

// Compares parked memory, and does the faults that are asked for, until the end of the run.
static void *keep_house(void *arg)
{
    (void)arg;
    chaos_seed(worker.world->seed + worker_id());
    while (!worker.go ||
           worker_running()) { // a life that begins at the end counts its threads first
        if (worker.go && worker_take_fault(CHAOS_FAULT_NOFILE))
            starve_of_descriptors();
        if (worker.go && worker_take_fault(CHAOS_FAULT_POOL))
            starve_of_memory();
        if (worker.go && worker_take_fault(CHAOS_FAULT_CONN_STORM))
            link_storm(chaos_below(worker.world->n));
        run_sweep(false);
        chaos_sleep(5);
    }
    return NULL;
}

// -- From start to end -----------------------------------------------------------------------------------------------------------

static void need(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "worker %u: %s: %s\n", worker.self, what, lien_errname(rc));
    exit(1);
}

// The last lines of the log, for who looks at a wrong answer. Written by one thread at a time; a reader may see a line half new.
static struct {
    int code;
    char text[240];
} lines[32];
static _Atomic unsigned n_lines;

static void log_keep(const lien_log_line *line, void *arg)
{
    (void)arg;
    const unsigned at = n_lines++ % (sizeof lines / sizeof lines[0]);
    lines[at].code = line->code;
    snprintf(lines[at].text, sizeof lines[at].text, "%s", line->text);
}

void worker_tell_log(int code)
{
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (lines[i].code == code)
            fprintf(stderr, "  the log said: %s\n", lines[i].text);
}

static void open_all(void)
{
    char ports[40], address[64];
    const unsigned base = worker.world->fabric_base + worker.self * CHAOS_FABRIC_PORTS;
    snprintf(ports, sizeof ports, "fabric_ports=%u-%u", base, base + CHAOS_FABRIC_PORTS - 1);
    const char *const settings[] = {"heartbeat_ms=300",
                                    "dead_ms=1500",
                                    "connect_ms=1500",
                                    "linger_ms=300",
                                    "release_ms=2000",
                                    "read_watchdog_ms=2000",
                                    ports,
                                    "dispatch_threads=6",
                                    NULL};
    lien_ctx_opts opts;
    lien_pool_opts pool;
    lien_conn_opts conn;
    lien_listener_opts listener;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = getenv("LIEN_TEST_CHAOS_LOG") ? NULL : log_keep;
    need(lien_ctx_open(&opts, &worker.ctx), "lien_ctx_open");
    lien_pool_opts_init(&pool);
    pool.limit = POOL_BYTES;
    need(lien_pool_open(worker.ctx, &pool, &worker.pool), "lien_pool_open");
    link_conn_opts(&conn);
    lien_listener_opts_init(&listener);
    listener.conn = &conn;
    listener.on_accept = link_accepted;
    snprintf(address, sizeof address, TEST_AT(0));
    need(lien_listener_open(worker.ctx, address, &listener, &worker.listener),
         "lien_listener_open");
    need(lien_listener_address(worker.listener, address, sizeof address), "its address");
    const char *colon = strrchr(address, ':');
    if (!colon || sscanf(colon, ":%u", &worker.port) != 1)
        need(LIEN_EADDR, address);
}

// A connection to itself, there and gone, so that what is opened only once is open.
static void warm_up(void)
{
    uint64_t begin = chaos_ms();
    struct link *link = link_open(worker.self);
    if (link)
        link_unref(link);
    struct chaos_levels before, now = levels();
    do { // until nothing changes any more: a socket that closes between two of the counts is in one of them
        chaos_sleep(20);
        before = now;
        now = levels();
    } while ((now.conns > 0 || now.pool_bytes > 0 || worker.pending > 0 ||
              memcmp(&before, &now, sizeof now) != 0) &&
             chaos_ms() - begin < SETTLE_MS);
    worker.slot->start = now;
    worker.slot->start.threads -= CHAOS_DRIVERS + 1; // which are gone at the end
}

static void wait_for(int phase)
{
    while (worker.world->phase < phase)
        chaos_sleep(10);
}

// Waits for what is still to be released, and until what is parked was compared.
static void collect(void)
{
    uint64_t begin = chaos_ms();
    while ((run_sweep(false) > 0 || worker.pending > 0) && chaos_ms() - begin < SETTLE_MS) {
        worker.slot->steps++;
        chaos_sleep(20);
    }
    run_sweep(true);
}

// Random operations until the master makes peace, then levels.
static void live(bool first)
{
    pthread_t threads[CHAOS_DRIVERS + 1];
    for (unsigned i = 0; i <= CHAOS_DRIVERS; i++)
        need(pthread_create(&threads[i], NULL, i < CHAOS_DRIVERS ? drive : keep_house,
                            (void *)(uintptr_t)i),
             "a thread");
    if (first)
        warm_up();
    worker.slot->port = worker.port;
    worker.go = true;
    for (unsigned i = 0; i <= CHAOS_DRIVERS; i++)
        pthread_join(threads[i], NULL);
    worker.slot->drained = 1;
    wait_for(CHAOS_SETTLE);
    collect();
    settle();
    worker.slot->settled = 1;
}

_Noreturn void chaos_worker(struct chaos_world *world, unsigned self)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    mallopt(M_ARENA_MAX, 2); // so that mappings can be compared
    worker.world = world;
    worker.slot = &world->slot[self];
    worker.self = self;
    worker.slot->first = (struct chaos_levels){0};
    worker.slot->bare = heap();
    open_all();
    for (bool first = true; world->phase != CHAOS_END; first = false) {
        const unsigned round = world->rounds;
        live(first);
        while (world->phase != CHAOS_END && world->rounds == round)
            chaos_sleep(10);
    }
    lien_listener_close(&worker.listener);
    lien_pool_close(&worker.pool);
    need(lien_ctx_close(&worker.ctx), "lien_ctx_close");
    const uint64_t closed = heap();
    worker.slot->closed = closed;
    if (closed >
        world->slot[self].bare + HEAP_CLOSED + world->slot[self].end.forgotten * HEAP_FORGOTTEN)
        leak("bytes of the heap after lien_ctx_close", worker.slot->bare, closed);
    exit(0);
}

// SPDX-License-Identifier: Apache-2.0
//
// chaos [--seconds N | --minutes N] [--seed S] [--workers N] [--expect-corruption | --expect-leak]: the master of the chaos test, see chaos.h. It has one thread and never uses the library.
// 0: operations ran, every kind of fault was done, nothing was corrupted, leaked, hung or answered wrong. With --expect-corruption: 0 as soon as a corruption was reported, 1 if none was. With --expect-leak: 0 if
// leaks were reported, and nothing else.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/chaos/chaos.h"

#define TICK_MS     10u
#define HANG_MS     90000u // without a step of a worker that runs, or of an end
#define SOCKETS_MAX 64u
#define PEACE_MS    20000u // between points of peace, at least

struct child {
    pid_t pid;    // 0: dead, to be started at `at`
    bool stopped; // to go on at `at`
    bool killed;
    uint64_t at;
    uint64_t steps, stepped; // the last step seen, and when
};

struct half_open {
    int fd;
    uint64_t until;
};

static struct {
    struct chaos_world *world;
    struct child child[CHAOS_WORKERS_MAX];
    struct half_open half[SOCKETS_MAX];
    unsigned n_half;
    uint64_t faulted[CHAOS_N_FAULTS]; // done by the master
    unsigned deck[CHAOS_N_FAULTS], n_deck;
    unsigned crashes, hangs;
    unsigned seconds;
    bool expect_corruption, expect_leak;
} master = {.seconds = 40};

// -- Workers ---------------------------------------------------------------------------------------------------------------------

static void close_half_open(bool all)
{
    uint64_t now = chaos_ms();
    for (unsigned i = 0; i < master.n_half;) {
        if (all || now >= master.half[i].until) {
            close(master.half[i].fd);
            master.half[i] = master.half[--master.n_half];
        } else {
            i++;
        }
    }
}

static void start(unsigned i)
{
    struct chaos_slot *slot = &master.world->slot[i];
    slot->port = 0;
    slot->drained = slot->settled = 0;
    slot->faults = 0;
    slot->lives++;
    slot->born = chaos_ms();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0) {
        close_half_open(true); // they are the master's
        chaos_worker(master.world, i);
    }
    master.child[i] = (struct child){.pid = pid, .stepped = chaos_ms(), .steps = slot->steps};
}

static void end_all(void)
{
    for (unsigned i = 0; i < master.world->n; i++) {
        if (master.child[i].pid > 0) {
            kill(master.child[i].pid, SIGKILL);
            waitpid(master.child[i].pid, NULL, 0);
            master.child[i].pid = 0;
        }
    }
}

static void ended(unsigned i, int status)
{
    struct child *c = &master.child[i];
    const bool died = WIFEXITED(status) && WEXITSTATUS(status) == CHAOS_EXIT_DIED;
    const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!(well && master.world->phase == CHAOS_END) && !died && !c->killed) {
        master.crashes++;
        fprintf(stderr, "crash: worker %u (pid %d) ended by itself: %s %d\n", i, (int)c->pid,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    *c = (struct child){.at = chaos_ms() + chaos_below(500)};
    master.world->slot[i].port = 0;
}

static void look_after(unsigned i)
{
    struct child *c = &master.child[i];
    struct chaos_slot *slot = &master.world->slot[i];
    uint64_t now = chaos_ms(), steps = slot->steps;
    int status;
    if (c->pid > 0 && waitpid(c->pid, &status, WNOHANG) == c->pid)
        ended(i, status);
    if (c->pid == 0 && now >= c->at && master.world->phase != CHAOS_END)
        start(i);
    if (c->stopped && now >= c->at) {
        kill(c->pid, SIGCONT);
        c->stopped = false;
        c->stepped = now;
    }
    if (steps != c->steps || c->stopped || slot->settled)
        c->stepped = now;
    c->steps = steps;
    now = chaos_ms();
    if (c->pid > 0 && now - c->stepped > HANG_MS) {
        master.hangs++;
        fprintf(stderr, "hang: worker %u (pid %d) does nothing any more\n", i, (int)c->pid);
        c->killed = true;
        kill(c->pid, SIGKILL);
        c->stepped = now;
    }
}

// -- Faults ----------------------------------------------------------------------------------------------------------------------

// A worker that runs and is up, or n. `deadly`: one whose life may end.
static unsigned victim(bool deadly)
{
    const unsigned n = master.world->n, from = chaos_below(n);
    for (unsigned i = 0; i < n; i++) {
        unsigned j = (from + i) % n;
        if (deadly && j == CHAOS_LASTING)
            continue;
        if (master.child[j].pid > 0 && !master.child[j].stopped && master.world->slot[j].port)
            return j;
    }
    return n;
}

static unsigned n_stopped(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < master.world->n; i++)
        n += master.child[i].stopped;
    return n;
}

static bool dial(unsigned port, bool speak)
{
    static const char words[] = "LIEN\1\0\0\0\0\0\0\0\0\0\0";
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const struct linger reset = {.l_onoff = 1};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (master.n_half == SOCKETS_MAX)
        return false;
    // Blocking would wait for a stopped worker's full backlog.
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS)) {
        close(fd);
        return false;
    }
    if (chaos_below(2))
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (speak && send(fd, words, 1 + chaos_below(sizeof words - 1), MSG_NOSIGNAL) < 0)
        speak = false; // it was not open yet: it says nothing, then
    master.half[master.n_half++] = (struct half_open){fd, chaos_ms() + chaos_below(3000)};
    return true;
}

// Sockets to the bootstrap port and to the fabric ports of a worker that say nothing, or half of something.
static bool half_open(unsigned to)
{
    unsigned n = 0;
    for (unsigned i = 0; i < 4; i++)
        n += dial(master.world->slot[to].port, chaos_below(2));
    for (unsigned i = 0; i < CHAOS_FABRIC_PORTS; i++)
        n += dial(master.world->fabric_base + to * CHAOS_FABRIC_PORTS + i, chaos_below(2));
    return n > 0;
}

static bool stop(struct child *c)
{
    if (n_stopped() >= master.world->n / 2)
        return false;
    kill(c->pid, SIGSTOP);
    c->stopped = true;
    c->at = chaos_ms() + 20 + (chaos_below(3) ? chaos_below(1000) : chaos_below(3500));
    return true;
}

// Whether it could be done.
static bool do_fault(enum chaos_fault fault)
{
    const unsigned i = victim(fault == CHAOS_FAULT_KILL || fault == CHAOS_FAULT_DIE);
    if (i == master.world->n)
        return false;
    switch (fault) {
    case CHAOS_FAULT_KILL:
        master.child[i].killed = true;
        kill(master.child[i].pid, SIGKILL);
        return true;
    case CHAOS_FAULT_STOP:
        return stop(&master.child[i]);
    case CHAOS_FAULT_HALF:
        return half_open(i);
    case CHAOS_FAULT_DIE:
    case CHAOS_FAULT_NOFILE:
    case CHAOS_FAULT_POOL:
    case CHAOS_FAULT_CONN_STORM:
    case CHAOS_FAULT_CANCEL_STORM:
    case CHAOS_FAULT_DEADLINE_STORM:
        atomic_fetch_or(&master.world->slot[i].faults, 1u << fault); // it counts, when it does it
        return false;
    case CHAOS_N_FAULTS:
        break;
    }
    return false;
}

// The next of a shuffled deck, so that every kind comes.
static void next_fault(void)
{
    if (master.n_deck == 0)
        for (unsigned i = 0; i < CHAOS_N_FAULTS; i++)
            master.deck[master.n_deck++] = i;
    const unsigned at = chaos_below(master.n_deck);
    const unsigned fault = master.deck[at];
    master.deck[at] = master.deck[--master.n_deck];
    if (do_fault((enum chaos_fault)fault))
        master.faulted[fault]++;
}

// -- Course ----------------------------------------------------------------------------------------------------------------------

static unsigned corruptions(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < master.world->n; i++)
        n += master.world->slot[i].corruptions;
    return n;
}

static unsigned leaks(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < master.world->n; i++)
        n += master.world->slot[i].leaks;
    return n;
}

static void tick(void)
{
    for (unsigned i = 0; i < master.world->n; i++)
        look_after(i);
    close_half_open(false);
    chaos_sleep(TICK_MS);
}

static bool all_up(unsigned i)
{
    return master.child[i].pid > 0 && master.world->slot[i].port != 0 && !master.child[i].stopped;
}
static bool all_drained(unsigned i)
{
    return master.world->slot[i].drained != 0;
}
static bool all_settled(unsigned i)
{
    return master.world->slot[i].settled != 0;
}
static bool all_gone(unsigned i)
{
    return master.child[i].pid == 0;
}

// Whether all come there; else it is a hang.
static bool wait_all(bool (*there)(unsigned i), const char *what)
{
    uint64_t begin = chaos_ms();
    for (;;) {
        unsigned n = 0;
        for (unsigned i = 0; i < master.world->n; i++)
            n += there(i);
        if (n == master.world->n)
            return true;
        if (chaos_ms() - begin > 2 * HANG_MS || master.hangs > 0 || master.crashes > 3)
            break;
        tick();
    }
    master.hangs++;
    fprintf(stderr, "hang: not all workers are %s\n", what);
    return false;
}

// Peace: everybody lives, ends what it has, and compares its levels.
static bool make_peace(void)
{
    close_half_open(true);
    for (unsigned i = 0; i < master.world->n; i++)
        if (master.child[i].stopped)
            master.child[i].at = 0;
    if (!wait_all(all_up, "up"))
        return false;
    master.world->phase = CHAOS_DRAIN;
    if (!wait_all(all_drained, "drained"))
        return false;
    master.world->phase = CHAOS_SETTLE;
    if (!wait_all(all_settled, "settled"))
        return false;
    const struct chaos_slot *s = &master.world->slot[CHAOS_LASTING];
    printf("peace %u, worker %u after %" PRIu64 " s: heap %" PRIu64 " (at its start %" PRIu64
           "), mappings %u (%u), descriptors %u (%u)\n",
           master.world->rounds + 1, CHAOS_LASTING, (chaos_ms() - s->born) / 1000, s->end.heap,
           s->start.heap, s->end.maps, s->start.maps, s->end.fds, s->start.fds);
    return true;
}

static void go_on(void)
{
    for (unsigned i = 0; i < master.world->n; i++)
        master.world->slot[i].drained = master.world->slot[i].settled = 0;
    master.world->phase = CHAOS_RUN;
    master.world->rounds++;
}

static void run(void)
{
    const uint64_t begin = chaos_ms(), end = begin + (uint64_t)master.seconds * 1000;
    const uint64_t peace = PEACE_MS > (end - begin) / 5 ? PEACE_MS : (end - begin) / 5;
    uint64_t next = begin + 1000, next_peace = begin + peace;
    while (chaos_ms() < end && master.hangs == 0) {
        if (master.expect_corruption && corruptions() > 0)
            return;
        tick();
        if (chaos_ms() >= next) {
            next_fault();
            next = chaos_ms() + 50 + chaos_below(300);
        }
        if (master.expect_corruption || chaos_ms() < next_peace || next_peace + peace / 2 > end)
            continue;
        if (!make_peace() || (master.expect_leak && leaks() > 0))
            return;
        go_on();
        next_peace = chaos_ms() + peace;
    }
}

static void finish(void)
{
    if (!make_peace())
        return;
    master.world->phase = CHAOS_END;
    wait_all(all_gone, "gone");
}

// -- Report ----------------------------------------------------------------------------------------------------------------------

static uint64_t total(unsigned op)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < master.world->n; i++)
        n += master.world->slot[i].ops[op];
    return n;
}

static uint64_t faults_of(unsigned fault)
{
    uint64_t n = master.faulted[fault];
    for (unsigned i = 0; i < master.world->n; i++)
        n += master.world->slot[i].faulted[fault];
    return n;
}

static void print_levels(void)
{
    printf("levels at the start and at the end of each worker's last life:\n");
    for (unsigned i = 0; i < master.world->n; i++) {
        const struct chaos_slot *s = &master.world->slot[i];
        const struct chaos_levels *a = &s->start, *b = &s->end;
        printf("  worker %u (life %u): heap %" PRIu64 " %" PRIu64
               ", descriptors %u %u, threads %u %u, mappings %u %u, "
               "connections %" PRIu64 " %" PRIu64 ", grants %" PRIu64 " %" PRIu64
               ", pool bytes %" PRIu64 " %" PRIu64 ", quarantined %" PRIu64 " %" PRIu64 "\n",
               i, s->lives, a->heap, b->heap, a->fds, b->fds, a->threads, b->threads, a->maps,
               b->maps, a->conns, b->conns, a->grants, b->grants, a->pool_bytes, b->pool_bytes,
               a->quarantined, b->quarantined);
        printf("    heap before the library was opened %" PRIu64 ", after it was closed %" PRIu64
               "\n",
               s->bare, s->closed);
    }
}

static void print_statuses(void)
{
    printf("what the library said:\n");
    for (unsigned op = 0; op < CHAOS_N_JUDGED; op++) {
        printf("  %-26s", chaos_judged_name(op));
        for (int code = 0; code < CHAOS_STATUSES; code++) {
            uint64_t n = 0;
            for (unsigned i = 0; i < master.world->n; i++)
                n += master.world->slot[i].statuses[op][code];
            if (n > 0)
                printf(" %s %" PRIu64, lien_errname(-code), n);
        }
        printf("\n");
    }
}

// The exit status.
static int report(void)
{
    static const char *const op_texts[] = {
#define X(name, text) text,
        CHAOS_OPS(X)
#undef X
    };
    static const char *const fault_texts[] = {
#define X(name, text) text,
        CHAOS_FAULTS(X)
#undef X
    };
    uint64_t bytes = 0, parked = 0;
    unsigned wrong = 0, missing = 0, forgotten = 0;
    for (unsigned i = 0; i < CHAOS_N_OPS; i++)
        printf("%12" PRIu64 "  %s\n", total(i), op_texts[i]);
    printf("faults:\n");
    for (unsigned i = 0; i < CHAOS_N_FAULTS; i++) {
        printf("%12" PRIu64 "  %s\n", faults_of(i), fault_texts[i]);
        missing += faults_of(i) == 0;
    }
    for (unsigned i = 0; i < master.world->n; i++) {
        bytes += master.world->slot[i].bytes;
        parked += master.world->slot[i].parked_bytes;
        wrong += master.world->slot[i].wrong;
        forgotten += master.world->slot[i].end.forgotten;
    }
    print_statuses();
    print_levels();
    printf("%u sockets that libfabric accepted on a fabric port and forgot\n", forgotten);
    printf("%" PRIu64 " bytes compared, %" PRIu64 " of them in memory that had been given back; "
           "corruptions %u, leaks %u, wrong answers %u, crashes %u, hangs %u\n",
           bytes, parked, corruptions(), leaks(), wrong, master.crashes, master.hangs);
    if (master.expect_corruption)
        return corruptions() > 0 ? 0 : 1;
    if (master.expect_leak) // and nothing else
        return leaks() > 0 && !corruptions() && !wrong && !master.crashes && !master.hangs ? 0 : 1;
    const bool idle = !total(CHAOS_CALLS) || !total(CHAOS_SERVED) || !total(CHAOS_MESSAGES) ||
                      !total(CHAOS_READS) || !total(CHAOS_GRANTS);
    if (idle || missing)
        printf("not everything was tried: %s\n", idle ? "operations" : "faults");
    return corruptions() || leaks() || wrong || master.crashes || master.hangs || idle || missing;
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: chaos [--seconds N | --minutes N] [--seed S] [--workers 2..8] "
                    "[--expect-corruption | --expect-leak]\n");
    exit(2);
}

static uint64_t number(const char *text, uint64_t min, uint64_t max)
{
    char *end = NULL;
    uint64_t n = text ? strtoull(text, &end, 10) : 0;
    if (!text || end == text || *end || n < min || n > max)
        usage();
    return n;
}

static void parse(int argc, char **argv, uint64_t *seed, unsigned *n)
{
    for (int i = 1; i < argc; i++) {
        const char *value = argv[i + 1]; // NULL ends argv
        if (strcmp(argv[i], "--expect-corruption") == 0) {
            master.expect_corruption = true;
            continue;
        }
        if (strcmp(argv[i], "--expect-leak") == 0) {
            master.expect_leak = true;
            continue;
        }
        if (strcmp(argv[i], "--seconds") == 0)
            master.seconds = (unsigned)number(value, 1, 1000000);
        else if (strcmp(argv[i], "--minutes") == 0)
            master.seconds = 60 * (unsigned)number(value, 1, 10000);
        else if (strcmp(argv[i], "--seed") == 0)
            *seed = number(value, 0, UINT64_MAX);
        else if (strcmp(argv[i], "--workers") == 0)
            *n = (unsigned)number(value, 2, CHAOS_WORKERS_MAX);
        else
            usage();
        i++;
    }
}

// malloc's caches of each thread count as given out; they can be turned off only before a program begins.
static void without_thread_caches(char **argv)
{
    static const char *const name = "GLIBC_TUNABLES", *const value = "glibc.malloc.tcache_count=0";
    const char *is = getenv(name);
    if (is && strcmp(is, value) == 0)
        return;
    setenv(name, value, 1);
    execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    exit(1);
}

int main(int argc, char **argv)
{
    without_thread_caches(argv);
    uint64_t seed = (uint64_t)getpid() ^ chaos_ms();
    unsigned n = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    parse(argc, argv, &seed, &n);
    chaos_seed(seed);
    n = n ? n : 2 + chaos_below(CHAOS_WORKERS_MAX - 1);
    master.world = mmap(NULL, sizeof *master.world, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (master.world == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    master.world->seed = seed;
    master.world->n = n;
    master.world->fabric_base = 12000 +
                                (unsigned)getpid() % 300 * 64; // below what the system gives
    printf("seed %" PRIu64 ", %u workers, %u s\n", seed, n, master.seconds);
    for (unsigned i = 0; i < n; i++)
        start(i);
    const uint64_t begin = chaos_ms();
    run();
    printf("ran for %" PRIu64 " ms\n", chaos_ms() - begin);
    if (!master.expect_corruption)
        finish();
    end_all();
    return report();
}

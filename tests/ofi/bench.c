// SPDX-License-Identifier: Apache-2.0
//
// See bench.h. One thread, no lock, but for the log, which provider threads also write.

#include "tests/ofi/bench.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const struct lieni_provider *bench_provider = &lieni_provider_tcp;
const char *bench_host = "127.0.0.1";
const char *bench_nic;

struct bench_log bench_log;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void say(void *self, lien_level level, int code, const char *text)
{
    (void)self;
    pthread_mutex_lock(&log_lock);
    bench_log.lines++;
    bench_log.code = code;
    snprintf(bench_log.text, sizeof bench_log.text, "%s", text);
    if (getenv("BENCH_VERBOSE"))
        fprintf(stderr, "%d: log %d: %s (%s)\n", (int)getpid(), (int)level, text,
                lien_errname(code));
    pthread_mutex_unlock(&log_lock);
}

struct lieni_report bench_report(void)
{
    return (struct lieni_report){.self = NULL, .say = say};
}

static uint64_t now(void *self)
{
    (void)self;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void random_bytes(void *self, void *buf, size_t len)
{
    (void)self;
    CHECK(getrandom(buf, len, 0) == (ssize_t)len);
}

const struct lieni_env *bench_env(void)
{
    static const struct lieni_env env = {.now = now, .random = random_bytes};
    return &env;
}

uint64_t bench_ms(void)
{
    return now(NULL) / 1000000;
}

double bench_cpu(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

void bench_sleep(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

void side_open(struct side *side)
{
    memset(side, 0, sizeof *side);
    struct lieni_prov_args args = {.env = bench_env(), .report = bench_report()};
    IS(bench_provider->open(&args, &side->prov), 0);
    IS(bench_provider->domain_open(side->prov, bench_nic, &side->domain), 0);
}

void side_close(struct side *side)
{
    enum lieni_proof proof;
    IS(bench_provider->domain_close(side->domain, &proof), 0);
    bench_provider->close(side->prov);
}

struct lieni_ep_args end_args(struct end *end, uint16_t port, uint8_t send, uint8_t expect)
{
    struct lieni_ep_args args = {.user = end, .host = bench_host, .port = port, .posts_max = 128};
    memset(args.send_data, send, sizeof args.send_data);
    memset(args.expect_data, expect, sizeof args.expect_data);
    return args;
}

void end_listen(struct side *side, struct end *end, const struct lieni_ep_args *args,
                uint16_t *port)
{
    memset(end, 0, sizeof *end);
    end->side = side;
    IS(bench_provider->listen(side->domain, args, &end->ep, port), 0);
    CHECK(*port != 0);
}

void end_connect(struct side *side, struct end *end, const struct lieni_ep_args *args)
{
    memset(end, 0, sizeof *end);
    end->side = side;
    IS(bench_provider->connect(side->domain, args, &end->ep), 0);
}

static void heard_entry(struct end *end, const struct lieni_cqe *cqe)
{
    end->entries++;
    if (cqe->context == 0) {
        end->null_context++;
        return;
    }
    CHECK(end->up == 1); // entries follow only after UP
    CHECK(cqe->context < CONTEXTS);
    end->seen[cqe->context]++;
    end->entry_status[cqe->context] = cqe->status;
    end->len[cqe->context] = cqe->len;
    if (cqe->status == 0)
        end->good++;
}

static void heard(const struct lieni_event *event)
{
    struct end *end = event->user;
    CHECK(end->ep); // nothing is heard of a destroyed endpoint
    switch (event->kind) {
    case LIENI_EV_UP:
        end->up++;
        break;
    case LIENI_EV_FAILED:
        end->failed++;
        end->status = event->status;
        break;
    case LIENI_EV_DOWN:
        end->down++;
        end->status = event->status;
        break;
    case LIENI_EV_ENTRY:
        heard_entry(end, &event->cqe);
        break;
    }
}

unsigned pump_once(struct side *side)
{
    struct lieni_event events[24];
    unsigned n = bench_provider->poll(side->prov, events, 24);
    CHECK(n <= 24);
    for (unsigned i = 0; i < n; i++)
        heard(&events[i]);
    return n;
}

bool pump(struct side *a, struct side *b, bool (*done)(void *arg), void *arg, unsigned ms)
{
    uint64_t end = bench_ms() + ms;
    for (;;) {
        unsigned n = pump_once(a);
        if (b)
            n += pump_once(b);
        if (done && done(arg))
            return true;
        uint64_t at = bench_ms();
        if (at >= end)
            return false;
        if (n > 0 || bench_provider->arm(a->prov) != 0 || (b && bench_provider->arm(b->prov) != 0))
            continue;
        struct pollfd fds[2] = {{.fd = bench_provider->fd(a->prov), .events = POLLIN},
                                {.fd = b ? bench_provider->fd(b->prov) : -1, .events = POLLIN}};
        if (poll(fds, 2, (int)(end - at)) > 0)
            a->wakes++;
    }
}

static bool both_up(void *arg)
{
    struct end **ends = arg;
    return ends[0]->up && ends[1]->up;
}

void pair(struct side *a, struct end *server, struct side *b, struct end *client)
{
    uint16_t port;
    struct lieni_ep_args args = end_args(server, 0, 1, 2);
    end_listen(a, server, &args, &port);
    args = end_args(client, port, 2, 1);
    end_connect(b, client, &args);
    struct end *ends[2] = {server, client};
    CHECK(pump(a, b, both_up, ends, 5000));
}

void end_close(struct end *end, uint64_t *late)
{
    enum lieni_proof proof = LIENI_UNKNOWN;
    uint64_t count = 0;
    bench_provider->ep_shutdown(end->ep);
    int code = bench_provider->ep_destroy(end->ep, &proof, &count);
    for (unsigned i = 0; i < 2000 && code == LIEN_EBUSY; i++) {
        bench_sleep(1);
        code = bench_provider->ep_destroy(end->ep, &proof, &count);
    }
    IS(code, 0);
    IS(proof, LIENI_PROVEN);
    end->ep = NULL;
    if (late)
        *late = count;
}

uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 2654435761u >> 13 ^ i);
}

// -- A process to read from --------------------------------------------------------------------------------------------------------

static bool stopped(void *arg)
{
    struct end *end = arg;
    return end->down || end->failed;
}

static void serve(int out)
{
    struct side side;
    struct lieni_mr *mr;
    struct lieni_mr_info info;
    side_open(&side);
    uint8_t *memory = mmap(NULL, TARGET_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                           -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t i = 0; i < TARGET_BYTES; i++)
        memory[i] = pattern(i);
    IS(bench_provider->mr_reg(side.domain, memory, TARGET_BYTES, LIENI_ACCESS_REMOTE, &mr, &info),
       0);
    for (;;) {
        struct target said = {.key = info.key, .base = info.base};
        static struct end end;
        struct lieni_ep_args args = end_args(&end, 0, 1, 2);
        end_listen(&side, &end, &args, &said.port);
        if (write(out, &said, sizeof said) != sizeof said)
            _exit(0);
        while (!pump(&side, NULL, stopped, &end, 1000))
            if (getppid() == 1)
                _exit(0);
        end_close(&end, NULL);
    }
}

void target_start(struct target *target)
{
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // also when the parent fails while this is stopped
        signal(SIGPIPE, SIG_IGN);
        close(pipes[0]);
        serve(pipes[1]);
        _exit(0);
    }
    close(pipes[1]);
    target->pid = pid;
    target->in = pipes[0];
    target_next(target);
}

void target_next(struct target *target)
{
    struct target said;
    CHECK(read(target->in, &said, sizeof said) == sizeof said);
    target->port = said.port;
    target->key = said.key;
    target->base = said.base;
}

void target_kill(struct target *target)
{
    kill(target->pid, SIGKILL);
    waitpid(target->pid, NULL, 0);
    close(target->in);
}

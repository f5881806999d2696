// SPDX-License-Identifier: Apache-2.0
//
// Bad input to the functions without an object, and to those of a ctx.

#include "tests/contract/contract.h"

#include <limits.h>
#include <signal.h>

static void count_option(const lien_option_info *option, void *arg)
{
    CHECK(option->size == sizeof *option && option->key[0] && option->value);
    ++*(unsigned *)arg;
}

static void count_candidate(const lien_candidate_info *candidate, void *arg)
{
    CHECK(candidate->size == sizeof *candidate && candidate->provider[0]);
    *(unsigned *)arg += candidate->chosen;
}

static void no_line(const lien_log_line *line, void *arg)
{
    (void)line;
    (void)arg;
}

static void diagnosis(void)
{
    static const char *const bad[] = {"no_such_key=1", NULL};
    static const char *const none[] = {"provider=no_such_provider", NULL};
    static const char *const network[] = {"subnet=10.0.0.0/33", NULL};
    unsigned n = 0;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.log = no_line;
    REFUSES(LIEN_EINVAL, lien_options_each, &opts, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_candidates_each, &opts, NULL, NULL, NULL);
    BAD_SIZES(lien_ctx_opts, lien_ctx_opts_init, o,
              REFUSES(refusal, lien_options_each, o, count_option, &n));
    BAD_SIZES(lien_ctx_opts, lien_ctx_opts_init, o,
              REFUSES(refusal, lien_candidates_each, o, NULL, count_candidate, &n));
    opts.settings = bad;
    REFUSES(LIEN_EOPTION, lien_options_each, &opts, count_option, &n);
    REFUSES(LIEN_EOPTION, lien_candidates_each, &opts, NULL, count_candidate, &n);
    opts.settings = network;
    REFUSES(LIEN_EOPTION, lien_candidates_each, &opts, NULL, count_candidate, &n);
    opts.settings = none;
    REFUSES(LIEN_ENOPROVIDER, lien_candidates_each, &opts, NULL, count_candidate, &n);
    opts.settings = NULL;
    REFUSES(LIEN_EADDR, lien_candidates_each, &opts, "[::1", count_candidate, &n);
    CHECK(n == 0);
    ANSWERS(0, lien_candidates_each, &opts, "127.0.0.1:7", count_candidate, &n);
    CHECK(n == 1);
    ANSWERS(0, lien_options_each, &opts, count_option, &n);
    CHECK(n > 30);
}

void contract_library(void)
{
    static const int strange[] = {1, INT_MAX, INT_MIN, -99, -1000};
    contract_note("lien_version");
    CHECK(lien_version() && strchr(lien_version(), '.'));
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
        contract_note("lien_strerror");
        contract_note("lien_errname");
        CHECK(strcmp(lien_strerror(strange[i]), "unknown error") == 0);
        CHECK(strcmp(lien_errname(strange[i]), "LIEN_EUNKNOWN") == 0);
        ANSWERS(LIEN_SCOPE_BUG, lien_errscope, strange[i]);
    }
    contract_note("lien_path_name");
    CHECK(strcmp(lien_path_name(LIEN_PATH_KERNEL), "kernel") == 0);
    CHECK(strcmp(lien_path_name((lien_path)99), "unknown") == 0);
    diagnosis();
    CALLS(lien_ctx_opts_init, NULL);
    CALLS(lien_pool_opts_init, NULL);
    CALLS(lien_mem_opts_init, NULL);
    CALLS(lien_conn_opts_init, NULL);
    CALLS(lien_listener_opts_init, NULL);
    CALLS(lien_send_opts_init, NULL);
    CALLS(lien_grant_opts_init, NULL);
    CALLS(lien_read_opts_init, NULL);
}

// Each setting is refused before anything is started.
static void settings(void)
{
    static const char *const bad[] = {
        "provider", // no value
        "no_such_key=1",
        "heartbeat_ms=",
        "heartbeat_ms=-1",
        "heartbeat_ms=99999999999999999999",
        "dead_ms=1",
        "read_piece=0",
        "=1",
        "",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *const list[] = {bad[i], NULL};
        lien_ctx *ctx = UNTOUCHED;
        lien_ctx_opts opts;
        lien_ctx_opts_init(&opts);
        opts.settings = list;
        opts.log = NULL;
        REFUSES(LIEN_EOPTION, lien_ctx_open, &opts, &ctx);
        CHECK(ctx == UNTOUCHED);
    }
}

static void opening(void)
{
    lien_ctx *ctx = UNTOUCHED;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    REFUSES(LIEN_EINVAL, lien_ctx_open, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_ctx_open, &opts, NULL);
    BAD_SIZES(lien_ctx_opts, lien_ctx_opts_init, o, REFUSES(refusal, lien_ctx_open, o, &ctx));
    static const uint8_t bytes[65] = {1};
    const lien_psk bad_keys[] = {{NULL, 32}, {bytes, 0}, {bytes, 15}, {bytes, 65}};
    for (size_t i = 0; i < sizeof bad_keys / sizeof bad_keys[0]; i++) {
        opts.psks = &bad_keys[i];
        opts.n_psks = 1;
        REFUSES(LIEN_EOPTION, lien_ctx_open, &opts, &ctx);
    }
    opts.psks = NULL; // but one is said to be there
    REFUSES(LIEN_EOPTION, lien_ctx_open, &opts, &ctx);
    opts.n_psks = 0;
    for (unsigned bit = 2; bit < 32; bit++) {
        opts.flags = 1u << bit;
        REFUSES(LIEN_EINVAL, lien_ctx_open, &opts, &ctx);
    }
    CHECK(ctx == UNTOUCHED);
    settings();
    const char *const none[] = {"provider=no_such_provider", NULL};
    lien_ctx_opts_init(&opts);
    opts.settings = none;
    REFUSES(LIEN_ENOPROVIDER, lien_ctx_open, &opts, &ctx);
    // libfabric's own variable: asked for alone, and against the option.
    const char *const tcp[] = {"provider=tcp", NULL};
    CHECK(setenv("FI_PROVIDER", "udp", 1) == 0);
    REFUSES(LIEN_ENOPROVIDER, lien_ctx_open, NULL, &ctx);
    opts.settings = tcp;
    REFUSES(LIEN_EOPTION, lien_ctx_open, &opts, &ctx);
    CHECK(unsetenv("FI_PROVIDER") == 0);
    CHECK(ctx == UNTOUCHED);
}

static void stats(void)
{
    struct {
        lien_ctx_stats stats;
        unsigned char more[16];
    } padded;
    REFUSES(LIEN_EINVAL, lien_ctx_stats_get, NULL, &padded.stats);
    REFUSES(LIEN_EINVAL, lien_ctx_stats_get, w.a, NULL);
    for (size_t size = 0; size < sizeof(size_t); size++) {
        memset(&padded, 0x5e, sizeof padded);
        padded.stats.size = size;
        REFUSES(LIEN_EINVAL, lien_ctx_stats_get, w.a, &padded.stats);
        CHECK(padded.stats.conns_total == 0x5e5e5e5e5e5e5e5eu);
    }
    // Smaller and larger ones are filled as far as both sides know them, and no further.
    memset(&padded, 0x5e, sizeof padded);
    padded.stats.size = offsetof(lien_ctx_stats, conns_total);
    ANSWERS(0, lien_ctx_stats_get, w.a, &padded.stats);
    CHECK(padded.stats.conns_open == 2 && padded.stats.conns_total == 0x5e5e5e5e5e5e5e5eu);
    padded.stats.size = sizeof padded;
    ANSWERS(0, lien_ctx_stats_get, w.a, &padded.stats);
    CHECK(padded.stats.conns_total == 2 && padded.more[0] == 0x5e && padded.more[15] == 0x5e);
}

struct inside {
    lien_ctx *ctx;
    int close, progress;
    bool over;
};

// From a callback of c: what could never return says so.
static void in_callback(void *arg, int status, lien_buf *buf)
{
    struct inside *inside = arg;
    lien_ctx *same = inside->ctx;
    CHECK(status == 0);
    inside->close = lien_ctx_close(&same);
    CHECK(same == inside->ctx);
    inside->progress = lien_ctx_progress(inside->ctx);
    lien_buf_free(&buf);
    inside->over = true;
}

static bool is_over(void *arg)
{
    return ((struct inside *)arg)->over;
}

void contract_ctx(void)
{
    int fd = 77;
    char *text = UNTOUCHED;
    lien_ctx *none = NULL;
    opening();
    stats();
    REFUSES(LIEN_EINVAL, lien_ctx_close, NULL);
    REFUSES(LIEN_EINVAL, lien_ctx_close, &none);
    REFUSES(LIEN_EINVAL, lien_ctx_fd, NULL, &fd);
    REFUSES(LIEN_EINVAL, lien_ctx_fd, w.c, NULL);
    REFUSES(LIEN_ESTATE, lien_ctx_fd, w.a, &fd);
    REFUSES(LIEN_EINVAL, lien_ctx_arm, NULL);
    REFUSES(LIEN_ESTATE, lien_ctx_arm, w.a);
    REFUSES(LIEN_EINVAL, lien_ctx_progress, NULL);
    REFUSES(LIEN_ESTATE, lien_ctx_progress, w.a);
    REFUSES(LIEN_EINVAL, lien_ctx_metrics, NULL, &text);
    REFUSES(LIEN_EINVAL, lien_ctx_metrics, w.a, NULL);
    CHECK(fd == 77 && text == UNTOUCHED);
    struct inside inside = {.ctx = w.c};
    ANSWERS(0, lien_pool_alloc_start, w.pool_c, 1, in_callback, &inside, NULL);
    contract_drive_c(is_over, &inside);
    CHECK(inside.close == LIEN_EDEADLK && inside.progress == LIEN_EDEADLK);
}

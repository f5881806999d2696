// SPDX-License-Identifier: Apache-2.0
//
// Loading of options. Everything about one option comes from its row of LIENI_OPTIONS; what depends
// on two (fabric_ports' numbers, provider against FI_PROVIDER) is checked at the end. Owns nothing
// but constant tables, takes no lock, runs on the thread that opens the ctx.

#include "core/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum type {
    UINT,
    FLAG,
    TEXT,
    LEVEL
};

struct option {
    const char *key;
    enum type type;
    const char *initial;
    uint64_t min, max;
    const char *unit;
    size_t offset; // of its field
};

static const struct option table[] = {
#define ROW(key, type, initial, min, max, unit, text)                                              \
    {#key, type, initial, min, max, unit, offsetof(struct lieni_options, key)},
    LIENI_OPTIONS(ROW)
#undef ROW
};
#define N_OPTIONS (sizeof table / sizeof table[0])

// A TEXT field has room for its maximum; the longest key fits the buffers below.
#define ROOM(key, type, initial, min, max, unit, text)                                             \
    _Static_assert(type != TEXT || (max) < sizeof((struct lieni_options *)0)->key, #key);          \
    _Static_assert(sizeof "LIEN_" #key <= 48, #key);
LIENI_OPTIONS(ROOM)
#undef ROOM

static const char *const reserved[] = {
#define PREFIX(text) text,
    LIENI_RESERVED_PREFIXES(PREFIX)
#undef PREFIX
};

// Providers that do not come from libfabric, about which FI_PROVIDER says nothing.
static const char *const not_libfabric[] = {"stream", "ws", "wss", "h2c", "h2", "ucx", "sim"};

// One value on its way into its field, and how to call it in the log.
struct source {
    const struct option *option;
    const char *name; // "option connect_ms" or "LIEN_CONNECT_MS"
    const char *value;
    struct lieni_log *log;
};

static int refuse(const struct source *from, const char *why)
{
    lieni_log_say(from->log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION, "%s: '%s' %s", from->name,
                  from->value, why);
    return LIEN_EOPTION;
}

// -- Letters: ASCII only, whatever the host's locale makes of i and I ----------------------------------------------------------------

static char lower(char c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

static char upper(char c)
{
    return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
}

// `word` is the `len` bytes at `text`, whatever the case of letters.
static bool same_word(const char *text, size_t len, const char *word)
{
    if (strlen(word) != len) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (lower(text[i]) != lower(word[i])) {
            return false;
        }
    }
    return true;
}

// -- Values ------------------------------------------------------------------------------------------------------------------------

enum number {
    NUMBER,
    NOT_A_NUMBER,
    TOO_BIG
};

// Decimal digits, and with `sizes` one of K, M, G; nothing else, not even a sign or a blank.
static enum number parse_number(const char *text, bool sizes, uint64_t *number)
{
    uint64_t n = 0;
    const char *at = text;
    bool big = false;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        big = big || n > (UINT64_MAX - digit) / 10;
        n = n * 10 + digit;
    }
    if (at == text) {
        return NOT_A_NUMBER;
    }
    if (sizes && *at) {
        static const char suffixes[] = "KMG";
        const char *suffix = strchr(suffixes, upper(*at));
        unsigned shift = suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;
        big = big || n > UINT64_MAX >> shift;
        n <<= shift;
        at += suffix ? 1 : 0;
    }
    *number = n;
    return *at ? NOT_A_NUMBER : big ? TOO_BIG : NUMBER;
}

static int set_uint(const struct source *from, uint64_t *field)
{
    const struct option *o = from->option;
    bool sizes = strcmp(o->unit, "bytes") == 0;
    char why[160];
    uint64_t n = 0;
    switch (parse_number(from->value, sizes, &n)) {
    case NOT_A_NUMBER:
        snprintf(why, sizeof why, "is not a number (%" PRIu64 " to %" PRIu64 " %s%s)", o->min,
                 o->max, o->unit, sizes ? ", suffixes K, M, G" : "");
        return refuse(from, why);
    case TOO_BIG:
        n = UINT64_MAX;
        break;
    case NUMBER:
        break;
    }
    if (n < o->min || n > o->max) {
        bool below = n < o->min;
        snprintf(why, sizeof why, "is %s the limit, %" PRIu64 " %s", below ? "below" : "above",
                 below ? o->min : o->max, o->unit);
        return refuse(from, why);
    }
    *field = n;
    return 0;
}

static int set_flag(const struct source *from, bool *field)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (same_word(from->value, strlen(from->value), words[i])) {
            *field = i % 2 != 0;
            return 0;
        }
    }
    return refuse(from, "is none of 0, 1, no, yes, off, on");
}

static int set_text(const struct source *from, char *field)
{
    const struct option *o = from->option;
    size_t len = strlen(from->value);
    char why[96];
    if (len > 0 && (len < o->min || len > o->max)) {
        snprintf(why, sizeof why, "has %zu bytes, the limit is %" PRIu64 " to %" PRIu64, len,
                 o->min, o->max);
        return refuse(from, why);
    }
    for (size_t i = 0; i < len; i++) {
        if (from->value[i] <= ' ' || from->value[i] > '~') {
            snprintf(why, sizeof why, "has a blank or unprintable byte at %zu", i);
            return refuse(from, why);
        }
    }
    memcpy(field, from->value, len + 1);
    return 0;
}

static int set_level(const struct source *from, lien_level *field)
{
    static const struct {
        const char *word;
        lien_level level;
    } levels[] = {{"error", LIEN_LOG_ERROR},
                  {"warn", LIEN_LOG_WARN},
                  {"info", LIEN_LOG_INFO},
                  {"debug", LIEN_LOG_DEBUG}};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (same_word(from->value, strlen(from->value), levels[i].word)) {
            *field = levels[i].level;
            return 0;
        }
    }
    return refuse(from, "is none of error, warn, info, debug");
}

static int set_field(const struct source *from, struct lieni_options *options)
{
    void *field = (char *)options + from->option->offset;
    switch (from->option->type) {
    case UINT:
        return set_uint(from, field);
    case FLAG:
        return set_flag(from, field);
    case TEXT:
        return set_text(from, field);
    case LEVEL:
        return set_level(from, field);
    }
    return LIEN_EOPTION;
}

// -- Names -------------------------------------------------------------------------------------------------------------------------

// The variable of an option: LIEN_ and the key in capitals.
static void variable_of(const struct option *o, char name[48])
{
    size_t len = (size_t)snprintf(name, 48, "LIEN_%s", o->key);
    for (size_t i = 0; i < len; i++) {
        name[i] = upper(name[i]);
    }
}

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, whatever the
// case of letters. Only the first 63 bytes count: no key is longer.
static unsigned distance(const char *a, size_t a_len, const char *b)
{
    enum {
        MOST = 64
    };
    unsigned d[MOST][MOST];
    size_t n = a_len < MOST ? a_len : MOST - 1, m = strnlen(b, MOST - 1);
    for (size_t i = 0; i <= n; i++) {
        for (size_t j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = (unsigned)(i + j);
                continue;
            }
            char x = lower(a[i - 1]), y = lower(b[j - 1]);
            unsigned best = d[i - 1][j - 1] + (x != y);
            best = d[i - 1][j] + 1 < best ? d[i - 1][j] + 1 : best;
            best = d[i][j - 1] + 1 < best ? d[i][j - 1] + 1 : best;
            if (i > 1 && j > 1 && x == lower(b[j - 2]) && y == lower(a[i - 2]) &&
                d[i - 2][j - 2] + 1 < best) {
                best = d[i - 2][j - 2] + 1;
            }
            d[i][j] = best;
        }
    }
    return d[n][m];
}

static const struct option *nearest(const char *key, size_t len)
{
    const struct option *best = &table[0];
    unsigned least = UINT32_MAX;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        unsigned d = distance(key, len, table[i].key);
        if (d < least) {
            least = d;
            best = &table[i];
        }
    }
    return best;
}

static const struct option *find_key(const char *key, size_t len)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strlen(table[i].key) == len && memcmp(table[i].key, key, len) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

static const struct option *find_variable(const char *variable, size_t len)
{
    for (size_t i = 0; i < N_OPTIONS; i++) {
        char name[48];
        variable_of(&table[i], name);
        if (strlen(name) == len && memcmp(name, variable, len) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

static bool is_reserved(const char *variable)
{
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        if (strncmp(variable, reserved[i], strlen(reserved[i])) == 0) {
            return true;
        }
    }
    return false;
}

// -- Sources -----------------------------------------------------------------------------------------------------------------------

static int take_variable(struct lieni_options *options, const char *entry, struct lieni_log *log)
{
    static const char prefix[] = "LIEN_";
    const size_t prefix_len = sizeof prefix - 1;
    const char *equals = strchr(entry, '=');
    if (!equals || strncmp(entry, prefix, prefix_len) != 0 || is_reserved(entry)) {
        return 0;
    }
    char name[48];
    size_t len = (size_t)(equals - entry);
    const struct option *o = find_variable(entry, len);
    if (!o) {
        variable_of(nearest(entry + prefix_len, len < prefix_len ? 0 : len - prefix_len), name);
        lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION,
                      "unknown environment variable %.*s (value '%s'), the nearest known one is %s",
                      (int)(len < 200 ? len : 200), entry, equals + 1, name);
        return LIEN_EOPTION;
    }
    variable_of(o, name);
    struct source from = {.option = o, .name = name, .value = equals + 1, .log = log};
    return set_field(&from, options);
}

static int take_setting(struct lieni_options *options, const char *setting, struct lieni_log *log)
{
    const char *equals = strchr(setting, '=');
    size_t len = equals ? (size_t)(equals - setting) : strlen(setting);
    const struct option *o = find_key(setting, len);
    if (!o) {
        lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION,
                      "unknown option '%.*s' (value '%s'), the nearest known one is '%s'",
                      (int)(len < 200 ? len : 200), setting, equals ? equals + 1 : "",
                      nearest(setting, len)->key);
        return LIEN_EOPTION;
    }
    char name[64];
    snprintf(name, sizeof name, "option %s", o->key);
    struct source from = {.option = o, .name = name, .value = equals ? equals + 1 : "", .log = log};
    return equals ? set_field(&from, options) : refuse(&from, "is missing: write key=value");
}

// -- What depends on more than one value -------------------------------------------------------------------------------------------

static int read_ports(struct lieni_options *options, struct lieni_log *log)
{
    options->fabric_port_lo = options->fabric_port_hi = 0;
    if (!options->fabric_ports[0]) {
        return 0;
    }
    char text[sizeof options->fabric_ports];
    memcpy(text, options->fabric_ports, sizeof text);
    char *dash = strchr(text, '-');
    uint64_t lo = 0, hi = 0;
    if (dash) {
        *dash = '\0';
    }
    if (!dash || parse_number(text, false, &lo) != NUMBER ||
        parse_number(dash + 1, false, &hi) != NUMBER || lo < 1 || lo > hi || hi > UINT16_MAX) {
        struct source from = {
            .name = "option fabric_ports", .value = options->fabric_ports, .log = log};
        return refuse(&from, "is not lo-hi, two ports from 1 to 65535 with lo not above hi");
    }
    options->fabric_port_lo = (uint16_t)lo;
    options->fabric_port_hi = (uint16_t)hi;
    return 0;
}

static int read_checksum(struct lieni_options *options, struct lieni_log *log)
{
    const char *rule = options->checksum;
    const size_t len = strlen(rule);
    options->checksum_require = same_word(rule, len, "require");
    options->checksum_always = options->checksum_require || same_word(rule, len, "always");
    if (options->checksum_always || len == 0 || same_word(rule, len, "asked")) {
        return 0;
    }
    const struct source from = {.name = "option checksum", .value = rule, .log = log};
    return refuse(&from, "is not asked, always or require");
}

bool lieni_fi_provider_allows(const char *fi_provider, const char *name)
{
    for (size_t i = 0; i < sizeof not_libfabric / sizeof not_libfabric[0]; i++) {
        if (same_word(name, strlen(name), not_libfabric[i])) {
            return true;
        }
    }
    if (!fi_provider || !*fi_provider) {
        return true;
    }
    bool except = *fi_provider == '^';
    const char *at = fi_provider + (except ? 1 : 0);
    bool listed = false, any = false;
    while (*at) {
        size_t len = strcspn(at, ",");
        any = any || len > 0;
        listed = listed || same_word(at, len, name);
        at += len + (at[len] ? 1 : 0);
    }
    return !any || listed != except;
}

static int check_provider(const struct lieni_options *options, const char *fi_provider,
                          struct lieni_log *log)
{
    if (!options->provider[0] || lieni_fi_provider_allows(fi_provider, options->provider)) {
        return 0;
    }
    lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION,
                  "provider '%s' (option provider or LIEN_PROVIDER) contradicts FI_PROVIDER='%s'",
                  options->provider, fi_provider);
    return LIEN_EOPTION;
}

static const char *value_of(char *const *environ_vars, const char *name)
{
    size_t len = strlen(name);
    for (; *environ_vars; environ_vars++) {
        if (strncmp(*environ_vars, name, len) == 0 && (*environ_vars)[len] == '=') {
            return *environ_vars + len + 1;
        }
    }
    return NULL;
}

int lieni_options_load(struct lieni_options *options, const char *const *settings,
                       char *const *environ_vars, struct lieni_log *log)
{
    static char *const no_variables[] = {NULL};
    char *const *variables = environ_vars ? environ_vars : environ ? environ : no_variables;
    struct lieni_options o = {0};
    bool wrong = false;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        struct source from = {
            .option = &table[i], .name = table[i].key, .value = table[i].initial, .log = log};
        wrong = set_field(&from, &o) || wrong;
    }
    for (char *const *v = variables; *v; v++) {
        wrong = take_variable(&o, *v, log) || wrong;
    }
    for (const char *const *s = settings; s && *s; s++) {
        wrong = take_setting(&o, *s, log) || wrong;
    }
    wrong = read_ports(&o, log) || wrong;
    wrong = read_checksum(&o, log) || wrong;
    wrong = check_provider(&o, value_of(variables, "FI_PROVIDER"), log) || wrong;
    if (wrong) {
        return LIEN_EOPTION;
    }
    *options = o;
    return 0;
}
